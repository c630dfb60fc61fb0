"""Check whether a number that is computed between a chunk and its losses depends on two records.

Losses alone do not show it: a batch whose mean loss is too high may be skipped by a comparison
that synthetic records never trigger. So every operation of torch is observed, in passes with two
numbers of records and with one record changed. A value is mixed if it depends on records and is
not one per record, or if it moves with two of them; if anything is computed from a mixed value,
the loss is not safe to call on a whole chunk.

Tests: tests/checks/test_dataflow.py, tests/run/test_engine_choice.py.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpfy.checks.places import Line, Place, calling, place_of
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.synthetic import with_row_from

_SIZES = (3, 5)
# of the records that take another one's place: small whole numbers may be equal by chance
_SEEDS = range(2, 12)
_FRESH = ("aten.empty", "aten.new_empty")  # memory that holds anything
_MASKS = ("aten.bernoulli", "aten.native_dropout")
_READ = "aten._local_scalar_dense.default"


class Mixed(Exception):
    """An operation mixes records; the text says which, and ``place`` where it is called."""

    def __init__(self, text: str, place: Place | None = None) -> None:
        super().__init__(text)
        self.place = place


def check_dataflow(
    losses: Callable[[Chunk], torch.Tensor], examples: Callable[[int, int], Chunk]
) -> None:
    """Raise :class:`Mixed` if an operation on the way to the losses uses a mix of two records.

    It is also raised if user code is given gradients, which are those of all records, or if a
    value of the records reaches Python. ``examples`` makes synthetic records from their number and
    a seed.
    """
    base = examples(_SIZES[0], 1)
    few, many = _observed(losses, base), _observed(losses, examples(_SIZES[1], 1), values=False)
    mixed = _without_rows(few, many)
    touched: dict[tuple[int, int], torch.Tensor] = {}
    for position in range(_SIZES[0]):
        seen = _observed(losses, _with_another(base, examples, position), before=few)
        for place, now in _moved(few, seen).items():
            before = touched.get(place)
            if before is not None and bool((before & now).any()):
                mixed.add(place)
            touched[place] = now if before is None else before.logical_or_(now)
    _refuse_uses(few, mixed)


@dataclass
class _Operation:
    """One call: the storages of its inputs, its results if they depend on records, its line.

    ``values`` are copies of the results, or where they have moved since an earlier pass. A view has
    none: its numbers are those of another result, or of a record.
    """

    name: str
    given: set[int]
    shapes: list[torch.Size]
    values: list[torch.Tensor]
    storages: list[int]
    line: Line | None


class _Operations(TorchDispatchMode):
    """Notes every operation, and the results of those that depend on records.

    Results are compared with those of ``before`` at once, if that is given, since copies of all
    take long. They are left out unless ``values`` are asked for.
    """

    def __init__(self, chunk: Chunk, before: "_Operations | None", values: bool) -> None:
        super().__init__()
        self.calls: list[_Operation] = []
        self._before = before
        self._values = values
        self._storages = _Storages()
        self._of_records = {
            self._storages.number(leaf) for leaf in chunk.leaves() if isinstance(leaf, torch.Tensor)
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = str(func), {*map(self._storages.number, _tensors((args, kwargs)))}
        # where tracing does not come: if y.requires_grad
        if name == _READ and given & self._of_records:
            raise Mixed("values of the input may decide what is computed")
        result = func(*args, **(kwargs or {}))
        made = [*_tensors(result)]
        storages = [*map(self._storages.number, made)]
        if given & self._of_records and not name.startswith(_FRESH):
            self._of_records.update(storages)
        else:
            made = []
        values = self._noted(made) if self._values and not getattr(func, "is_view", False) else []
        shapes = [leaf.shape for leaf in made]
        # only what the first pass did is spoken of
        line = calling() if self._before is None else None
        self.calls.append(_Operation(name, given, shapes, values, storages, line))
        return result

    def _noted(self, made: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return copies of the results of the next call, or where they differ from ``before``."""
        if self._before is None:
            return [leaf.detach().clone() for leaf in made]
        number = len(self.calls)
        expected = self._before.calls[number].values if number < len(self._before.calls) else []
        if [one.shape for one in expected] != [leaf.shape for leaf in made]:
            return []  # another computation, which is noticed when all of it is known
        return [_differ(one, leaf.detach()) for one, leaf in zip(expected, made, strict=True)]


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of what an operation is given or returns; torch's own walk takes longer."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, list | tuple | dict):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(item)


class _Storages:
    """Numbers the memory of tensors; memory that takes the place of other memory has another."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}
        self._next = 0

    def number(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's memory, which all its views share."""
        storage, known = tensor.untyped_storage(), self._known
        address = storage._cdata
        if address not in known:
            gone = weakref.ref(storage, lambda _: known.pop(address, None))
            known[address] = self._next, gone
            self._next += 1
        return known[address][0]


class Draws(TorchDispatchMode):
    """Notes draws of masks, and draws from a generator that is not torch's own.

    Such a generator advances with every number, so that its numbers depend on a record's place.
    """

    own = masks = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.masks |= str(func).startswith(_MASKS)
        self.own |= any(isinstance(leaf, torch.Generator) for leaf in tree_leaves((args, kwargs)))
        return func(*args, **(kwargs or {}))


def _observed(
    losses: Callable[[Chunk], torch.Tensor],
    chunk: Chunk,
    before: _Operations | None = None,
    values: bool = True,
) -> _Operations:
    """Run once and return all operations, with what has moved since an earlier run if one is given.

    The records are copied, since a leaf may be a view of memory that other things share.
    """
    own = chunk.map(
        lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, chunk.size
    )
    with _without_hooks(), _readable_targets(), _Operations(own, before, values) as seen:
        returned = losses(own)
    _check_backward(returned)
    return seen


@contextmanager
def _without_hooks() -> Iterator[None]:
    """Refuse hooks on tensors inside the block: they are given the gradients of all records."""
    original = torch.Tensor.register_hook

    def refuse(*_: Any) -> Any:
        raise Mixed("a hook on a tensor is given the gradients of all records")

    try:
        setattr(torch.Tensor, "register_hook", refuse)  # noqa: B010 - a method of torch's
        yield
    finally:
        setattr(torch.Tensor, "register_hook", original)  # noqa: B010


@contextmanager
def _readable_targets() -> Iterator[None]:
    """Keep ``one_hot`` from reading values: torch reads the extreme labels to validate them."""
    original = F.one_hot

    def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        if num_classes < 1:
            return original(tensor, num_classes)
        return (tensor.unsqueeze(-1) == torch.arange(num_classes, device=tensor.device)).long()

    try:
        setattr(F, "one_hot", one_hot)  # noqa: B010
        yield
    finally:
        setattr(F, "one_hot", original)  # noqa: B010


def _check_backward(losses: torch.Tensor) -> None:
    """Refuse a backward pass that contains user code."""
    waiting: list[Any] = [losses.grad_fn]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        function = getattr(node, "_forward_cls", None)  # of a torch.autograd.Function
        if function is not None and not function.__module__.startswith("torch."):
            raise Mixed("a torch.autograd.Function of Python is given the gradients of all records")
        waiting += [each for each, _ in node.next_functions]


def _with_another(base: Chunk, examples: Callable[[int, int], Chunk], position: int) -> Chunk:
    """Return the records with one replaced by another that differs in every field, if possible."""
    own, chosen, most = base.record(position).leaves(), None, -1
    for seed in _SEEDS:
        other = examples(base.size, seed).record(position)
        differing = sum(
            not torch.equal(a, b) if isinstance(a, torch.Tensor) else a != b
            for a, b in zip(own, other.leaves(), strict=True)
        )
        if differing > most:
            chosen, most = other, differing
        if most == len(own):
            break
    assert chosen is not None
    return with_row_from(base, Chunk.joined([chosen] * base.size), position)


def _without_rows(few: _Operations, many: _Operations) -> set[tuple[int, int]]:
    """Return the values that depend on records and are not one per record."""
    if [call.name for call in few.calls] != [call.name for call in many.calls]:
        raise Mixed("the number of records decides what is computed")
    return {
        (number, place)
        for number, (call, other) in enumerate(zip(few.calls, many.calls, strict=True))
        for place, (one, more) in enumerate(zip(call.shapes, other.shapes, strict=True))
        if one.numel() * _SIZES[1] != more.numel() * _SIZES[0]
    }


def _moved(before: _Operations, after: _Operations) -> dict[tuple[int, int], torch.Tensor]:
    """Return where each value that depends on records has changed."""
    if [call.name for call in before.calls] != [call.name for call in after.calls]:
        raise Mixed("values of records decide what is computed")
    found = {}
    for number, (call, other) in enumerate(zip(before.calls, after.calls, strict=True)):
        if call.shapes != other.shapes:
            raise Mixed(
                f"values of records decide about the shape of what {call.name} returns",
                place_of(call.line),
            )
        for place, moved in enumerate(other.values):
            found[number, place] = moved
    return found


def _differ(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return where tensors of one shape differ; two NaNs are alike."""
    moved = one != other
    if (one.is_floating_point() or one.is_complex()) and bool(one.sum().isnan()):
        moved &= ~((one != one) & (other != other))
    return moved


def _refuse_uses(seen: _Operations, mixed: set[tuple[int, int]]) -> None:
    """Refuse operations on a mixed value; one that nothing is computed from does no harm."""
    storages: set[int] = set()
    for number, call in enumerate(seen.calls):
        if storages & call.given:
            raise Mixed(
                f"{call.name} uses what several records have a part in", place_of(call.line)
            )
        storages.update(
            call.storages[place] for place in range(len(call.shapes)) if (number, place) in mixed
        )
