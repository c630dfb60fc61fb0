"""Solvers and special functions that are scipy's, and are not loaded before they are needed."""

import math
import subprocess
import sys

import pytest
import scipy.special

from dpfy.accounting import special
from dpfy.accounting.solvers import brentq, minimize_scalar


def test_roots_and_minima_are_those_of_scipy():
    assert brentq(lambda x: x**3 - 8, 0, 5, xtol=1e-12) == pytest.approx(2)
    found = minimize_scalar(lambda x: (x - 3) ** 2, bounds=(0, 10), method="bounded")
    assert found.x == pytest.approx(3)


def test_special_functions_are_those_of_scipy():
    assert special.ndtr(0.0) == 0.5
    assert special.logsumexp([0.0, 0.0], b=[3.0, 1.0]) == pytest.approx(math.log(4))
    functions = [name for name in vars(special) if not name.startswith("_")]
    missing = {name for name in functions if not hasattr(scipy.special, name)}
    assert missing == {"Any", "Callable", "import_module"}


def test_a_training_run_whose_noise_is_given_does_not_load_them(tmp_path):
    """Fails if a module on the way of a step imports a part of scipy: up to 35 MB."""
    script = (
        "import sys, torch, dpfy\n"
        "from torch.utils.data import TensorDataset\n"
        "model = torch.nn.Linear(3, 1)\n"
        "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "plan = dpfy.dpsgd(records=8, batch_size=4, steps=2, clip=1.0, noise_multiplier=1.0)\n"
        "data = TensorDataset(torch.ones(8, 3))\n"
        "with dpfy.privatize(model, opt, data, plan, ledger='a.dpl') as run:\n"
        "    for batch in run:\n"
        "        opt.zero_grad()\n"
        "        run.backward(lambda x: model(x).square().sum(1), batch)\n"
        "        opt.step()\n"
        "print([name for name in sys.modules if name.startswith('scipy.')])"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert found.stdout == "[]\n"
