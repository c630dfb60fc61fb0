"""Where states and results are kept, and how a finished run enters the list of results.

Results are part of the repository. They hold all that tables and plots show: settings, accuracies,
ε and the head of each run's ledger. States are not: ledgers and checkpoints of runs stay on the
machine that runs them, where an interrupted run goes on from them.
"""

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpfy.ledger import Ledger
from dpfy.run.checkpoint import FILE as CHECKPOINT
from experiments.cell import Cell
from experiments.methods import accounting, method_name
from experiments.training import LEDGER, Outcome

Entry = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """The folder of all experiments; with ``validate``, of what was measured on a split of the
    training records.
    """

    root: Path
    validate: bool = False

    def state(self, cell: Cell, seed: int) -> Path:
        """Return the folder of one run: settings, ledger and, until it has ended, a checkpoint."""
        suffix = f"-validate-{cell.digest}" if self.validate else ""
        return self.root / "state" / cell.experiment / f"{cell.epsilon:g}-{seed}{suffix}"

    @property
    def cache(self) -> Path:
        """The folder of features that were computed before; not part of a state."""
        return self.root / "state" / "features"

    def file(self, experiment: str) -> Path:
        """Return the list of results of an experiment."""
        return self.root / ("selection" if self.validate else "results") / f"{experiment}.json"

    def read(self, experiment: str) -> list[Entry]:
        """Return the results of an experiment; none if it has not run."""
        file = self.file(experiment)
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else []

    def find(self, cell: Cell) -> Entry | None:
        """Return the entry of a cell; in the place of results, whatever settings it was made
        with.
        """
        return next(
            (entry for entry in self.read(cell.experiment) if self._holds(entry, cell)), None
        )

    def finished(self, cell: Cell) -> dict[int, float]:
        """Return the accuracy of each seed that has run with the settings of the cell."""
        entry = self.find(cell)
        if entry is None or not same_settings(entry, cell):
            return {}
        return dict(zip(entry["config"]["seeds"], entry["accuracy"], strict=True))

    def steps_taken(self, cell: Cell, seed: int) -> int:
        """Return how many steps the ledger of a run that has begun holds."""
        ledger = self.state(cell, seed) / LEDGER
        return Ledger.read(ledger).count if ledger.exists() else 0

    def record(self, cell: Cell, outcome: Outcome) -> Entry:
        """Put a finished run into the cell's entry, beside seeds of the same settings; other
        settings are replaced.
        """
        with self._alone():
            entries, old = self.read(cell.experiment), self.find(cell)
            runs = old["config"]["runs"] if old is not None and same_settings(old, cell) else []
            runs = [*(run for run in runs if run["seed"] != outcome.seed), asdict(outcome)]
            entry = _entry(cell, sorted(runs, key=lambda run: run["seed"]))
            kept = [other for other in entries if not self._holds(other, cell)]
            self._write(
                cell.experiment,
                sorted([*kept, entry], key=lambda entry: entry["config"]["epsilon"]),
            )
        (self.state(cell, outcome.seed) / CHECKPOINT).unlink(
            missing_ok=True
        )  # the ledger stays, as long as the folder does
        return entry

    def discard(self, cell: Cell, seed: int) -> None:
        """Remove the state of a run, so that it begins again with a ledger of its own."""
        shutil.rmtree(self.state(cell, seed), ignore_errors=True)

    def _holds(self, entry: Entry, cell: Cell) -> bool:
        return (
            same_settings(entry, cell)
            if self.validate
            else bool(entry["config"]["epsilon"] == cell.epsilon)
        )

    def _write(self, experiment: str, entries: list[Entry]) -> None:
        file, staged = self.file(experiment), self.root / "state" / f"{experiment}.new"
        file.parent.mkdir(parents=True, exist_ok=True)
        staged.write_text(
            json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        staged.replace(file)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep two processes that run seeds of one cell from losing each other's results."""
        lock = self.root / "state" / "results.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def same_settings(entry: Entry, cell: Cell) -> bool:
    """Whether an entry was made with the settings that the cell has now."""
    return all(entry["config"].get(name, ...) == value for name, value in cell.settings().items())


def _entry(cell: Cell, runs: list[dict[str, Any]]) -> Entry:
    """One result as it is published: what all seeds reached, and the largest ε that one of their
    ledgers claims.
    """
    details = {name: max(run[name] for run in runs) for name in ("epsilon_rdp", "noise_multiplier")}
    config = {
        **cell.settings(),
        **details,
        "found": cell.found,
        "seeds": [run["seed"] for run in runs],
        "runs": runs,
    }
    return {
        "experiment": cell.experiment,
        "data": cell.data,
        "method": method_name(cell.method),
        "features": cell.features,
        "epsilon": max(run["epsilon"] for run in runs),
        "delta": cell.delta,
        "accounting": accounting(cell.method),
        "accuracy": [run["accuracy"] for run in runs],
        "seconds": sum(run["seconds"] for run in runs),
        "config": config,
    }
