"""Features are computed once, and a file of them is believed only if it belongs to these images and this code."""

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

    def compute(images: torch.Tensor) -> torch.Tensor:
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


@pytest.mark.parametrize("others", [IMAGES + 0.01, IMAGES[:18]], ids=["other images", "fewer images"])
def test_a_file_of_something_else_is_replaced(tmp_path: Path, calls: list[int], others: torch.Tensor) -> None:
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
