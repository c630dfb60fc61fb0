"""Files without waiting for the disk, and a small ledger to damage."""

import os
from pathlib import Path

import pytest

from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery

STEP = Sampled(Poisson(0.01), (SumQuery(1.0, 1.1),))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """A killed process loses nothing that it wrote, synced or not; tests of the order of syncs
    trace the calls.
    """
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


@pytest.fixture
def step():
    return STEP


@pytest.fixture
def header():
    return Header(
        plan={"steps": 1000}, envelope=(Repeated(STEP, 1000),), created="2026-01-01T00:00:00+00:00"
    )


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "run.dpl"


@pytest.fixture
def small(path, header, step) -> Path:
    """A closed ledger of five steps in three runs of events."""
    other = Sampled(Poisson(0.02), (SumQuery(1.0, 2.0),))
    with Ledger.open(path, header=header) as ledger:
        for event in (step, step, other, step, step):
            ledger.reserve(event)
    return path
