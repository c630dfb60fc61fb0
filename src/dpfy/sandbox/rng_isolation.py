"""The context in which private records are computed on: only the result leaves it."""

import random
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dpfy.noise import SecureStream
from dpfy.sandbox.dropout import covered_masks
from dpfy.sandbox.numpy_state import set_mersenne, set_numpy_state
from dpfy.sandbox.output import suppress_output
from dpfy.sandbox.record_keys import MERSENNE_WORDS, TORCH_STATE, seed_numpy, seed_python
from dpfy.sandbox.torch_settings import certified

_SEEDING: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (torch, ("manual_seed", "seed")),
    (torch.random, ("manual_seed", "seed")),
    (random, ("seed",)),
    (np.random, ("seed",)),
)
_SETTING: tuple[tuple[Any, tuple[str, ...]], ...] = (
    *_SEEDING,
    (torch, ("set_rng_state",)),
    (torch.random, ("set_rng_state",)),
    (random, ("setstate",)),
    (np.random, ("set_state",)),
)


_Function = Callable[..., Any]

_stream: ContextVar[SecureStream | None] = ContextVar("stream", default=None)


@contextmanager
def isolated_rng(stream: SecureStream) -> Iterator[None]:
    """Compute on private records, in certified arithmetic, with secret randomness and no output.

    With a known seed the masks of all records would depend on how many came before them, and one
    record would change everybody's gradient. Fresh secret masks are independent of the sample, so
    each record's contribution is its own. The generators outside continue from their former
    states, since how far they moved would tell how many records there were. Seeding one of them
    has no effect inside. Output of user code to stdout, stderr or a log, and every warning, is
    dropped, since it may speak of a record.

    Args:
        stream: The secret stream that the generators are seeded from.

    Yields:
        Nothing; the former generators, settings and streams are restored at the end.
    """
    back = bookmark()
    with (
        certified(),
        suppress_output(),
        covered_masks(),
        _without_seeding(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        token = _stream.set(stream)
        try:
            _reseed(stream)
            yield
        finally:
            _stream.reset(token)
            back()


def reseed_from_stream() -> None:
    """Give the generators fresh secret states, so that no record inherits another one's.

    Nothing happens outside of :func:`isolated_rng`.
    """
    if (stream := _stream.get()) is not None:
        _reseed(stream)


@dataclass
class GeneratorUse:
    """What a loss does to generators.

    Args:
        seeded: Whether it seeds one or sets its state.
        in_python: Whether it draws from Python's or numpy's generator.
        masks: Whether it draws masks by a function that dpfy cannot replace.
    """

    seeded: bool = False
    in_python: bool = False
    masks: bool = False


def bookmark() -> Callable[[], None]:
    """Return a function that restores the generators, so that the same numbers are drawn again."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    module, devices = _accelerator(), device_states()

    def again() -> None:
        random.setstate(states[0])
        set_numpy_state(states[1])
        torch.set_rng_state(states[2])
        if devices:
            module.set_rng_state_all(devices)

    return again


def device_states() -> list[torch.Tensor]:
    """Return the states of the generators of all devices."""
    module = _accelerator()
    return [] if module is None else [*module.get_rng_state_all()]


def has_known_generators(device: torch.device) -> bool:
    """Whether the generators of a device can be saved, restored and seeded."""
    if device.type in ("cpu", "meta"):  # nothing is drawn on the latter
        return True
    module = getattr(torch, device.type, None)
    return all(hasattr(module, name) for name in _GENERATOR_FUNCTIONS)


_GENERATOR_FUNCTIONS = ("get_rng_state_all", "set_rng_state_all", "manual_seed_all")


def _accelerator() -> Any:
    """Return torch's module for the devices of this machine, or None without such generators."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return torch.get_device_module(found) if found and has_known_generators(found) else None


def fix_seed(seed: int) -> None:
    """Seed the generators of Python, numpy, torch and available devices.

    ``torch.manual_seed`` also notes a stack trace for each device that is not initialized.
    """
    seed_python(seed)
    seed_numpy(seed)
    torch.default_generator.manual_seed(seed)
    if (module := _accelerator()) is not None:
        module.manual_seed_all(seed)


def _reseed(stream: SecureStream) -> None:
    """Fill the whole states of the three generators; their seeds alone have too few values.

    The generators of a GPU have a key of 64 bits. That does for masks, and for nothing else: no
    noise is drawn from them.
    """
    words = (stream.words(3 * MERSENNE_WORDS) >> np.uint64(32)).reshape(3, MERSENNE_WORDS)
    random.setstate((3, (*words[0].tolist(), MERSENNE_WORDS), None))
    set_mersenne(words[1].astype(np.uint32))
    state = torch.get_rng_state()
    state.numpy().view(np.int64)[TORCH_STATE] = words[2]
    if (module := _accelerator()) is not None:
        module.manual_seed_all(int(stream.words(1)[0]))
    torch.set_rng_state(state)


@contextmanager
def _replaced(
    functions: tuple[tuple[Any, tuple[str, ...]], ...],
    other: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Iterator[None]:
    """Replace functions inside the block."""
    originals = [(home, name, getattr(home, name)) for home, names in functions for name in names]
    try:
        for home, name, function in originals:
            setattr(home, name, other(function))
        yield
    finally:
        for home, name, function in originals:
            setattr(home, name, function)


def _without_seeding() -> AbstractContextManager[None]:
    """Make seeding in this thread ineffective: the numbers that follow would be known."""
    thread = threading.get_ident()

    def inert(function: _Function) -> _Function:
        return lambda *args, **kwargs: (
            None if threading.get_ident() == thread else function(*args, **kwargs)
        )

    return _replaced(_SEEDING, inert)


def numpy_state() -> tuple[Any, ...]:
    """Return the state of numpy's generator in a form that can be compared."""
    name, words, *rest = np.random.get_state(legacy=True)
    return (name, np.asarray(words).tobytes(), *rest)


def generator_states() -> tuple[Any, ...]:
    """Return the states of all generators that are in use, in a form that can be compared."""
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    of_torch = (state.numpy().tobytes() for state in (torch.get_rng_state(), *devices))
    return (random.getstate(), numpy_state(), *of_torch)


@contextmanager
def watched_generators() -> Iterator["GeneratorUse"]:
    """Watch what code does to the generators of torch, numpy and Python inside the block."""
    found = GeneratorUse()
    python, numpy, seed = random.getstate(), numpy_state(), torch.initial_seed()

    def noticing(function: Callable[..., Any]) -> Callable[..., Any]:
        def setting(*args: Any, **kwargs: Any) -> Any:
            found.seeded = True
            return function(*args, **kwargs)

        return setting

    try:
        with _replaced(_SETTING, noticing):
            yield found
    finally:
        found.seeded |= torch.initial_seed() != seed
        found.in_python = random.getstate() != python or numpy_state() != numpy
