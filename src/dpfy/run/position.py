"""Tie a checkpoint to the line of the ledger at which it was made, whoever wrote the checkpoint.

A ledger in the folder of its checkpoint or beside it is named by its place relative to the folder:
the two can be moved together, and say nothing about the machine. Schema 1 named every ledger by the
path that privatize was given.

Tests: tests/run/test_checkpoint.py.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpfy.errors import CheckpointError
from dpfy.ledger import Ledger
from dpfy.plans import Plan
from dpfy.run.listening import Observed

_SCHEMAS = (1, 2)


def position_of(run: Observed, folder: Path) -> dict[str, Any]:
    """Return what ties a checkpoint in ``folder`` to the ledger, as JSON: rank 0 alone knows it."""
    ledger = run.ledger
    if ledger.path is None:
        raise CheckpointError(
            "A run with an in-memory ledger cannot be resumed. Give privatize a ledger file."
        )
    return {
        "schema": _SCHEMAS[-1],
        "plan": run.plan.to_json(),
        "ledger": {
            "path": _place(ledger.path, folder),
            "lines": ledger.lines,
            "hash": ledger.head_hash,
            "steps": ledger.count,
            "taken": run.steps_taken,
        },
    }


def ledger_at(position: dict[str, Any], folder: Path, ledger: str | Path | None = None) -> Path:
    """Return the ledger that a checkpoint in ``folder`` belongs to, or refuse the checkpoint."""
    if position.get("schema") not in _SCHEMAS:
        raise CheckpointError(
            f"Expected a checkpoint of schema {' or '.join(map(str, _SCHEMAS))}, got "
            f"{position.get('schema')!r}. Read it with the version of dpfy that wrote it."
        )
    path = ledger_path(folder, position, ledger)
    _check_ledger(path, position["ledger"])
    return path


def go_on(run: Observed, position: dict[str, Any], controllers: Mapping[str, Any]) -> None:
    """Go on from a checkpoint: restore the controllers, and count the steps that are lost."""
    plan, saved, ranks = run.plan, position["ledger"], run.context.ranks
    run.context.controllers.load_state_dict(controllers)
    # Steps that were reserved by hand count too; where an event is an epoch, what is left of the
    # last one is lost.
    each_counts = ranks.first and plan.steps_per_event == 1 and not plan.extra_events
    lost = run.ledger.count - saved["steps"] if each_counts else run.steps_taken - saved["taken"]
    run.lost_steps = int(ranks.from_first(lambda: b"%d" % lost))
    if run.lost_steps and ranks.first:
        sys.stdout.write(f"{_lost(run.lost_steps)}; {run.steps_left} of {plan.steps} are left.\n")


def _place(ledger: Path, folder: Path) -> str:
    """Return how a checkpoint names its ledger: by a relative path if it is near, else in full."""
    ledger, folder = (
        ledger.parent.resolve() / ledger.name,
        folder.resolve(),
    )  # a link to a ledger stays a link
    return os.path.relpath(ledger, folder) if ledger.is_relative_to(folder.parent) else str(ledger)


def ledger_path(folder: Path, state: dict[str, Any], given: str | Path | None) -> Path:
    """Return where to look for the ledger: where one was told, or where it was."""
    if given is not None:
        return Path(given)
    saved = Path(state["ledger"]["path"])
    return saved if state["schema"] == 1 else Path(os.path.normpath(folder.resolve() / saved))


def _lost(steps: int) -> str:
    return (
        "1 step after the checkpoint was paid for and is lost"
        if steps == 1
        else f"{steps} steps after the checkpoint were paid for and are lost"
    )


def _check_ledger(path: Path, saved: dict[str, Any]) -> None:
    """Refuse a ledger that does not contain the line at which the checkpoint was made."""
    if not path.exists():
        raise CheckpointError(
            f"The ledger {path} of this checkpoint is missing. Without it nobody knows what was "
            "spent; restore it, or give its new place as ledger=."
        )
    found = Ledger.read(path).hash_at(saved["lines"])
    if found is None:
        raise CheckpointError(
            f"The checkpoint is newer than the ledger {path}: it was made after line "
            f"{saved['lines']}. Restore the latest ledger."
        )
    if found != saved["hash"]:
        raise CheckpointError(
            f"The checkpoint belongs to another ledger than {path}. Give its own as ledger=."
        )


def registered_plan(plan: Plan, position: dict[str, Any]) -> Plan:
    """Return the plan as registered, even if the accountant would calibrate another noise now.

    Raises:
        CheckpointError: The plan differs in more than its noise.
    """
    registered = Plan.from_json(position["plan"])
    same = replace(plan, noise_multiplier=registered.noise_multiplier, filter=registered.filter)
    if same != registered:
        raise CheckpointError(
            "The checkpoint belongs to another plan than the one given. Make the same plan; a new "
            "one needs a new ledger."
        )
    return registered
