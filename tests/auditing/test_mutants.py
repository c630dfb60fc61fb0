"""Planted mistakes are undone when their block ends."""

import pytest

from dpfy.auditing.mutants import MUTANTS
from dpfy.mechanisms.gaussian_sum import GaussianSum


def test_mutants_leave_the_pipeline_as_it_was():
    before = GaussianSum.__dict__["stddev"]
    with MUTANTS["half noise"]():
        assert GaussianSum.__dict__["stddev"] is not before
    assert GaussianSum.__dict__["stddev"] is before


@pytest.mark.parametrize("name", MUTANTS)
def test_what_a_mutant_replaces_exists(name):
    """Fails if an attribute was renamed in the pipeline and not in its mutant."""
    with MUTANTS[name]():
        pass
