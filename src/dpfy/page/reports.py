"""Compute the reports that the page shows, one after another and none twice.

Tests: tests/page/test_app.py.
"""

import re
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from dpfy.errors import DpfyError
from dpfy.ledger import Ledger
from dpfy.page.hub import Hub
from dpfy.page.runs import RunState, State, facts_in
from dpfy.page.words import clean, text
from dpfy.reporting import Report, RunFacts, html, report

_PAUSE, _SHARE = 10.0, 20  # seconds between two reports of a run that goes on; or rests per work
_HEADING = re.compile(r"(</?h)([12])>")


@dataclass(frozen=True)
class Rendered:
    """A report as it is shown inside a page: its HTML, and the ledger's head that it is about."""

    body: str
    head: str
    basis: tuple[Any, ...]


class Reports:
    """The reports of runs, each as of the last time that it was worth computing.

    Args:
        hub: Is told of each new report.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="dpfy-report")
        self._known: dict[str, Rendered] = {}
        self._under_way: dict[str, Future[None]] = {}
        self._not_before: dict[str, float] = {}

    def of(self, state: RunState) -> Rendered | None:
        """Return the report of a run as far as it is known, and see to it that it gets newer."""
        known, busy = self._known.get(state.key), self._under_way.get(state.key)
        current = known is not None and known.basis == _basis(state)
        waits = state.state is State.RUNNING and time.monotonic() < self._not_before.get(
            state.key, 0.0
        )
        if not current and not waits and (busy is None or busy.done()):
            self._under_way[state.key] = self._pool.submit(self._compute, state)
        return known

    def close(self) -> None:
        """Stop computing."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compute(self, state: RunState) -> None:
        started = time.monotonic()
        self._known[state.key] = _rendered(state)
        took = time.monotonic() - started
        self._not_before[state.key] = time.monotonic() + max(_PAUSE, _SHARE * took)
        self._hub.changed(f"run-{state.key}")


def _basis(state: RunState) -> tuple[Any, ...]:
    """Return what a report depends on."""
    return state.head, tuple(state.progress.public.items())


def _rendered(state: RunState) -> Rendered:
    try:
        found = report_of(state)
        body, head = _HEADING.sub(_one_below, html.content(found)), found.record.head_hash
    except DpfyError as error:
        body, head = f'<p class="caution">{text(error)}</p>', state.head
    except Exception as error:  # whatever a folder holds, the page answers
        body = f'<p class="caution">No report can be computed ({type(error).__name__}).</p>'
        head = state.head
    return Rendered(body, head, _basis(state))


def _one_below(heading: re.Match[str]) -> str:
    return f"{heading[1]}{int(heading[2]) + 1}>"


def report_of(state: RunState) -> Report:
    """Return the report of a run as its ledger is now, verified from the first line."""
    return report(Ledger.read(state.path), state.delta, declared_facts(state))


def declared_facts(state: RunState) -> RunFacts:
    """Return what the run's last report declares, with the measurements that are known now."""
    try:
        facts = RunFacts.from_json(facts_in(state.path.parent))
    except (DpfyError, TypeError):
        facts = RunFacts(name=clean(state.name))
    if state.progress.metric is None:
        return facts
    name = state.progress.metric[0]
    return replace(
        facts, metric=f"{clean(name)} on public data", history=state.progress.public[name]
    )
