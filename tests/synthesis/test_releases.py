"""The ledger of a table: all is on record before a row is read, and nothing is taken up again."""

import numpy as np
import pytest
from tests.support.synthetic import SCHEMA, people, without_mbi

from dpfy import Ledger, Synthesizer, account
from dpfy.errors import BudgetExhausted, LedgerMismatch, LedgerWriteFailed
from dpfy.ledger.events import Poisson, Sampled, SumQuery
from dpfy.ledger.one_shot import ExponentialChoice
from dpfy.mechanisms.one_shot import ExponentialMechanism, Gaussian

METHODS = ["mst", "aim"]


@pytest.fixture(autouse=True)
def _no_package(monkeypatch):
    without_mbi(monkeypatch)


class Unread(dict):
    """A table whose columns are there, and that nobody may read."""

    def __getitem__(self, name):
        raise AssertionError("a private row was read")


def queries(path):
    return [query for run in Ledger.read(path).uses for query in run.event.queries * run.times]


@pytest.mark.parametrize("method", METHODS)
def test_what_ran_is_what_is_on_record(method, tmp_path, monkeypatch):
    ran = []
    for kind in (Gaussian, ExponentialMechanism):
        release = kind.release

        def noting(self, values, stream, release=release):
            ran.append(self.event.queries[0])
            return release(self, values, stream)

        monkeypatch.setattr(kind, "release", noting)
    path = tmp_path / "t.dpl"
    fitted = Synthesizer(method, SCHEMA, 1.0, 1e-6).fit(people(500), path)
    assert ran == queries(path)
    assert 0.99 < account(path).claim(1e-6) <= 1.0
    assert fitted.guarantee.claim(1e-6) == account(path).claim(1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_every_event_is_reserved_before_its_rows_are_counted(method, tmp_path, monkeypatch):
    import dpfy.synthesis.work as work_module

    path, seen = tmp_path / "t.dpl", []
    real = work_module.counts

    def counting(codes, sizes, columns):
        seen.append(Ledger.read(path).count)
        return real(codes, sizes, columns)

    monkeypatch.setattr(work_module, "counts", counting)
    Synthesizer(method, SCHEMA, 1.0, 1e-6).fit(people(500), path)
    assert min(seen) == 1 and max(seen) == Ledger.read(path).count


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("when", [ExponentialMechanism, Gaussian])
def test_what_an_interrupted_table_reserved_stays_spent(method, when, tmp_path, monkeypatch):
    """Stopped inside of a choice, or of the release that follows one."""
    path, release, calls = tmp_path / "t.dpl", when.release, []

    def stopping(self, values, stream):
        calls.append(self)
        if when is ExponentialMechanism or len(calls) > 1:
            raise KeyboardInterrupt
        return release(self, values, stream)

    monkeypatch.setattr(when, "release", stopping)
    with pytest.raises(KeyboardInterrupt):
        Synthesizer(method, SCHEMA, 1.0, 1e-6).fit(people(500), path)
    monkeypatch.undo()
    without_mbi(monkeypatch)
    found = queries(path)
    assert isinstance(found[-1], ExponentialChoice if when is ExponentialMechanism else SumQuery)
    assert len(found) >= 2 and isinstance(found[0], SumQuery)
    size = path.stat().st_size
    with pytest.raises(LedgerMismatch, match="not taken up again"):
        Synthesizer(method, SCHEMA, 1.0, 1e-6).fit(Unread(people(2)), path)
    assert path.stat().st_size == size and queries(path) == found


@pytest.mark.parametrize("method", METHODS)
def test_a_ledger_pays_for_one_table(method, tmp_path):
    path = tmp_path / "t.dpl"
    Synthesizer(method, SCHEMA, 1.0, 1e-6).fit(people(100), path)
    for again in METHODS:
        with pytest.raises(LedgerMismatch, match="has paid for releases already"):
            Synthesizer(again, SCHEMA, 1.0, 1e-6).fit(Unread(people(2)), path)
    with Ledger.in_memory() as ledger:
        ledger.reserve(Sampled(Poisson(1.0), (SumQuery(1.0, 5.0),)))
        with pytest.raises(LedgerMismatch):
            Synthesizer(method, SCHEMA, 1.0, 1e-6).fit(Unread(people(2)), ledger)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("failing", [1, 2, 3])
def test_no_row_is_counted_after_a_failed_append(method, failing, tmp_path, monkeypatch):
    import dpfy.synthesis.work as work_module

    reserve, reserved, counted = Ledger.reserve, [], []

    def failing_reserve(self, event, note=None):
        reserved.append(event)
        if len(reserved) == failing:
            raise LedgerWriteFailed("the disk is full")
        reserve(self, event, note)

    real = work_module.counts
    monkeypatch.setattr(Ledger, "reserve", failing_reserve)
    monkeypatch.setattr(
        work_module, "counts", lambda *given: counted.append(len(reserved)) or real(*given)
    )
    with pytest.raises(LedgerWriteFailed):
        Synthesizer(method, SCHEMA, 1.0, 1e-6).fit(people(200), tmp_path / "t.dpl")
    assert failing not in counted and len(reserved) == failing


def test_the_filter_of_aim_is_never_exceeded(tmp_path):
    path = tmp_path / "t.dpl"
    Synthesizer("aim", SCHEMA, 0.5, 1e-6).fit(people(300), path)
    with Ledger.read(path) as ledger:
        header = ledger.header
        assert header.filter["type"] == "zcdp_filter" and not header.envelope
        assert all(run.event.adaptive for run in ledger.uses[1:])
    rho = 0.0
    for query in queries(path):  # zCDP of each release, computed here
        if isinstance(query, SumQuery):
            rho += query.l2_bound**2 / (2 * query.stddev**2)
        else:
            rho += (2 * query.sensitivity / query.scale) ** 2 / 8
    assert 0.99 * header.filter["rho"] < rho <= header.filter["rho"] * (1 + 1e-9)
    with Ledger.open(path) as ledger:
        from dpfy.accounting.filtered import declared_filter

        ledger.register(declared_filter(header.filter).guard(), header)
        with pytest.raises(BudgetExhausted):
            ledger.reserve(Sampled(Poisson(1.0), (SumQuery(1.0, 20.0),), adaptive=True))


def test_a_test_key_is_on_record_and_makes_tables_equal(tmp_path):
    drawn = []
    for name in "ab":
        synthesizer = Synthesizer("mst", SCHEMA, 1.0, 1e-6, insecure_test_key=5)
        synthesizer.fit(people(300), tmp_path / f"{name}.dpl")
        drawn.append(synthesizer.sample(50, seed=1))
        assert not synthesizer.guarantee.private
    for name in SCHEMA.names:
        assert np.array_equal(drawn[0][name], drawn[1][name])
    assert Synthesizer("mst", SCHEMA, 1.0).fit(people(50)).guarantee.private
