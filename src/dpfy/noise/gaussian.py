"""Gaussian noise that is exactly a real Gaussian rounded to a lattice."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch

from dpfy import _validate
from dpfy._process import this_process
from dpfy.errors import InvalidArgument
from dpfy.noise.lattice import round_to_lattice, steps_per_stddev
from dpfy.noise.native.kernels import kernels_for
from dpfy.noise.past import Past
from dpfy.noise.prefetch import NoisePrefetcher
from dpfy.noise.random_stream import SecureStream, require_purpose
from dpfy.noise.rejection_table import CELL_BITS, Floats
from dpfy.noise.vector import Piece, Vector


class LatticeNoise(ABC):
    """A stream of noise whose values are multiples of a lattice step."""

    spread = 1.0
    """The standard deviation of the noise added last, over that of independent noise."""

    @property
    def roundings(self) -> float:
        """How many lattice steps per coordinate its arithmetic adds to the sensitivity."""
        return 0.0

    def begin(self, step: int) -> None:
        """Say which step, counted from 1, the next noise is for."""
        return

    def add_noise(self, values: torch.Tensor, stddev: float, grid: float) -> torch.Tensor:
        """Add fresh noise to the float64 tensor ``values`` in place and return it.

        ``values`` are multiples of ``grid`` already, or are rounded to them here: the low bits of a
        value between lattice points would pass through any noise. No rounding error can leak: IEEE
        addition is a function of the exact lattice sum, which is exact below 2⁵¹ steps.

        Args:
            values: The sums, in float64; overwritten.
            stddev: The standard deviation of the noise per coordinate; zero adds nothing.
            grid: The lattice step, a power of two.

        Returns:
            ``values``, with noise.

        Raises:
            InvalidArgument: If ``values`` are not in float64.
        """
        if values.dtype != torch.float64:
            raise InvalidArgument(
                f"Expected values of dtype torch.float64, got {values.dtype}. Sum in float64."
            )
        raw = values.detach()
        if stddev == 0:
            round_to_lattice(raw, grid)
            return values
        flat = raw.reshape(-1)
        self._add_to([Piece(0, flat)], stddev, grid)
        if not values.is_contiguous():
            raw.copy_(flat.view(values.shape))
        return values

    def release(
        self,
        sums: Sequence[torch.Tensor],
        factors: Sequence[float],
        outs: Sequence[torch.Tensor],
        stddev: float,
        grid: float,
    ) -> None:
        """Add fresh noise to the sums as if they were one vector, and scale each into its output.

        Both happen in one pass over memory. Contiguous float64 sums are overwritten by their noisy
        values; float32 sums, which float64 holds exactly, stay as they are, unless they are among
        ``outs``.

        Args:
            sums: The pieces of the vector, in float64 or float32.
            factors: The public factor of each piece.
            outs: A contiguous tensor for each piece, which the noisy values times the factor are
                written to.
            stddev: The standard deviation of the noise per coordinate; zero adds nothing.
            grid: The lattice step, a power of two.

        Raises:
            InvalidArgument: If an output has another number of coordinates than its sum.
        """
        flat = [
            (each.detach().reshape(-1).contiguous(), factor, out.view(-1))
            for each, factor, out in zip(sums, factors, outs, strict=True)
        ]
        for each, _, out in flat:
            if each.numel() != out.numel():  # the rest of the output would be uninitialised memory
                raise InvalidArgument(
                    f"Expected an output of {each.numel()} numbers, as the sum has, got "
                    f"{out.numel()}."
                )
        if stddev == 0:
            for each, factor, out in flat:
                out.copy_(round_to_lattice(each.double(), grid) * factor)
            return
        begins = accumulate((each.numel() for each, _, _ in flat), initial=0)
        pieces = [Piece(begin, *each) for begin, each in zip(begins, flat, strict=False)]
        self._add_to(pieces, stddev, grid)

    @abstractmethod
    def _add_to(self, pieces: Sequence[Piece], stddev: float, grid: float) -> None:
        """Add the next noise, which is not zero, to the pieces of one vector."""


class LatticeGaussian(LatticeNoise):
    """A stream of independent Gaussian noise on a lattice.

    *Formal guarantee.* ``add_noise`` returns s + round_g(n) for s on the lattice gℤ, where n has
    independent real N(0, stddev²) coordinates, to the last bit: no float of the noise is released,
    the tail has no end and no holes, and the numerical δ is zero. As s is on the lattice this is
    round_g(s + n), that is, post-processing of the real Gaussian mechanism.

    *Assumes* that the stream is uniform, and that the float64 ``exp`` of numpy and of the C library
    errs by less than 2⁻⁴⁰ of its value (the tests compare them with 200-bit arithmetic).

    Args:
        stream: The source of randomness, made for the purpose ``"noise"``.

    Raises:
        InvalidArgument: If the stream was made for another purpose.

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
        self._own_prefetcher = NoisePrefetcher()

    @property
    def key_source(self) -> str:
        """The source of the stream's key."""
        return self._stream.key_source

    def prefetch(self, count: int, stddev: float, grid: float) -> None:
        """Begin to draw the noise of the next release on another thread, if a core is free.

        One is if torch uses fewer threads than there are, or if the last sums were on a device.

        It is the noise that ``add_noise`` or ``release`` would draw, and is used there or never:
        for another number of values, another ``stddev / grid`` or a stream that was refreshed
        since, fresh noise is drawn. A fork leaves it to the parent.

        Args:
            count: The number of coordinates of the next release, at least 0.
            stddev: The standard deviation of its noise; zero draws nothing.
            grid: The lattice step, a power of two.
        """
        if stddev != 0:
            spread, unit = _columns(stddev, grid)
            count = _validate.count("count", count, minimum=0)
            with self._prefetcher.lock:
                self._prefetcher.prefetch(count, spread, grid / unit, self._stream)

    def _add_to(
        self, pieces: Sequence[Piece], stddev: float, grid: float, past: Past | None = None
    ) -> None:
        """Add fresh noise to one vector: what was drawn ahead first, then segment by segment.

        It is correlated with a past, if there is one, on its way to the sums.

        The segments that nobody has begun are drawn on this thread, with the help of torch's
        threads if OpenMP lends them. If not, helpers draw too. There are fewer of them than threads
        of torch, because these look for work at full speed for some milliseconds after an
        operation. A device is added to from this thread alone, since the work of a device is
        ordered by thread.
        """
        spread, unit = _columns(stddev, grid)
        vector = Vector(pieces, unit, grid, past)
        kernels, prefetcher = kernels_for(len(vector), shared=True), self._prefetcher

        def work(buffer: Floats) -> None:
            while (each := segments.next()) is not None:
                kernels.draw_and_add(vector, each.start, buffer[: each.size], spread, each.parts)

        with (
            prefetcher.lock,
            prefetcher.segments(len(vector), spread, grid / unit, self._stream) as segments,
        ):
            for start, steps in segments.drawn:
                kernels.add_steps(vector, start, steps.result())
            prefetcher.waits_for_device = not vector.is_cpu
            alone = prefetcher.waits_for_device or kernels.threads > 1
            own, *others = segments.buffers_for(1 if alone else torch.get_num_threads() - 1)
            helpers = [prefetcher.submit(work, buffer) for buffer in others]
            work(own)
            for helper in helpers:
                helper.result()

    def integers(self, count: int, scale: float) -> torch.Tensor:
        """Return ``count`` independent N(0, scale²) reals, each rounded to the nearest integer.

        >>> LatticeGaussian(SecureStream(insecure_test_key=1)).integers(4, scale=10.0)
        tensor([-17,  -8,  -4,   7])
        """
        _validate.count("count", count, minimum=0)
        return self.add_noise(
            torch.zeros(count, dtype=torch.float64), stddev=scale, grid=1.0
        ).long()

    def close(self) -> None:
        """End the thread of :meth:`prefetch` and free its memory."""
        with self._prefetcher.lock:
            self._prefetcher.close()

    @property
    def _prefetcher(self) -> NoisePrefetcher:
        """The prefetcher of this process; a forked child makes another one."""
        if self._own_prefetcher.process != this_process():
            self._own_prefetcher = NoisePrefetcher()
        return self._own_prefetcher


@lru_cache(maxsize=64)
def _columns(stddev: float, grid: float) -> tuple[float, float]:
    """Return the standard deviation in columns, from 32 to 64 of them, and the size of a cell."""
    scale = steps_per_stddev(stddev, grid)
    column = math.ldexp(1.0, math.frexp(scale)[1] - 6)
    return scale / column, math.ldexp(column * grid, -CELL_BITS)
