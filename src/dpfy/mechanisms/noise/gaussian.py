"""Gaussian noise that is exactly a real Gaussian rounded to a lattice."""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.mechanisms.noise.exact import Expansion, rounded_pair
from dpfy.mechanisms.noise.lattice import round_to_lattice, steps_per_stddev
from dpfy.mechanisms.noise.randomness import SecureStream, require_purpose

_PAIRS = 1 << 16  # four megabytes of scratch: the chunk stays in the cache, and torch cuts it for two threads
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

    @torch.no_grad()
    def add_noise(self, values: torch.Tensor, stddev: float, grid: float) -> torch.Tensor:
        """Add fresh noise to the float64 tensor ``values`` in place and return it.

        ``values`` are multiples of ``grid`` already, or are rounded to them here: the low bits of a value between
        lattice points would pass through any noise. No rounding error can leak: IEEE addition is a function of the
        exact lattice sum, which is exact below 2⁵³ steps. A ``stddev`` of zero adds nothing.
        """
        if values.dtype != torch.float64:
            raise InvalidArgument(f"Expected values of dtype torch.float64, got {values.dtype}. Sum in float64.")
        if stddev == 0:
            return round_to_lattice(values, grid)
        scale = steps_per_stddev(stddev, grid)
        flat = values.view(-1) if values.is_contiguous() else values.flatten()
        start = 0
        for integers in self._chunks(flat.numel(), scale):
            part = flat[start:start + len(integers)]
            round_to_lattice(part, grid).add_(integers.to(flat.device), alpha=grid)
            start += len(integers)
        return values if values.is_contiguous() else values.copy_(flat.view(values.shape))

    def integers(self, count: int, scale: float) -> torch.Tensor:
        """Return ``count`` independent N(0, scale²) reals, each rounded to the nearest integer.

        >>> LatticeGaussian(SecureStream(insecure_test_key=1)).integers(4, scale=10.0)
        tensor([ 5, 13, -5, -7])
        """
        _validate.count("count", count, minimum=0)
        scale = steps_per_stddev(scale, 1.0)
        return torch.cat([torch.empty(0, dtype=torch.int64), *(part.long() for part in self._chunks(count, scale))])

    def _chunks(self, count: int, scale: float) -> Iterator[torch.Tensor]:
        """Yield ``count`` rounded Gaussians as float64 integers, in chunks that are valid until the next one."""
        pairs = min(_PAIRS, (count + 1) // 2)
        scratch = _Scratch(pairs)
        while count > 0:
            pairs = min(pairs, (count + 1) // 2)
            yield scratch.draw(pairs, scale, self._stream)[:count]
            count -= 2 * pairs


class _Scratch:
    """The buffers of one chunk; made for every call, so that threads and forks have nothing to share."""

    def __init__(self, pairs: int) -> None:
        self.words = torch.empty(2 * pairs, dtype=torch.int64)
        self.uniform = torch.empty(pairs, dtype=torch.float64)
        self.radius = torch.empty(pairs, dtype=torch.float64)
        self.scaled = torch.empty(2 * pairs, dtype=torch.float64)
        self.rounded = torch.empty(2 * pairs, dtype=torch.float64)

    def draw(self, pairs: int, scale: float, stream: SecureStream) -> torch.Tensor:
        """Return 2·pairs rounded Gaussians: first the cosines, then the sines."""
        words = self.words[:2 * pairs]
        stream.fill(words.numpy().view(np.uint64))
        words[:pairs].bitwise_and_(2**63 - 1)
        uniform, radius = self.uniform[:pairs], self.radius[:pairs]
        scaled, rounded = self.scaled[:2 * pairs], self.rounded[:2 * pairs]
        cosine, sine = scaled[:pairs], scaled[pairs:]

        uniform.copy_(words[:pairs]).mul_(2.0**-63)
        torch.log(uniform, out=radius).mul_(-2 * scale * scale).sqrt_()
        sine.copy_(words[pairs:]).mul_(2 * math.pi * 2.0**-64)  # the angle, in [-π, π)
        torch.cos(sine, out=cosine)
        sine.sin_()
        cosine.mul_(radius)
        sine.mul_(radius)
        torch.round(scaled, out=rounded)
        for pair in self._undecided(pairs, scale):
            u, v = Expansion(int(words[pair]), 63), Expansion(int(words[pairs + pair]), 64)
            rounded[pair], rounded[pairs + pair] = rounded_pair(u, v, scale, stream)
        return rounded

    def _undecided(self, pairs: int, scale: float) -> npt.NDArray[np.int64]:
        """Return the pairs whose rounding the float64 error could have changed; overwrites ``scaled``."""
        distance = self.scaled[:2 * pairs].sub_(self.rounded[:2 * pairs]).abs_().numpy()
        near = np.flatnonzero(distance > 0.5 - _ERROR * scale)
        pair = near % pairs
        error = scale * _error(self.radius.numpy()[pair] / scale, self.uniform.numpy()[pair])
        undecided = pair[distance[near] > 0.5 - error]
        uniform = self.uniform[:pairs]
        low, high = torch.aminmax(uniform)
        if float(low) < _EDGE or float(high) > 1 - _EDGE:
            edge = np.flatnonzero(np.abs(uniform.numpy() - 0.5) > 0.5 - _EDGE)
            undecided = np.concatenate([undecided, edge])
        return np.unique(undecided) if undecided.size else undecided
