"""A device without hardware: tensors of the device ``pretend``, which live in CPU memory.

It behaves as a GPU does where that matters to a program: tensors of two devices do not mix, numbers
have to be copied to be looked at, and additions by index happen in no fixed order unless torch is
told otherwise. Autograd and the numbers are real. It counts synchronisations and copies between the
device and the host, with the line of dpfy that caused each.

``torch.utils.backend_registration._setup_privateuseone_for_python_backend`` is experimental; this
file is written for torch 2.13.
"""

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import dpfy

NAME = "pretend"
aten: Any = torch.ops.aten

_SOURCE = str(Path(dpfy.__file__).parent)
# what waits for the device because its result, or the shape of its result, has to be known
_WAITING = {
    aten._local_scalar_dense,
    aten.equal,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.bincount,
}
# atomic additions on a GPU, which have a deterministic variant
_ATOMIC = {aten.index_add, aten.index_add_, aten.scatter_add, aten.scatter_add_}
# what has none; an error that is raised in a backward pass of torch's own would end the process
_NEVER_DETERMINISTIC = {aten.cumsum}
_INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
_RANDOM = {
    aten.uniform_,
    aten.normal_,
    aten.bernoulli,
    aten.bernoulli_,
    aten.random_,
    aten.native_dropout,
    aten.randperm,
}


@dataclass
class Traffic:
    """What went over the bus: synchronisations, and bytes to and from the device, by dpfy's line.

    Copies that no line of dpfy asked for, such as those of a batch by the loss, are not in here.
    """

    syncs: Counter[str] = field(default_factory=Counter)
    to_device: Counter[str] = field(default_factory=Counter)
    to_host: Counter[str] = field(default_factory=Counter)

    @property
    def waits(self) -> int:
        """The number of synchronisations."""
        return self.syncs.total()

    @property
    def bytes(self) -> int:
        """The number of bytes in both directions."""
        return self.to_device.total() + self.to_host.total()


_counting: list[Traffic] = []


@contextmanager
def counted() -> Iterator[Traffic]:
    """Count what dpfy causes inside the block."""
    traffic = Traffic()
    _counting.append(traffic)
    try:
        yield traffic
    finally:
        _counting.remove(traffic)


def _note(kind: str, amount: int = 1) -> None:
    """Count for the innermost line if it is of dpfy's code, and not of the user's or of torch's."""
    if not _counting:
        return
    frame = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename == __file__ or "/torch/" in frame.f_code.co_filename
    ):
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.startswith(_SOURCE):
        return
    where = f"{frame.f_code.co_filename.removeprefix(_SOURCE + '/')}:{frame.f_lineno}"
    for traffic in _counting:
        getattr(traffic, kind)[where] += amount


class PretendTensor(torch.Tensor):
    """A tensor of the device, around one in CPU memory."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "PretendTensor":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"PretendTensor(shape={tuple(self.shape)}, dtype={self.dtype})"


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation of the device in CPU memory, as a GPU would or would not."""
    packet = func.overloadpacket
    if packet in (aten._to_copy, aten.copy_):
        return _copied(func, args, kwargs)
    _refuse_mixing(func, args, kwargs)
    if packet in _WAITING or (packet in _INDEXING and _has_mask(args)):
        _note("syncs")
    if packet is aten.repeat_interleave and kwargs.get("output_size") is None:
        _note("syncs")
    if (
        packet in _NEVER_DETERMINISTIC
        and args[0].is_floating_point()
        and torch.get_deterministic_debug_mode() == 2
    ):
        raise RuntimeError(f"{packet} does not have a deterministic implementation")
    if (
        packet in _ATOMIC or (packet in (aten.index_put, aten.index_put_) and _accumulates(args))
    ) and not torch.get_deterministic_debug_mode():
        args = _in_another_order(packet, args)
    if packet in _RANDOM and kwargs.get("generator") is None:
        with _generator_in_use():
            return _wrapped(func, args, kwargs)
    return _wrapped(func, args, kwargs)


def _wrapped(func: Any, args: Any, kwargs: Any) -> Any:
    """Call the operation on the inner tensors, and wrap what is new."""
    known = {id(t.inner): t for t in _tensors((args, kwargs)) if type(t) is PretendTensor}
    inner_kwargs = {name: _unwrapped(value) for name, value in kwargs.items()}
    if inner_kwargs.get("device") is not None:
        inner_kwargs["device"] = torch.device("cpu")
    call = _ON_DEVICES_ONLY.get(func.overloadpacket, func)
    found = call(*map(_unwrapped, args), **inner_kwargs)
    if func._schema.is_mutable:
        for tensor in known.values():
            _follow(tensor)

    def wrapped(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return known[id(value)] if id(value) in known else PretendTensor(value)
        return type(value)(map(wrapped, value)) if isinstance(value, list | tuple) else value

    return wrapped(found)


def _lstm_cell(x: Any, h: Any, memory: Any, *biases: Any) -> Any:
    """``_thnn_fused_lstm_cell``, which torch has for devices only."""
    i, f, g, o = sum((b for b in biases if b is not None), x + h).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    after = f * memory + i * g
    return o * after.tanh(), after, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(
    by_h: Any, by_c: Any, before: Any, after: Any, kept: Any, bias: bool
) -> Any:
    i, f, g, o = kept.chunk(4, 1)
    squashed = after.tanh()
    by_h = torch.zeros_like(after) if by_h is None else by_h
    total = by_h * o * (1 - squashed.square()) + (0 if by_c is None else by_c)
    gates = torch.cat(
        [
            total * g * i * (1 - i),
            total * before * f * (1 - f),
            total * i * (1 - g.square()),
            by_h * squashed * o * (1 - o),
        ],
        1,
    )
    return gates, total * f, gates.sum(0) if bias else None


def _gru_cell(x: Any, h: Any, state: Any, *biases: Any) -> Any:
    """``_thnn_fused_gru_cell``, which torch has for devices only."""
    x, h = (t if b is None else t + b for t, b in zip((x, h), biases or (None, None), strict=True))
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, 1), h.chunk(3, 1)
    r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    n = (xn + r * hn).tanh()
    return n + z * (state - n), torch.cat([r, z, n, state, hn], 1)


def _gru_cell_backward(gradient: Any, kept: Any, bias: bool) -> Any:
    r, z, n, state, hn = kept.chunk(5, 1)
    by_n = gradient * (1 - z) * (1 - n.square())
    by_z = gradient * (state - n) * z * (1 - z)
    by_r = by_n * hn * r * (1 - r)
    x, h = torch.cat([by_r, by_z, by_n], 1), torch.cat([by_r, by_z, by_n * r], 1)
    return x, h, gradient * z, x.sum(0) if bias else None, h.sum(0) if bias else None


_ON_DEVICES_ONLY = {
    aten._thnn_fused_lstm_cell: _lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl: _lstm_cell_backward,
    aten._thnn_fused_gru_cell: _gru_cell,
    aten._thnn_fused_gru_cell_backward: _gru_cell_backward,
}


def _unwrapped(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_unwrapped(each) for each in value]
    return value.inner if type(value) is PretendTensor else value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments; faster than torch's own trees."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors([*value.values()])


def _follow(tensor: PretendTensor) -> None:
    """Give a tensor the shape that an operation in place, such as ``squeeze_``, has left."""
    inner = tensor.inner
    if tensor.shape != inner.shape or tensor.stride() != inner.stride():
        with torch._C._DisableTorchDispatch():
            tensor.as_strided_(inner.shape, inner.stride(), inner.storage_offset())


def _is_ours(device: torch.device) -> bool:
    return device.type == NAME


def _copied(func: Any, args: Any, kwargs: Any) -> Any:
    """Copy within the device, to it or from it."""
    if func.overloadpacket is aten._to_copy:
        (source,) = args
        target = torch.device(kwargs.get("device") or source.device)
        moved = {**kwargs, "device": torch.device("cpu")}
        result = aten._to_copy(_inner(source), **moved)
        if not _is_ours(target):
            _note("to_host", result.numel() * source.element_size())
            _note("syncs")
            return result
        if not isinstance(source, PretendTensor):
            _note("to_device", result.numel() * source.element_size())
        return PretendTensor(result)
    target, source = args[0], args[1]
    _inner(target).copy_(_inner(source))
    amount = source.numel() * source.element_size()
    if isinstance(target, PretendTensor) and not isinstance(source, PretendTensor):
        _note("to_device", amount)
    elif not isinstance(target, PretendTensor):
        _note("to_host", amount)
        _note("syncs")
    return target


def _inner(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.inner if isinstance(tensor, PretendTensor) else tensor


def _refuse_mixing(func: Any, args: Any, kwargs: Any) -> None:
    """Raise as a GPU does; numbers without axes and indices may be the CPU's."""
    if func.overloadpacket in _INDEXING:
        indices = [i for i in args[1] if isinstance(i, torch.Tensor)]
        for index in indices:
            if not isinstance(index, PretendTensor):
                _note("to_device", index.numel() * index.element_size())
        looked_at: Any = [args[0], *args[2:3]]
    else:
        looked_at = (args, kwargs)
    for tensor in _tensors(looked_at):
        if type(tensor) is not PretendTensor and tensor.ndim:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {func} was given tensors on "
                f"{NAME} and {tensor.device.type}"
            )


def _has_mask(args: Any) -> bool:
    return any(i.dtype in (torch.bool, torch.uint8) for i in args[1] if isinstance(i, torch.Tensor))


def _accumulates(args: Any) -> bool:
    return len(args) > 3 and bool(args[3])


_turns = 0


def _in_another_order(packet: Any, args: Any) -> Any:
    """Return the arguments with the summands in another order each time, as atomics have them."""
    global _turns
    _turns += 1
    generator = torch.Generator().manual_seed(_turns)
    if packet in (aten.index_put, aten.index_put_):
        target, indices, values, accumulate = args[:4]
        inner = [_inner(i) for i in indices]
        if len({i.shape for i in inner}) != 1 or inner[0].ndim != 1:
            return args
        order = torch.randperm(len(inner[0]), generator=generator)
        values = _inner(values).expand(len(order), *values.shape[1:])
        return (
            target,
            [PretendTensor(i[order]) for i in inner],
            PretendTensor(values[order]),
            accumulate,
        )
    target, axis, index, source = args[:4]
    order = torch.randperm(index.shape[axis if index.ndim > 1 else 0], generator=generator)
    return (
        target,
        axis,
        PretendTensor(_inner(index).index_select(axis if index.ndim > 1 else 0, order)),
        PretendTensor(_inner(source).index_select(axis, order)),
        *args[4:],
    )


_generator = torch.Generator().manual_seed(0)
_drawing = threading.Lock()


@contextmanager
def _generator_in_use() -> Iterator[None]:
    """Draw from the device's own generator."""
    with _drawing:
        before = torch.default_generator.get_state()
        torch.default_generator.set_state(_generator.get_state())
        try:
            yield
        finally:
            _generator.set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(before)


class _Module:
    """What torch asks the module of a device for."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        _generator.manual_seed(seed)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [_generator.get_state()]

    def set_rng_state_all(self, states: list[torch.Tensor]) -> None:
        _generator.set_state(states[0])

    def get_rng_state(self, device: Any = 0) -> torch.Tensor:
        return _generator.get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = 0) -> None:
        _generator.set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


_FACTORIES = (
    "empty.memory_format",
    "empty_strided",
    "arange",
    "arange.start",
    "arange.start_step",
    "eye",
    "eye.m",
    "linspace",
    "randperm",
)


def _made_by(name: str) -> Any:
    """Return a function that makes tensors of the device."""
    packet, _, overload = name.partition(".")
    on_cpu = getattr(getattr(aten, packet), overload or "default")

    def make(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        return PretendTensor(on_cpu(*args, device=torch.device("cpu"), **kwargs))

    return make


_setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
_library = torch.library.Library("aten", "IMPL")
for _name in _FACTORIES:
    _library.impl(_name, _made_by(_name), "PrivateUse1")
_library.impl(  # by which torch.tensor([…], device="pretend") fills what it made
    "_copy_from",
    lambda source, target, *_: _copied(aten.copy_.default, (target, source), {}),
    "PrivateUse1",
)
# backward passes on this thread: handing Python code to a thread of the device takes longer than it
torch.autograd.set_multithreading_enabled(False)
