"""Scopes: paid before they begin, sealed while they run, charged in full when they are
interrupted.
"""

import os
import signal

import pytest

from dpfy.accounting import account
from dpfy.accounting.filters import RenyiFilter
from dpfy.errors import (
    BudgetExhausted,
    InvalidArgument,
    LedgerDamaged,
    LedgerMismatch,
    LedgerWriteFailed,
)
from dpfy.ledger import Header, Ledger
from dpfy.ledger.composite_events import Composed, Parallel
from dpfy.ledger.events import Event, NonPrivate, Poisson, Repeated, Sampled, SumQuery
from dpfy.ledger.scopes import Selection, composition, parallel
from dpfy.ledger.selection import NegativeBinomialTrials, Selected
from dpfy.types import Relation

STEP = Sampled(Poisson(0.01), (SumQuery(1.0, 1.1),))
OTHER = Sampled(Poisson(0.02), (SumQuery(1.0, 2.0),))
RUN = Composed((STEP, OTHER), (2, 1))
EVENT = Selected(RUN, NegativeBinomialTrials.with_mean(10.0))


def everything(trial):
    for event in (STEP, STEP, OTHER):
        trial.reserve(event)


def test_a_run_in_a_scope_is_one_line_and_no_more_than_was_declared(path):
    with Ledger.open(path) as ledger:
        scope = composition(ledger, RUN)
        everything(scope)
        with pytest.raises(BudgetExhausted, match="All 3 steps"):
            scope.reserve(STEP)
    assert Ledger.read(path).uses == (Repeated(RUN, 1),)
    assert scope.durable


def test_a_scope_takes_only_what_was_declared_next():
    with Ledger.in_memory() as ledger:
        scope = composition(ledger, RUN)
        scope.reserve(STEP)
        with pytest.raises(LedgerMismatch, match="Step 2"):
            scope.reserve(OTHER)
        scope.reserve(STEP)
        scope.reserve(OTHER)


@pytest.mark.parametrize("trials", [0, 1, 7])
def test_nothing_in_any_file_depends_on_the_number_of_trials(path, trials):
    """Fails if a trial, their number or their steps reach the ledger, or if the sealed file
    stays.
    """
    with Ledger.open(path) as ledger:
        with Selection(ledger, EVENT, draw=lambda: trials) as selection:
            for trial in selection:
                everything(trial)
        assert ledger.uses == (Repeated(EVENT, 1),)
        assert ledger.lines == 4  # header, definition, begin, end
    assert sorted(file.name for file in path.parent.iterdir()) == ["run.dpl", "run.dpl.head"]
    assert Ledger.read(path).uses == (Repeated(EVENT, 1),)


def test_the_event_is_durable_before_the_number_is_drawn(path):
    def draw():
        assert Ledger.read(path).uses[0] == Repeated(EVENT, 1)
        return 1

    with Ledger.open(path) as ledger, Selection(ledger, EVENT, draw) as selection:
        for _ in selection:
            pass


def test_the_number_is_not_drawn_when_the_budget_is_spent():
    class Refusing:
        def describe(self):
            return {"name": "refusing"}

        def admit(self, event, times):
            raise BudgetExhausted("no")

        def record(self, event, times):
            raise AssertionError("nothing was admitted")

    with (
        Ledger.in_memory(Refusing()) as ledger,
        pytest.raises(BudgetExhausted),
        Selection(ledger, EVENT, draw=lambda: pytest.fail("drawn")),
    ):
        pass


def test_nothing_may_be_claimed_while_a_selection_runs(path):
    with Ledger.open(path, header=Header(envelope=(Repeated(EVENT, 1),))) as ledger:
        with Selection(ledger, EVENT, draw=lambda: 1) as selection:
            now = account(Ledger.read(path))
            assert now.claim(1e-5) == now.envelope.claim(1e-5) == float("inf")
            assert ledger.count == 1
            for trial in selection:
                everything(trial)
        assert account(ledger).claim(1e-5) < float("inf")


@pytest.mark.parametrize("how", ["raised", "left"])
def test_an_interruption_costs_every_trial(path, how):
    """Fails if a selection whose trials may have been seen is charged as if one output had been
    released.
    """
    with Ledger.open(path) as ledger:
        with (
            pytest.raises(RuntimeError if how == "raised" else LedgerMismatch),
            Selection(ledger, EVENT, draw=lambda: 5) as selection,
        ):
            for _ in selection:
                if how == "raised":
                    raise RuntimeError
                break
        charged = (Repeated(EVENT, 1), Repeated(Composed((RUN,), (5,)), 1))
        assert ledger.uses == charged
        assert ledger.interruptions == charged[1:]
    assert Ledger.read(path).uses == charged
    alone = account([Repeated(RUN, 5)]).claim(1e-5)
    assert account(Ledger.read(path)).claim(1e-5) > alone
    assert not list(path.parent.glob("*.sealed"))


def test_an_envelope_does_not_hide_an_interruption(path):
    with (
        Ledger.open(path, header=Header(envelope=(Repeated(EVENT, 1),))) as ledger,
        pytest.raises(RuntimeError),
        Selection(ledger, EVENT, draw=lambda: 5),
    ):
        raise RuntimeError
    assert account(Ledger.read(path)).envelope.claim(1e-5) > account([Repeated(RUN, 5)]).claim(1e-5)


@pytest.mark.parametrize(("moment", "charged"), [("drawing", 0), ("running", 3)])
def test_a_killed_process_is_charged_when_the_ledger_is_opened_again(path, moment, charged):
    """Fails if a crash inside a selection counts as the selection only."""
    child = os.fork()
    if child == 0:  # pragma: no cover

        def draw():
            if moment == "drawing":
                os.kill(os.getpid(), signal.SIGKILL)
            return 3

        with Selection(Ledger.open(path), EVENT, draw) as selection:
            for trial in selection:
                everything(trial)
                os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert account(Ledger.read(path)).claim(1e-5) == float("inf")
    (sealed,) = path.parent.glob("*.sealed")
    assert sealed.stat().st_mode & 0o077 == 0
    with Ledger.open(path) as ledger:
        extra = (Repeated(Composed((RUN,), (charged,)), 1),) if charged else ()
        assert ledger.uses == (Repeated(EVENT, 1), *extra)
    assert Ledger.read(path).uses == (Repeated(EVENT, 1), *extra)
    assert not list(path.parent.glob("*.sealed"))


def test_a_lost_number_has_no_guarantee(path):
    child = os.fork()
    if child == 0:  # pragma: no cover
        with Selection(Ledger.open(path), EVENT, lambda: 3) as selection:
            for _ in selection:
                os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    for sealed in path.parent.glob("*.sealed"):
        sealed.unlink()
    with Ledger.open(path) as ledger:
        assert isinstance(ledger.uses[-1].event, NonPrivate)


def test_a_failed_draw_costs_the_selection_only(path):
    with Ledger.open(path) as ledger:
        with (
            pytest.raises(InvalidArgument, match="trials"),
            Selection(ledger, EVENT, draw=lambda: -1),
        ):
            pass
        assert ledger.uses == (Repeated(EVENT, 1),)


def test_no_trial_runs_when_the_number_cannot_be_kept(path, monkeypatch):
    with Ledger.open(path) as ledger:
        monkeypatch.setattr(
            "pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full"))
        )
        with (
            pytest.raises(LedgerWriteFailed, match="full"),
            Selection(ledger, EVENT, draw=lambda: 1),
        ):
            pytest.fail("it ran")
        assert ledger.uses == ()


def test_no_trial_runs_when_the_event_cannot_be_written(path, monkeypatch):
    with Ledger.open(path) as ledger:
        ledger.reserve(STEP)
        monkeypatch.setattr(
            "dpfy.ledger.store._write", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full"))
        )
        with (
            pytest.raises(LedgerWriteFailed),
            Selection(ledger, EVENT, draw=lambda: pytest.fail("drawn")),
        ):
            pass


def test_a_filter_is_told_of_selections_and_of_interruptions():
    rule = RenyiFilter(epsilon=8.0, delta=1e-5, orders=(8.0,))
    guard = rule.guard(Relation.ADD_OR_REMOVE_ONE)
    with Ledger.in_memory(guard, Header(filter=rule.to_json())) as ledger:
        with Selection(ledger, EVENT, draw=lambda: 2) as selection:
            list(selection)
        whole = guard.used
        with pytest.raises(RuntimeError), Selection(ledger, EVENT, draw=lambda: 2) as selection:
            raise RuntimeError
        assert guard.used > 2 * whole > 0


def test_parts_have_ledgers_of_their_own():
    event = Parallel((RUN, STEP))
    with Ledger.in_memory() as ledger:
        first, second = parallel(ledger, event)
        everything(first)
        second.reserve(STEP)
        with pytest.raises(BudgetExhausted):
            second.reserve(STEP)
    assert ledger.uses == (Repeated(event, 1),)


def test_a_scope_is_for_the_unit_relation_and_keys_of_its_ledger():
    with Ledger.in_memory(header=Header(relation="replace_one")) as ledger:
        scope = composition(ledger, RUN)
        with pytest.raises(LedgerMismatch, match="relation"):
            scope.register(None, Header())
        with pytest.raises(LedgerMismatch, match="key_source"):
            scope.register(None, Header(relation="replace_one", key_source="insecure test key"))
        with pytest.raises(LedgerMismatch, match="outer"), Selection(scope, EVENT, lambda: 1):
            pass


def test_an_edited_end_is_noticed(path):
    with (
        Ledger.open(path) as ledger,
        pytest.raises(RuntimeError),
        Selection(ledger, EVENT, draw=lambda: 5),
    ):
        raise RuntimeError
    path.write_bytes(path.read_bytes().replace(b'"times":[5]', b'"times":[1]'))
    with pytest.raises(LedgerDamaged):
        Ledger.read(path)


@pytest.mark.parametrize("event", [RUN, EVENT, Parallel((RUN, EVENT), moves=False)])
def test_round_trip(event):
    assert Event.from_json(event.to_json()) == event


def test_adaptive_steps_cannot_be_wrapped():
    step = Sampled(Poisson(0.01), (SumQuery(1.0, 1.1),), adaptive=True)
    for wrap in (
        lambda: Composed((step,), (1,)),
        lambda: Parallel((step,)),
        lambda: Selected(step, EVENT.trials),
    ):
        with pytest.raises(InvalidArgument, match="adaptive"):
            wrap()
