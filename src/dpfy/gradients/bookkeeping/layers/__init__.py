"""One rule per kind of layer: its forward pass, and how it yields per-record gradients.

Tests: tests/gradients/bookkeeping/layers/test_layers.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from dpfy.gradients.bookkeeping.layers.attention import attention
from dpfy.gradients.bookkeeping.layers.conv import convolution, transposed_convolution
from dpfy.gradients.bookkeeping.layers.embedding import embedding, embedding_bag
from dpfy.gradients.bookkeeping.layers.linear import linear
from dpfy.gradients.bookkeeping.layers.norms import group_norm, instance_norm, layer_norm, rms_norm
from dpfy.gradients.bookkeeping.layers.pointwise import prelu
from dpfy.gradients.bookkeeping.layers.recurrent import RECURRENT_PARAMETERS, recurrent

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Rule:
    """How modules with the forward pass of ``kind`` are computed.

    ``forward(module, recorder, layout, *inputs)`` computes the outputs and records contributions.
    """

    kind: type[nn.Module]
    forward: Forward
    parameters: frozenset[str] = frozenset({"weight", "bias"})


RULES = (
    Rule(nn.Linear, linear),
    *(Rule(kind, convolution) for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d)),
    *(
        Rule(kind, transposed_convolution)
        for kind in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    ),
    Rule(nn.Embedding, embedding),
    Rule(nn.EmbeddingBag, embedding_bag),
    Rule(nn.LayerNorm, layer_norm),
    Rule(nn.GroupNorm, group_norm),
    *(
        Rule(kind, instance_norm)
        for kind in (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
    ),
    Rule(nn.RMSNorm, rms_norm),
    Rule(nn.PReLU, prelu),
    Rule(
        nn.MultiheadAttention,
        attention,
        frozenset(
            {
                "in_proj_weight",
                "q_proj_weight",
                "k_proj_weight",
                "v_proj_weight",
                "in_proj_bias",
                "bias_k",
                "bias_v",
                "out_proj.weight",
                "out_proj.bias",
            }
        ),
    ),
    *(Rule(kind, recurrent, RECURRENT_PARAMETERS) for kind in (nn.LSTM, nn.GRU, nn.RNN)),
)
"""The layers that have a rule; any other module is vectorised by itself."""


def rule_for(module: nn.Module) -> Rule | None:
    """Return the rule for a module that computes just what its kind computes, or None.

    The module must have no other parameters than its kind, and no parametrization.
    """
    if nn.utils.parametrize.is_parametrized(module):
        return None
    for rule in RULES:
        same = isinstance(module, rule.kind) and type(module).forward is rule.kind.forward
        known = rule.parameters.issuperset(name for name, _ in module.named_parameters())
        if same and known and "forward" not in vars(module):
            return rule
    return None
