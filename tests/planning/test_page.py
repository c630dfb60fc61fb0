"""The page with sliders: its arithmetic is on the safe side of the accountant's, and it needs
nothing from outside.
"""

import json
import math
import re
import shutil
import subprocess
from importlib.resources import files

import pytest

from dpfy.accounting import account, calibrate_noise
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.planning.page import interactive

SCRIPT = files("dpfy.planning").joinpath("page.js")
NODE = shutil.which("node")
# ε, δ, rate, epochs: corners and the middle of what the page says it is accurate for, the paper's
# setting, one step.
USUAL = [
    (3.0, 1e-5, 0.001, 60),
    (3.0, 1e-5, 0.1, 60),
    (3.0, 1e-5, 1.0, 60),
    (0.1, 1e-12, 0.02, 5),
    (16.0, 1e-3, 0.3, 500),
    (16.0, 1e-12, 0.001, 5),
    (0.3, 1e-6, 1.0, 5),
    (1.3, 1e-3, 0.1, 10),
]
ODD = [(1.0, 1e-5, 0.1, 0.1), (0.3, 6e-9, 1.4e-5, 4), (16.0, 1e-3, 1e-5, 1), (0.1, 1e-12, 1.0, 1)]


def asked(function, *cases):
    """Let node answer, from the file that the page contains."""
    code = (
        "const page = "
        f"require({json.dumps(str(SCRIPT))});console.log(JSON.stringify({json.dumps(cases)}.map((given) => page.{function}(...given))))"
    )
    return json.loads(
        subprocess.run([NODE, "-e", code], capture_output=True, text=True, check=True).stdout
    )


def steps(rate, epochs):
    return max(1, math.ceil(epochs / rate - 1e-9))


@pytest.mark.skipif(NODE is None, reason="the page's arithmetic is tested where node is installed")
def test_noise_of_the_page_is_enough_and_not_far_above():
    cases = [
        (epsilon, delta, rate, steps(rate, epochs)) for epsilon, delta, rate, epochs in USUAL + ODD
    ]
    for place, (case, noise) in enumerate(zip(cases, asked("noiseFor", *cases), strict=True)):
        epsilon, delta, rate, count = case
        assert (
            account(Repeated(Sampled(Poisson(rate), (SumQuery(1.0, noise),)), count)).claim(delta)
            <= epsilon
        ), case
        if place < len(USUAL):
            least = calibrate_noise(epsilon=epsilon, delta=delta, rate=rate, steps=count)
            assert noise <= 1.16 * least, case


@pytest.mark.skipif(NODE is None, reason="the page's arithmetic is tested where node is installed")
def test_epsilon_of_the_page_is_that_of_renyi_divergences():
    # Whole orders, and chords between them, exceed the best real order by a few per cent and never
    # fall below it.
    cases = [(0.01, 1.0, 1000, 1e-5), (1.0, 5.0, 10, 1e-6), (0.2, 0.7, 3, 1e-3)]
    for (rate, noise, count, delta), value in zip(cases, asked("epsilonOf", *cases), strict=True):
        exact = account(
            Repeated(Sampled(Poisson(rate), (SumQuery(1.0, noise),)), count), "rdp"
        ).claim(delta)
        assert exact * (1 - 1e-9) <= value <= exact * 1.06


def test_the_page_is_self_contained_and_begins_with_what_was_given():
    page = interactive(epsilon=1.0, delta=1e-6, epochs=20, records=1_000_000, batch_size=4096)
    assert (
        "http" not in page.replace("http-equiv", "")
        and "src=" not in page
        and "@import" not in page
    )
    values = {
        name: 10 ** float(value)
        for name, value in re.findall(
            r'id="(\w+)" min="[^"]+" max="[^"]+" step="any" '
            r'value="([^"]+)"',
            page,
        )
    }
    given = {"epsilon": 1.0, "delta": 1e-6, "epochs": 20, "records": 1e6, "batch": 4096}
    assert values == pytest.approx(given, rel=1e-4)
    assert SCRIPT.read_text(encoding="utf-8") in page and "always enough" in page
    for name in ("epsilon", "delta", "epochs", "records", "batch"):
        assert f'<output id="{name}-value">' in page


def test_a_slider_is_wide_enough_for_what_was_given():
    page = interactive(epsilon=100.0)
    low, high, value = map(
        float,
        re.search(
            r'id="epsilon" min="([^"]+)" max="([^"]+)" step="any" value="([^"]+)"', page
        ).groups(),
    )
    assert low < value <= high


@pytest.mark.parametrize(
    "wrong", [{"epsilon": 0.0}, {"delta": 1.0}, {"records": 0}, {"records": 10, "batch_size": 11}]
)
def test_values_outside_their_domain_are_refused(wrong):
    with pytest.raises(InvalidArgument):
        interactive(**wrong)
