"""Private models of tables beside those of other libraries, on the same rows in one run.

``python -m benchmarks.estimators --data-dir DATA`` measures what ``estimators.json`` does not hold
yet, cell by cell, and writes the tables of docs/how-to/estimators.md; ``--again`` begins anew, and
``--only WORD`` takes the cells whose name has that word. Adult is read from ``--data-dir``, or from
the folder that the environment variable ``DPFY_DATA`` names; the digits are scikit-learn's, and the
houses synthetic.

Each of the other libraries runs in an environment of its own, which is made under ``--peers`` if it
is not there: diffprivlib needs a scikit-learn that is older than ours. Settings of ours are those
of the public rules, and those of others their defaults, on the same encoded rows. Figures are means
of five seeds, and seconds are those of the processor for one fit on one thread."""

import argparse
import csv
import json
import math
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from benchmarks import _peers
from dpfy.data import files
from dpfy.data.adult import COLUMNS
from dpfy.tabular import Encoder, Schema

HERE = Path(__file__).parent
RESULTS, SCHEMA = HERE / "estimators.json", HERE / "adult.toml"
PAGE = HERE.parent / "docs" / "how-to" / "estimators.md"
BEGIN, END = "<!-- estimators: begin -->\n", "<!-- estimators: end -->\n"
EPSILONS, SEEDS, DELTA = (0.1, 0.5, 1.0), (1, 2, 3, 4, 5), 1e-5
NEEDS = {
    "diffprivlib": ("diffprivlib==0.6.6", "scikit-learn<1.6"),
    "interpret": ("interpret-core==0.7.8",),
}
TASKS = {
    "adult": "Adult, official split (accuracy in % and AUC on the test part)",
    "houses": "Synthetic houses, 20,640 rows and 8 columns (R² on as many others)",
    "digits": "Digits in 4 principal components, 10 clusters (inertia over that of scikit-learn)",
}
CLASSES = ["<=50K", ">50K"]
_WORST = -10.0  # R² below which fits have no number
DIGITS_BOUND = 40.0  # pixels are within 0 and 16; a round number that most projections are within


@dataclass(frozen=True)
class Cell:
    """One model of one library on one task at one ε; ``settings`` differ from the defaults."""

    library: str
    model: str
    task: str
    epsilon: float
    settings: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def label(self) -> str:
        """The model with its settings."""
        return ", ".join([self.model, *(f"{k}={v}" for k, v in self.settings.items())])

    @property
    def key(self) -> str:
        """The name of the cell in the results."""
        return f"{self.task} | {self.library} | {self.label} | {self.epsilon:g}"


_MODELS: list[tuple[str, str, str, dict[str, Any]]] = [
    *(
        ("dpfy", "LogisticRegression", "adult", {"solver": each})
        for each in ("gd", "output", "objective", "functional")
    ),
    ("diffprivlib", "LogisticRegression", "adult", {}),
    ("diffprivlib", "LogisticRegression", "adult", {"C": 0.1}),
    ("dpfy", "ExplainableBoosting", "adult", {}),
    ("interpret", "DPExplainableBoostingClassifier", "adult", {}),
    ("dpfy", "RandomTrees", "adult", {}),
    ("diffprivlib", "RandomForestClassifier", "adult", {}),
    ("dpfy", "GaussianNB", "adult", {}),
    ("diffprivlib", "GaussianNB", "adult", {}),
    ("dpfy", "CategoricalNB", "adult", {}),
    ("dpfy", "LinearRegression", "houses", {"solver": "gd"}),
    ("dpfy", "LinearRegression", "houses", {"solver": "adassp"}),
    ("diffprivlib", "LinearRegression", "houses", {}),
    ("dpfy", "KMeans", "digits", {}),
    ("diffprivlib", "KMeans", "digits", {}),
]
_PLAIN = [("LogisticRegression", "adult"), ("LinearRegression", "houses"), ("KMeans", "digits")]
CELLS = [
    *(Cell("scikit-learn", model, task, math.inf) for model, task in _PLAIN),
    *(
        Cell(library, model, task, epsilon, settings)
        for library, model, task, settings in _MODELS
        for epsilon in EPSILONS
    ),
]


# ---- data


def table(name: str, data_dir: str | None) -> dict[str, np.ndarray[Any, Any]]:
    """Return a part of Adult, ``adult.data`` or ``adult.test``, as columns of text."""
    lines = files.read_bytes(files.locate("adult", data_dir, [name]), name).decode().splitlines()
    rows = [
        [cell.strip().rstrip(".") for cell in row]
        for row in csv.reader(lines)
        if len(row) == len(COLUMNS)
    ]
    columns = zip(*rows, strict=True)
    return {
        name: np.array(column, dtype=object) for name, column in zip(COLUMNS, columns, strict=True)
    }


@cache
def task_data(task: str, data_dir: str | None) -> dict[str, Any]:
    """Return the arrays of a task; of Adult also the tables and the schema."""
    return {"adult": adult, "houses": houses, "digits": digits}[task](data_dir)


def adult(data_dir: str | None) -> dict[str, Any]:
    """Return Adult as tables for schemas, as encoded rows of norm 1, and as columns for EBMs."""
    schema = Schema.read(SCHEMA)
    train, test = (table(f"adult.{part}", data_dir) for part in ("data", "test"))
    features = schema.without("income")
    encoder = Encoder(features)
    top = 1 / math.sqrt(len(features))
    return {
        "schema": features,
        "train": train,
        "test": test,
        "x": encoder.transform(train),
        "x_test": encoder.transform(test),
        "y": (train["income"] == CLASSES[1]).astype(int),
        "y_test": (test["income"] == CLASSES[1]).astype(int),
        "bounds": np.array([0.0, top]),
    }


def columns_for_boosting(data: dict[str, Any]) -> dict[str, Any]:
    """Return Adult's own columns as numbers; categories are counted from 0 in declared order."""
    from dpfy.tabular import columns_of

    schema, kept = data["schema"], ("y", "y_test")
    number = [each.is_number for each in schema]
    ends = [(each.low, each.high) if each.is_number else (0.0, 1.0) for each in schema]
    return {
        "x": np.column_stack(list(columns_of(data["train"], schema).values())),
        "x_test": np.column_stack(list(columns_of(data["test"], schema).values())),
        "is_number": np.array(number),
        "column_bounds": np.array(ends).T,
        "delta": np.array(DELTA),
        **{name: data[name] for name in kept},
    }


def houses(data_dir: str | None) -> dict[str, Any]:
    """Return the synthetic table, with other rows to test on."""
    from tests.support.public_tables import CALIFORNIA_BOUNDS, california

    (x, y), (x_test, y_test) = california(key=0), california(key=1)
    return {
        "x": x,
        "y": y,
        "x_test": x_test,
        "y_test": y_test,
        "bounds": np.array(CALIFORNIA_BOUNDS, dtype=float),
        "target_bounds": np.array([0.0, 5.0]),
    }


def digits(data_dir: str | None) -> dict[str, Any]:
    """Return the digits in four principal components, which are public here."""
    from sklearn.datasets import load_digits
    from sklearn.decomposition import PCA

    x = PCA(4, random_state=0).fit_transform(load_digits().data)
    return {"x": x, "bounds": np.array([-DIGITS_BOUND, DIGITS_BOUND])}


# ---- measurements


def measure(cell: Cell, data_dir: str | None, peers: Path) -> list[dict[str, float]]:
    """Return one measurement for each seed."""
    data = task_data(cell.task, data_dir)
    if cell.library in NEEDS:
        return in_environment(cell, data, peers)
    make = plain if cell.library == "scikit-learn" else ours
    return [_peers.measured(*make(cell, data, seed), cell.task) for seed in SEEDS]


def ours(cell: Cell, data: dict[str, Any], seed: int) -> tuple[Any, dict[str, Any]]:
    """Return a model of dpfy, and the data that it takes."""
    import dpfy.estimators

    kind = getattr(dpfy.estimators, cell.model)
    given: dict[str, Any] = {"epsilon": cell.epsilon, "delta": DELTA, "insecure_test_key": seed}
    if "random_state" in kind._get_param_names():
        given["random_state"] = seed
    if cell.task == "digits":
        return kind(n_clusters=10, bounds=tuple(data["bounds"]), **given), data
    if cell.task == "houses":
        ends = tuple(data["target_bounds"])
        given |= {"bounds": tuple(data["bounds"]), "target_bounds": ends}
        return kind(**given, **cell.settings), data
    if cell.model == "GaussianNB":  # of numbers: the encoded rows, as its peer is given
        return kind(bounds=tuple(data["bounds"]), classes=[0, 1], **given), data
    named = {
        "x": data["train"],
        "y": data["train"]["income"],
        "x_test": data["test"],
        "y_test": data["test"]["income"],
    }
    return kind(schema=data["schema"], classes=CLASSES, **given, **cell.settings), named


def plain(cell: Cell, data: dict[str, Any], seed: int) -> tuple[Any, dict[str, Any]]:
    """Return a model of scikit-learn, without privacy, and the data that it takes."""
    from sklearn.cluster import KMeans
    from sklearn.linear_model import LinearRegression, LogisticRegression

    models: dict[str, Callable[[], Any]] = {
        "LogisticRegression": lambda: LogisticRegression(C=100, max_iter=1000),
        "LinearRegression": LinearRegression,
        "KMeans": lambda: KMeans(10, n_init=10, random_state=seed),
    }
    return models[cell.model](), data


def in_environment(cell: Cell, data: dict[str, Any], peers: Path) -> list[dict[str, float]]:
    """Measure a model of another library in its own environment."""
    if cell.library == "interpret":
        data = columns_for_boosting(data)
    with tempfile.TemporaryDirectory() as folder:
        arrays, request = Path(folder, "data.npz"), Path(folder, "request.json")
        np.savez(arrays, **{k: v for k, v in data.items() if isinstance(v, np.ndarray)})
        wanted = {
            "data": str(arrays),
            "model": cell.model,
            "task": cell.task,
            "epsilon": cell.epsilon,
            "seeds": SEEDS,
            "settings": cell.settings,
        }
        request.write_text(json.dumps(wanted), encoding="utf-8")
        command = [str(environment(cell.library, peers)), str(HERE / "_peers.py"), str(request)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    found: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def environment(library: str, peers: Path) -> Path:
    """Return the Python of a library's own environment; make it if it is not there."""
    folder = peers / library
    ready = folder / "ready"
    if not ready.exists():
        venv.create(folder, with_pip=True, clear=True)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *NEEDS[library]]
        subprocess.run(install, check=True)
        ready.touch()
    return folder / "bin" / "python"


# ---- results


def read() -> dict[str, list[dict[str, float]]]:
    """Return the measurements so far, by the keys of their cells."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def write(found: dict[str, list[dict[str, float]]]) -> None:
    """Keep the measurements, in the order of the cells."""
    ordered = {cell.key: found[cell.key] for cell in CELLS if cell.key in found}
    beside = RESULTS.with_suffix(".part")
    beside.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    beside.replace(RESULTS)


def tables(found: dict[str, list[dict[str, float]]]) -> str:
    """Return one table for each task, with a row for each model and a column for each ε."""
    return "\n".join(
        "\n".join([f"**{title}**", "", *_lines(task, found)]) + "\n"
        for task, title in TASKS.items()
    )


def _lines(task: str, found: dict[str, list[dict[str, float]]]) -> Iterator[str]:
    heads = ["library", "model", *(f"ε = {each:g}" for each in EPSILONS), "seconds"]
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    best = [
        each["inertia"]
        for cell in CELLS
        if cell.task == task and math.isinf(cell.epsilon)
        for each in found.get(cell.key, [])
        if "inertia" in each
    ]
    rows = dict.fromkeys((cell.library, cell.label) for cell in CELLS if cell.task == task)
    for library, label in rows:
        cells = {
            cell.epsilon: found.get(cell.key)
            for cell in CELLS
            if (cell.task, cell.library, cell.label) == (task, library, label)
        }
        shown = [
            _figures(cells.get(each, cells.get(math.inf)), mean(best) if best else 1.0)
            for each in EPSILONS
        ]
        spent = [run["seconds"] for runs in cells.values() for run in runs or ()]
        name = f"**{library}**" if library == "dpfy" else library
        note = ", not private" if library == "scikit-learn" else ""
        time = f"{mean(spent):.1f}" if spent else "–"
        yield f"| {name} | {label}{note} | {' | '.join(shown)} | {time} |"


def _figures(runs: list[dict[str, float]] | None, best: float) -> str:
    """Return the means of a cell, with the deviation of single seeds from it."""
    if not runs:
        return "–"
    column = {name: [run[name] for run in runs] for name in runs[0]}
    if "accuracy" in column:
        wide = stdev(column["accuracy"])
        return f"{mean(column['accuracy']):.1f} ± {wide:.1f} / {mean(column['auc']):.3f}"
    if min(column.get("r2", [0.0])) < _WORST:
        return f"below {_WORST:g}"
    values = column.get("r2") or [each / best for each in column["inertia"]]
    return f"{mean(values):.2f} ± {stdev(values):.2f}"


def update_page(text: str) -> None:
    """Write the tables between the marks of the page."""
    head, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has no marks {BEGIN.strip()} and {END.strip()}")
    PAGE.write_text(f"{head}{BEGIN}{text}{END}{tail}", encoding="utf-8")


def main() -> int:
    """Measure what is missing, with a bar, and write results and tables."""
    from rich.progress import track
    from threadpoolctl import threadpool_limits

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", help="folder that holds the data sets")
    parser.add_argument("--peers", type=Path, default=Path(tempfile.gettempdir(), "dpfy-peers"))
    parser.add_argument("--only", default="", help="measure cells with this word in their name")
    parser.add_argument("--again", action="store_true", help="measure them anew")
    options = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # of the others' processes
    found = read()
    wanted = [
        cell
        for cell in CELLS
        if options.only in cell.key and (options.again or cell.key not in found)
    ]
    failed = 0
    for cell in track(wanted, "measuring"):
        try:
            with threadpool_limits(1):
                found[cell.key] = measure(cell, options.data_dir, options.peers)
            write(found)
        except (AttributeError, OSError, subprocess.CalledProcessError) as error:
            failed += 1
            print(f"{cell.key}: {error}", file=sys.stderr)
    text = tables(found)
    update_page(text)
    print(text)
    return failed


if __name__ == "__main__":
    sys.exit(main())
