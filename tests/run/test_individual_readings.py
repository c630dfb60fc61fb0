"""What records have used of their own filters is released with noise and paid for, or is shown to
one person with a text that says what it is.
"""

import pytest
import torch
from runs import Started
from scipy import stats
from torch.utils.data import TensorDataset

import dpfy
from dpfy.accounting import GaussianFilter, IndividualFilter, account
from dpfy.errors import BudgetExhausted, InvalidArgument
from dpfy.ledger.events import Poisson, Sampled, SumQuery
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.run import budget_histogram, own_reading

pytestmark = pytest.mark.cpu
RULE = IndividualFilter(GaussianFilter(mu=1.0), slack=1.0, levels=8, aside=0.2)
ROWS = torch.diag(torch.tensor([3.0, 1.0, 0.5]))  # levels 8, 8 and 4


def run_of(rows=ROWS, rule=RULE, steps=30):
    plan = dpfy.dpsgd(rate=1.0, divisor=1, steps=steps, noise_multiplier=4.0).under(rule)
    return Started(TensorDataset(rows), plan=plan)


def without_noise(monkeypatch):
    monkeypatch.setattr(GaussianSum, "release", lambda self, total, noise: total)


def test_counts_are_those_of_used_shares_and_of_records_that_left(monkeypatch):
    without_noise(monkeypatch)
    started = run_of()
    assert budget_histogram(started.run, stddev=20.0, bins=4).counts == (0.0,) * 5
    for _ in range(4):  # of 0.8·16 = 12.8 steps at the clip bound
        started.release()
    assert budget_histogram(started.run, stddev=20.0, bins=4).counts == (1.0, 2.0, 0.0, 0.0, 0.0)
    for _ in range(12):
        started.release()
    assert budget_histogram(started.run, stddev=20.0, bins=4).counts == (0.0, 1.0, 0.0, 0.0, 2.0)


@pytest.mark.parametrize("more", [torch.ones(1, 3), torch.zeros(1, 3), torch.full((1, 3), 1e-3)])
def test_a_record_is_in_one_count_at_most(monkeypatch, more):
    """A null record is in none: setting a record to zero moves one count by one, too."""
    without_noise(monkeypatch)
    counts = []
    for rows in (ROWS, torch.cat([ROWS, more])):
        started = run_of(rows)
        for _ in range(3):
            started.release()
        counts.append(torch.tensor(budget_histogram(started.run, stddev=20.0).counts))
    moved = (counts[1] - counts[0]).tolist()
    assert sorted(moved)[:-1] == [0.0] * 10 and moved[-1] == 0.0
    assert sum(moved) == float(more.any())


def test_a_histogram_is_paid_for_from_what_is_aside_before_anything_is_looked_at(monkeypatch):
    started = run_of()
    started.release()
    budget_histogram(started.run, stddev=3.0)
    event = Sampled(Poisson(1.0), (SumQuery(1.0, 3.0, "histogram of used budgets"),), adaptive=True)
    assert started.ledger.uses[-1].event == event
    assert account(started.ledger).claim(1e-5) == started.run.spent(1e-5).upper
    monkeypatch.setattr(
        type(started.run.context.sampling.budgets), "own", property(lambda s: 1 / 0)
    )
    with pytest.raises(BudgetExhausted, match="Nothing was read"):
        budget_histogram(started.run, stddev=3.0)  # 1/9 twice is more than 0.2
    none = run_of(rule=IndividualFilter(GaussianFilter(mu=1.0)))
    with pytest.raises(BudgetExhausted, match="aside="):
        budget_histogram(none.run, stddev=100.0)


def test_a_histogram_is_no_step_of_the_plan(tmp_path):
    ledger = tmp_path / "ledger.dpl"
    plan = dpfy.dpsgd(rate=1.0, divisor=1, steps=6, noise_multiplier=4.0).under(RULE)
    for left in (6, 5):
        started = Started(TensorDataset(ROWS), plan=plan, ledger=ledger)
        assert started.run.steps_left == left
        started.release()
        budget_histogram(started.run, stddev=20.0)
        started.run.close()


def test_steps_and_budgets_go_on_after_a_histogram(monkeypatch):
    started = run_of()
    started.release()
    before = started.run.context.sampling.budgets.spent.copy()
    budget_histogram(started.run, stddev=20.0)
    started.release()
    budgets = started.run.context.sampling.budgets
    assert (budgets.spent == 2 * before).all()


def test_counts_have_the_noise_that_is_recorded():
    """Two thirds or three halves of it would be rejected; false alarms: below 1e-6 by the χ² law
    of 1001 counts.
    """
    started = run_of(torch.zeros(0, 3))
    found = budget_histogram(started.run, stddev=5.0, bins=1000)
    squares = sum((count / 5.0) ** 2 for count in found.counts)
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], 1001)
    assert low < squares < high and found.stddev == pytest.approx(5.0, rel=1e-4)
    for wrong in (2 / 3, 3 / 2):
        assert not low < squares * wrong**2 < high


def test_one_person_is_shown_their_own_reading_and_told_that_it_is_private():
    started = run_of()
    assert own_reading(started.run, 0, 1e-5).epsilon == 0
    for _ in range(14):
        started.release()
    left, _, small = (own_reading(started.run, index, 1e-5) for index in range(3))
    assert left.used == 1.0 and 0.25 < small.used < 0.3 and small.epsilon < left.epsilon
    assert left.epsilon <= left.guaranteed == started.run.spent(1e-5).upper
    text = str(small)
    assert text.startswith("PRIVATE FACT") and "no guarantee" in text
    assert f"{small.epsilon:.4f}" in text and repr(small) == "OwnReading(private)"
    expected = account(Sampled(Poisson(1.0), (SumQuery(14**0.5 / 2, 4.0),))).claim(1e-5)
    assert small.epsilon == pytest.approx(expected, rel=1e-3)


def test_arguments_are_checked_and_nothing_private_is_said():
    started = run_of()
    for index in (3, -1, True, "0"):
        with pytest.raises(InvalidArgument, match="place of a record") as caught:
            own_reading(started.run, index, 1e-5)
        assert str(caught.value).endswith(f"got {index!r}.")
    for wrong in ({"stddev": 0.0}, {"stddev": 1.0, "bins": 0}, {"stddev": 1.0, "bins": 10**6}):
        with pytest.raises(InvalidArgument, match="Expected"):
            budget_histogram(started.run, **wrong)
    plain = Started(TensorDataset(ROWS))
    with pytest.raises(InvalidArgument, match="IndividualFilter"):
        own_reading(plain.run, 0, 1e-5)
    assert started.ledger.count == 0
