"""Where private records are computed on: nothing but the result comes out."""

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from dpfy.mechanisms.noise import SecureStream

_MERSENNE_WORDS = 624
_TORCH_STATE = slice(3, 3 + _MERSENNE_WORDS)  # where torch's saved state of 64-bit words holds the generator's own


@contextmanager
def secluded(stream: SecureStream) -> Iterator[None]:
    """Give dropout and augmentation randomness that nobody can predict; silence warnings; leave no generator moved.

    With a known seed the masks of all records would depend on how many came before them, and one record would change
    everybody's gradient. Fresh secret masks are independent of the sample, so each record's contribution is its own.
    The generators outside go on where they were: how far they are moved would tell how many records there were.
    """
    python, numpy = random.getstate(), np.random.get_state()
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        try:
            _reseed(stream)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def bookmark() -> Callable[[], None]:
    """Return a function that puts the generators back to where they are now, to draw the same numbers once more."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def again() -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if devices:
            torch.cuda.set_rng_state_all(devices)

    return again


def fix_seed(seed: int) -> None:
    """Seed the generators of the devices at hand; ``torch.manual_seed`` notes a stack trace for each that is not."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def _reseed(stream: SecureStream) -> None:
    """Fill the whole states of the three generators; their seeds alone would have too few values."""
    words = (stream.words(3 * _MERSENNE_WORDS) >> np.uint64(32)).reshape(3, _MERSENNE_WORDS)
    random.setstate((3, (*words[0].tolist(), _MERSENNE_WORDS), None))
    np.random.set_state(("MT19937", words[1].astype(np.uint32), _MERSENNE_WORDS, 0, 0.0))
    state = torch.get_rng_state()
    state.view(torch.int64)[_TORCH_STATE] = torch.from_numpy(words[2].astype(np.int64))
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(int(stream.words(1)[0]))
    torch.set_rng_state(state)
