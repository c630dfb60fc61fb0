"""What a network is given instead of records: functions of one record each and of public constants,
computed once.

A guarantee for what comes out is therefore one for records.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dpfy.data.text import glove
from dpfy.models import Normalize, review_classifier, scattering_features
from experiments import minilm
from experiments.patches import photo_patches, thumbnails, whitened_patches
from experiments.strokes import strokes, upright
from experiments.whitening import whitened_scattering

DataDir = str | Path | None
FEATURES: dict[str, Callable[[torch.Tensor, DataDir], torch.Tensor]] = {
    "raw": lambda images, data_dir: images,
    "scattering": lambda images, data_dir: scattering_features(images),
    "upright-scattering": lambda images, data_dir: scattering_features(upright(images)),
    "photo-patches": lambda images, data_dir: photo_patches()(images),
    "minilm": minilm.lower_layers,
    "minilm-below-last": partial(minilm.lower_layers, layers=minilm.FROZEN - 1),
}
_PROBES = 16  # images whose features tell whether a file belongs to these images and to this code
_TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-2}  # of what is kept
_PART = 1000  # records at a time

_STROKES = 2000  # pictures
_GROUPS, _NORM = (
    27,
    3.0,
)  # of scattering paths; the bias then counts for a tenth of what the features do


def normalization(shape: tuple[int, ...]) -> nn.Sequential:
    """Return what scattering coefficients need: GroupNorm without scale, then the same norm for
    every record.
    """
    return nn.Sequential(nn.GroupNorm(_GROUPS, shape[0], affine=False), Normalize(norm=_NORM))


# By the network, and the shape of one record: layers without parameters, which need not be run
# again in every step.
FRONTS: dict[str, Callable[[tuple[int, ...], DataDir], nn.Module]] = {
    "normalized-linear": lambda shape, data_dir: normalization(shape),
    "photo-scattering-linear": lambda shape, data_dir: nn.Sequential(
        whitened_scattering(thumbnails(), _GROUPS), Normalize(norm=_NORM)
    ),
    "photo-linear": lambda shape, data_dir: nn.Sequential(
        whitened_patches(), Normalize(norm=_NORM)
    ),
    "stroke-linear": lambda shape, data_dir: nn.Sequential(
        whitened_scattering(upright(strokes(_STROKES)), _GROUPS), Normalize(norm=_NORM)
    ),
    "review-linear": lambda shape, data_dir: nn.Sequential(  # the mean of frozen word vectors
        review_classifier(glove(data_dir))[0], Normalize(norm=_NORM)
    ),
    "minilm-linear": lambda shape, data_dir: minilm.pooled(minilm.UpperLayers()),
    "minilm-mean-linear": lambda shape, data_dir: minilm.pooled(minilm.Mean()),
}


def computed(
    kind: str, images: torch.Tensor, file: Path | None = None, data_dir: DataDir = None
) -> torch.Tensor:
    """Return the features of all images, from ``file`` if they are there, and keep them there if
    they are not.

    >>> computed("raw", torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 1, 8, 8])
    """
    compute = FEATURES[kind]
    if kind == "raw" or file is None:
        return compute(images, data_dir)
    if file.exists():
        kept = load_file(file)["features"]
        probes = compute(images[:_PROBES], data_dir)
        if len(kept) == len(images) and torch.allclose(
            kept[:_PROBES], probes, atol=_TOLERANCES[kept.dtype]
        ):
            return kept
    features = compute(images, data_dir)
    file.parent.mkdir(parents=True, exist_ok=True)
    staged = file.with_suffix(".new")
    save_file({"features": features}, staged)
    staged.replace(file)
    return features


def in_front(network: str, features: torch.Tensor, data_dir: DataDir = None) -> torch.Tensor:
    """Return the features of all records after the front of a network, if it has one.

    >>> found = in_front("normalized-linear", torch.rand(2, 81, 7, 7))
    >>> found.flatten(1).norm(dim=1).round(decimals=3)
    tensor([3., 3.])
    """
    if network not in FRONTS:
        return features
    front = FRONTS[network](tuple(features.shape[1:]), data_dir)
    with torch.no_grad():
        return torch.cat([front(part) for part in features.split(_PART)])
