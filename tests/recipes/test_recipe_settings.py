"""Recipes by their names in settings."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.plans import Plan


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "noisy_max"},
        {"algorithm": "noisy_max:many", "sampling": "full"},
        {"algorithm": "newton"},
        {"algorithm": "dpsgd:1"},
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings):
    with pytest.raises(dpfy.InvalidArgument):
        dpfy.TrainConfig(**settings)


def test_the_trainer_walks_a_recipe_to_the_end_of_its_filter(tmp_path):
    """The ledger holds searches beside gradients, the plan can be read back, and what is claimed is
    the filter's.
    """
    torch.manual_seed(0)
    y = torch.randint(2, (200,))
    data = TensorDataset(torch.randn(200, 4) + 2.0 * y.unsqueeze(1), y)
    config = dpfy.TrainConfig(
        out=str(tmp_path),
        name="a",
        records=200,
        sampling="full",
        batch_size=200,
        epochs=6,
        data="blobs",
        clip=1.0,
        delta=1e-3,
        epsilon=30.0,
        algorithm="line_search:0.3",
    )
    result = dpfy.Trainer(config, model=nn.Linear(4, 2), train=data, test=data).fit()
    ledger = dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl")
    kinds = {query.tag for run in ledger.uses for query in run.event.queries}
    assert kinds == {"sum", "above_threshold"}
    assert Plan.from_json(ledger.header.plan).adaptive
    assert result.claim == dpfy.account(ledger).claim(1e-3) <= 30.0
    assert result.evaluations[-1].accuracy > 0.6
    assert "above" in (tmp_path / "a" / "report.md").read_text()
