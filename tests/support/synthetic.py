"""Private tables for synthesis, and an estimation that needs no package."""

import numpy as np

from dpfy.synthesis.tree_model import independent
from dpfy.tabular import Column, Schema

SCHEMA = Schema(
    (
        Column("age", bounds=(0, 100), knots=(30, 60)),
        Column("job", categories=("cook", "nurse", "pilot")),
        Column("sex", categories=("F", "M")),
        Column("pay", bounds=(-1, 1)),
    )
)


def people(rows, key=0):
    """Return a table in which all columns but one go together."""
    rng = np.random.default_rng(key)
    age = rng.uniform(0, 100, rows)
    job = np.where(age < 40, "cook", np.where(age < 70, "nurse", "pilot"))
    sex = np.where(rng.random(rows) < np.where(job == "pilot", 0.9, 0.2), "M", "F")
    return {"age": age, "job": job, "sex": sex, "pay": rng.uniform(-1, 1, rows)}


class Columns:
    """Stands for the estimation: a model of independent columns, whatever else was measured."""

    def __init__(self, sizes, total):
        self.sizes, self.total = sizes, total

    def estimate(self, observed, iterations):
        """Return the model of the one-way marginals."""
        return independent([each.noisy for each in observed[: len(self.sizes)]])


def without_mbi(monkeypatch):
    """Let synthesis run where mbi is not installed, with models of independent columns."""
    monkeypatch.setattr("dpfy.synthesis.synthesizer.require_mbi", lambda: None)
    monkeypatch.setattr("dpfy.synthesis.work.Estimator", Columns)
    monkeypatch.setattr("dpfy.synthesis.aim.megabytes", lambda sizes, cliques: 0.0)
