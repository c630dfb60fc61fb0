"""The table of components: what private training means for layers, optimizers and losses.

It has one row for each component, after N. Ponomareva et al., How to DP-fy ML, 2023, Table 5, and
further components of torch. The table covers what an object alone can tell; whether a model
isolates its examples is for the probe to find.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.loss import _Loss

from dpfy.data.vocabulary import LEAK, REMEDY, Vocabulary
from dpfy.models.batchnorm import FrozenBatchNorm, PrivateBatchNorm

Predicate = Callable[[Any], bool]


class Verdict(StrEnum):
    """What to do about a component; ``DEPENDS`` is on something that no program can see."""

    FINE = "fine"
    DEPENDS = "depends"
    CHANGE = "needs a change"
    IMPOSSIBLE = "impossible"

    @property
    def allows_training(self) -> bool:
        """Whether nothing has to be changed."""
        return self in (Verdict.FINE, Verdict.DEPENDS)


@dataclass(frozen=True)
class Component:
    """One row of the table.

    Args:
        name: The component.
        verdict: Whether it can be trained privately.
        why: The reason.
        remedy: What to do, if anything.
        applies: Whether an object is such a component.
        whole: Whether it is about the model as a whole and not about each of its parts.
    """

    name: str
    verdict: Verdict
    why: str
    remedy: str
    applies: Predicate
    whole: bool = False  # it is about the model as a whole and not about each of its parts


@dataclass(frozen=True)
class Finding:
    """A component, and the places where it was found."""

    component: Component
    places: tuple[str, ...]


def examine(model: nn.Module, *others: Any) -> list[Finding]:
    """Return every component of the table that a model and the other objects contain.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    >>> [(found.component.name, found.places) for found in examine(model)]
    [('batch normalization', ('1',))]
    """
    found = defaultdict(list)
    for place, part in _parts(model, others):
        for component in COMPONENTS:
            if (part is model or not component.whole) and component.applies(part):
                found[component].append(place)
    return [
        Finding(component, tuple(found[component]))
        for component in COMPONENTS
        if component in found
    ]


def _parts(model: nn.Module, others: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Return modules, what they hold as plain attributes, and the other objects, by name."""
    for name, module in model.named_modules():
        yield name or "model", module
        yield from (
            (f"{name}.{attribute}".lstrip("."), value) for attribute, value in vars(module).items()
        )
    yield from ((_name(other), other) for other in others)


def _name(part: Any) -> str:
    return part.__name__ if hasattr(part, "__name__") else type(part).__name__


def _is(*kinds: type) -> Predicate:
    return lambda part: isinstance(part, kinds)


def _derives_from(*names: str) -> Predicate:
    """Recognise classes by the names of their bases, which need not be installed or imported."""
    return lambda part: any(kind.__name__ in names for kind in type(part).__mro__)


def _comes_from(*packages: str) -> Predicate:
    return lambda part: any(
        f"{kind.__module__}.".startswith(f"{package}.")
        for kind in type(part).__mro__
        for package in packages
    )


def _is_called(*words: str) -> Predicate:
    """Recognise classes by a part of their name, where everybody writes their own."""
    return lambda part: any(word in _name(part).replace("_", "").lower() for word in words)


def _has_hook(name: str) -> Predicate:
    """Recognise modules by the class of a hook, by which torch used to reparametrise layers."""
    return lambda part: (
        isinstance(part, nn.Module)
        and any(type(hook).__name__ == name for hook in part._forward_pre_hooks.values())
    )


def _any(*predicates: Predicate) -> Predicate:
    return lambda part: any(predicate(part) for predicate in predicates)


def _all(*predicates: Predicate) -> Predicate:
    return lambda part: all(predicate(part) for predicate in predicates)


def _except(predicate: Predicate) -> Predicate:
    return lambda part: not predicate(part)


def _in_training(part: Any) -> bool:
    return part.training


def _tracks(part: Any) -> bool:
    return isinstance(part, _InstanceNorm) and part.track_running_stats


def _uses_the_batch(part: Any) -> bool:
    return isinstance(part, _BatchNorm) and (part.training or part.running_mean is None)


def _own_parameters(test: Predicate) -> Predicate:
    return lambda part: (
        isinstance(part, nn.Module) and any(test(p) for p in part.parameters(recurse=False))
    )


def _is_pruned(part: Any) -> bool:
    return isinstance(part, nn.Module) and any(
        hasattr(part, f"{name.removesuffix('_orig')}_mask")
        for name, _ in part.named_parameters(recurse=False)
        if name.endswith("_orig")
    )


def _is_compiled(part: Any) -> bool:
    return isinstance(part, nn.Module) and (
        hasattr(part, "_orig_mod") or part._compiled_call_impl is not None
    )


def _is_compiled_function(part: Any) -> bool:
    return not isinstance(part, nn.Module) and "_torchdynamo_orig_callable" in getattr(
        part, "__dict__", {}
    )


def _ties_weights(part: Any) -> bool:
    return len(list(part.named_parameters(remove_duplicate=False))) > len(
        list(part.named_parameters())
    )


_OPTIMIZER = _is(torch.optim.Optimizer)
_SECOND_ORDER = _all(
    _OPTIMIZER, _any(_is(torch.optim.LBFGS), _is_called("newton", "kfac", "hessian", "sophia"))
)
_SPARSE = _is(torch.optim.SparseAdam)
_TORCH_LOSS = _is(_Loss)
_PAIRS = _is(
    nn.CosineEmbeddingLoss,
    nn.MarginRankingLoss,
    nn.TripletMarginLoss,
    nn.TripletMarginWithDistanceLoss,
)
_REDUCED = _all(_TORCH_LOSS, lambda part: part.reduction != "none")
_ENERGY = _any(
    _derives_from("RBM"), _is_called("energybased", "contrastivedivergence", "boltzmann")
)
_CONTRASTIVE = _all(
    _except(_ENERGY),
    _any(
        _comes_from("pytorch_metric_learning"),
        _is_called(
            "contrastive",
            "infonce",
            "ntxent",
            "simclr",
            "cliploss",
            "supcon",
            "npairloss",
            "npairsloss",
            "barlow",
            "vicreg",
        ),
    ),
)
_SPECTRAL = _any(
    _all(_derives_from("_SpectralNorm"), _in_training),
    _all(_has_hook("SpectralNorm"), _in_training),
)
_OBSERVERS = _derives_from("ObserverBase", "FakeQuantizeBase")

FINE, DEPENDS, CHANGE, IMPOSSIBLE = Verdict
is_tokenizer = _any(
    _is_called("tokenizer", "sentencepiece", "wordpiece"),
    _comes_from("tokenizers", "sentencepiece"),
)
"""Whether an object is a tokenizer; many of them can be called, as a loss can."""

COMPONENTS = (
    # Normalisation
    Component(
        "batch normalization",
        CHANGE,
        "It normalises each record by its neighbours and keeps their mean and variance.",
        "dpfy.fix(model) puts GroupNorm there; batchnorm='private' releases the statistics with "
        "noise, 'public' takes those of public rows.",
        _uses_the_batch,
    ),
    Component(
        "batch normalization in eval mode",
        DEPENDS,
        "Its statistics are constants, and private if they were computed from private records.",
        "Keep it in eval mode, and make sure that the statistics come from public data.",
        _all(_is(_BatchNorm), _except(_uses_the_batch)),
    ),
    Component(
        "private batch normalization",
        FINE,
        "It normalises by what earlier steps released.",
        "Give the plan statistics=dpfy.batchnorm_statistics(model).",
        _is(PrivateBatchNorm),
    ),
    Component(
        "frozen batch normalization",
        DEPENDS,
        "Its statistics are constants.",
        "Make sure that they come from public rows; dpfy.models.fit_statistics(model, rows) renews "
        "them.",
        _all(_is(FrozenBatchNorm), _except(_is(PrivateBatchNorm))),
    ),
    Component(
        "instance normalization with running statistics",
        CHANGE,
        "It keeps a mean and variance of the records.",
        "dpfy.fix(model), or track_running_stats=False.",
        _tracks,
    ),
    Component(
        "layer, group, instance or RMS normalization",
        FINE,
        "Each record is normalised by itself.",
        "",
        _any(
            _is(nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm),
            _all(_is(_InstanceNorm), _except(_tracks)),
        ),
    ),
    Component(
        "weight normalization",
        FINE,
        "It is a function of the weights alone.",
        "",
        _any(_derives_from("_WeightNorm"), _has_hook("WeightNorm")),
    ),
    Component(
        "spectral normalization",
        CHANGE,
        "It rewrites its buffers whenever it is called, so that records change what later ones "
        "meet.",
        "Call .eval() on the layer for the releases. Between steps, .train() and a call on a "
        "synthetic row renew the norm, which costs no privacy.",
        _SPECTRAL,
    ),
    # Layers
    Component(
        "message passing on graphs",
        DEPENDS,
        "A node takes up the features of its neighbours, and a graph that is used again for "
        "predictions is private itself.",
        "Let a record be a whole graph of public size. Nodes or edges of one graph cannot be "
        "protected one by one.",
        _any(_derives_from("MessagePassing"), _comes_from("dgl")),
    ),
    Component(
        "embedding with max_norm",
        CHANGE,
        "It rewrites the rows that the records use.",
        "Make it with max_norm=None.",
        _all(_is(nn.Embedding, nn.EmbeddingBag), lambda part: part.max_norm is not None),
    ),
    Component(
        "sparse embedding",
        FINE,
        "The released gradient is dense: rows that no record used get noise too, as they must.",
        "sparse=True saves no memory here, and the optimizer must take dense gradients.",
        _all(_is(nn.Embedding, nn.EmbeddingBag), lambda part: part.sparse),
    ),
    Component(
        "recurrent layer",
        FINE,
        "Its state starts anew with every record.",
        "Do not carry the state from one batch to the next. If you pack sequences, do it in the "
        "model, from padded tensors and a field of lengths: these are read as numbers, so records "
        "are computed one by one.",
        _is(nn.RNNBase, nn.RNNCellBase),
    ),
    Component(
        "dropout",
        FINE,
        "Every record draws a mask of its own.",
        "",
        _is(nn.modules.dropout._DropoutNd),
    ),
    Component(
        "tied weights",
        FINE,
        "The norm of a record's gradient is taken over all uses of a weight together.",
        "",
        _ties_weights,
        whole=True,
    ),
    Component(
        "model of transformers",
        FINE,
        "It keeps records apart. Its own loss is a mean over the batch, and its own padding masks "
        "are dropped or made for all records together.",
        "Take private_loss and collate_to of dpfy.integrations.huggingface: one loss for each "
        "record, padded to a public length.",
        _derives_from("PreTrainedModel"),
    ),
    # Around the model
    Component(
        "compiled module",
        CHANGE,
        "Compiled code drops the parameters that are put in for each record.",
        "Pass the module that was compiled.",
        _is_compiled,
    ),
    Component(
        "compiled function",
        FINE,
        "It is run as the Python function that was compiled: gradients of single records need "
        "hooks, which compiled code is made anew for at every size of a batch.",
        "Leave torch.compile out.",
        _is_compiled_function,
    ),
    Component(
        "TorchScript",
        CHANGE,
        "Neither hooks nor the parameters of single records reach into it.",
        "Pass the Python module that was scripted or traced; scripting the trained model costs no "
        "privacy.",
        _is(torch.jit.ScriptModule),
    ),
    Component(
        "wrapper for several devices",
        CHANGE,
        "It averages raw gradients over the processes.",
        "Pass the module inside (.module); in a process group the run divides the work itself.",
        _derives_from("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"),
    ),
    Component(
        "backward hooks",
        CHANGE,
        "They see the gradients of all records, before clipping and noise.",
        "Remove them.",
        lambda part: (
            isinstance(part, nn.Module) and bool(part._backward_hooks or part._backward_pre_hooks)
        ),
    ),
    Component(
        "lazy layer",
        CHANGE,
        "Its parameters have no shape yet.",
        "Run one synthetic batch through the model first: model(example).",
        _own_parameters(nn.parameter.is_lazy),
    ),
    Component(
        "complex parameters",
        CHANGE,
        "Norms and noise are those of real numbers.",
        "Hold real and imaginary parts as two real parameters.",
        _own_parameters(lambda p: p.dtype.is_complex),
    ),
    Component(
        "frozen model",
        IMPOSSIBLE,
        "No parameter requires a gradient, so there is nothing to train.",
        "Call .requires_grad_() on what you want to train.",
        lambda part: not any(p.requires_grad for p in part.parameters()),
        whole=True,
    ),
    # Compression
    Component(
        "pruned layer",
        DEPENDS,
        "A mask that was made from released or public weights says nothing new.",
        "Make sure that no private record decided about the mask.",
        _is_pruned,
    ),
    Component(
        "quantized layer",
        IMPOSSIBLE,
        "It has no weights that could be trained.",
        "Train in floating point and quantize the released model: that costs no privacy.",
        _comes_from("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized"),
    ),
    Component(
        "quantization observer",
        CHANGE,
        "It keeps the range of the activations of all records.",
        "Train without, and quantize the released model with ranges of public rows.",
        _OBSERVERS,
    ),
    # Optimizers
    Component(
        "first-order optimizer",
        FINE,
        "Its state is a function of released gradients.",
        "",
        _all(_OPTIMIZER, _except(_any(_SECOND_ORDER, _SPARSE))),
    ),
    Component(
        "second-order optimizer",
        IMPOSSIBLE,
        "It asks for curvature, or for several gradients, of the same records, which nothing "
        "releases.",
        "Use SGD, Adam or another first-order optimizer.",
        _SECOND_ORDER,
    ),
    Component(
        "optimizer for sparse gradients",
        CHANGE,
        "Rows that no record used need noise as well, so released gradients are dense.",
        "Use torch.optim.Adam.",
        _SPARSE,
    ),
    Component(
        "optimizer that has taken steps",
        CHANGE,
        "Its state is a function of gradients that no release produced.",
        "Make a new one for the private run, unless those steps were on public data.",
        _all(_OPTIMIZER, lambda part: bool(part.state)),
    ),
    Component(
        "gradient scaler",
        CHANGE,
        "It skips a step if any gradient overflows, which a single record can bring about.",
        "Leave it out: a record that overflows counts as zero here.",
        _derives_from("GradScaler"),
    ),
    # Losses
    Component(
        "averaged loss",
        CHANGE,
        "An average has no gradient of one record to clip.",
        "Make it with reduction='none', so that it returns one loss for each record.",
        _REDUCED,
    ),
    Component(
        "loss of one record",
        FINE,
        "Each record has a loss of its own.",
        "",
        _all(_TORCH_LOSS, _except(_any(_REDUCED, _PAIRS, _is(nn.CTCLoss)))),
    ),
    Component(
        "connectionist temporal classification",
        FINE,
        "Each sequence has a loss of its own.",
        "Pad sequences and targets to a public length, and let their lengths be fields of the "
        "record: loss_fn(x, targets, input_lengths, target_lengths). Pass example_input= with "
        "lengths that leave room for the targets. A record whose target does not fit has an "
        "infinite loss and is left out.",
        _is(nn.CTCLoss),
    ),
    Component(
        "loss of pairs or triplets",
        DEPENDS,
        "The gradient of a pair depends on all of its members.",
        "Let one record of the data set be a whole pair or triplet, assigned beforehand: the "
        "guarantee is then for pairs, and weaker for what is in several of them.",
        _PAIRS,
    ),
    Component(
        "contrastive loss over the batch",
        IMPOSSIBLE,
        "The loss of each record is computed from all others in the batch.",
        "Use a loss of one record, or of fixed pairs.",
        _CONTRASTIVE,
    ),
    Component(
        "energy-based loss",
        IMPOSSIBLE,
        "Its gradient is a difference of expectations that does not belong to single records.",
        "Use a loss of one record.",
        _ENERGY,
    ),
    Component(
        "distillation",
        DEPENDS,
        "The teacher's records are protected only if the teacher was trained privately.",
        "Use a public or a private teacher; the student's private records need private training as "
        "well.",
        _is_called("distill"),
    ),
    # Tokenizers
    Component(
        "tokenizer",
        DEPENDS,
        "A vocabulary that was trained on private text shows parts of it, and no run covers that.",
        "Say where it comes from: return dpfy.data.Vocabulary('public', 'trained on ...') with it.",
        is_tokenizer,
    ),
    Component(
        "vocabulary trained on private text",
        CHANGE,
        LEAK,
        REMEDY,
        _all(_is(Vocabulary), lambda part: not part.sound),
    ),
    Component(
        "vocabulary without private text",
        FINE,
        "It is declared to come from public text, a fixed alphabet or a private release.",
        "",
        _all(_is(Vocabulary), lambda part: part.sound),
    ),
)
"""The rows, in the order in which they are reported."""
