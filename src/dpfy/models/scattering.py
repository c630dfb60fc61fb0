"""The 2-D scattering transform with Morlet wavelets: a fixed, public function of one image.

S₀x = x ⋆ φ, S₁x = |x ⋆ ψ_λ| ⋆ φ and S₂x = ||x ⋆ ψ_λ| ⋆ ψ_μ| ⋆ φ, for wavelets ψ of J scales and L
angles, μ coarser than λ, and a Gaussian φ of width 2^J. Wavelets are applied in Fourier space,
where sub-sampling is folding; the Gaussian is a product of two one-dimensional ones, so that
averaging is two small matrix products in space.
"""

import math
from collections.abc import Iterable
from functools import reduce

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from dpfy import _validate
from dpfy._extras import require
from dpfy.errors import InvalidArgument

_WIDTH, _FREQUENCY = 0.8, 0.75 * math.pi  # of the finest wavelet: pixels, and radians per pixel
_PERIODS = np.arange(-2, 3)  # of the grid over which the tails of a filter are wrapped around
_FLOOR = 1e-30  # of squares
_Array = NDArray[np.float64]


class Scattering2d(nn.Module):
    """Map images to their scattering coefficients of orders 0 to ``order``, each image by itself.

    An image of shape (channels, height, width) becomes (channels·paths, ⌊height/2^J⌋, ⌊width/2^J⌋),
    with 1 + J·L + L²·J·(J − 1)/2 paths for order 2: 81×7×7 for 28×28 grey images, 243×8×8 for 32×32
    RGB images. Paths come by order, then by scale and angle of the first wavelet, then of the
    second. There are no parameters, and ``state_dict`` is empty: the filters are constants.

    Args:
        shape: Height and width of the images, each of more than 2^J pixels.
        J: Number of scales; outputs are averages over windows of about 2^J pixels.
        L: Number of angles.
        order: Number of wavelets along the longest path, 1 or 2.

    Raises:
        InvalidArgument: An argument is outside of its range.

    *Formal guarantee*: the output for an image depends on that image and on public constants.

    >>> Scattering2d((28, 28))(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 81, 7, 7])

    Reference: J. Bruna and S. Mallat, Invariant Scattering Convolution Networks, 2013, section 2;
    as features for private learning: F. Tramèr and D. Boneh, Differentially Private Learning Needs
    Better Features, 2021.
    """

    def __init__(self, shape: tuple[int, int], J: int = 2, L: int = 8, order: int = 2) -> None:
        super().__init__()
        self.J, self.L, self.order = (
            _validate.count(name, value) for name, value in {"J": J, "L": L, "order": order}.items()
        )
        if order > 2:
            raise InvalidArgument(f"Expected order={order!r} to be 1 or 2.")
        if len(shape) != 2 or min(_validate.count("shape", side) for side in shape) <= 2**J:
            raise InvalidArgument(
                f"Expected shape={shape!r} to be two sides of more than 2^J = {2**J} pixels. Take "
                "fewer scales."
            )
        self.shape = (shape[0], shape[1])
        self.grid = (_padded(shape[0], J), _padded(shape[1], J))
        self.paths = 1 + J * L + (L * L * J * (J - 1) // 2 if order == 2 else 0)
        for side, name in zip(self.grid, ("rows", "columns"), strict=True):
            for resolution in range(J):
                self._keep(f"{name}{resolution}", _averages(side, J, resolution))
        for j in range(J):
            wavelets = np.stack([_wavelet(self.grid, j, angle, L) for angle in range(L)])
            for resolution in range(j + 1 if order == 2 else 1):
                if (
                    resolution < j or j == 0
                ):  # a second wavelet is coarser than the first, which is at its resolution
                    self._keep(f"wavelets{j}_{resolution}", _blocks(wavelets, resolution, j))

    def _keep(self, name: str, values: _Array) -> None:
        self.register_buffer(name, torch.from_numpy(values).float(), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the coefficients of images of shape (records, channels, height, width)."""
        if images.ndim != 4 or images.shape[2:] != self.shape or not images.is_floating_point():
            raise InvalidArgument(
                f"Expected floating-point images of shape (records, channels, {self.shape[0]}, "
                f"{self.shape[1]}), got {tuple(images.shape)} and {images.dtype}."
            )
        margins = [
            (grid - side + odd) // 2
            for grid, side in zip(self.grid[::-1], self.shape[::-1], strict=True)
            for odd in (0, 1)
        ]
        x = F.pad(images, margins, mode="reflect").unsqueeze(
            2
        )  # records, channels, paths, height, width
        first = self._moduli(x, 0, range(self.J))
        found = [self._average(x, 0), *(self._average(u, j) for j, u in enumerate(first))]
        for j, u in enumerate(first if self.order == 2 else []):
            coarser = range(j + 1, self.J)
            second = [
                self._average(v, k).unflatten(2, (self.L, self.L))
                for k, v in zip(coarser, self._moduli(u, j, coarser), strict=True)
            ]
            found += [torch.cat(second, 3).flatten(2, 3)] if second else []
        return torch.cat(found, 2).flatten(1, 2)

    def _moduli(self, x: torch.Tensor, resolution: int, scales: range) -> list[torch.Tensor]:
        """Return |x ⋆ ψ| by scale, sub-sampled accordingly, all angles of a path in a row."""
        spectrum = torch.view_as_real(torch.fft.fft2(x)).flatten(-2).unsqueeze(3)
        return [
            _modulus(_filtered(spectrum, getattr(self, f"wavelets{j}_{resolution}"))).flatten(2, 3)
            for j in scales
        ]

    def _average(self, x: torch.Tensor, resolution: int) -> torch.Tensor:
        return getattr(self, f"rows{resolution}") @ (x @ getattr(self, f"columns{resolution}").T)

    def extra_repr(self) -> str:
        """Return the arguments, for ``print(model)``."""
        return f"{self.shape}, J={self.J}, L={self.L}, order={self.order}"


@torch.no_grad()
def scattering_features(
    images: torch.Tensor,
    scattering: Scattering2d | None = None,
    *,
    batch: int = 16,
    dtype: torch.dtype = torch.float32,
    progress: bool = False,
) -> torch.Tensor:
    """Return the scattering coefficients of all images, to compute them once before training.

    The features of a record are a function of that record and public constants, so a guarantee for
    training on the features holds for the images.

    Args:
        images: Numbers of shape (records, channels, height, width).
        scattering: The transform; default: :class:`Scattering2d` of two scales and eight angles.
        batch: Images that are transformed at a time. Small batches stay in the processor's cache
            and are the fastest.
        dtype: Type of the result. ``torch.float16`` halves the memory: features of 50 000 RGB
            images take 3.1 GB in float32.
        progress: Whether to show a bar.

    Returns:
        Features of shape (records, channels·paths, ⌊height/2^J⌋, ⌊width/2^J⌋), on the images'
        device.

    Raises:
        InvalidArgument: The images have another shape, or ``batch`` is below 1.

    >>> scattering_features(torch.rand(3, 3, 32, 32)).shape
    torch.Size([3, 243, 8, 8])
    """
    _validate.count("batch", batch)
    if images.ndim != 4:
        raise InvalidArgument(
            "Expected images of shape (records, channels, height, width), got "
            f"{tuple(images.shape)}."
        )
    scattering = scattering or Scattering2d((images.shape[2], images.shape[3])).to(images.device)
    height, width = (side >> scattering.J for side in scattering.shape)
    features = torch.empty(
        len(images),
        images.shape[1] * scattering.paths,
        height,
        width,
        dtype=dtype,
        device=images.device,
    )
    starts: Iterable[int] = range(0, len(images), batch)
    if progress:
        require("rich", "cli")
        from rich.progress import track

        starts = track(starts, "scattering")
    for start in starts:
        features[start : start + batch] = scattering(images[start : start + batch])
    return features


def _padded(side: int, J: int) -> int:
    """Return the side of the periodic grid: a multiple of 2^J, with a margin at both ends."""
    return (side // 2**J + 2) * 2**J


def _wavelet(grid: tuple[int, int], j: int, angle: int, L: int) -> _Array:
    """Return the Fourier transform of a Morlet wavelet, which is real.

    The wavelet is a wave under a Gaussian, shifted to mean zero. Along the wave the Gaussian is
    0.8·2^j pixels wide, across it L/4 times as wide.
    """
    theta, slant = (L // 2 - 1 - angle) * math.pi / L, 4 / L
    rows, columns = ((_PERIODS[:, None] * side + np.arange(side)).ravel() for side in grid)
    along = rows[:, None] * math.cos(theta) + columns * math.sin(theta)
    across = columns * math.cos(theta) - rows[:, None] * math.sin(theta)
    width = _WIDTH * 2**j
    gaussian = (
        np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2))
        * slant
        / (2 * math.pi * width**2)
    )
    wave, envelope = (
        filters.reshape(len(_PERIODS), grid[0], len(_PERIODS), grid[1]).sum((0, 2))
        for filters in (gaussian * np.exp(1j * _FREQUENCY / 2**j * along), gaussian)
    )
    morlet: _Array = np.fft.fft2(wave - wave.sum() / envelope.sum() * envelope).real
    return morlet


def _blocks(wavelets: _Array, resolution: int, j: int) -> _Array:
    """Return wavelets for a grid sub-sampled by 2^resolution and outputs sub-sampled by 2^j.

    Keeping every k-th pixel is taking the mean of k×k blocks of the spectrum. The last axis has
    each number twice, for the real and the imaginary part that it multiplies.
    """
    angles, *sides = wavelets.shape
    folds = 2 ** (j - resolution)
    high, wide = (_low(side, resolution) for side in sides)
    rows, columns = (side >> j for side in sides)
    blocks = (
        wavelets[:, high][..., wide]
        .reshape(angles, folds, rows, folds, columns)
        .transpose(1, 3, 0, 2, 4)
    )
    return np.repeat(blocks.reshape(-1, angles, rows, columns) / folds**2, 2, axis=-1)


def _averages(side: int, J: int, resolution: int) -> _Array:
    """Return the matrix of Gaussian averages of a sub-sampled line, one per 2^J pixels.

    The Gaussian is 0.8·2^(J−1) pixels wide. Averages in the margins are left out.
    """
    width = _WIDTH * 2 ** (J - 1)
    places = _PERIODS[:, None] * side + np.arange(side)
    gaussian = np.exp(-(places**2) / (2 * width**2)).sum(0) / math.sqrt(2 * math.pi) / width
    kernel = np.fft.ifft(np.fft.fft(gaussian).real[_low(side, resolution)]).real
    centres = np.arange(1, (side >> J) - 1) << (
        J - resolution
    )  # the outermost ones lie in the margin
    averages: _Array = kernel[
        (centres[:, None] - np.arange(side >> resolution)) % (side >> resolution)
    ]
    return averages


def _low(side: int, resolution: int) -> NDArray[np.int64]:
    """Return the frequencies of a sub-sampled line; filters are cut off there, not folded."""
    half = side >> (resolution + 1)
    return np.r_[0:half, side - half : side]


def _filtered(spectrum: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Return complex sub-sampled convolutions with all filters: [..., angles, rows, columns]."""
    rows, columns = blocks.shape[-2:]
    places = [
        (row, column)
        for row in range(0, spectrum.shape[-2], rows)
        for column in range(0, spectrum.shape[-1], columns)
    ]
    parts = (
        spectrum[..., row : row + rows, column : column + columns] * block
        for (row, column), block in zip(places, blocks, strict=True)
    )
    total = reduce(torch.Tensor.add_, parts)
    return torch.fft.ifft2(torch.view_as_complex(total.unflatten(-1, (columns // 2, 2))))


def _modulus(x: torch.Tensor) -> torch.Tensor:
    """Return |x| several times as fast as torch; the floor keeps the gradient at 0 finite."""
    parts = torch.view_as_real(x).square()
    return (parts[..., 0] + parts[..., 1]).clamp(min=_FLOOR).sqrt_()
