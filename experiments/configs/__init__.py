"""Every experiment by its name: a module per paper, a cell per result."""

from experiments.cell import Cell
from experiments.configs import (
    adaptive_review,
    correlated,
    digits,
    dpis,
    finetune,
    idpsgd,
    large_rates,
    scattering,
)

CELLS: tuple[Cell, ...] = (
    *large_rates.CELLS,
    *scattering.CELLS,
    *dpis.CELLS,
    *adaptive_review.CELLS,
    *idpsgd.CELLS,
    *correlated.CELLS,
    *finetune.CELLS,
    *digits.CELLS,
)
NAMES: tuple[str, ...] = tuple(dict.fromkeys(cell.experiment for cell in CELLS))


def cells_of(name: str) -> tuple[Cell, ...]:
    """Return the cells of an experiment, in the order of its table."""
    return tuple(cell for cell in CELLS if cell.experiment == name)
