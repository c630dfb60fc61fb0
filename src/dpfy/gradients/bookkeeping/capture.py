"""Divide a model into layers, and record what each is given in one pass."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence
from torch.utils._pytree import tree_leaves

from dpfy.gradients.base import Unsupported
from dpfy.gradients.bookkeeping.functional_params import DirectUses
from dpfy.gradients.bookkeeping.layers import Rule, rule_for
from dpfy.gradients.bookkeeping.layers.fallback import Layouts, fallback
from dpfy.gradients.bookkeeping.layout import Layout, learnt
from dpfy.gradients.bookkeeping.recorder import Recorder


class RuleRefused(Unsupported):
    """The rule of one layer does not cover how it is used."""

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(reason)
        self.layer = layer


@dataclass(frozen=True)
class CapturedLayer:
    """A module whose uses are recorded as a whole: by the rule of its kind, or vectorised."""

    name: str
    module: nn.Module
    rule: Rule | None
    layouts: Layouts | None = None

    @property
    def is_shared(self) -> bool:
        """Whether it is an embedding of the same tokens for all records, such as positions."""
        return (
            self.rule is not None
            and self.rule.kind is nn.Embedding
            and self.layouts is not None
            and self.layouts.inputs == [None]
        )

    def forward(
        self, recorder: Recorder, own: Callable[..., Any] | None, *args: Any, **kwargs: Any
    ) -> Any:
        """Compute what the module computes, and record its contributions.

        ``own`` is a forward pass that the user put on this very module, if any.
        """
        assert self.layouts is not None
        recorder.recomputes |= recorder.goes_back
        if self.rule is None:
            with _forwards_of([self.module], [own]):
                return fallback(self.module, recorder, self.layouts, *args, **kwargs)
        layout = self.layouts.inputs[0]
        if layout is None:
            raise RuleRefused(self.name, "a layer is given no records")
        try:
            return self.rule.forward(self.module, recorder, layout, *args, **kwargs)
        except Unsupported as error:
            raise RuleRefused(self.name, str(error)) from None


def layers_of(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    called: set[str] | None = None,
    direct_uses: bool = False,
) -> list[CapturedLayer]:
    """Divide a model into the smallest called modules that own trained parameters.

    ``called`` are the modules that a pass went through; a module that holds parameters and is
    never called, such as a list of them, belongs to the module around it. With ``direct_uses``,
    modules around other layers are no layers: their own parameters are used outside of any layer.
    """
    trained = {id(parameter) for parameter in parameters.values()}
    modules = dict(model.named_modules())
    owners = {
        name
        for name, module in modules.items()
        if any(id(p) in trained for p in module.parameters(recurse=False))
    }
    chosen: set[str] = set()
    for name in owners:
        holder = next((a for a in _ancestors(name) if _is_attention(modules[a])), name)
        if called is not None and holder not in called and rule_for(modules[holder]) is not None:
            # a layer that is never called has no gradient; if it had one, the probe would see
            continue
        while called is not None and holder not in called and holder:
            holder = holder.rpartition(".")[0]
        chosen.add(holder)
    if direct_uses:
        around = {a for name in chosen for a in _ancestors(name)} | {""}
        chosen = {
            name for name in chosen if name not in around or rule_for(modules[name]) is not None
        }
    outermost = [name for name in chosen if not any(a in chosen for a in _ancestors(name))]
    return [
        CapturedLayer(name, modules[name], rule_for(modules[name]))
        for name in modules
        if name in outermost
    ]


def _ancestors(name: str) -> Iterator[str]:
    """Yield the names of the modules around a module, from the inside."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _is_attention(module: nn.Module) -> bool:
    """Whether a module is attention, which never calls the output layer that it uses."""
    return isinstance(module, nn.MultiheadAttention)


@contextmanager
def capturing(
    layers: Sequence[CapturedLayer], recorder: Recorder, uses: DirectUses
) -> Iterator[None]:
    """Let layers hand contributions to the recorder inside the block; the model stays as it was."""
    # the user may have put another forward pass in the place of a module's own
    forwards = [
        uses.table(layer.module)
        if layer.is_shared
        else uses.around(partial(layer.forward, recorder, vars(layer.module).get("forward")))
        for layer in layers
    ]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    try:
        # it skips the modules inside of a TransformerEncoderLayer
        torch.backends.mha.set_fastpath_enabled(False)
        with _forwards_of([layer.module for layer in layers], forwards):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


@contextmanager
def _forwards_of(
    modules: Sequence[nn.Module], forwards: Sequence[Callable[..., Any] | None]
) -> Iterator[None]:
    """Give modules other forward passes inside the block; None for that of a module's class."""
    before = [vars(module).pop("forward", None) for module in modules]
    try:
        _set_forwards(modules, forwards)
        yield
    finally:
        _set_forwards(modules, before)


def _set_forwards(
    modules: Sequence[nn.Module], forwards: Sequence[Callable[..., Any] | None]
) -> None:
    """Give each module a forward pass of its own, or leave it that of its class."""
    for module, forward in zip(modules, forwards, strict=True):
        if forward is None:
            vars(module).pop("forward", None)
        else:
            vars(module)["forward"] = forward


@dataclass
class Observation:
    """The tensors that went into and came out of the calls of each layer in one pass.

    Those that came out, and those of a pass without values, have a shape and no numbers.
    """

    inputs: dict[str, list[list[Any]]]
    outputs: dict[str, list[list[Any]]]


def observe(
    modules: Mapping[str, nn.Module], run: Callable[[], object], values: bool = True
) -> Observation:
    """Run once, and note what every called module is given and returns.

    Without ``values`` only the shapes of what it is given are noted.
    """
    seen = Observation({}, {})
    copied = _copy if values else _shape

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            seen.inputs.setdefault(name, []).append(_tensors((args, kwargs), copied))
            seen.outputs.setdefault(name, []).append(_tensors(output, _shape))

        return hook

    handles = [
        module.register_forward_hook(note(name), with_kwargs=True)
        for name, module in modules.items()
    ]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return seen


def watch(
    layers: Sequence[CapturedLayer], uses: DirectUses, run: Callable[[], object]
) -> Observation:
    """Run once, and note each function that is given a parameter outside of all layers."""
    modules = [layer.module for layer in layers]
    forwards = [
        uses.table(layer.module) if layer.is_shared else uses.around(layer.module.forward)
        for layer in layers
    ]
    with _forwards_of(modules, forwards), uses:
        run()
    return Observation(
        {f"use {number}": [given] for number, (given, _) in enumerate(uses.calls)},
        {f"use {number}": [found] for number, (_, found) in enumerate(uses.calls)},
    )


def _tensors(tree: Any, noted: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
    """Return what is noted of all tensors of a structure, and None for other leaves."""
    leaves = [
        _totals(leaf) if isinstance(leaf, PackedSequence) else leaf
        for leaf in tree_leaves(tree, is_leaf=lambda node: isinstance(node, PackedSequence))
    ]
    return [noted(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _shape(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _totals(packed: PackedSequence) -> torch.Tensor:
    """Return a row for every packed sequence, in the order before packing.

    Packed data itself does not show how many sequences there are.
    """
    return pad_packed_sequence(packed, batch_first=True)[0].sum(1)


def with_layouts(
    layer: CapturedLayer, small: Observation, large: Observation, records: tuple[int, int]
) -> CapturedLayer:
    """Learn where records are in a layer's inputs, from passes with two numbers of records."""

    def learn(few: list[list[Any]], many: list[list[Any]]) -> list[Layout | None]:
        calls = [
            [None if a is None else learnt(a, b, records) for a, b in zip(one, other, strict=True)]
            for one, other in zip(few, many, strict=True)
        ]
        if any(call != calls[0] for call in calls):
            raise Unsupported
        return calls[0]

    try:
        inputs = learn(small.inputs[layer.name], large.inputs[layer.name])
        if layer.rule is not None:  # it knows where its outputs have the records
            return CapturedLayer(layer.name, layer.module, layer.rule, Layouts(inputs, ()))
        return CapturedLayer(
            layer.name,
            layer.module,
            None,
            Layouts(inputs, learn(small.outputs[layer.name], large.outputs[layer.name])),
        )
    except (KeyError, ValueError):
        raise Unsupported from None


def mixes_rows(
    layer: CapturedLayer, before: Observation, after: Observation, changed: int, records: int
) -> bool:
    """Whether changing one record changes a layer's input at another record's place.

    A place that all records share must not change either.
    """
    last = records - 1
    rest = (  # a view, where there is one
        slice(1, None)
        if changed == 0
        else slice(last)
        if changed == last
        else [row for row in range(records) if row != changed]
    )
    for one, other in zip(before.inputs[layer.name], after.inputs[layer.name], strict=True):
        for a, b, layout in zip(one, other, layer.layouts.inputs, strict=True):  # type: ignore[union-attr]
            if layout is not None:
                a, b = layout.records(a, records)[rest], layout.records(b, records)[rest]
            if a is not None and not _alike(a, b):
                return True
    return False


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether tensors are equal, up to the rounding of kernels where they hold floats."""
    if torch.equal(a, b):
        return True
    if a.shape != b.shape or not a.is_floating_point():
        return False
    scale = float(a.abs().max()) if a.numel() else 0.0
    return torch.allclose(
        a.double(), b.double(), rtol=1e-3, atol=1e-4 * scale + 1e-12, equal_nan=True
    )
