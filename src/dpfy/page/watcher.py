"""Keep what the page shows up to date, in a thread of its own, and rest while nobody looks.

Tests: tests/page/test_app.py.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from dpfy.page.budgets import BudgetReader
from dpfy.page.hub import Hub
from dpfy.page.reports import Reports
from dpfy.page.runs import RunReader, RunState, State, find
from dpfy.page.writers import Writers

_LOG = logging.getLogger(__name__)
_PAUSE = 1.0  # seconds between two looks at files that are known
_SEARCH = 3  # looks between two searches for new ledgers
_SHARE = 20  # rests per unit of work on the ε of runs that go on
_FRESH = 0.3  # seconds that a request waits for a look


class Watcher:
    """Looks at a folder of runs and at a book of budgets for as long as somebody looks at the page.

    Args:
        root: The folder of all runs.
        budget: The address of a book of budgets, or None.
    """

    def __init__(self, root: Path, budget: str | None = None) -> None:
        self.root, self.hub = root, Hub()
        self.reports = Reports(self.hub)
        self.budgets = BudgetReader(budget) if budget is not None else None
        self.open_pages = 0
        self._readers: dict[Path, RunReader] = {}
        self._looks = 0
        self._wake, self._stop = threading.Event(), threading.Event()
        self._looked = threading.Condition()
        self._account_after = 0.0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._work, name="dpfy-page", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, after what is being read."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
        self.reports.close()
        if self.budgets is not None:
            self.budgets.close()

    def runs(self) -> list[RunState]:
        """Return the state of every run, those that go on first, then the newest."""
        states = [reader.state for reader in list(self._readers.values())]
        return sorted(states, key=_order)

    def run(self, key: str) -> RunState | None:
        """Return the state of the run with this key, or None if there is none."""
        return next((state for state in self.runs() if state.key == key), None)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Look again and again for as long as somebody listens; used by one thread."""
        self.open_pages += 1
        self._wake.set()  # it rests while nobody does
        try:
            yield
        finally:
            self.open_pages -= 1

    def refresh(self) -> None:
        """Ask for a look now, and wait a moment for it; what takes longer comes later."""
        with self._looked:
            self._wake.set()
            self._looked.wait(timeout=_FRESH)

    def _work(self) -> None:
        while not self._stop.is_set():
            # Nobody looks: wait for a request. The search is then due at once.
            patience = _PAUSE if self.open_pages or self._due() else None
            self._wake.wait(timeout=patience)
            if patience is None:
                self._looks = 0
            self._wake.clear()
            try:
                self._look()
            except Exception as error:  # such as a folder that is gone for a moment
                _LOG.warning("A look at %s failed: %s", self.root, type(error).__name__)
            with self._looked:
                self._looked.notify_all()
            self._account()

    def _look(self) -> None:
        """Look at all ledgers; new ones are shown at once, and read one after another."""
        if self._looks % _SEARCH == 0:
            self._search()
        self._looks += 1
        if self.budgets is not None and self.budgets.look():
            self.hub.changed("budgets")
        writers = Writers.now()
        for reader in list(self._readers.values()):
            if self._stop.is_set():
                return
            if reader.look(writers):
                self.hub.changed("runs", f"run-{reader.state.key}")

    def _search(self) -> None:
        found = set(find(self.root)) if self.root.is_dir() else set()
        for path in self._readers.keys() - found:
            gone = self._readers.pop(path)
            self.hub.changed("runs", f"run-{gone.state.key}")
        for path in found - self._readers.keys():
            self._readers[path] = RunReader(self.root, path)
            self.hub.changed("runs")

    def _due(self) -> bool:
        return any(reader.due for reader in self._readers.values())

    def _account(self) -> None:
        """Compute ε where it is not known yet, and of one run that goes on if enough time passed.

        Most of the time is left to others: the machine trains. After a second there is another
        look, and the rest comes later.
        """
        began = time.monotonic()
        for reader in sorted(self._readers.values(), key=lambda each: each.accounted_at):
            if self._stop.is_set() or time.monotonic() - began > _PAUSE:
                return
            again = reader.state.spent is not None
            if not reader.due or (again and time.monotonic() < self._account_after):
                continue
            started = time.monotonic()
            reader.account()
            reader.accounted_at = time.monotonic()  # whoever waits longest is next
            took = reader.accounted_at - started
            if again:
                self._account_after = reader.accounted_at + max(_PAUSE, _SHARE * took)
            self.hub.changed("runs", f"run-{reader.state.key}")
            self._stop.wait(took)


def _order(state: RunState) -> tuple[bool, tuple[int, ...], str]:
    newest_first = tuple(-ord(letter) for letter in state.created)
    return state.state is not State.RUNNING, newest_first, state.name
