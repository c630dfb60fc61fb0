"""What small patches of a picture resemble, and where: features by a dictionary of patches of
public pictures.

A linear classifier needs features that vary independently, and training with noise needs few of
them. Coates and Ng (2012) whiten patches, learn a dictionary of them by k-means, and add up in each
region of a picture how much its patches look like each entry. They learn from the data at hand.
Here everything is learned from two photographs that come with scikit-learn, and so is the whitening
of the sums. No private record is looked at, and the result is a public constant."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from experiments.whitening import Whitened

_SIDE, _CUTS, _ROUNDS = (
    6,
    40_000,
    15,
)  # pixels of a patch; how many are learned from, in how many rounds of k-means
_CONTRAST = 10 / 255  # standard deviations below this one are rather noise, and stay small
_SHRINKAGE = 0.1  # of the mean variance of whitened pixels
_THRESHOLD = (
    0.5  # resemblances below it do not count, as most patches resemble most entries a little
)
_REGIONS = 4  # in a row and in a column
_ATOMS = 512
_SCALES = (
    1 / 2,
    1 / 3,
    1 / 4,
    1 / 6,
)  # of photographs, in which things are larger than in thumbnails
_EXAMPLES = 2000
_FLAT = 3e-4  # of the squared norm of a record: weaker directions of features stay weak
_PART = 20  # pictures whose responses stay near the processor


def photographs() -> list[torch.Tensor]:
    """Return the photographs of a temple and of a flower that come with scikit-learn, in several
    sizes.
    """
    from sklearn.datasets import load_sample_images  # type: ignore[import-untyped]  # slow to import

    pictures = [
        torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 255
        for image in load_sample_images().images
    ]
    return [
        F.interpolate(picture, scale_factor=scale, mode="bilinear", antialias=True)[0]
        for picture in pictures
        for scale in _SCALES
    ]


def cuts(pictures: Sequence[torch.Tensor], count: int, side: int, seed: int) -> torch.Tensor:
    """Return squares from random places of random pictures, each turned or mirrored by chance.

    >>> cuts([torch.rand(3, 40, 50)], 5, 32, seed=0).shape
    torch.Size([5, 3, 32, 32])
    """
    random, squares = np.random.default_rng(seed), []
    for _ in range(count):
        picture = pictures[int(random.integers(len(pictures)))]
        top, left = (int(random.integers(length - side + 1)) for length in picture.shape[1:])
        square = torch.rot90(
            picture[:, top : top + side, left : left + side], int(random.integers(4)), (1, 2)
        )
        squares.append(square.flip(2) if random.integers(2) else square)
    return torch.stack(squares)


class Resemblance(nn.Module):
    """How much the patches in each region of a picture look like the entries of a dictionary, or
    like their negatives.

    Of a patch only its contrasts count, whitened as those of the pictures that the dictionary is
    learned from. Sums are taken to the power of a half, so that a texture does not count for more
    than a thing. With ``mirrored``, entries come with their mirror images, and the result is the
    mean of that for the picture and for its mirror image, whose left half says all.

    >>> Resemblance([torch.rand(1, 9, 9)], atoms=4, patches=20)(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 8, 4, 4])
    """

    weight: torch.Tensor
    bias: torch.Tensor

    def __init__(
        self,
        pictures: Sequence[torch.Tensor],
        atoms: int,
        mirrored: bool = False,
        patches: int = _CUTS,
    ) -> None:
        super().__init__()
        self.mirrored = mirrored
        seen = cuts(pictures, patches, _SIDE, seed=0)
        rows = seen.flatten(1)
        rows = rows - rows.mean(1, keepdim=True)
        rows = rows / (rows.var(1, keepdim=True) + _CONTRAST**2).sqrt()
        mean = rows.mean(0)
        values, vectors = torch.linalg.eigh((rows - mean).T @ (rows - mean) / len(rows))
        whitening = (
            vectors
            @ torch.diag((values.clamp(min=0) + _SHRINKAGE * values.mean()).rsqrt())
            @ vectors.T
        )
        entries = _k_means((rows - mean) @ whitening, atoms // 2 if mirrored else atoms)
        filters = entries @ whitening
        bias = -filters @ mean
        filters = (filters - filters.mean(1, keepdim=True)).unflatten(
            1, seen.shape[1:]
        )  # blind to brightness
        self.register_buffer(
            "weight", torch.cat([filters, filters.flip(3)]) if mirrored else filters
        )
        self.register_buffer("bias", torch.cat([bias, bias]) if mirrored else bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features (records, 2·atoms, 4, 4), or (records, 2·atoms, 4, 2) of mirrored
        dictionaries.
        """
        return torch.cat([self._summed(part) for part in x.split(_PART)]).sqrt()

    def _summed(self, x: torch.Tensor) -> torch.Tensor:
        mean, square = (
            F.avg_pool2d(each.mean(1, keepdim=True), _SIDE, 1) for each in (x, x.square())
        )
        pixels = self.weight[0].numel()
        deviation = (
            (square - mean.square()).clamp(min=0) * (pixels / (pixels - 1)) + _CONTRAST**2
        ).sqrt()
        alike = F.conv2d(x, self.weight) / deviation + self.bias.view(-1, 1, 1)
        found = [
            F.adaptive_avg_pool2d((sign * alike - _THRESHOLD).relu_(), _REGIONS) for sign in (1, -1)
        ]
        if self.mirrored:
            half = len(self.bias) // 2
            found = [
                (each + each.roll(half, 1).flip(3))[..., : _REGIONS // 2] / 2 for each in found
            ]
        return torch.cat(found, 1)


def _k_means(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return unit vectors that rows are near to, up to their sign (spherical k-means), from the
    first rows on.
    """
    found = F.normalize(rows[:count], dim=1)
    for _ in range(_ROUNDS):
        alike = rows @ found.T
        nearest = alike.abs().argmax(1)
        sums = torch.zeros_like(found).index_add_(
            0, nearest, alike.gather(1, nearest[:, None]) * rows
        )
        found = F.normalize(torch.where(sums.norm(dim=1, keepdim=True) > 0, sums, found), dim=1)
    return found


@lru_cache
def photo_patches() -> Resemblance:
    """Return features of coloured pictures, by the dictionary of photographs."""
    return Resemblance(photographs(), _ATOMS, mirrored=True)


def thumbnails() -> torch.Tensor:
    """Return squares cut from the photographs, of the size of a CIFAR-10 picture."""
    return cuts(photographs(), _EXAMPLES, 32, seed=1)


def whitened_patches() -> Whitened:
    """Return the whitening of :func:`photo_patches`."""
    return Whitened(photo_patches()(thumbnails()), _FLAT)
