"""AIM: its scores and rounds, and how far a row moves each of them."""

from itertools import pairwise

import numpy as np
import pytest
from tests.support.estimator_neighbours import caught
from tests.support.synthetic import SCHEMA, people, without_mbi

from dpfy import Synthesizer
from dpfy.mechanisms.one_shot import ExponentialMechanism
from dpfy.synthesis.aim import Aim
from dpfy.types import Budget


@pytest.fixture(autouse=True)
def _no_package(monkeypatch):
    without_mbi(monkeypatch)


def test_weights_count_the_columns_shared_with_all_pairs():
    weights = Aim.calibrated(4, Budget(1.0, 1e-6)).weights
    assert len(weights) == 4 + 6
    assert weights[(0,)] == 3  # the column is in three pairs
    assert weights[0, 1] == 2 + 2 + 2  # itself, and two for each of its columns
    assert Aim.calibrated(1, Budget(1.0, 1e-6)).weights == {(0,): 1}


def test_a_row_moves_scores_by_the_declared_sensitivity_at_most(monkeypatch):
    scores = []

    def noting(self, values, stream):
        scores[-1].append((self.sensitivity, list(values)))
        return 5

    monkeypatch.setattr(ExponentialMechanism, "release", noting)
    table = {name: list(values) for name, values in people(40).items()}
    for row in (None, {"age": float("nan"), "job": "pilot", "sex": None, "pay": 1}):
        scores.append([])
        rows = table if row is None else {k: [*v, row[k]] for k, v in table.items()}
        with caught(lambda number, shape: np.full(shape, 7.3)):
            Synthesizer("aim", SCHEMA, 1.0, 1e-6).fit(rows)
    assert len(scores[0]) == len(scores[1]) > 3
    for (bound, one), (same, other) in zip(*scores, strict=True):
        moved = np.abs(np.subtract(one, other))
        assert bound == same == 6 and np.all(moved <= bound) and np.any(moved > 0)


def test_a_row_moves_every_vector_by_its_bound(monkeypatch):
    monkeypatch.setattr(ExponentialMechanism, "release", lambda self, values, stream: 6)
    table = {name: list(values) for name, values in people(40).items()}
    found = []
    for row in (None, {"age": 1e300, "job": object(), "sex": "F", "pay": "?"}):
        rows = table if row is None else {k: [*v, row[k]] for k, v in table.items()}
        with caught(lambda number, shape: np.full(shape, 7.3)) as vectors:
            Synthesizer("aim", SCHEMA, 1.0, 1e-6).fit(rows)
        found.append(vectors)
    for less, more in zip(*found, strict=True):
        assert less[0] == more[0]
        moved = np.linalg.norm(more[1] - less[1])
        assert moved <= less[0].l2_bound
        assert moved == pytest.approx(less[0].l2_bound, rel=1e-12)


def test_rounds_that_tell_little_halve_the_noise_and_the_last_takes_the_rest(tmp_path):
    from dpfy import Ledger
    from dpfy.ledger.events import SumQuery

    Synthesizer("aim", SCHEMA, 1.0, 1e-6).fit(people(40), tmp_path / "t.dpl")
    used = [run.event.queries[0] for run in Ledger.read(tmp_path / "t.dpl").uses]
    noise = [each.stddev for each in used if isinstance(each, SumQuery)][1:]
    ratios = {round(a / b, 9) for a, b in pairwise(noise[:-1])}
    assert ratios <= {1.0, 2.0} and 2.0 in ratios  # the stand-in's model never moves
    assert noise[-1] < noise[-2]


def test_a_model_that_would_be_too_large_is_not_asked_for(monkeypatch):
    """Where no pair fits, only columns are measured again."""
    monkeypatch.setattr("dpfy.synthesis.aim.megabytes", lambda sizes, cliques: 2.0)
    synthesizer = Synthesizer("aim", SCHEMA, 1.0, 1e-6).fit(people(100))
    assert {len(each.columns) for each in synthesizer.fitted.measured} == {1}
