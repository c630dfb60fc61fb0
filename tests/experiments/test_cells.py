"""The cells of the literature have the settings that their modules say they have."""

from dataclasses import replace

import pytest

import dpfy
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from experiments.cell import Cell
from experiments.configs import CELLS, cells_of
from experiments.parts import make_network

# Dörmann et al. 2021, Table 2: ε, accuracy, q and σ.
PAPER = {"mnist": [(0.98, 97.0, 0.14, 11.85), (1.95, 97.6, 0.17, 7.44), (2.93, 98.1, 0.17, 4.65)],
         "fashion-mnist": [(0.97, 83.7, 0.14, 11.85), (1.79, 86.1, 0.17, 9.23), (2.40, 86.8, 0.17, 6.07)],
         "cifar-10": [(1.93, 58.6, 0.17, 6.60), (4.21, 66.2, 0.20, 4.84), (7.42, 70.1, 0.17, 3.12)]}
SHAPES = {("digits", "raw"): (1, 8, 8), ("mnist", "raw"): (1, 28, 28), ("fashion-mnist", "raw"): (1, 28, 28),
          ("cifar-10", "raw"): (3, 32, 32), ("mnist", "scattering"): (81, 7, 7),
          ("fashion-mnist", "scattering"): (81, 7, 7), ("cifar-10", "scattering"): (243, 8, 8)}
_CHECKPOINT_LIMIT = 5_000_000
_DIGITS = cells_of("digits")[0]


def rdp_epsilon(rate: float, noise: float, steps: int) -> float:
    step = Sampled(Poisson(rate), (SumQuery(1.0, noise),))
    return dpfy.account(Repeated(step, steps), "rdp").claim(1e-5)


@pytest.mark.parametrize("data", PAPER)
def test_large_rates_have_the_table_of_the_paper(data: str) -> None:
    found = [(cell.epsilon, cell.target, cell.rate) for cell in cells_of(f"large-rates-{data}")]
    assert found == [row[:3] for row in PAPER[data]]


@pytest.mark.parametrize(("data", "row"), [(data, row) for data in ("mnist", "fashion-mnist") for row in range(3)])
def test_steps_are_the_most_that_the_noise_of_the_paper_allows(data: str, row: int) -> None:
    epsilon, _, rate, noise = PAPER[data][row]
    steps = cells_of(f"large-rates-{data}")[row].steps
    published = epsilon + 0.005  # it is rounded to two digits
    assert rdp_epsilon(rate, noise, steps) <= published < rdp_epsilon(rate, noise, steps + 1)


def test_cifar_stays_within_its_compute() -> None:
    assert all(cell.rate * cell.steps <= 30 and cell.seeds == (0,) for cell in cells_of("large-rates-cifar-10"))


def test_cells_are_told_apart() -> None:
    assert len({(cell.experiment, cell.epsilon) for cell in CELLS}) == len(CELLS)
    assert all(cell.found for cell in CELLS)
    for name in {cell.experiment for cell in CELLS}:  # a heading of the table holds for all its rows
        assert len({(cell.method, cell.features, cell.reference, cell.delta) for cell in cells_of(name)}) == 1


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.experiment}-{cell.epsilon:g}")
def test_a_checkpoint_is_small_enough_to_be_committed(cell: Cell) -> None:
    copies = 1 + (cell.momentum > 0) + (cell.ema > 0)
    size = 4 * copies * sum(p.numel() for p in make_network(cell, SHAPES[cell.data, cell.features], 0).parameters())
    assert size + 50_000 < _CHECKPOINT_LIMIT  # names, shapes and the plan stand before the numbers


@pytest.mark.parametrize(("name", "value"), [
    ("data", "mnis"), ("network", "vgg"), ("method", "sgd"), ("features", "none"), ("schedule", "step"),
    ("augmentation", "crop"), ("epsilon", 0.0), ("delta", 1.0), ("rate", 0.0), ("rate", 1.1), ("steps", 0),
    ("clip", 0.0), ("learning_rate", -1.0), ("momentum", 1.0), ("ema", 1.0), ("records", 0), ("copies", 2)])
def test_settings_outside_their_domain_are_refused(name: str, value: object) -> None:
    with pytest.raises(dpfy.InvalidArgument, match=name):
        replace(_DIGITS, **{name: value})


def test_settings_are_given_as_texts() -> None:
    cell = _DIGITS.changed_by(["clip=0.5", "steps=7", "schedule=cosine", "records=100"])
    assert (cell.clip, cell.steps, cell.schedule, cell.records) == (0.5, 7, "cosine", 100)
    assert cell.digest != _DIGITS.digest == replace(_DIGITS, found="otherwise").digest


@pytest.mark.parametrize("text", ["clip", "clip=much", "epsilon=9", "data=mnist", "seeds=4", "colour=red", "steps=1.5"])
def test_texts_that_are_no_settings_are_refused(text: str) -> None:
    with pytest.raises(dpfy.InvalidArgument, match="setting"):
        _DIGITS.changed_by([text])


def test_quick_keeps_digits_whole_and_cuts_the_others() -> None:
    assert _DIGITS.quick() == replace(_DIGITS, seeds=(0,))
    quick = cells_of("large-rates-cifar-10")[0].quick()
    assert (quick.records, quick.steps, quick.seeds) == (2000, 10, (0,))
