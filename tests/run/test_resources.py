"""What private steps take: peaks as a process of its own has them, and what follows from the
figures.
"""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from dpfy.errors import InvalidArgument
from dpfy.run.resources import Resources, estimate_resources, measure_made

MODELS = """
import sys, json, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
torch.set_num_threads(1)
name = sys.argv[2]
if name == "dense":
    layers = [nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(1024, 10))
    shape = (256,)
else:
    model = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                          nn.Linear(24 * 256, 10))
    shape = (3, 32, 32)
loss = lambda x, y: F.cross_entropy(model(x), y, reduction="none")
if sys.argv[1] == "estimate":
    from dpfy.run.resources import estimate_resources
    batch = torch.rand(4, *shape), torch.randint(10, (4,))
    print(json.dumps(estimate_resources(model, batch, loss, batch_size=384).peak_bytes))
else:
    import dpfy
    from dpfy.run.resources import _peak
    data = TensorDataset(torch.rand(1000, *shape), torch.randint(10, (1000,)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    plan = dpfy.dpsgd(records=1000, batch_size=384, steps=5, noise_multiplier=1.0)
    with dpfy.privatize(model, opt, data, plan, dpfy.Ledger.in_memory()) as run:
        for batch in run:
            opt.zero_grad()
            run.backward(loss, batch)
            opt.step()
    print(json.dumps(_peak(torch.device("cpu"))))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense", "convolutional"])
def test_the_peak_is_that_of_a_real_run_in_a_fresh_process(name):
    estimated, real = (
        json.loads(
            subprocess.run(
                [sys.executable, "-c", MODELS, task, name],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for task in ("estimate", "train")
    )
    assert estimated == pytest.approx(real, rel=0.2)


def test_the_model_its_gradients_and_its_mode_stay():
    model = nn.Linear(6, 2).eval()
    before = [p.detach().clone() for p in model.parameters()]
    model.weight.grad = torch.ones(2, 6)
    found = estimate_resources(model, torch.rand(4, 6), batch_size=40)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert (
        torch.equal(model.weight.grad, torch.ones(2, 6))
        and model.bias.grad is None
        and not model.training
    )
    assert (found.engine, found.parameters, found.batch_size) == ("bookkeeping", 14, 40)
    assert found.peak_bytes > 0 and found.seconds_per_record > 0 and found.seconds_per_step >= 0


FIGURES = Resources(
    "bookkeeping",
    10,
    batch_size=100,
    records_at_once=50,
    peak_bytes=1000,
    bytes_per_record=10.0,
    seconds_per_record=0.01,
    seconds_per_step=0.5,
)


def test_what_fits_follows_from_the_figures():
    assert FIGURES.seconds(100, steps=2) == pytest.approx(3.0)
    assert FIGURES.epochs_within(3600, records=1000, batch_size=100) == pytest.approx(240)
    assert FIGURES.largest_batch(seconds=300, steps=100) == 250
    assert FIGURES.largest_batch(seconds=10, steps=100) == 0
    assert FIGURES.largest_chunk(memory=1200) == 70 and FIGURES.largest_chunk(memory=400) == 0
    assert "50 records at once" in str(FIGURES)


def test_a_model_of_the_command_line_takes_a_class_as_its_last_field():
    found = measure_made((nn.Linear(6, 3),), [("float32", (6,)), ("int64", ())], batch_size=8)
    assert found.parameters == 21


def test_what_is_no_model_is_refused():
    with pytest.raises(InvalidArgument, match=r"torch\.nn\.Module"):
        measure_made("a model", [("float32", (6,))], batch_size=8)
