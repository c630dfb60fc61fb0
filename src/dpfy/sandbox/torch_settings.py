"""The torch settings that decide how numbers are computed.

The bounds on rounding in the proofs are those of IEEE arithmetic. Autocast, TF32 or flushed
denormals around a step would silently void them, so a step runs under settings of its own,
whatever the program around it has set. The user's code, the loss function and the data set, still
sees autocast and the default dtype as the user set them.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

_BACKENDS: Any = torch.backends
# what multiplies float32, each with the setting that it follows if it has none of its own
_MULTIPLIERS: tuple[tuple[Any, Any], ...] = (
    (_BACKENDS.mkldnn.matmul, _BACKENDS),
    (_BACKENDS.mkldnn.conv, _BACKENDS),
    (_BACKENDS.mkldnn.rnn, _BACKENDS),
)
_CUDA_MULTIPLIERS = (
    (_BACKENDS.cuda.matmul, _BACKENDS.cudnn),
    (_BACKENDS.cudnn.conv, _BACKENDS.cudnn),
    (_BACKENDS.cudnn.rnn, _BACKENDS.cudnn),
)
# whether CUDA rounds partial sums of half-precision products to half precision
_CUDA_REDUCTIONS = (
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_reduced_precision_reduction",
)
_REDUCTIONS: tuple[str, ...] = ()
if torch.cuda.is_available():
    _MULTIPLIERS, _REDUCTIONS = _MULTIPLIERS + _CUDA_MULTIPLIERS, _CUDA_REDUCTIONS
# of float32 products; "none" is what a backend says that knows no other way
_FULL = ("ieee", "none")
# of torch.set_deterministic_debug_mode; both choose deterministic kernels where there are any
_WARN, _RAISE = 1, 2
_NUMBERS_PER_THREAD = 2**17  # more than torch leaves to a single thread
_TINY = np.float32(2.0**-140)
_LEAST = 5e-324  # above zero, in float64

_one_at_a_time = threading.RLock()


@dataclass(frozen=True)
class TorchSettings:
    """The torch settings that a computation depends on.

    Most of them belong to the process, some to the thread.
    """

    autocast: tuple[tuple[bool, torch.dtype], ...]
    caches_casts: bool
    default_dtype: torch.dtype
    precisions: tuple[str, ...]
    settings_of_precision: tuple[str, ...]  # "none" where a precision follows from another setting
    reduces_halves: tuple[tuple[bool, bool], ...]
    deterministic: int
    fills_memory: bool
    flushes_denormals: bool
    threads: int
    detects_anomalies: bool

    @classmethod
    def present(cls) -> "TorchSettings":
        """Return the settings as they are now."""
        precisions = tuple(backend.fp32_precision for backend, _ in _MULTIPLIERS)
        return cls(
            tuple(
                (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
                for device in _devices()
            ),
            torch.is_autocast_cache_enabled(),
            torch.get_default_dtype(),
            precisions,
            tuple(
                found if found in _FULL else _own_precision(*each)
                for each, found in zip(_MULTIPLIERS, precisions, strict=True)
            ),
            tuple(_reduction(name) for name in _REDUCTIONS),
            torch.get_deterministic_debug_mode(),
            torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
            _flushes_denormals(),
            torch.get_num_threads(),
            torch.is_anomaly_enabled(),
        )

    @property
    def matmul_precision(self) -> str:
        """How float32 products are computed: ``highest``, or the modes that backends are set to."""
        others = sorted({found for found in self.precisions if found not in _FULL})
        return ", ".join(others) or "highest"

    def certified(self) -> "TorchSettings":
        """Return the settings that the proofs assume: IEEE float32 without hidden rounding.

        Deterministic kernels give a block of the same records the same bits; a program that wants
        an error where there is no such kernel keeps that.
        """
        return replace(
            self,
            autocast=tuple((False, dtype) for _, dtype in self.autocast),
            caches_casts=False,
            default_dtype=torch.float32,
            precisions=tuple(found if found in _FULL else "ieee" for found in self.precisions),
            settings_of_precision=tuple(
                own if found in _FULL else "ieee"
                for own, found in zip(self.settings_of_precision, self.precisions, strict=True)
            ),
            reduces_halves=tuple((False, splits) for _, splits in self.reduces_halves),
            deterministic=max(self.deterministic, _WARN),
            fills_memory=False,
            flushes_denormals=False,
            threads=1 if _pool_flushes_denormals(self.threads) else self.threads,
            detects_anomalies=False,
        )

    def for_users_code(self, users: "TorchSettings") -> "TorchSettings":
        """Return these settings with the user's autocast and default dtype."""
        return replace(self, autocast=users.autocast, default_dtype=users.default_dtype)

    def impose(self, now: "TorchSettings | None" = None) -> None:
        """Set everything that differs from the settings now, which are read unless given."""
        now = now or TorchSettings.present()
        if self == now:
            return
        for device, (enabled, dtype), cast in zip(
            _devices(), self.autocast, now.autocast, strict=True
        ):
            if (enabled, dtype) != cast:
                torch.set_autocast_enabled(device, enabled)
                torch.set_autocast_dtype(device, dtype)
        for (backend, _), own, found in zip(
            _MULTIPLIERS, self.settings_of_precision, now.settings_of_precision, strict=True
        ):
            if own != found:
                backend.fp32_precision = own
        for name, reduction, before in zip(
            _REDUCTIONS, self.reduces_halves, now.reduces_halves, strict=True
        ):
            if reduction != before:
                setattr(_BACKENDS.cuda.matmul, name, reduction)
        if self.caches_casts != now.caches_casts:
            torch.set_autocast_cache_enabled(self.caches_casts)
        if self.default_dtype != now.default_dtype:
            torch.set_default_dtype(self.default_dtype)
        if self.deterministic != now.deterministic:
            torch.set_deterministic_debug_mode(self.deterministic)
        if self.fills_memory != now.fills_memory:
            torch.utils.deterministic.fill_uninitialized_memory = self.fills_memory  # type: ignore[attr-defined]
        if self.flushes_denormals != now.flushes_denormals:
            torch.set_flush_denormal(self.flushes_denormals)
        if self.threads != now.threads:
            torch.set_num_threads(self.threads)
        if self.detects_anomalies != now.detects_anomalies:
            torch.set_anomaly_enabled(self.detects_anomalies, torch.is_anomaly_check_nan_enabled())


_around: ContextVar[tuple[TorchSettings, TorchSettings] | None] = ContextVar("around", default=None)


@lru_cache(maxsize=8)
def _certified(users: TorchSettings) -> TorchSettings:
    """Return what settings of the program become in a step: the same in most steps."""
    return users.certified()


@contextmanager
def certified() -> Iterator[None]:
    """Compute under the settings that the proofs assume, with gradients; restore torch afterwards.

    One thread of a process may be inside at a time: generators and most of torch's settings belong
    to all of them.

    Yields:
        Nothing.
    """
    with _one_at_a_time:
        if _around.get() is not None:
            yield
            return
        users = TorchSettings.present()
        ours = _certified(users)
        token = _around.set((users, ours))
        try:
            with (
                torch.inference_mode(False),
                # on this thread for devices too: what holds code still holds one thread still
                torch.autograd.set_multithreading_enabled(False),
                torch.enable_grad(),
                _without_hooks(),
            ):
                ours.impose(users)
                yield
        finally:
            users.impose()
            _around.reset(token)


@contextmanager
def reproducible() -> Iterator[None]:
    """Raise inside the block where torch has no kernel that gives the same bits again.

    Elsewhere in :func:`certified` such kernels pass: what they gave is the record's gradient.
    """
    with certified():
        found = _around.get()
        assert found is not None
        users, ours = found
        strict = replace(ours, deterministic=_RAISE)
        token = _around.set((users, strict))
        try:
            strict.impose()
            yield
        finally:
            _around.reset(token)
            ours.impose()


@contextmanager
def users_code() -> Iterator[None]:
    """Give user code its autocast and default dtype back; settings that it changes end with it."""
    found = _around.get()
    if found is None:
        yield
        return
    (users, ours), gradients = found, torch.is_grad_enabled()
    if (ours.autocast, ours.default_dtype) != (users.autocast, users.default_dtype):
        ours.for_users_code(users).impose()
    try:
        yield
    finally:
        ours.impose()
        torch.set_grad_enabled(gradients)


def _devices() -> tuple[str, ...]:
    """Return the types of the devices of this machine."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)


def _own_precision(backend: Any, parent: Any = None) -> str:
    """Return what a backend's precision is set to: "none" if it follows from another setting.

    torch tells what is in force. Whether that is the backend's own setting shows when the one that
    it would follow is another.
    """
    found: str = backend.fp32_precision
    if found in _FULL or parent is None or parent.fp32_precision != found:
        return found
    own = _own_precision(parent, None if parent is _BACKENDS else _BACKENDS)
    parent.fp32_precision = "ieee"
    followed = backend.fp32_precision != found
    parent.fp32_precision = own
    return "none" if followed else found


def _reduction(name: str) -> tuple[bool, bool]:
    """Return whether partial sums in half precision are allowed, and whether sums are split."""
    matmul = _BACKENDS.cuda.matmul
    return getattr(matmul, name), getattr(matmul, f"{name}_split_k")


@contextmanager
def _without_hooks() -> Iterator[None]:
    """Remove hooks on saved tensors, which would see the activations of records."""
    stack: Any = torch._C._autograd
    found = []
    while (hooks := stack._top_saved_tensors_default_hooks(True)) is not None:
        found.append(hooks)
        stack._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(found):
            stack._push_saved_tensors_default_hooks(pack, unpack)


def _flushes_denormals() -> bool:
    """Whether this thread flushes denormals to zero; torch has no function that tells.

    The processor has one setting for a thread, so that a product in Python tells as much as one of
    torch's, which takes a hundred times as long.
    """
    return not _LEAST * 1.0


@lru_cache(maxsize=8)
def _pool_flushes_denormals(threads: int) -> bool:
    """Whether torch's other threads flush denormals.

    They inherit that when they start, and it cannot be changed afterwards.
    """
    if threads == 1:
        return False
    numbers = torch.from_numpy(np.full(threads * _NUMBERS_PER_THREAD, _TINY))
    flushes = _flushes_denormals()
    torch.set_flush_denormal(False)
    try:
        return int((numbers * 1).count_nonzero()) < len(numbers)
    finally:
        torch.set_flush_denormal(flushes)
