"""Results on labels are those of the cells, and their table has a row for each data set and ε."""

from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from experiments import labels
from experiments.parts import Task


def few():
    x = torch.rand(40, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, torch.arange(40) % 10)


@pytest.mark.parametrize("method", ["rr", "lp-mst:2"])
def test_a_cell_is_trained_as_the_command_line_would(method):
    setting = labels.Setting("mnist", "raw", 5, 1e-2, 1.0, 1e-3, method, 4.0, 20)
    result = labels.trained(setting, labels.Components(Task(few(), few(), 40), 8).of(5, 1e-2))
    assert result["claim"] <= 4 * (1 + 1e-9) and 0 <= result["accuracy"] <= 100
    assert labels.Setting(**result["setting"]) == setting


def test_components_are_those_of_the_training_records():
    """Against the covariance of all: orthogonal, the strongest first, and scaled alike."""
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(1)) * torch.arange(1.0, 7)
    data = TensorDataset(x, torch.zeros(200))
    found = labels.Components(Task(data, data, 200), 6).of(3, 0.0).train.tensors[0]
    values, vectors = torch.linalg.eigh(torch.cov(x.T))
    expected = (x - x.mean(0)) @ vectors.flip(1)[:, :3] * values.flip(0)[:3].rsqrt()
    assert torch.allclose(found.abs(), expected.abs(), atol=0.02)


def test_kept_results_are_of_settings_that_are_there():
    known = [each for row in labels.ROWS for each in labels.settings(row)]
    assert all(labels.Setting(**result["setting"]) in known for result in labels.read())


def test_settings_are_those_that_were_best_for_randomized_response():
    found = labels.read(labels.SELECTION)
    for row in labels.ROWS:
        tried = list(labels.candidates(row))
        results = [each for each in found if labels.Setting(**each["setting"]) in tried]
        best = max(results, key=lambda each: each["accuracy"])
        assert len(results) == len(tried) and labels.Setting(**best["setting"]) == row


def test_the_page_shows_the_results():
    page = Path(labels.__file__).parents[1] / "docs" / "how-to" / "labels.md"
    text = page.read_text(encoding="utf-8")
    shown = text.partition("<!-- labels: begin -->\n")[2].partition("\n<!-- labels: end -->")[0]
    assert shown == labels.table(labels.read())
