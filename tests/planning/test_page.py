"""The page with sliders shows the accountant's numbers and needs nothing from outside."""

import json
import re
import shutil
import subprocess
from importlib.resources import files

import pytest

from dpfy.errors import InvalidArgument
from dpfy.planning import table
from dpfy.planning.page import interactive

SCRIPT = files("dpfy.planning").joinpath("page.js").read_text(encoding="utf-8")
NODE = shutil.which("node")


def sliders(page):
    """The slider values by name, as the page begins."""
    found = re.findall(r'type="range" id="(\w+)" [^>]*value="([^"]+)"', page)
    return {name: float(value) for name, value in found}


def started(page):
    """What the sliders stand for."""
    at = sliders(page)
    return {
        "epsilon": table.EPSILONS[int(at["epsilon"])],
        "delta": table.DELTAS[int(at["delta"])],
        "epochs": table.EPOCHS[int(at["epochs"])],
        "records": 10 ** at["records"],
        "rate": table.RATES[int(at["batch"])],
    }


def test_the_page_is_self_contained_and_has_the_whole_table():
    page = interactive()
    assert (
        "http" not in page.replace("http-equiv", "")
        and "src=" not in page
        and "@import" not in page
    )
    given = json.loads(re.search(r"const TABLE = (\{.*\});", page).group(1))
    assert tuple(given["noise"]) == table.load().noise
    assert [tuple(given[name]) for name in ("epsilons", "deltas", "rates", "epochs")] == [
        table.EPSILONS,
        table.DELTAS,
        table.RATES,
        table.EPOCHS,
    ]
    assert SCRIPT in page and "always enough" in page
    for name in ("epsilon", "delta", "epochs", "records", "batch"):
        assert f'<output id="{name}-value">' in page


def test_sliders_begin_at_stops_on_the_safe_side_of_what_was_given():
    exact = interactive(epsilon=1.0, delta=1e-6, epochs=16, records=1_048_576, batch_size=4096)
    assert started(exact) == pytest.approx(
        {"epsilon": 1.0, "delta": 1e-6, "epochs": 16, "records": 1_048_576, "rate": 2**-8}, rel=1e-4
    )
    between = interactive(epsilon=1.9, delta=3e-6, epochs=20, records=1_000_000, batch_size=4000)
    assert started(between) == pytest.approx(
        {"epsilon": 1.0, "delta": 1e-6, "epochs": 32, "records": 1e6, "rate": 2**-7}, rel=1e-4
    )


def test_a_slider_is_wide_enough_for_the_records_that_were_given():
    page = interactive(records=10**9)
    low, high = map(float, re.search(r'id="records" min="([^"]+)" max="([^"]+)"', page).groups())
    assert low < sliders(page)["records"] <= high


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0.0},
        {"epsilon": 0.01},
        {"delta": 1.0},
        {"delta": 1e-11},
        {"epochs": 1000},
        {"records": 0},
        {"records": 10, "batch_size": 11},
    ],
)
def test_values_outside_their_domain_are_refused(wrong):
    with pytest.raises(InvalidArgument):
        interactive(**wrong)


def test_the_page_accounts_nothing():
    """Logarithms and powers are for axes; nothing exponentiates a noise multiplier."""
    look_up = SCRIPT[: SCRIPT.index("const WIDTH")]
    assert "Math." not in look_up and "TABLE.noise[" in look_up
    assert SCRIPT.count("TABLE.noise") == 1


_DOCUMENT = """
const elements = {};
const document = {
  getElementById: (name) => elements[name] ??= {value: VALUES[name]},
  querySelectorAll: () => [],
};
"""


@pytest.mark.skipif(NODE is None, reason="what the script says is tested where node is installed")
@pytest.mark.parametrize("place", [(5, 3, 7, 7), (0, 0, 3, 10), (8, 2, 10, 0), (3, 1, 5, 4)])
def test_the_sentence_has_the_noise_of_the_stops(place):
    epsilon, delta, rate, epochs = place
    values = {"epsilon": epsilon, "delta": delta, "batch": rate, "epochs": epochs, "records": 5}
    script = re.search(r"<script>(.*)</script>", interactive(), re.DOTALL).group(1)
    code = (
        f"const VALUES = {json.dumps(values)};{_DOCUMENT}{script}"
        "console.log(JSON.stringify([elements.sentence.textContent, elements.command.textContent]))"
    )
    ran = subprocess.run([NODE, "-"], input=code, capture_output=True, text=True, check=True)
    sentence, command = json.loads(ran.stdout)
    assert f"multiplier of {table.load().at(*place):g} is enough" in sentence
    assert f"--steps {table.steps_at(rate, epochs)} " in command
    assert f"--batch-size {int(table.RATES[rate] * 100_000)} " in command
