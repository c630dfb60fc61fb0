"""Writes tables from the results, into docs/how-to/accuracy.md."""

import math
from collections.abc import Iterable, Sequence
from statistics import mean, stdev
from typing import Any

from experiments.cell import Cell, by_experiment
from experiments.configs import CELLS
from experiments.results import Entry, Place, same_settings

PAGE = "docs/how-to/accuracy.md"
BEGIN, END = "<!-- results: begin -->\n", "<!-- results: end -->\n"
_HEADER = (
    "data",
    "ε",
    "to reach %",
    "reached %",
    "difference",
    "seeds",
    "ε by PLD",
    "ε by RDP",
    "seconds per seed",
)


def update(place: Place) -> None:
    """Bring the page of the repository around the results in line with these."""
    page = place.root.parent / PAGE
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise ValueError(f"{page.name} has no marks {BEGIN.strip()} and {END.strip()}")
    page.write_text(f"{head}{BEGIN}{markdown(place)}{END}{tail}", encoding="utf-8")


def markdown(place: Place, cells: Iterable[Cell] = CELLS) -> str:
    """Return one table per experiment with a row for every cell, also for those that have no
    result.
    """
    parts: list[str] = []
    for name, members in by_experiment(cells).items():
        rows = [_row(cell, place.find(cell)) for cell in members]
        title = ", ".join(
            filter(
                None, (f"`{name}`", members[0].method, members[0].features, members[0].reference)
            )
        )
        lines = [
            f"**{title}**, δ = {members[0].delta:g}",
            "",
            *_lines([_HEADER, ["---"] * len(_HEADER), *rows]),
        ]
        parts.append("\n".join([*lines, *_notes(members, place)]) + "\n")
    return "\n".join(parts)


def _row(cell: Cell, entry: Entry | None) -> list[str]:
    start = [cell.data, f"{cell.epsilon:g}", _target(cell)]
    if entry is None:
        return [*start, "not run", "–", f"0 of {len(cell.seeds)}", "–", "–", "–"]
    accuracy, config = entry["accuracy"], entry["config"]
    reached = mean(accuracy)
    spread = f" ± {stdev(accuracy):.2f}" if len(accuracy) > 1 else ""
    older = "" if same_settings(entry, cell) else " (older settings)"
    difference = "–" if cell.target is None else f"{reached - cell.target:+.2f}".replace("-", "−")
    return [
        *start,
        f"{reached:.2f}{spread}{older}",
        difference,
        f"{len(accuracy)} of {len(cell.seeds)}",
        claim(entry["epsilon"]),
        claim(config["epsilon_rdp"]),
        f"{entry['seconds'] / len(accuracy):.0f}",
    ]


def _target(cell: Cell) -> str:
    return "–" if cell.target is None else f"{cell.target:.1f}"


def _notes(cells: Sequence[Cell], place: Place) -> list[str]:
    """How the settings were found, once for the cells that share it; and what runs have lost."""
    notes = ["", *dict.fromkeys(f"Settings: {cell.found}" for cell in cells)]
    for cell in cells:
        entry = place.find(cell)
        runs = entry["config"]["runs"] if entry is not None else []
        if runs and runs[0].get("groups"):
            notes.append(_groups(runs))
        for run in runs:
            if run["lost_steps"]:
                notes.append(
                    f"ε {cell.epsilon:g}, seed {run['seed']}: {run['lost_steps']} of "
                    f"{run['steps']} steps were paid for and lost to an interruption."
                )
    return notes


def _groups(runs: Sequence[dict[str, Any]]) -> str:
    """What each group was promised: the largest ε and true positive rate of all runs."""
    together = zip(*(run["groups"] for run in runs), strict=True)
    words = (
        f"{same[0][0]} ε {claim(max(each[1] for each in same))} "
        f"({100 * max(each[2] for each in same):.1f} %)"
        for same in together
    )
    return (
        f"Groups, with the largest true positive rate at 1 % false positives: {', '.join(words)}."
    )


def _lines(rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in rows]


def claim(epsilon: float) -> str:
    """Return an ε with three digits after the point, rounded up as a claim must be.

    >>> claim(2.9291), claim(2.93)
    ('2.930', '2.930')
    """
    return f"{math.ceil(round(epsilon * 1000, 6)) / 1000:.3f}"
