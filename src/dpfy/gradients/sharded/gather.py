"""Have the whole parameters of a sharded model, module by module, while a pass needs them.

The hooks of ``fully_shard`` rest in the meantime: they would hand out parameters that autograd
forms raw gradients of. Ours put plain tensors in their places before a module's forward pass, and
the shards back after it. What autograd saves of a whole parameter is its name, by which it is
gathered again on the way back.

Every process gathers in the same order, which synthetic records show. A pass that ends before its
time, because a record raised, gathers the rest for the others' sake.

Tests: tests/gradients/sharded/test_gather.py.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves, tree_map

from dpfy.errors import RankFailed
from dpfy.gradients.base import Unsupported
from dpfy.gradients.bookkeeping.workspace import Workspace
from dpfy.gradients.sharded.rows import Owned, Shards, Unit

# its name in newer versions of torch, where the other one warns
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_SMALL = 2**15  # numbers of a shard; smaller ones of a unit travel together

LOST = (
    "Another process of this run was lost, so nothing more is released. The ledger keeps what was "
    "spent; start all processes again and resume from the last checkpoint."
)


_FSDP = "torch.distributed.fsdp"
_Hooks = list[tuple[int, Any]]


class _Saved(NamedTuple):
    """A view of a whole parameter, as autograd remembers it."""

    unit: int
    place: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


@dataclass
class _Place:
    """A place in the model where a parameter is, and what is there outside of passes."""

    tensors: dict[str, Any]
    name: str
    parameter: nn.Parameter
    place: int  # among the parameters of its unit


Listener = Callable[[nn.Parameter, torch.Tensor], None]


class Gathering:
    """The whole parameters of one sharded model, as far as a pass needs them now.

    Args:
        model: The model.
        shards: Its division.
    """

    def __init__(self, model: nn.Module, shards: Shards) -> None:
        self.shards = shards
        self.expected: list[int] | None = None  # the units that a pass gathers, in order
        self.lost: BaseException | None = None  # the error of a message, if one failed
        self.on_gather: Listener | None = None
        self.on_drop: Listener | None = None
        self._units = shards.units
        self._places = [_places(model, unit) for unit in shards.units]
        self._memory = Workspace()
        self._whole: dict[int, list[torch.Tensor]] = {}
        self._homes: dict[int, tuple[int, int]] = {}  # of the storages of whole parameters
        self._inside: list[int] = []  # units whose forward pass runs
        self._walked: list[int] = []  # units gathered in this pass
        self._active = False
        self._thread: ThreadPoolExecutor | None = None
        self._resting: list[tuple[nn.Module, _Hooks, _Hooks]] = []

    @contextmanager
    def standing(self) -> Iterator["Gathering"]:
        """Let the model compute with whole parameters inside the block."""
        if self._active:
            yield self
            return
        self._active = True
        try:
            with self._hooked(), saved_tensors_hooks(self._pack, self._unpack):
                yield self
        finally:
            self._active = False
            if self._thread is not None:
                self._thread.shutdown()
                self._thread = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let ``fully_shard`` itself serve the model inside the block, as in plain training."""
        self.drop_all()
        ours = [(unit.module, *_taken(unit.module, __name__)) for unit in self._units]
        theirs, self._resting = self._resting, []
        for module, *hooks in theirs:
            _put_back(module, *hooks)
        try:
            yield
        finally:
            self._resting = self._rested()
            for module, *hooks in ours:
                _put_back(module, *hooks)

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        """Put our hooks in the place of those of ``fully_shard`` inside the block."""
        self._resting = self._rested()
        handles = []
        for number, unit in enumerate(self._units):
            before, after = _Hook(self.before, number), _Hook(self.after, number)
            handles += [
                unit.module.register_forward_pre_hook(before, prepend=True, with_kwargs=True),
                unit.module.register_forward_hook(after, always_call=True),
            ]
        try:
            yield
        finally:
            self.drop_all()
            for handle in handles:
                handle.remove()
            for module, *hooks in self._resting:
                _put_back(module, *hooks)

    def _rested(self) -> list[tuple[nn.Module, _Hooks, _Hooks]]:
        """Take the hooks of ``fully_shard`` away, and return them."""
        return [(unit.module, *_taken(unit.module, _FSDP)) for unit in self._units]

    def begin(self) -> None:
        """Begin a pass, with nothing gathered."""
        self.drop_all()
        self._walked = []

    def finish(self) -> list[int]:
        """End a pass: gather what is left of it, as the others do, and return what was gathered."""
        walked = self._walked
        for unit in (self.expected or [])[len(walked) :]:
            self._fetch(unit)
            self._drop(unit)
        self.drop_all()
        return walked

    def drop_all(self) -> None:
        """Let go of all whole parameters."""
        for unit in [*self._whole]:
            self._drop(unit)
        self._inside.clear()
        for unit in range(len(self._units)):
            self._take_away(unit)

    def has(self, storage: torch.UntypedStorage) -> bool:
        """Whether memory is that of a whole parameter that is there now."""
        return storage._cdata in self._homes

    def before(self, unit: int, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Gather the parameters of a module, and put them in their places."""
        self._put(unit)
        self._inside.append(unit)
        given = self._units[unit]
        if not given.casts_inputs:
            return None
        return tree_map(partial(_cast, given.dtype), args), tree_map(
            partial(_cast, given.dtype), kwargs
        )

    def after(self, unit: int, module: nn.Module, args: Any, output: Any) -> Any:
        """Put the shards back; the outermost module's parameters stay for the way back."""
        if unit in self._inside:
            del self._inside[self._inside.index(unit) :]
        goes_back = torch._C._current_graph_task_id() >= 0  # computed again on the way back
        if unit not in self._inside and not goes_back:
            self._take_away(unit)
            if self._inside:
                self._drop(unit)
        if self.on_gather is not None and torch.is_grad_enabled() and not goes_back:
            for leaf in tree_leaves(output):
                if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                    leaf.register_hook(partial(self._back, unit))
        dtype = self._units[unit].output_dtype
        return None if dtype is None else tree_map(partial(_cast, dtype), output)

    def _back(self, unit: int, gradient: torch.Tensor) -> None:
        """Have the parameters in their places on the way back, where a part is computed again."""
        self._put(unit)

    def _put(self, unit: int) -> None:
        """Put the whole parameters of a unit in their places."""
        whole = self._needed(unit)
        for each in self._places[unit]:
            each.tensors[each.name] = whole[each.place]

    def _take_away(self, unit: int) -> None:
        """Put the shards of a unit back in their places."""
        for each in self._places[unit]:
            each.tensors[each.name] = each.parameter

    def _needed(self, unit: int) -> list[torch.Tensor]:
        """Return the whole parameters of a unit; those of others that nobody is inside of go."""
        if unit not in self._whole:
            expected = self.expected
            if expected is not None and (
                len(self._walked) >= len(expected) or expected[len(self._walked)] != unit
            ):
                raise Unsupported("a record takes another way through the model's sharded modules")
            for other in [each for each in self._whole if each not in self._inside]:
                self._drop(other)
            self._walked.append(unit)
            self._fetch(unit)
        return self._whole[unit]

    def _fetch(self, unit: int) -> None:
        """Gather a unit, out of sight of whatever watches or vectorises operations here."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="dpfy gather")
        try:
            whole = self._thread.submit(self._gathered, self._units[unit]).result()
        except RuntimeError as error:
            self.lost = RankFailed(LOST)
            raise self.lost from error
        self._whole[unit] = whole
        for place, (tensor, parameter) in enumerate(
            zip(whole, self._units[unit].parameters, strict=True)
        ):
            self._homes[tensor.untyped_storage()._cdata] = (unit, place)
            if self.on_gather is not None:
                self.on_gather(parameter, tensor)

    def _drop(self, unit: int) -> None:
        self._take_away(unit)
        for tensor, parameter in zip(
            self._whole.pop(unit), self._units[unit].parameters, strict=True
        ):
            self._homes.pop(tensor.untyped_storage()._cdata, None)
            if self.on_drop is not None:
                self.on_drop(parameter, tensor)

    @torch.no_grad()
    def _gathered(self, unit: Unit) -> list[torch.Tensor]:
        """Return the parameters of a unit, in memory that later ones use again."""
        owned = self.shards.of_trained(unit.parameters)
        found: list[torch.Tensor | None] = [None] * len(owned)
        small = [place for place, each in enumerate(owned) if each.height * each.width < _SMALL]
        for place, each in enumerate(owned):
            if place not in small:
                dtype = unit.dtype or each.local.dtype
                room = self._room(each, dtype, each.owners * each.height, *each.shape[1:])
                self._all_gather(room, self._padded(each, dtype))
                found[place] = room[: each.rows]
        for dtype in {unit.dtype or owned[place].local.dtype for place in small}:
            some = [place for place in small if (unit.dtype or owned[place].local.dtype) == dtype]
            parts = [self._padded(owned[place], dtype).reshape(-1) for place in some]
            packed = torch.cat(parts)
            room = packed.new_empty(self.shards.owners, len(packed))
            self._all_gather(room, packed)
            columns = room.split([len(part) for part in parts], 1)
            for place, column in zip(some, columns, strict=True):
                each = owned[place]
                rows = column.reshape(each.owners * each.height, *each.shape[1:])
                found[place] = rows[: each.rows].clone()
        return found  # type: ignore[return-value]

    def _room(self, each: Owned, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        if dtype == torch.float32:
            return self._memory.like(each.local, *shape)
        return torch.empty(shape, dtype=dtype, device=each.local.device)

    def _padded(self, each: Owned, dtype: torch.dtype) -> torch.Tensor:
        """Return the own rows in a type, with empty rows where the others have more."""
        rows = each.local.detach().to(dtype)
        if len(rows) == each.height:
            return rows.contiguous()
        padded = rows.new_zeros(each.height, *each.shape[1:])
        padded[: len(rows)] = rows
        return padded

    def _all_gather(self, room: torch.Tensor, own: torch.Tensor) -> None:
        if self.shards.owners == 1:
            room.copy_(own.view(room.shape))
        else:
            _all_gather(room.view(-1), own.view(-1), group=self.shards.group)

    def _pack(self, tensor: torch.Tensor) -> "torch.Tensor | _Saved":
        """Remember a view of a whole parameter by its name."""
        try:
            home = self._homes.get(tensor.untyped_storage()._cdata)
        except Exception:  # a vectorised tensor has no storage
            return tensor
        if home is None:
            return tensor
        return _Saved(*home, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def _unpack(self, saved: "torch.Tensor | _Saved") -> torch.Tensor:
        """Return the view again, of a parameter that is gathered again if need be."""
        if not isinstance(saved, _Saved):
            return saved
        whole = self._needed(saved.unit)[saved.place]
        return whole.as_strided(saved.size, saved.stride, saved.offset)


class _Hook:
    """A hook of one unit's module, which is known by where it is defined."""

    def __init__(self, act: Callable[..., Any], unit: int) -> None:
        self._act, self._unit = act, unit

    def __call__(self, *arguments: Any) -> Any:
        """Act for the unit."""
        return self._act(self._unit, *arguments)


def _taken(module: nn.Module, home: str) -> tuple[_Hooks, _Hooks]:
    """Take the hooks that come from a package away from a module, and return them."""
    taken: tuple[_Hooks, _Hooks] = ([], [])
    for hooks, found in zip((module._forward_pre_hooks, module._forward_hooks), taken, strict=True):
        for number, hook in [*hooks.items()]:
            if (getattr(hook, "__module__", None) or "").startswith(home):
                found.append((number, hooks.pop(number)))
    return taken


def _put_back(module: nn.Module, before: _Hooks, after: _Hooks) -> None:
    """Put hooks back: those before the forward pass first, those after it last."""
    module._forward_hooks.update(after)
    module._forward_pre_hooks.update(before)
    for number, _ in reversed(before):
        module._forward_pre_hooks.move_to_end(number, last=False)  # type: ignore[attr-defined]


def _places(model: nn.Module, unit: Unit) -> list[_Place]:
    """Return the places of a unit's parameters: one that is tied has several."""
    known = {id(parameter): place for place, parameter in enumerate(unit.parameters)}
    return [
        _Place(module._parameters, name, parameter, known[id(parameter)])
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None and id(parameter) in known
    ]


def _cast(dtype: torch.dtype | None, leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and dtype is not None:
        with suppress(RuntimeError):
            return leaf.to(dtype)
    return leaf
