"""Labels alone are private: methods beside each other, trained by the same trainer and loss.

``python -m experiments.labels`` trains each cell as ``dpfy train --protect labels`` would, and
keeps the accuracy on the test records in ``results/labels.json``. Without privacy is ε = 40, at
which all noisy labels are the true ones. Features are public, and so are their principal
components.

``--select`` measures a grid of settings on a held-out sixth of the training records, for
randomized response at ε = 1, and keeps that in ``selection/labels.json``. What was best there is
the setting of *all* methods and ε of that row: nothing was chosen for any other method."""

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import torch
import typer
from torch.utils.data import TensorDataset

import dpfy
from experiments.cell import Cell
from experiments.networks import softmax_regression
from experiments.parts import Task, load_task

RESULTS = Path(__file__).parent / "results" / "labels.json"
SELECTION = Path(__file__).parent / "selection" / "labels.json"
METHODS = ("rr", "lp-mst:1", "lp-mst:2", "lp-mst-truth:2", "alibi", "cluster:500")
EPSILONS = (1.0, 2.0, 4.0)
SEEDS = 3
WITHOUT = 40.0  # no label of 60,000 changes at this ε
_EXAMPLES = 10_000  # records that principal components are computed from


@dataclass(frozen=True)
class Setting:
    """What decides a result.

    Args:
        data: The name of the data set.
        features: What is computed from a record first.
        components: The number of principal components of the features that softmax regression is
            trained on.
        flat: Directions whose variance is below this share of the largest stay weak.
        epochs: How often each record is used.
        learning_rate: The first learning rate of Adam; it falls linearly.
        method: How labels are protected.
        epsilon: The ε of the labels.
        batch_size: The number of records of a step.
        seed: The seed of the initial weights and of batches; noise is fresh in every run.
    """

    data: str
    features: str
    components: int
    flat: float
    epochs: float
    learning_rate: float
    method: str = "rr"
    epsilon: float = 1.0
    batch_size: int = 256
    seed: int = 0

    @property
    def row(self) -> str:
        """The name of the data set and its features in tables."""
        return f"{self.data}, {'pixels' if self.features == 'raw' else self.features}"


ROWS = (
    Setting("mnist", "upright-scattering", 200, 1e-2, 5.0, 2e-3),
    Setting("mnist", "raw", 100, 1e-2, 6.0, 5e-3),
    Setting("fashion-mnist", "scattering", 500, 1e-2, 5.0, 2e-3),
    Setting("cifar-10", "photo-patches", 200, 1e-2, 5.0, 2e-3),
)
"""The settings that were found by ``--select``, of each data set and its features."""


def settings(row: Setting) -> Iterator[Setting]:
    """Yield all settings of a row, those of the first seed first, and without privacy before.

    >>> [f"{each.method} {each.epsilon:g} {each.seed}" for each in settings(ROWS[0])][:3]
    ['rr 40 0', 'rr 1 0', 'lp-mst:1 1 0']
    """
    for seed in range(SEEDS):
        yield replace(row, epsilon=WITHOUT, seed=seed)
        for epsilon, method in product(EPSILONS, METHODS):
            yield replace(row, method=method, epsilon=epsilon, seed=seed)


def candidates(row: Setting) -> Iterator[Setting]:
    """Yield the settings of which the best for randomized response is taken.

    >>> len(list(candidates(ROWS[0])))
    18
    """
    paces = ((5.0, 2e-3), (3.0, 5e-3), (6.0, 5e-3))
    for components, flat, (epochs, rate) in product((100, 200, 500), (1e-3, 1e-2), paces):
        yield replace(row, components=components, flat=flat, epochs=epochs, learning_rate=rate)


def load(row: Setting, data_dir: Path | None, validate: bool, cache: Path | None) -> Task:
    """Return the features of the records of a row, or of a split of its training records."""
    cell = Cell(
        "labels",
        row.data,
        epsilon=1.0,
        network="mnist-cnn",
        features=row.features,
        rate=1.0,
        steps=1,
        clip=1.0,
        learning_rate=1.0,
        found="on a held-out part",
    )
    return load_task(cell, data_dir, validate, cache)


class Components:
    """The principal components of public features, of which a setting takes some.

    Args:
        task: The records, as their features.
        most: The largest number of components that will be asked for.

    >>> x = TensorDataset(torch.rand(40, 6), torch.zeros(40))
    >>> Components(Task(x, x, 40), 3).of(2, 0.01).input_shape
    (2,)
    """

    def __init__(self, task: Task, most: int) -> None:
        x = task.train.tensors[0].flatten(1)
        some = x[:: max(1, len(x) // _EXAMPLES)].float()
        torch.manual_seed(0)  # the search begins with a random basis
        _, spread, basis = torch.pca_lowrank(some, min(most, *some.shape), niter=4)
        self._task, self._basis, self._mean = task, basis, some.mean(0)
        self._variance = spread.square() / len(some)
        self._train, self._held_out = (
            (torch.cat([part.float() @ basis for part in each.tensors[0].flatten(1).split(2000)]))
            - self._mean @ basis
            for each in (task.train, task.held_out)
        )

    def of(self, components: int, flat: float) -> Task:
        """Return the records with the first components, scaled to a mean square of about 1."""
        variance = self._variance[:components]
        scale = (variance + flat * variance[0]).rsqrt()
        train, held_out = (
            self._train[:, :components] * scale,
            self._held_out[:, :components] * scale,
        )
        norm = train.square().mean().sqrt()
        return Task(
            TensorDataset(train / norm, self._task.train.tensors[1]),
            TensorDataset(held_out / norm, self._task.held_out.tensors[1]),
            self._task.records,
        )


def trained(setting: Setting, task: Task) -> dict[str, Any]:
    """Draw noisy labels, train on them, and return the accuracy and the cost."""
    torch.manual_seed(setting.seed)
    model = softmax_regression(task.input_shape)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        config = dpfy.TrainConfig(
            data=setting.data,
            protect="labels",
            label_method=setting.method,
            classes=10,
            records=task.records,
            epsilon=setting.epsilon,
            epochs=setting.epochs,
            batch_size=setting.batch_size,
            optimizer="adam",
            learning_rate=setting.learning_rate,
            lr_schedule="linear",
            evaluate_every=10_000,  # at the end only
            seed=setting.seed,
            out=folder,
            name="run",
        )
        found = dpfy.Trainer(config, model=model, train=task.train, test=task.held_out).fit()
    return {
        "setting": asdict(setting),
        "accuracy": round(100 * found.evaluations[-1].accuracy, 3),
        "claim": found.claim,
        "delta": found.delta,
        "seconds": round(time.perf_counter() - began, 1),
    }


def main(
    rows: Annotated[str, typer.Option(help="The numbers of the rows, with commas.")] = "0,1,2,3",
    data_dir: Annotated[
        Path | None, typer.Option(help="Holds the data sets; default: DPFY_DATA.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder that keeps features.")] = None,
    select: Annotated[bool, typer.Option(help="Measure a grid on a held-out part.")] = False,
    only: Annotated[str, typer.Option(help="Only these, such as rr@1,alibi@2.")] = "",
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = SEEDS,
) -> None:
    """Train the cells that have no result yet, and keep each as it is done."""
    file = SELECTION if select else RESULTS
    for number in rows.split(","):
        row = ROWS[int(number)]
        kept = [each["setting"] for each in read(file)]
        wanted = [
            each
            for each in (candidates(row) if select else settings(row))
            if (not only or f"{each.method}@{each.epsilon:g}" in only.split(","))
            and asdict(each) not in kept
            and each.seed < seeds
        ]
        if not wanted:
            continue
        task = load(row, data_dir, select, cache)
        reduced = Components(task, 512)
        for setting in wanted:
            result = trained(setting, reduced.of(setting.components, setting.flat))
            typer.echo(
                f"{setting.row} {setting.method} ε {setting.epsilon:g} seed {setting.seed}: "
                f"{result['accuracy']:.2f} % in {result['seconds']:.0f} s"
            )
            file.write_text(json.dumps([*read(file), result], indent=1) + "\n", encoding="utf-8")


def read(file: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the results that were kept."""
    if not file.exists():
        return []
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return found


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as a table in Markdown: the mean over seeds, and how many there are.

    >>> "| data | ε | no privacy | rr | lp-mst:1 |" in table([])
    True
    """
    lines = ["| data | ε | no privacy | " + " | ".join(METHODS) + " |"]
    lines.append("|---" * (3 + len(METHODS)) + "|")
    found: dict[tuple[str, float, str], list[float]] = {}
    for each in results:
        setting = Setting(**each["setting"])
        cell = (setting.row, setting.epsilon, setting.method)
        found.setdefault(cell, []).append(each["accuracy"])

    def shown(*cell: Any) -> str:
        values = found.get(cell, [])
        return f"{mean(values):.1f} ({len(values)})" if values else "–"

    for row in (each.row for each in ROWS):
        if not any(name == row for name, _, _ in found):
            continue
        for epsilon in EPSILONS:
            cells = [shown(row, WITHOUT, "rr"), *(shown(row, epsilon, each) for each in METHODS)]
            lines.append(f"| {row} | {epsilon:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
