"""Open the predictor of a folder: its teachers, and the plan that its ledger was begun with.

Tests: tests/serving/test_server.py.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfy.ensembles.predictor import PrivatePredictor
from dpfy.ensembles.teachers import Teachers
from dpfy.errors import InvalidArgument
from dpfy.ledger import Ledger
from dpfy.plans.prediction import PredictionPlan

LEDGER = "predictions.dpl"
"""The ledger of predictions in a folder of teachers."""


def open_predictor(
    folder: str | os.PathLike[str],
    ledger: str | os.PathLike[str] | None = None,
    format: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> PrivatePredictor:
    """Return what answers by the teachers of a folder.

    Args:
        folder: The folder of the teachers.
        ledger: The file of the ledger; by default ``predictions.dpl`` in the folder.
        format: How teachers are kept, as ``module:name``; by default linear ones.
        settings: What :class:`~dpfy.PrivatePredictor` is told of a ledger that does not exist yet;
            by default the ledger's own plan holds.

    Returns:
        The predictor.

    Raises:
        InvalidArgument: If there is neither a ledger nor settings.
        CheckpointError: If the folder holds no teachers.
        LedgerMismatch: If the ledger was begun with another plan.
    """
    path = Path(folder) / LEDGER if ledger is None else Path(ledger)
    plan = plan_of(path) if settings is None else None
    teachers = Teachers.load(folder, load_format(format))
    if plan is not None:
        return PrivatePredictor.from_plan(teachers, plan, path)
    return PrivatePredictor(teachers, ledger=path, **(settings or {}))


def plan_of(ledger: Path) -> PredictionPlan:
    """Return the plan that a ledger of predictions was begun with.

    Args:
        ledger: The file of the ledger.

    Returns:
        The plan.

    Raises:
        InvalidArgument: If there is no ledger, or it is for something else.
    """
    if not ledger.exists():
        raise InvalidArgument(
            f"There is no ledger at {ledger} yet, so the plan is not known. Declare it: noise, "
            "epsilon, delta, and classes or bounds."
        )
    header = Ledger.read(ledger).header
    return PredictionPlan.from_json(None if header is None else header.plan)


def load_format(name: str | None) -> Any:
    """Return the format of teachers that ``module:name`` is, or None for the default.

    Args:
        name: The name; modules of the working directory are found, too.

    Returns:
        The format.

    Raises:
        InvalidArgument: If there is no such format.
    """
    if name is None:
        return None
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError):
        raise InvalidArgument(
            f"Expected format={name!r} to be module:name of a format with state() and restore(), "
            "in a module that can be imported from here."
        ) from None
