"""One rule per kind of layer: its forward pass, and how it yields per-record gradients.

Tests: tests/gradients/bookkeeping/layers/test_layers.py.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from dpfy.errors import InvalidArgument
from dpfy.gradients.bookkeeping.layers.attention import attention
from dpfy.gradients.bookkeeping.layers.conv import convolution, transposed_convolution
from dpfy.gradients.bookkeeping.layers.embedding import embedding, embedding_bag
from dpfy.gradients.bookkeeping.layers.linear import linear, transposed_linear
from dpfy.gradients.bookkeeping.layers.norms import (
    group_norm,
    instance_norm,
    layer_norm,
    layer_norm_of_t5,
    rms_norm,
    rms_norm_of_transformers,
)
from dpfy.gradients.bookkeeping.layers.pointwise import prelu
from dpfy.gradients.bookkeeping.layers.recurrent import RECURRENT_PARAMETERS, recurrent

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Rule:
    """How modules with the forward pass of ``kind`` are computed.

    ``kind`` is a class, or the qualified name of one whose package need not be installed.
    ``forward(module, recorder, layout, *inputs)`` computes the outputs and records contributions.
    """

    kind: type[nn.Module] | str
    forward: Forward
    parameters: frozenset[str] = frozenset({"weight", "bias"})


_BUILT_IN = (
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
    Rule("transformers.pytorch_utils.Conv1D", transposed_linear),
    *(
        Rule(
            f"transformers.models.{model.lower()}.modeling_{model.lower()}.{model}RMSNorm",
            rms_norm_of_transformers,
        )
        for model in ("Llama", "Mistral", "Mixtral", "Phi3", "Qwen2", "Qwen3")
    ),
    *(
        Rule(
            f"transformers.models.{model.lower()}.modeling_{model.lower()}.{model}LayerNorm",
            layer_norm_of_t5,
        )
        for model in ("T5", "MT5")
    ),
)
RULES: dict[type[nn.Module] | str, Rule] = {rule.kind: rule for rule in _BUILT_IN}
"""The layers that have a rule, by class or qualified name; any other module is vectorised."""


def register_layer_rule(
    kind: type[nn.Module] | str,
    forward: Forward,
    parameters: Iterable[str] = ("weight", "bias"),
) -> None:
    """Give a kind of layer a rule, by which the engines ``bookkeeping`` and ``ghost`` compute it.

    The rule serves modules whose ``forward`` is that of the kind, subclasses included, and that
    have no other parameters than those named. It is trusted no more than the rules of dpfy: before
    the first release, the probe compares clipped sums with those of one record at a time, and takes
    another engine if they differ. :func:`dpfy.testing.check_layer_rule` tells more.

    Args:
        kind: The class, or its qualified name (``"package.module.Class"``) where the package need
            not be imported.
        forward: A function ``forward(module, recorder, layout, *inputs)`` that returns what the
            module returns and records the contributions of every trained parameter.
        parameters: The names of the parameters that the rule knows.

    Raises:
        InvalidArgument: The kind is no class of modules and no qualified name, or has a rule.

    *Assumes*: the rule counts for each record only what depends on that record. It is given all
    records of a chunk at once, and synthetic records show only so much.
    """
    is_class = isinstance(kind, type) and issubclass(kind, nn.Module)
    if not is_class and not (isinstance(kind, str) and "." in kind):
        raise InvalidArgument(
            "Expected kind to be a subclass of torch.nn.Module or a qualified name such as "
            f"'package.module.Class'; got {kind!r}."
        )
    if not callable(forward):
        raise InvalidArgument(
            "Expected forward to be a function of module, recorder, layout and inputs; got "
            f"{forward!r}."
        )
    if kind in RULES:
        raise InvalidArgument(f"The kind of layer {kind!r} has a rule already.")
    RULES[kind] = Rule(kind, forward, frozenset(parameters))


def rule_for(module: nn.Module) -> Rule | None:
    """Return the rule for a module that computes just what its kind computes, or None.

    The module must have no other parameters than its kind, and no parametrization.
    """
    if nn.utils.parametrize.is_parametrized(module) or "forward" in vars(module):
        return None
    for kind in type(module).__mro__:
        rule = RULES.get(kind) or RULES.get(f"{kind.__module__}.{kind.__qualname__}")
        if rule is not None and type(module).forward is kind.forward:  # type: ignore[attr-defined]
            known = rule.parameters.issuperset(name for name, _ in module.named_parameters())
            return rule if known else None
    return None
