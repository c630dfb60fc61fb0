"""Pictures of random strokes, to learn from them what digits have in common; and digits set
upright.

A program draws the strokes with a fixed seed. It has seen no digit, and its result is a public
constant."""

import torch
import torch.nn.functional as F

_SEED, _SIDE, _CURVES = 0, 28, 3
_WIDTH = 2.0  # pixels from the middle of a stroke to where its ink ends
_BLANK = 1e-3  # ink below this one is none
_PART = 250


def strokes(count: int, seed: int = _SEED) -> torch.Tensor:
    """Return pictures (count, 1, 28, 28) of one to three curves each, in the middle as digits are.

    >>> strokes(2).shape
    torch.Size([2, 1, 28, 28])
    """
    generator = torch.Generator().manual_seed(seed)
    time = torch.linspace(0, 1, 24)
    bezier = torch.stack([(1 - time) ** 2, 2 * time * (1 - time), time**2])
    y, x = torch.meshgrid(torch.arange(_SIDE), torch.arange(_SIDE), indexing="ij")
    pictures = []
    for begin in range(0, count, _PART):
        size = min(_PART, count - begin)
        corners = _SIDE * (0.2 + 0.6 * torch.rand(size, _CURVES, 3, 2, generator=generator))
        drawn = torch.arange(_CURVES) <= torch.randint(_CURVES, (size, 1), generator=generator)
        points = torch.einsum("nkcd,ct->nktd", corners, bezier)[..., None, None]
        distance = torch.hypot(points[:, :, :, 0] - x, points[:, :, :, 1] - y).amin(2)
        pictures.append(
            ((_WIDTH - distance).clamp(0, 1) * drawn[..., None, None]).amax(1, keepdim=True)
        )
    return torch.cat(pictures)


def upright(x: torch.Tensor) -> torch.Tensor:
    """Return pictures (records, 1, side, side) with their ink centred, and sheared so that it does
    not lean.

    Hands slant differently, and digits do not differ by it. Moments of a picture alone say by how
    much: its ink leans by the covariance of columns and rows over the variance of rows.

    >>> upright(torch.eye(9).view(1, 1, 9, 9))[0, 0, :, 4].sum() > 6  # leaned by 45 degrees
    tensor(True)
    """
    side = x.shape[-1]
    place = torch.arange(side) - (side - 1) / 2
    ink = x[:, 0] / x.sum((1, 2, 3)).clamp(min=_BLANK).view(-1, 1, 1)
    across, down = torch.einsum("nyx,x->n", ink, place), torch.einsum("nyx,y->n", ink, place)
    rows, columns = place - down.view(-1, 1), place - across.view(-1, 1)
    together = torch.einsum("nyx,ny,nx->n", ink, rows, columns)
    lean = together / torch.einsum("nyx,ny->n", ink, rows.square()).clamp(min=_BLANK)
    moved = torch.zeros(len(x), 2, 3)
    moved[:, 0, 0] = moved[:, 1, 1] = 1.0
    moved[:, 0, 1] = lean.clamp(-1, 1)
    moved[:, :, 2] = torch.stack([across, down], 1) * (2 / side)
    return F.grid_sample(
        x, F.affine_grid(moved, list(x.shape), align_corners=False), align_corners=False
    )
