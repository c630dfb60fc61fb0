"""Features are computed once, and a file of them is believed only if it belongs to these images and
this code.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from experiments import features

IMAGES = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each call was given."""
    given: list[int] = []

    def compute(images: torch.Tensor, data_dir: object) -> torch.Tensor:
        given.append(len(images))
        return 2 * images

    monkeypatch.setitem(features.FEATURES, "scattering", compute)
    return given


def test_the_second_time_they_are_read(tmp_path: Path, calls: list[int]) -> None:
    file = tmp_path / "new" / "features.safetensors"
    first, second = (features.computed("scattering", IMAGES, file) for _ in range(2))
    assert torch.equal(first, 2 * IMAGES) and torch.equal(second, first)
    assert calls == [20, 16]  # all of them, then some to compare
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    "others", [IMAGES + 0.01, IMAGES[:18]], ids=["other images", "fewer images"]
)
def test_a_file_of_something_else_is_replaced(
    tmp_path: Path, calls: list[int], others: torch.Tensor
) -> None:
    file = tmp_path / "features.safetensors"
    features.computed("scattering", IMAGES, file)
    assert torch.equal(features.computed("scattering", others, file), 2 * others)
    assert torch.equal(load_file(file)["features"], 2 * others)


def test_a_file_of_older_code_is_replaced(tmp_path: Path, calls: list[int]) -> None:
    file = tmp_path / "features.safetensors"
    save_file({"features": 3 * IMAGES}, file)
    assert torch.equal(features.computed("scattering", IMAGES, file), 2 * IMAGES)


def test_images_themselves_are_not_kept(tmp_path: Path) -> None:
    assert features.computed("raw", IMAGES, tmp_path / "file") is IMAGES
    assert not list(tmp_path.iterdir())


def test_a_front_is_a_function_of_one_record() -> None:
    coefficients = torch.rand(2001, 81, 7, 7, generator=torch.Generator().manual_seed(1))
    together = features.in_front("normalized-linear", coefficients)
    assert torch.allclose(
        together[-1:], features.in_front("normalized-linear", coefficients[-1:]), atol=1e-6
    )
    assert together.shape == coefficients.shape


def test_reviews_are_the_mean_of_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    table = torch.randn(50, 100, generator=torch.Generator().manual_seed(2))
    monkeypatch.setattr(features, "glove", lambda data_dir: table)
    one, turned, same = features.in_front(
        "review-linear", torch.tensor([[0, 4, 5, 9], [9, 5, 4, 0], [4, 5, 9, 9]])
    )
    assert torch.allclose(one, turned, atol=1e-6) and not torch.allclose(one, same, atol=0.1)
    assert one.norm() == pytest.approx(3.0, rel=1e-5)


def test_networks_without_a_front_get_the_features() -> None:
    assert features.in_front("cnn-head", IMAGES) is IMAGES
