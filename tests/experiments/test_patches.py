"""Dictionaries of patches come from public pictures alone, and features are functions of one
record.
"""

import pytest
import torch

from experiments.patches import Resemblance, cuts, photographs


def pictures(count: int, colors: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, colors, 32, 32, generator=torch.Generator().manual_seed(seed))


def small(colors: int, mirrored: bool = False) -> Resemblance:
    return Resemblance(list(pictures(3, colors, seed=1)), atoms=8, mirrored=mirrored, patches=200)


def test_photographs_come_with_a_dependency_and_are_cut_the_same_way_each_time() -> None:
    found = photographs()
    assert len(found) == 8
    assert all(
        picture.shape[0] == 3 and -1e-3 < picture.min() < picture.max() < 1.001 for picture in found
    )
    assert torch.equal(cuts(found, 5, 32, seed=0), cuts(found, 5, 32, seed=0))


def test_a_dictionary_is_a_constant() -> None:
    assert torch.equal(small(3).weight, small(3).weight)


@pytest.mark.parametrize("mirrored", [False, True])
def test_features_depend_on_one_record(mirrored: bool) -> None:
    features, x = small(3, mirrored), pictures(45, 3)
    together = features(x)
    assert torch.allclose(together[31:32], features(x[31:32]), atol=1e-5)


def test_responses_are_those_of_whitened_patches_one_by_one() -> None:
    features, x = small(1), pictures(1, 1)
    patch = x[0, :, 3:9, 5:11].flatten()
    contrast = (patch - patch.mean()) / (patch.var() + (10 / 255) ** 2).sqrt()
    alike = features.weight.flatten(1) @ contrast + features.bias
    expected = torch.cat([(alike - 0.5).relu(), (-alike - 0.5).relu()]).sqrt()
    assert torch.allclose(features(x[:, :, 3:9, 5:11])[0, :, 0, 0], expected, atol=1e-4)


def test_brightness_does_not_count_and_contrast_hardly() -> None:
    features, x = small(3), pictures(2, 3)
    assert torch.allclose(features(x), features(x + 5), atol=1e-3)
    assert torch.allclose(features(x), features(3 * x), atol=0.1)


def test_a_mirror_image_has_the_same_mirrored_features_and_no_others() -> None:
    x = pictures(2, 3)
    assert torch.allclose(small(3, mirrored=True)(x), small(3, mirrored=True)(x.flip(3)), atol=1e-5)
    assert not torch.allclose(small(3)(x), small(3)(x.flip(3)), atol=0.05)


def test_a_blank_picture_has_finite_features() -> None:
    assert torch.isfinite(small(1)(torch.zeros(1, 1, 28, 28))).all()
