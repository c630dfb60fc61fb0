"""Gaussian noise that is exactly a real Gaussian rounded to a lattice."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat

import numpy as np
import numpy.typing as npt
import torch

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.mechanisms.noise.exact import Expansion, rounded_pair
from dpfy.mechanisms.noise.lattice import round_to_lattice, steps_per_stddev
from dpfy.mechanisms.noise.randomness import SecureStream, require_purpose

_PAIRS = 1 << 16  # of a block: four megabytes that stay in the cache, and few calls for each value
_SEGMENT = 1 << 19  # values that one thread takes at a time, with a stream of their own
_SERIAL = 1 << 12  # fewer values than torch would divide among threads
_UNIT = torch.tensor(2.0**-63, dtype=torch.float64)
_TURN = torch.tensor(2 * math.pi * 2.0**-64, dtype=torch.float64)
_EDGE = 2.0**-19  # uniforms closer than this to 0 or 1 are always evaluated exactly
_ERROR = 2.0**-42  # of a float64 evaluation, in standard deviations, for uniforms away from the edges; proof, lemma 3


def _error(radius: npt.NDArray[np.float64], uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Bound the error of single float64 evaluations in standard deviations; never above ``_ERROR``."""
    return 2.0**-53 * ((2 + 2.0**-9 / uniform) / radius + 32 * radius)


class LatticeGaussian:
    """A stream of independent Gaussian noise on a lattice.

    *Formal guarantee.* ``add_noise`` returns s + round_g(n) for s on the lattice gℤ, where n has independent real
    N(0, stddev²) coordinates, to the last bit: no float of the noise is released, the tail has no end and no holes,
    and the numerical δ is zero. As s is on the lattice this is round_g(s + n), that is, post-processing of the real
    Gaussian mechanism.

    *Assumes* that the stream is uniform, and that float64 ``log``, ``sqrt``, ``cos`` and ``sin`` of torch err by at
    most 4 units in the last place (the tests compare them with 200-bit arithmetic).

    >>> noise = LatticeGaussian(SecureStream(insecure_test_key=1))
    >>> step = 2.0**-28
    >>> noisy = noise.add_noise(torch.zeros(3, dtype=torch.float64), stddev=1.0, grid=step)
    >>> bool((noisy / step == (noisy / step).round()).all())
    True

    Reference: G. E. P. Box and M. E. Muller, A note on the generation of random normal deviates, 1958; proof in
    docs/proofs/lattice-noise.md.
    """

    def __init__(self, stream: SecureStream) -> None:
        self._stream = require_purpose(stream, "noise")

    @property
    def key_source(self) -> str:
        """Where the key of the stream came from."""
        return self._stream.key_source

    def add_noise(self, values: torch.Tensor, stddev: float, grid: float) -> torch.Tensor:
        """Add fresh noise to the float64 tensor ``values`` in place and return it.

        ``values`` are multiples of ``grid`` already, or are rounded to them here: the low bits of a value between
        lattice points would pass through any noise. No rounding error can leak: IEEE addition is a function of the
        exact lattice sum, which is exact below 2⁵³ steps. A ``stddev`` of zero adds nothing.
        """
        if values.dtype != torch.float64:
            raise InvalidArgument(f"Expected values of dtype torch.float64, got {values.dtype}. Sum in float64.")
        raw = values.detach()
        if stddev == 0:
            round_to_lattice(raw, grid)
            return values
        scale = steps_per_stddev(stddev, grid)
        flat = raw.reshape(-1)
        segments = flat.split(_SEGMENT)
        streams = [self._stream.split() for _ in segments] if len(segments) > 1 else [self._stream]
        if flat.numel() > _SERIAL and torch.get_num_threads() > 1:
            with _single_threads(len(segments)) as pool:
                list(pool.map(_add, segments, streams, repeat(scale), repeat(grid)))
        else:
            for segment, stream in zip(segments, streams, strict=True):
                _add(segment, stream, scale, grid)
        if not values.is_contiguous():
            raw.copy_(flat.view(values.shape))
        return values

    def integers(self, count: int, scale: float) -> torch.Tensor:
        """Return ``count`` independent N(0, scale²) reals, each rounded to the nearest integer.

        >>> LatticeGaussian(SecureStream(insecure_test_key=1)).integers(4, scale=10.0)
        tensor([ 5, 13, -5, -7])
        """
        _validate.count("count", count, minimum=0)
        return self.add_noise(torch.zeros(count, dtype=torch.float64), stddev=scale, grid=1.0).long()


@contextmanager
def _single_threads(tasks: int) -> Iterator[ThreadPoolExecutor]:
    """Give a pool of as many threads as torch may use, on which torch divides no operation any further.

    A barrier for every operation would cost more than the operation whenever other processes use the same cores.
    """
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(min(threads, tasks), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)  # a thread sets its own number and the default of those that come after it


def _add(values: torch.Tensor, stream: SecureStream, scale: float, grid: float) -> None:
    """Add noise to the vector ``values`` block by block."""
    block = _Block(min(_PAIRS, (len(values) + 1) // 2))
    for part in values.split(2 * _PAIRS) if len(values) else ():
        pairs = (len(part) + 1) // 2
        block = block if len(block.uniform) == pairs else _Block(pairs)
        stream.fill(block.words.numpy().view(np.uint64))
        block.decide(block.evaluate(scale), scale, stream)
        for target, integers in zip(part.split(pairs), block.rounded, strict=False):  # one value has no sine
            round_to_lattice(target, grid).add_(integers[:len(target)].to(target.device), alpha=grid)


class _Block:
    """The buffers of one block of pairs; made for every call, so that threads and forks have nothing to share."""

    def __init__(self, pairs: int) -> None:
        self.words = torch.empty(2, pairs, dtype=torch.int64)
        self.uniform, self.radius = torch.empty(2, pairs, dtype=torch.float64)
        self.scaled = torch.empty(2, pairs, dtype=torch.float64)
        self.rounded = torch.empty(2, pairs, dtype=torch.float64)

    def evaluate(self, scale: float) -> npt.NDArray[np.int64]:
        """Round the pairs, cosines in the first row and sines in the second; return those that remain undecided."""
        (u, v), (cosine, sine) = self.words, self.scaled
        u.bitwise_and_(2**63 - 1)
        torch.mul(u, _UNIT, out=self.uniform)  # converts and scales in one pass
        squared = torch.log(self.uniform, out=self.radius).mul_(-2 * scale * scale).numpy()
        np.sqrt(squared, out=squared)  # correctly rounded as torch's is, and twice as fast
        torch.mul(v, _TURN, out=sine)  # the angle, in [-π, π)
        torch.cos(sine, out=cosine)
        sine.sin_()
        for scaled, rounded in zip(self.scaled, self.rounded, strict=True):
            torch.round(scaled.mul_(self.radius), out=rounded)
            scaled.sub_(rounded).abs_()  # the distance from the integer, exactly
        return self._undecided(scale)

    def _undecided(self, scale: float) -> npt.NDArray[np.int64]:
        """Return the pairs whose rounding the float64 error could have changed."""
        distance, uniform = self.scaled.view(-1).numpy(), self.uniform.numpy()
        near = np.flatnonzero(distance > 0.5 - _ERROR * scale)
        pair = near % len(uniform)
        error = scale * _error(self.radius.numpy()[pair] / scale, uniform[pair])
        undecided = pair[distance[near] > 0.5 - error]
        low, high = torch.aminmax(self.uniform)
        if float(low) < _EDGE or float(high) > 1 - _EDGE:
            undecided = np.concatenate([undecided, np.flatnonzero(np.abs(uniform - 0.5) > 0.5 - _EDGE)])
        return np.unique(undecided) if undecided.size else undecided

    def decide(self, undecided: npt.NDArray[np.int64], scale: float, stream: SecureStream) -> None:
        """Round the undecided pairs exactly, with as many more bits of theirs as this takes."""
        for pair in undecided:
            u, v = self.words[:, pair].tolist()
            rounded = rounded_pair(Expansion(u, 63), Expansion(v, 64), scale, stream)
            self.rounded[:, pair] = torch.tensor(rounded, dtype=torch.float64)
