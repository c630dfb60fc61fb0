"""One run of PATE on a benchmark: teachers, labels, a student and a report, in one folder.

Tests: tests/cli/test_pate.py.
"""

import csv
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfy.data.source import DataSource
from dpfy.ensembles.linear import LinearFormat, LinearPredictor, train_linear
from dpfy.ensembles.pate import Pate
from dpfy.ensembles.student import semi_supervised
from dpfy.ensembles.teachers import Teachers
from dpfy.errors import InvalidArgument
from dpfy.models.scattering import scattering_features
from dpfy.reporting import RunFacts, report
from dpfy.run.state_file import write_state

TEACHERS, LEDGER, LABELS = "teachers", "votes.dpl", "labels.csv"
STUDENT, REPORT = "student.safetensors", "report"

_SIDE = 28  # pixels, from which on scattering features are better than pixels
_PUBLIC = 0.9  # of the test records: inputs for labels; the rest evaluates the student

Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class LabelRun:
    """What a run of PATE found; all of it is public.

    Args:
        labels: The number of labels.
        inputs: The number of public inputs.
        accuracy: The share of held-out public records that the student has right.
        student: The student.
        folder: Where everything is kept.
    """

    labels: int
    inputs: int
    accuracy: float
    student: LinearPredictor
    folder: Path


def label_and_teach(
    plan: Pate,
    source: DataSource,
    folder: str | os.PathLike[str],
    *,
    delta: float,
    workers: int = 0,
    tell: Tell = lambda what, done, total: None,
) -> LabelRun:
    """Train linear teachers on a benchmark, label public inputs, and train a student on these.

    Public inputs are the first nine tenths of the test records, without their labels; the student
    is evaluated on the others. Images of 28 pixels or more are replaced by scattering coefficients,
    a public function of each. A run that was interrupted goes on from the folder, of which
    ``teachers`` is as sensitive as the records, and all else may be published.

    *Formal guarantee*: that of the plan.

    Args:
        plan: The plan, without groups.
        source: The benchmark.
        folder: The folder of the run.
        delta: The δ of the report's claim, in (0, 1).
        workers: The number of processes that train teachers; 0 trains in this one.
        tell: A function that is told what is under way, how much of it is done, and of how much.

    Returns:
        What was found.

    Raises:
        InvalidArgument: If the records are texts.
        CheckpointError: If the folder was begun for other parts.
        LedgerMismatch: If the folder was begun with another plan.
    """
    if source.vocabulary is not None:
        raise InvalidArgument(
            f"Expected a data set of images or of a table, got the texts of {source.name!r}. Use "
            "dpfy.pate in Python, with teachers that read texts."
        )
    place = Path(folder)
    (x, y), (test_x, test_y) = (_features(half) for half in (source.train, source.test))
    teachers = Teachers.fit(
        train_linear(source.classes, decay=1e-3),
        (x, y),
        plan.partition,
        folder=place / TEACHERS,
        workers=workers,
        progress=lambda done, parts: tell("teachers", done, parts),
    )
    inputs = round(_PUBLIC * len(test_x))
    public, held_out = test_x[:inputs], test_x[inputs:]
    labels = plan.ask(
        teachers,
        public,
        place / LEDGER,
        progress=lambda done, total: tell("public inputs", done, total),
    )
    student = semi_supervised(public, labels, source.classes)
    accuracy = float((student.predict(held_out).numpy() == test_y[inputs:]).mean())
    with (place / LABELS).open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(("input", "label"))
        table.writerows((row, int(labels[row])) for row in np.flatnonzero(labels >= 0))
    write_state(place / STUDENT, LinearFormat().state(student))
    facts = _facts(plan, source, accuracy, int((labels >= 0).sum()))
    report(place / LEDGER, delta, facts).write(place / REPORT)
    return LabelRun(int((labels >= 0).sum()), inputs, accuracy, student, place)


def _facts(plan: Pate, source: DataSource, accuracy: float, labels: int) -> RunFacts:
    return RunFacts(
        name=f"PATE on {source.name}",
        title=f"Privacy report of PATE on {source.name}",
        dataset=source.description,
        record=source.unit,
        released="labels of public inputs, and a student that is trained on them",
        model=f"a linear student of {plan.parts} linear teachers",
        isolation="every record draws its part by itself, and teachers share nothing",
        public_data="test records without their labels are the inputs; their last tenth evaluates",
        metric="accuracy of the student",
        history=((max(labels, 1), accuracy),),
    )


def _features(records: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels; those of a record are a public function of it alone."""
    x, y = records.tensors
    if x.ndim == 4 and min(x.shape[2:]) >= _SIDE:
        x = scattering_features(x)
    x = x.flatten(1)
    x = 3 * x / x.norm(dim=1, keepdim=True).clamp(min=1e-6)
    return x.to(torch.float32).numpy(), y.numpy()
