"""Keys of single records: the generator states while the user's code loads a record.

A record's states are functions of the step's secret key and of the record's index. They do not
depend on which other records there are, what their loading code draws, or whether it seeds a
generator.

Tests: tests/records/test_workers.py.
"""

import hashlib
import random

import numpy as np
import torch

KEY_BYTES = 32
MERSENNE_WORDS = 624
# where torch's saved state of 64-bit words holds the generator's own
TORCH_STATE = slice(3, 3 + MERSENNE_WORDS)
# of torch's generator before its first number
_STATE = torch.Generator().manual_seed(0).get_state()
_WORDS = _STATE.numpy().view(np.int64)[TORCH_STATE]
# which have no effect for user code in private computation
seed_python, seed_numpy = random.seed, np.random.seed
_SEED_BYTES = 32  # of Python's and numpy's generators: 256 bits, where their own defaults have 32


def set_generators(key: bytes, index: int) -> None:
    """Set torch's, numpy's and Python's generators to states that follow from a key and an index.

    *Formal guarantee*: with a uniform secret key, the states for different keys or indices are
    independent if SHAKE-256 cannot be told from a random function. Each has at least 256 bits.
    """
    drawn = hashlib.shake_256(
        b"dpfy record:" + key + index.to_bytes(8, "little", signed=True)
    ).digest(2 * _SEED_BYTES + 4 * MERSENNE_WORDS)
    seed_python(int.from_bytes(drawn[:_SEED_BYTES], "little"))
    seed_numpy(np.frombuffer(drawn, np.uint32, _SEED_BYTES // 4, _SEED_BYTES))
    _WORDS[:] = np.frombuffer(drawn, np.uint32, MERSENNE_WORDS, 2 * _SEED_BYTES)
    torch.default_generator.set_state(_STATE)  # copies it
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(int.from_bytes(drawn[-8:], "little") >> 1)
