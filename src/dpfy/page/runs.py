"""Find the ledgers in a folder, and say of each what is on record about its run."""

import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeGuard

from dpfy.accounting import FilterGuarantee, GroupFilterGuarantee, account, odometer
from dpfy.errors import DpfyError
from dpfy.ledger import Ledger
from dpfy.ledger.following import Follower
from dpfy.page import checkpoint_head, progress
from dpfy.page.progress import Progress
from dpfy.page.writers import Writers
from dpfy.planning import default_delta
from dpfy.reporting.record import LedgerRecord

LEDGER, HEAD = ".dpl", ".dpl.head"
REPORT = "report.json"
_LARGEST = 2**24  # bytes of a report that declares facts
_BESIDE = (progress.FILE, checkpoint_head.FILE, REPORT)
DEPTH = 3
MOST = 2000
"""How many ledgers are shown; a folder with more is not a folder of runs."""


class State(StrEnum):
    """What is known of a run's process and of its ledger."""

    READING = "being read"
    RUNNING = "running"
    COMPLETE = "complete"
    ENDED = "ended early"
    STOPPED = "not running"
    UNKNOWN = "not known"
    REFUSED = "refused"


@dataclass(frozen=True)
class Spent:
    """What the steps on record cost at one δ.

    Args:
        epsilon: ε, or None if nothing can be claimed.
        used: The share of a filter that is used, or None without a filter.
        private: Whether anything protects: a key that is not secret, or steps without protection,
            void the guarantee.
        note: Why there is no number.
    """

    epsilon: float | None = None
    used: float | None = None
    private: bool = True
    note: str = ""

    @classmethod
    def of(cls, ledger: Ledger, delta: float) -> "Spent":
        """Account for a ledger at δ; what cannot be accounted has no number."""
        try:
            record, guarantee = LedgerRecord.of(ledger), account(ledger)
            void = not guarantee.private or record.exposures or record.unregistered
            filtered = isinstance(guarantee, FilterGuarantee | GroupFilterGuarantee)
            used = odometer(ledger, delta).used if filtered else None
            return cls(guarantee.claim(delta), used, not void)
        except DpfyError as error:
            return cls(note=str(error))


@dataclass(frozen=True)
class RunState:
    """What the page shows of one run; all of it is recorded, released, declared or public.

    Args:
        key: The name of the run in addresses.
        name: Its name, as a path below the folder.
        path: The ledger.
        state: What is known of it.
        refusal: Why its ledger is refused; empty if it is not.
        created: When the ledger was begun.
        head: The hash of the ledger's last line.
        lines: The number of its lines.
        steps: The number of steps that are paid for.
        total: The number of steps that were planned; 0 if none were.
        lost: The number of steps that were paid for, and that no model has.
        unit: The unit of privacy.
        relation: The relation between neighbours.
        plan: The plan in the ledger's header.
        budget: The ε not to exceed; the largest one where groups have their own.
        delta: The δ of all numbers.
        declared: Whether the plan declares this δ.
        filtered: Whether a filter limits the run.
        spent: What was spent; None while it is computed.
        progress: What the run wrote about its progress.
    """

    key: str
    name: str
    path: Path
    state: State = State.READING
    refusal: str = ""
    created: str = ""
    head: str = ""
    lines: int = 0
    steps: int = 0
    total: int = 0
    lost: int = 0
    unit: str = ""
    relation: str = ""
    plan: dict[str, Any] = field(default_factory=dict)
    budget: float | None = None
    delta: float = 1e-5
    declared: bool = False
    filtered: bool = False
    spent: Spent | None = None
    progress: Progress = field(default_factory=Progress)

    @property
    def rate(self) -> float | None:
        """The sampling rate, if the plan has one."""
        found = self.plan.get("sampling")
        return _positive(found.get("rate")) if isinstance(found, dict) else None


class RunReader:
    """Keeps the state of one run up to date.

    Args:
        root: The folder of all runs.
        path: The ledger.
    """

    def __init__(self, root: Path, path: Path) -> None:
        inside = path.relative_to(root)
        shown = inside.parent if inside.name == "ledger.dpl" and inside.parent.name else inside
        key = hashlib.sha256(os.fsencode(inside)).hexdigest()[:12]
        self.state = RunState(key, str(shown), path)
        self._follower = Follower(path)
        self._seen: tuple[Any, ...] = ()
        self._size = 0
        self._running = False
        self.accounted_at = 0.0
        self._accounted = ""  # the head of the ledger when ε was computed

    @property
    def due(self) -> bool:
        """Whether the ledger has changed since ε was computed."""
        return self.state.state is not State.REFUSED and self.state.head != self._accounted

    def look(self, writers: Writers) -> bool:
        """Read what has changed since the last time; return whether anything has."""
        path = self.state.path
        running = writers.hold(path.with_name(path.name + ".head"))
        ledger = _status(path)
        beside = (path.with_name(path.name + ".head"), *map(path.with_name, _BESIDE))
        seen = (running, ledger, *map(_status, beside))
        if seen == self._seen:
            return False
        size = ledger[1] if ledger else 0
        if size <= self._size or running < self._running:  # an edit, or the end: verify all of it
            self._follower = Follower(path)
        self._seen, self._size, self._running = seen, size, running
        before, self.state = self.state, self._read(running, writers.known)
        return before != self.state

    def account(self) -> None:
        """Compute what was spent."""
        state = self.state
        self._accounted = state.head
        try:
            ledger = self._follower.read()
            self._accounted, spent = ledger.head_hash, Spent.of(ledger, state.delta)
        except DpfyError as error:
            spent = Spent(note=str(error))
        except Exception as error:
            spent = Spent(note=f"It cannot be accounted ({type(error).__name__}).")
        self.state = replace(state, spent=spent)

    def _read(self, running: bool, known: bool) -> RunState:
        blank = RunState(self.state.key, self.state.name, self.state.path)
        try:
            ledger = self._follower.read()
            return self._described(blank, ledger, running, known)
        except DpfyError as error:
            return replace(blank, state=State.REFUSED, refusal=str(error))
        except Exception as error:  # whatever a file holds, other runs are shown
            odd = f"The ledger cannot be read ({type(error).__name__})."
            return replace(blank, state=State.REFUSED, refusal=odd)

    def _described(self, blank: RunState, ledger: Ledger, running: bool, known: bool) -> RunState:
        header, folder = ledger.header, blank.path.parent
        plan = header.plan if header is not None and isinstance(header.plan, dict) else {}
        limit = next(filter(_is_object, (plan.get("budget"), header and header.filter)), {})
        delta = _positive(limit.get("delta"))
        record = None if header is None else LedgerRecord.of(ledger)
        total = (record.steps_registered if record else 0) or _whole(plan.get("steps"))
        told = progress.read_progress(folder / progress.FILE)
        if not told.public:
            told = replace(told, public=progress.declared_history(facts_in(folder)))
        steps = ledger.count
        state = _state_of(running, known, told.ended, steps, total)
        return replace(
            blank,
            state=state,
            created=header.created if header else "",
            head=ledger.head_hash,
            lines=ledger.lines,
            steps=steps,
            total=total,
            lost=told.lost + _lost_again(state, steps, folder),
            unit=str(header.unit) if header else "",
            relation=str(header.relation) if header else "",
            plan=plan,
            budget=max(map(_positive_or_0, (limit.get("epsilon"), *_list(limit, "epsilons"))))
            or None,
            delta=delta if delta is not None and delta < 1 else _default_delta(plan),
            declared=delta is not None and delta < 1,
            filtered=bool(header and header.filter),
            # the number of before is of fewer steps, and is shown until there is a newer one
            spent=self.state.spent if steps and self.state.head else None,
            progress=told,
        )


def find(root: Path) -> Iterator[Path]:
    """Yield the ledgers below a folder, at most :data:`MOST`; also those that are gone.

    The head of a ledger that was deleted still tells that there was one.
    """
    found = 0
    for folder, below, files in os.walk(root):
        depth = len(Path(folder).relative_to(root).parts)
        below[:] = sorted(n for n in below if not n.startswith(".")) if depth < DEPTH else []
        names = {n.removesuffix(".head") for n in files if n.endswith((LEDGER, HEAD))}
        for name in sorted(names):
            if found == MOST:
                return
            found += 1
            yield Path(folder, name)


def facts_in(folder: Path) -> Any:
    """Return the facts that the report in a folder declares; None if there is none to read."""
    try:
        with (folder / REPORT).open("rb") as file:
            return json.loads(file.read(_LARGEST))["facts"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _state_of(running: bool, known: bool, ended: bool, steps: int, total: int) -> State:
    if running:
        return State.RUNNING
    if total and steps >= total:
        return State.COMPLETE
    if ended:
        return State.ENDED
    return State.STOPPED if known else State.UNKNOWN


def _lost_again(state: State, steps: int, folder: Path) -> int:
    """Return how many steps of a run that was killed its checkpoint does not have."""
    if state not in (State.STOPPED, State.UNKNOWN):
        return 0
    saved = checkpoint_head.steps_saved(folder / checkpoint_head.FILE)
    return 0 if saved is None else max(0, steps - saved)


def _status(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _default_delta(plan: dict[str, Any]) -> float:
    return default_delta(_whole(plan.get("records")) or None)


def _whole(value: object) -> int:
    return value if type(value) is int and 0 < value < 2**53 else 0


def _positive(value: object) -> float | None:
    return float(value) if type(value) in (int, float) and 0 < value < math.inf else None  # type: ignore[arg-type, operator]


def _positive_or_0(value: object) -> float:
    return _positive(value) or 0.0


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and bool(value)


def _list(values: dict[str, Any], name: str) -> list[Any]:
    found = values.get(name)
    return found if isinstance(found, list) else []
