"""The values that a loss function can read besides the records: variables, globals, attributes.

The probe judges a loss as it is at that moment. A number that it closes over, a global flag or an
attribute of its owner may make it another function at the next step, so all of these are compared
before every step. They are found from the code: of a large object only the attributes whose names
occur in some function that can be reached.

Tests: tests/run/test_engine_choice.py.
"""

import array
import collections
import contextvars
import ctypes
import hashlib
import os
import random
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from mmap import mmap
from typing import Any

import numpy as np
import torch
from torch import nn

from dpfy.gradients.modules import modules_of

Readings = dict[str, Any]
"""A fingerprint of every value that was found, by the way that leads to it."""

_LIBRARIES = frozenset(sys.stdlib_module_names) | {
    "torch",
    "numpy",
    "scipy",
    "dpfy",
    "functorch",
    "builtins",
}
_DEPTH = 24
# numbers of a tensor that are compared one by one; of a larger one, whether it was written to
_LARGEST = 2**16
_MOST = 100_000  # values; a loss that reaches more is taken for one that changes
_MOST_ITEMS = 1024  # of a container; of a longer one its length and its ends
_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    torch.dtype,
    torch.device,
    torch.Size,
    type(None),
    type(Ellipsis),
    range,
    slice,
)
_CONTAINERS = (list, tuple, set, frozenset, collections.deque)


class Opaque:
    """A value that cannot be compared, such as an iterator: unequal to everything, even itself."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False


class Reader:
    """Reads all that a loss and a model depend on besides parameters, buffers and records."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._names: set[str] = set()

    def read(self, loss_fn: Any, everything: bool = False) -> Readings:
        """Return a fingerprint of all that is found, guided by the code that is reached.

        With ``everything``, all attributes of an object are read, whether or not code names them.
        """
        while True:
            known = len(self._names)
            found = _Walk(self._names, self._model, everything).through(loss_fn)
            if len(self._names) == known:
                return found


def changed(before: Readings, after: Readings) -> str | None:
    """Return the path to a value that has changed, or None."""
    for way in {**before, **after}:
        one, other = before.get(way), after.get(way)
        if one != other and not (isinstance(one, Opaque) and isinstance(other, Opaque)):
            inside = (
                changed(one, other) if isinstance(one, dict) and isinstance(other, dict) else ""
            )
            return f"{way}{inside}"
    return None


class _Walk:
    """One walk through everything that can be reached; every object is entered once."""

    def __init__(self, names: set[str], model: nn.Module, everything: bool) -> None:
        self._names = names
        self._model = model
        self._everything = everything
        self._own = {
            id(tensor)
            for module in modules_of(model)
            for tensor in (*module._parameters.values(), *module._buffers.values())
        }
        self._entered: dict[
            int, Any
        ] = {}  # the objects themselves, so that no other takes their identity
        self._found: Readings = {}

    def through(self, loss_fn: Any) -> Readings:
        """Return what a loss function and the model read."""
        self._enter("loss_fn", loss_fn, 0)
        self._enter("model", self._model, 0)
        return self._found

    def _enter(self, way: str, value: Any, depth: int) -> None:
        if isinstance(value, _PLAIN):
            self._found[way] = (type(value).__name__, repr(value))
            return
        if id(value) in self._own:
            return
        if depth > _DEPTH or len(self._found) > _MOST:
            self._found[way] = Opaque()
            return
        if id(value) in self._entered:
            self._found[way] = self._entered[id(value)][0]
            return
        self._entered[id(value)] = (way, value)
        try:
            _follower((type(value), value.__class__))(self, way, value, depth + 1)
        except Exception:  # an object whose own methods fail when it is looked at
            self._found[way] = Opaque()

    def _tensor(self, way: str, value: torch.Tensor, depth: int) -> None:
        self._found[way] = _of_tensor(value)

    def _array(self, way: str, value: np.ndarray, depth: int) -> None:
        if value.dtype.hasobject:
            self._found[way] = (value.shape, repr(value))
        else:
            self._found[way] = (value.shape, str(value.dtype), _digest(value))

    def _generator(self, way: str, value: Any, depth: int) -> None:
        if isinstance(value, np.random.Generator):
            state: Any = value.bit_generator.state
        elif isinstance(value, torch.Generator):
            state = value.get_state().tolist()
        else:
            state = value.getstate() if isinstance(value, random.Random) else value.get_state()
        self._found[way] = hashlib.sha256(repr(state).encode()).hexdigest()

    def _mapping(self, way: str, value: Mapping[Any, Any], depth: int) -> None:
        self._found[way] = len(value)
        for key, item in _ends(list(value.items())):
            self._enter(f"{way}[{key!r}]", item, depth)

    def _container(self, way: str, value: Any, depth: int) -> None:
        self._found[way] = len(value)
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else list(value)
        for place, item in enumerate(_ends(items)):
            self._enter(f"{way}[{place}]", item, depth)

    def _partial(self, way: str, value: partial[Any], depth: int) -> None:
        self._enter(way, value.func, depth)
        self._container(f"{way}.args", (*value.args, *value.keywords.values()), depth)

    def _method(self, way: str, value: types.MethodType, depth: int) -> None:
        self._enter(way, value.__func__, depth)
        self._enter(f"{way}.__self__", value.__self__, depth)

    def _function(self, way: str, value: types.FunctionType, depth: int) -> None:
        self._found[way] = value.__code__
        # not what it says itself: functools.wraps copies that
        if _is_library(value.__globals__.get("__name__")):
            return
        self._mapping(f"{way}.__dict__", dict(vars(value)), depth)
        names = _names_of(value.__code__)
        self._names |= names
        if names & {"environ", "getenv"}:
            self._found["environment"] = tuple(os.environ.items())
        for place, item in enumerate(
            (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        ):
            self._enter(f"{way}.default[{place}]", item, depth)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if (content := _content(cell)) is not cell:
                self._enter(f"{way}: variable {name!r}", content, depth)
        for name in sorted(names & value.__globals__.keys()):
            self._enter(
                f"global {name!r} of {value.__globals__.get('__name__')}",
                value.__globals__[name],
                depth,
            )
        for name in names & sys.modules.keys():  # imported inside of a function
            self._enter(f"module {name}", sys.modules[name], depth)

    def _namespace(self, way: str, value: types.ModuleType, depth: int) -> None:
        if not _is_library(value.__name__):
            for name in sorted(self._names & vars(value).keys()):
                self._enter(f"{value.__name__}.{name}", vars(value)[name], depth)

    def _class(self, way: str, value: type, depth: int) -> None:
        self._found[way] = (value.__module__, value.__qualname__, id(value))
        for base in value.__mro__:
            if not _is_library(base.__module__):
                special = {
                    name
                    for name in vars(base)
                    if name.startswith("__") and callable(vars(base)[name])
                }
                for name in sorted((self._names & vars(base).keys()) | special - _UNCALLED):
                    self._enter(f"{way}:{base.__name__}.{name}", vars(base)[name], depth)

    def _property(self, way: str, value: Any, depth: int) -> None:
        for name in ("fget", "__func__", "func"):
            if (function := getattr(value, name, None)) is not None:
                self._enter(way, function, depth)

    def _module(self, way: str, value: nn.Module, depth: int) -> None:
        """Read a layer of the model or beside it: switches, attributes, code and hooks."""
        kind: Any = type(value)
        followed, library = _code_of(kind)
        plain, others = _divided(value, None if self._everything or not followed else self._names)
        self._found[way], self._found[f"{way}."] = kind.__qualname__, plain
        for place, hook in enumerate(_hooks(value)):
            self._enter(f"{way}.hook[{place}]", hook, depth)
        for name, tensor in (*value._parameters.items(), *value._buffers.items()):
            if tensor is not None and id(tensor) not in self._own:
                self._found[f"{way}.{name}"] = _of_tensor(tensor)
        for name, child in value._modules.items():
            if child is not None:
                # however deep a model is, all of it is looked at
                self._enter(f"{way}.{name}", child, depth - 1)
        for name, item in others:
            self._enter(f"{way}.{name}", item, depth)
        if not library:
            self._enter(f"{way}.forward", kind.forward, depth)
            self._class(f"{way}.__class__", kind, depth)

    def _object(self, way: str, value: Any, depth: int) -> None:
        kind = type(value)
        if isinstance(value, np.generic):
            self._found[way] = (str(value.dtype), repr(value))
            return
        # its code is not followed, so nothing says which attributes it reads
        foreign = _is_library(kind.__module__)
        attributes = set() if _is_ours(kind) else _attributes(value)
        identity = (kind.__qualname__, 0 if attributes else id(value))
        self._found[way] = Opaque() if isinstance(value, _HIDDEN) else identity
        for name in sorted(attributes if foreign or self._everything else self._names & attributes):
            try:
                item = object.__getattribute__(value, name)
            except Exception:  # a slot that is empty yet
                continue
            self._enter(f"{way}.{name}", item, depth)
        if not foreign:
            if callable(value):
                self._enter(f"{way}.__call__", kind.__call__, depth)  # type: ignore[operator]
            self._class(f"{way}.__class__", kind, depth)

    def _reference(self, way: str, value: Any, depth: int) -> None:
        # what it refers to: torch makes those of recurrent layers anew
        self._enter(way, value(), depth)

    def _builtin(self, way: str, value: Any, depth: int) -> None:
        self._found[way] = value.__qualname__
        if not isinstance(value.__self__, types.ModuleType):
            self._enter(f"{way}.__self__", value.__self__, depth)

    def _iterator(self, way: str, value: Any, depth: int) -> None:
        self._found[way] = Opaque()  # what comes next cannot be seen without taking it


_HIDDEN = (
    array.array,
    contextvars.ContextVar,
    ctypes._SimpleCData,
    ctypes.Array,
    ctypes.Structure,
    memoryview,
    mmap,
)
_UNCALLED = {
    "__init__",
    "__new__",
    "__del__",
    "__repr__",
    "__str__",
    "__class__",
    "__weakref__",
    "__init_subclass__",
    "__class_getitem__",
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setstate__",
    "__post_init__",
}
_ABSTRACT = (object, nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict)
_OF_SHARDS = ("torch.distributed.fsdp", "dpfy.gradients.sharded")
_OF_FULLY_SHARD = "__composable_api_state_key"
_OF_TORCH = set(vars(nn.Module())) - {"training"}
_KINDS: tuple[tuple[Any, Callable[[_Walk, str, Any, int], None]], ...] = (
    (torch.Tensor, _Walk._tensor),
    (nn.Module, _Walk._module),
    (types.FunctionType, _Walk._function),
    (types.MethodType, _Walk._method),
    (partial, _Walk._partial),
    (types.ModuleType, _Walk._namespace),
    (type, _Walk._class),
    (property | staticmethod | classmethod, _Walk._property),
    (
        (torch.Generator, random.Random, np.random.RandomState, np.random.Generator),
        _Walk._generator,
    ),
    (np.ndarray, _Walk._array),
    (Mapping, _Walk._mapping),
    (_CONTAINERS, _Walk._container),
    (weakref.ref, _Walk._reference),
    (types.BuiltinMethodType, _Walk._builtin),
    (Iterator, _Walk._iterator),
)


@lru_cache(maxsize=4096)
def _follower(kinds: tuple[type, type]) -> Callable[[_Walk, str, Any, int], None]:
    """Return the method for a value of some type, which may say that it has another one."""
    return next(
        (follow for each, follow in _KINDS if any(issubclass(kind, each) for kind in kinds)),
        _Walk._object,
    )


@lru_cache(maxsize=4096)
def _code_of(kind: type) -> tuple[bool, bool]:
    """Whether names tell what modules of a class read, and whether the class is a library's.

    They do if all of its code is the user's.
    """
    followed = all(base in _ABSTRACT or not _is_library(base.__module__) for base in kind.__mro__)
    return followed, _is_library(kind.__module__)


def _divided(
    module: nn.Module, names: set[str] | None
) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Return the attributes of a module, plain values apart from all others."""
    plain: dict[str, Any] = {}
    others: list[tuple[str, Any]] = []
    for name, item in vars(module).items():
        if name in _OF_TORCH or not (names is None or name in names or name == "training"):
            continue
        if name.startswith(_OF_FULLY_SHARD):  # whole parameters, while they are gathered
            continue
        if isinstance(item, _PLAIN):
            plain[name] = type(item), repr(item)
        else:
            others.append((name, item))
    return plain, others


def _attributes(value: Any) -> set[str]:
    slots = {
        name for base in type(value).__mro__ for name in _as_tuple(vars(base).get("__slots__", ()))
    }
    return slots | set(getattr(value, "__dict__", ()))


def _as_tuple(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _hooks(module: nn.Module) -> Iterator[Any]:
    for hooks in (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    ):
        for hook in hooks.values() if hooks else ():
            # those of sharded models have all parameters, whole ones while they are gathered
            if not (getattr(hook, "__module__", None) or "").startswith(_OF_SHARDS):
                yield hook


def _of_tensor(tensor: torch.Tensor) -> Any:
    facts = (tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad)
    if tensor.numel() > _LARGEST or tensor.layout is not torch.strided or tensor.is_meta:
        return (*facts, id(tensor), tensor._version)
    plain = tensor.detach().to("cpu").resolve_conj().contiguous()
    return (*facts, _digest(plain.reshape(-1).view(torch.uint8).numpy()) if plain.numel() else "")


def _digest(array: np.ndarray) -> str:
    if array.size <= 8 * _LARGEST:
        return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    step = array.size // _LARGEST
    return hashlib.sha256(np.ascontiguousarray(array.reshape(-1)[::step]).tobytes()).hexdigest()


def _ends(items: list[Any]) -> list[Any]:
    return (
        items
        if len(items) <= _MOST_ITEMS
        else [*items[: _MOST_ITEMS // 2], *items[-_MOST_ITEMS // 2 :]]
    )


def _content(cell: Any) -> Any:
    """Return what a closure variable is bound to, or the cell itself if it is unbound."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]


@lru_cache(maxsize=4096)
def _names_of(code: types.CodeType) -> frozenset[str]:
    """Return all names that a piece of code, and functions nested in it, look up."""
    inner = [
        _names_of(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)
    ]
    # getattr(settings, "part")
    words = {constant for constant in code.co_consts if isinstance(constant, str)}
    return frozenset(code.co_names).union(words, *inner)


@lru_cache(maxsize=4096)
def _is_library(module: str | None) -> bool:
    """Whether code is Python's, torch's, numpy's or ours, which depends on its arguments only."""
    if not module:
        return True
    if module.partition(".")[0] in _LIBRARIES:
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file
