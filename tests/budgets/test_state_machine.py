"""Whatever clients do in whatever order, no budget is exceeded and nothing comes back unpaid.

The model counts steps that were released, by grant, and knows nothing of costs or of entries.
"""

import os
import tempfile
from pathlib import Path

import pytest
from books import DATASET, kill, new_book, opened, plan_of
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from dpfy.budgets import State
from dpfy.budgets.declarations import WHOLE
from dpfy.errors import BudgetExhausted, GrantRefused

PLAN = plan_of(steps=6)
ROOM = 5  # grants
PARTS = ("north", "south")


class Books(RuleBasedStateMachine):
    """A book, and grants whose runs end well, are killed, or whose folders are restored."""

    grants = Bundle("grants")

    def __init__(self):
        super().__init__()
        memory = "/dev/shm"  # where syncing costs nothing; nothing is killed here but by the rules
        place = memory if os.access(memory, os.W_OK) else None
        self._folder = tempfile.TemporaryDirectory(prefix="dpfy-book-", dir=place)
        self.folder = Path(self._folder.name)
        self.book = new_book(f"sqlite:///{self.folder / 'team.db'}", epsilon=4.5, parts=PARTS)
        self.released = {}  # steps that somebody has seen, by grant
        self.copies = {}

    def teardown(self):
        self.book.close()
        self._folder.cleanup()

    def path(self, grant):
        return self.folder / grant.id / "run.dpl"

    @rule(target=grants, part=st.sampled_from((None, *PARTS)))
    def reserve(self, part):
        try:
            grant = self.book.reserve(DATASET, PLAN, purpose="a test", part=part)
        except BudgetExhausted:
            return None
        self.path(grant).parent.mkdir()
        self.released[grant.id] = 0
        return grant

    @rule(grant=grants, steps=st.integers(0, 7), killed=st.booleans())
    def run(self, grant, steps, killed):
        if grant is None:
            return
        try:
            ledger = opened(grant, self.path(grant), PLAN)
        except GrantRefused:
            return
        try:
            for _ in range(steps):
                ledger.reserve(PLAN.event)
                self.released[grant.id] += 1
        except BudgetExhausted:
            pass
        kill(ledger) if killed else ledger.close()

    @rule(grant=grants)
    def copy(self, grant):
        if grant is not None:
            self.copies[grant.id] = {
                file.name: file.read_bytes() for file in self.path(grant).parent.iterdir()
            }

    @rule(grant=grants)
    def restore(self, grant):
        for name, data in self.copies.get(grant and grant.id, {}).items():
            (self.path(grant).parent / name).write_bytes(data)

    @rule(grant=grants)
    def settle(self, grant):
        if grant is not None and self.path(grant).exists():
            with refused():
                self.book.settle(grant, self.path(grant))

    @rule(grant=grants)
    def reopen(self, grant):
        if grant is not None and self.path(grant).exists():
            with refused():
                self.book.reopen(grant, self.path(grant))

    @rule(grant=grants)
    def forfeit(self, grant):
        if grant is not None:
            with refused():
                self.book.forfeit(grant, "lost")

    @rule(grant=consumes(grants))
    def withdraw(self, grant):
        if grant is not None:
            with refused():
                self.book.withdraw(grant)

    @invariant()
    def nothing_was_released_unpaid(self):
        """What was seen of each grant is charged or kept for it, whatever its ledger says now."""
        view = self.book._backend._store.read
        for grant, steps in self.released.items():
            record = view(lambda book, grant=grant: book.last_of_grant(grant)).body["grant"]
            paid = record["charged"]
            if paid is None:
                both = zip(record["cost"], record["lost"], strict=True)
                paid = [kept + lost for kept, lost in both]
            unit = record["cost"][self.place] // PLAN.steps
            assert paid[self.place] >= steps * unit, (record["state"], steps)
            assert record["state"] != State.WITHDRAWN or steps == 0

    @invariant()
    def no_budget_is_exceeded(self):
        last = self.book._backend._store.read(lambda book: book.last_of(DATASET))
        accounts = last.body["record"]["accounts"]
        whole = sum(accounts[WHOLE][kind][self.place] for kind in ("charged", "kept"))
        for part in PARTS:
            own = sum(accounts[part][kind][self.place] for kind in ("charged", "kept"))
            assert whole + own <= self.limit

    @property
    def declaration(self):
        return self.book._backend._declared(DATASET)

    @property
    def place(self):
        return 1 + self.declaration.orders.index(self.declaration.filters[0].orders[0])

    @property
    def limit(self):
        return self.declaration.filters[0].limits[0] * 2**80


class refused:
    """Let a refusal pass."""

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        return kind is not None and issubclass(kind, GrantRefused | BudgetExhausted)


def explore(examples, steps):
    run_state_machine_as_test(
        Books,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=examples < 100,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_few_sequences_exceed_no_budget():
    explore(8, 12)


@pytest.mark.slow
def test_ten_thousand_sequences_exceed_no_budget():
    explore(10_000, 15)
