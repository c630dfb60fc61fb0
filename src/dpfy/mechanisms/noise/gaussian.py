"""Gaussian noise that is exactly a real Gaussian rounded to a lattice."""

import math

import torch

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.mechanisms.noise.cover import CELL_BITS, Floats
from dpfy.mechanisms.noise.desk import Desk
from dpfy.mechanisms.noise.kernels import kernels_for
from dpfy.mechanisms.noise.lattice import add_on_lattice, round_to_lattice, steps_per_stddev
from dpfy.mechanisms.noise.randomness import SecureStream, require_purpose, this_process


class LatticeGaussian:
    """A stream of independent Gaussian noise on a lattice.

    *Formal guarantee.* ``add_noise`` returns s + round_g(n) for s on the lattice gℤ, where n has independent real
    N(0, stddev²) coordinates, to the last bit: no float of the noise is released, the tail has no end and no holes,
    and the numerical δ is zero. As s is on the lattice this is round_g(s + n), that is, post-processing of the real
    Gaussian mechanism.

    *Assumes* that the stream is uniform, and that the float64 ``exp`` of numpy and of the C library errs by less than
    2⁻⁴⁰ of its value (the tests compare them with 200-bit arithmetic).

    >>> noise = LatticeGaussian(SecureStream(insecure_test_key=1))
    >>> step = 2.0**-28
    >>> noisy = noise.add_noise(torch.zeros(3, dtype=torch.float64), stddev=1.0, grid=step)
    >>> bool((noisy / step == (noisy / step).round()).all())
    True

    Reference: L. Devroye, Non-uniform random variate generation, 1986, theorem II.3.1; proof in
    docs/proofs/lattice-noise.md.
    """

    def __init__(self, stream: SecureStream) -> None:
        self._stream = require_purpose(stream, "noise")
        self._desk_of_a_process = Desk()

    @property
    def key_source(self) -> str:
        """Where the key of the stream came from."""
        return self._stream.key_source

    def prefetch(self, count: int, stddev: float, grid: float) -> None:
        """Begin to draw the noise of the next ``add_noise`` on another thread: until ``hold`` if torch uses all cores.

        It is the noise that ``add_noise`` would draw, and is used there or never: for another number of values or
        another ``stddev / grid`` fresh noise is drawn. A fork leaves it to the parent.
        """
        if stddev != 0:
            spread, _ = _columns(stddev, grid)
            with self._desk.lock:
                self._desk.order(_validate.count("count", count, minimum=0), spread, self._stream)

    def hold(self) -> None:
        """Leave the cores to torch, if it uses all of them."""
        with self._desk.lock:
            self._desk.hold()

    def add_noise(self, values: torch.Tensor, stddev: float, grid: float) -> torch.Tensor:
        """Add fresh noise to the float64 tensor ``values`` in place and return it.

        ``values`` are multiples of ``grid`` already, or are rounded to them here: the low bits of a value between
        lattice points would pass through any noise. No rounding error can leak: IEEE addition is a function of the
        exact lattice sum, which is exact below 2⁵¹ steps. A ``stddev`` of zero adds nothing.
        """
        if values.dtype != torch.float64:
            raise InvalidArgument(f"Expected values of dtype torch.float64, got {values.dtype}. Sum in float64.")
        raw = values.detach()
        if stddev == 0:
            round_to_lattice(raw, grid)
            return values
        spread, unit = _columns(stddev, grid)
        flat, desk = raw.reshape(-1), self._desk
        kernels = kernels_for(len(flat))

        def add(start: int, drawn: Floats) -> None:
            part = flat[start:start + len(drawn)]
            if part.is_cpu:  # on this thread alone, where torch would divide the work once more
                kernels.add(part.numpy(), drawn, unit, grid)
            else:
                add_on_lattice(part, torch.from_numpy(drawn).to(part.device), unit, grid)

        with desk.lock:
            desk.deliver(len(flat), spread, self._stream, add)
        if not values.is_contiguous():
            raw.copy_(flat.view(values.shape))
        return values

    def integers(self, count: int, scale: float) -> torch.Tensor:
        """Return ``count`` independent N(0, scale²) reals, each rounded to the nearest integer.

        >>> LatticeGaussian(SecureStream(insecure_test_key=1)).integers(4, scale=10.0)
        tensor([ -9,   7,  -4, -16])
        """
        _validate.count("count", count, minimum=0)
        return self.add_noise(torch.zeros(count, dtype=torch.float64), stddev=scale, grid=1.0).long()

    def close(self) -> None:
        """End the thread of :meth:`prefetch` and free its memory."""
        with self._desk.lock:
            self._desk.close()

    @property
    def _desk(self) -> Desk:
        """Where this process draws."""
        if self._desk_of_a_process.process != this_process():
            self._desk_of_a_process = Desk()
        return self._desk_of_a_process


def _columns(stddev: float, grid: float) -> tuple[float, float]:
    """Return the standard deviation in columns of the cover, from 32 to 64 of them, and the size of a cell."""
    scale = steps_per_stddev(stddev, grid)
    column = math.ldexp(1.0, math.frexp(scale)[1] - 6)
    return scale / column, math.ldexp(column * grid, -CELL_BITS)
