"""Labels alone are private: randomized response, two stages and Laplace noise beside each other.

``python -m experiments.labels`` trains each cell once, as ``dpfy train --protect labels`` would,
and keeps the accuracy on the test records in ``results/labels.json``. Without privacy is ε = 40, at
which all noisy labels are the true ones. With ``--validate`` a sixth of the training records is
held out instead, and nothing is kept: the settings of MNIST were found that way. Those of
Fashion-MNIST are the same, and those of CIFAR-10 a first guess."""

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

import dpfy
from dpfy.models import mnist_cnn
from experiments.cell import Cell
from experiments.networks import softmax_regression
from experiments.parts import Task, load_task

RESULTS = Path(__file__).parent / "results" / "labels.json"
METHODS = ("rr", "lp-mst:2", "alibi")
EPSILONS = (1.0, 2.0, 4.0)
WITHOUT = 40.0  # no label of 60,000 changes at this ε


@dataclass(frozen=True)
class Setting:
    """What decides a result; the training is the same for all ε and methods of a data set."""

    data: str
    method: str
    epsilon: float
    network: str
    features: str
    epochs: float
    learning_rate: float
    batch_size: int = 256
    seed: int = 0


_TRAINING: dict[str, dict[str, Any]] = {
    "mnist": {"network": "mnist-cnn", "features": "raw", "epochs": 3.0, "learning_rate": 2e-3},
    "fashion-mnist": {
        "network": "mnist-cnn",
        "features": "raw",
        "epochs": 3.0,
        "learning_rate": 2e-3,
    },
    "cifar-10": {
        "network": "photo-linear",
        "features": "photo-patches",
        "epochs": 4.0,
        "learning_rate": 5e-4,
    },
}
DATA = tuple(_TRAINING)


def settings(data: str) -> Iterator[Setting]:
    """Yield all settings of a data set, the one without privacy first.

    >>> [f"{each.method} {each.epsilon:g}" for each in settings("mnist")][:3]
    ['rr 40', 'rr 1', 'lp-mst:2 1']
    """
    yield Setting(data, "rr", WITHOUT, **_TRAINING[data])
    for epsilon in EPSILONS:
        for method in METHODS:
            yield Setting(data, method, epsilon, **_TRAINING[data])


def task_of(data: str, data_dir: Path | None, validate: bool, cache: Path | None) -> Task:
    """Return the records of a data set, as its network takes them."""
    training = _TRAINING[data]
    cell = Cell(
        "labels",
        data,
        epsilon=1.0,
        network=training["network"],
        features=training["features"],
        rate=1.0,
        steps=1,
        clip=1.0,
        learning_rate=training["learning_rate"],
        found="on a held-out part",
    )
    return load_task(cell, data_dir, validate, cache)


def trained(setting: Setting, task: Task) -> dict[str, Any]:
    """Draw noisy labels, train on them, and return the accuracy and the cost."""
    torch.manual_seed(setting.seed)
    model: nn.Module = (
        mnist_cnn(activation=nn.ReLU)
        if setting.network == "mnist-cnn"
        else softmax_regression(task.input_shape)
    )
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
        "accuracy": 100 * found.evaluations[-1].accuracy,
        "claim": found.claim,
        "delta": found.delta,
        "seconds": time.perf_counter() - began,
    }


def main(
    data: Annotated[str, typer.Option(help="The data sets, with commas.")] = ",".join(DATA),
    data_dir: Annotated[
        Path | None, typer.Option(help="Holds the data sets; default: DPFY_DATA.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder that keeps features.")] = None,
    validate: Annotated[bool, typer.Option(help="Measure on a held-out part.")] = False,
    only: Annotated[str, typer.Option(help="Only these, such as rr@1,alibi@2.")] = "",
) -> None:
    """Train the cells that have no result yet, and keep each as it is done."""
    kept = read()
    for name in data.split(","):
        wanted = [
            each
            for each in settings(name)
            if (not only or f"{each.method}@{each.epsilon:g}" in only.split(","))
            and (validate or all(one["setting"] != asdict(each) for one in kept))
        ]
        task = task_of(name, data_dir, validate, cache) if wanted else None
        for setting in wanted:
            assert task is not None
            result = trained(setting, task)
            typer.echo(
                f"{name} {setting.method} ε {setting.epsilon:g}: {result['accuracy']:.2f} % in "
                f"{result['seconds']:.0f} s"
            )
            if not validate:
                kept = [*read(), result]
                RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def read() -> list[dict[str, Any]]:
    """Return the results that were kept."""
    if not RESULTS.exists():
        return []
    found: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as a table in Markdown: a row for each data set and ε.

    >>> "| data | ε | no privacy | rr | lp-mst:2 | alibi |" in table([])
    True
    """
    rows = ["| data | ε | no privacy | " + " | ".join(METHODS) + " |"]
    rows.append("|---" * (3 + len(METHODS)) + "|")
    found = {
        (each["setting"]["data"], each["setting"]["epsilon"], each["setting"]["method"]): each
        for each in results
    }

    def shown(data: str, epsilon: float, method: str) -> str:
        each = found.get((data, epsilon, method))
        return "–" if each is None else f"{each['accuracy']:.1f}"

    for data in DATA:
        if not any(name == data for name, _, _ in found):
            continue
        for epsilon in EPSILONS:
            cells = [shown(data, WITHOUT, "rr"), *(shown(data, epsilon, each) for each in METHODS)]
            rows.append(f"| {data} | {epsilon:g} | {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    typer.run(main)
