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


@pytest.mark.parametrize("method", labels.METHODS)
def test_a_cell_is_trained_as_the_command_line_would(method):
    setting = labels.Setting("mnist", method, 4.0, "mnist-cnn", "raw", 1.0, 1e-3, batch_size=20)
    result = labels.trained(setting, Task(few(), few(), 40))
    assert result["claim"] <= 4 * (1 + 1e-9) and 0 <= result["accuracy"] <= 100
    assert result["setting"]["method"] == method


def test_kept_results_are_of_settings_that_are_there():
    known = [vars(each) for data in labels.DATA for each in labels.settings(data)]
    assert all(result["setting"] in known for result in labels.read())


def test_the_page_shows_the_results():
    page = Path(labels.__file__).parents[1] / "docs" / "how-to" / "labels.md"
    text = page.read_text(encoding="utf-8")
    shown = text.partition("<!-- labels: begin -->\n")[2].partition("\n<!-- labels: end -->")[0]
    assert shown == labels.table(labels.read())
