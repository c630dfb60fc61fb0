"""Questions to losses: what one record may change, what is recorded, and that nothing is read
before.
"""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from runs import Started
from torch.utils.data import Dataset, TensorDataset

import dpfy
from dpfy.accounting import ZcdpFilter
from dpfy.ledger.events import Poisson, Sampled
from dpfy.ledger.one_shot import AboveThreshold, ExponentialChoice
from dpfy.mechanisms.statistics import ROUNDING
from dpfy.run.loss_queries import FirstBelow, PrivateArgmin
from recipes import Descent

ROWS = torch.tensor(
    [[0.5, 1.0, 0.0], [-3.0, 2.0, 1.0], [9.0, 9.0, -9.0], [0.1, 0.2, 0.3], [math.inf, 0.0, 1.0]]
)
ODD = torch.tensor([[5.0, -4.0, 7.0], [math.nan, 1.0, 1.0], [0.0, 0.0, 0.0], [1e30, -1e30, 1e30]])


def started(rows, **options):
    plan = dpfy.dpsgd(rate=1.0, divisor=4, steps=3, noise_multiplier=2.0).under(ZcdpFilter(1e6))
    return Started(TensorDataset(rows), plan=plan, **options)


@pytest.fixture(scope="module")
def neighbours():
    """Runs on the rows, and on the rows and one more."""
    begun = [started(ROWS), *(started(torch.cat([ROWS, row.unsqueeze(0)])) for row in ODD)]
    yield begun
    for each in begun:
        each.run.close()


@settings(max_examples=25)
@given(st.lists(st.floats(-4, 4, width=16), min_size=3, max_size=3), st.floats(0.01, 10.0))
def test_one_record_adds_at_most_the_bound_and_never_takes_away(neighbours, weight, bound):
    """A loss that is not clipped, negative, or no number would be seen here; so would a mean."""
    sums = [
        PrivateArgmin(each.run, bound, 1.0)._losses(each.loss).of({"weight": torch.tensor(weight)})
        for each in neighbours
    ]
    expected = (ROWS[:4] @ torch.tensor(weight)).double().clamp(0, bound).sum()
    infinite = (ROWS[4] @ torch.tensor(weight)).double()
    expected = expected + (bound if infinite.isnan() else infinite.clamp(0, bound))
    # scores of about 10 may cancel, and processors round them differently
    assert sums[0] == pytest.approx(float(expected), abs=1e-6 * max(bound, 1.0))
    for with_one_more in sums[1:]:
        assert -1e-12 <= with_one_more - sums[0] <= bound * (1 + 1e-12)


def test_the_sensitivity_pays_for_the_last_bits_of_others():
    begun = started(ROWS)
    search = PrivateArgmin(begun.run, 3.0, 0.5)
    co_batched = search._partition.largest
    assert co_batched >= 4
    assert search.mechanism.sensitivity == pytest.approx(
        3.0 * (1 + 2 * co_batched * ROUNDING + 2.0**-19), rel=1e-12
    )
    assert search.event.queries[0].largest_loss == pytest.approx(0.5)


def test_the_least_loss_is_found_and_recorded():
    descent = Descent(rho=1e9)
    search = PrivateArgmin(descent.run, 5.0, 1e4)
    models = [
        {"weight": torch.tensor([weight])} for weight in ([0.0, 0.0], [1.0, -2.0], [4.0, 4.0])
    ]
    assert search.of(descent.loss, iter(models)) == 1
    assert torch.equal(descent.model.weight, torch.zeros(1, 2))
    sensitivity, scale = search.mechanism.sensitivity, search.mechanism.scale
    assert [run.event for run in descent.ledger.uses] == [
        Sampled(
            Poisson(1.0), (ExponentialChoice(sensitivity, scale, True, "step size"),), adaptive=True
        )
    ]
    descent.run.close()


def test_the_first_sufficient_decrease_is_found_and_recorded():
    descent = Descent(rho=1e9, rate=0.9)
    search = FirstBelow(descent.run, 5.0, 1e4)
    start, best = ({"weight": torch.tensor([weight])} for weight in ([0.0, 0.0], [1.0, -2.0]))
    assert (
        search.of(descent.loss, start, [(start, 1.0), (best, 1e6), (best, 1.0), (best, 0.0)]) == 2
    )
    assert search.of(descent.loss, start, [(start, 1.0), (best, 1e6)]) is None
    mechanism = search.mechanism
    assert [(run.event, run.times) for run in descent.ledger.uses] == [
        (
            Sampled(
                Poisson(0.9),
                (
                    AboveThreshold(
                        mechanism.sensitivity,
                        mechanism.threshold_scale,
                        mechanism.query_scale,
                        False,
                        "decrease",
                    ),
                ),
                adaptive=True,
            ),
            2,
        )
    ]
    assert 1 / 2 <= mechanism.query_scale / mechanism.threshold_scale <= 2
    descent.run.close()


def test_what_is_asked_for_does_not_swallow_the_last_digits():
    """Beside 1e30 a float64 sum has no digits left, and one record could move the comparison by
    many bounds.
    """
    descent = Descent(rho=1e9)
    search, seen = FirstBelow(descent.run, 5.0, 1.0), []
    search.mechanism = _Listening(search.mechanism, seen)
    start = {"weight": torch.zeros(1, 2)}
    search.of(descent.loss, start, [(start, 1e30), (start, 1.0)])
    assert seen == [-5.0 * 2**32, -1.0]
    descent.run.close()


class _Listening:
    def __init__(self, mechanism, seen):
        self.event, self.seen = mechanism.event, seen

    def release(self, values, stream):
        self.seen += list(values)


class Watched(Dataset):
    """Notes how much was recorded whenever a record is read."""

    example_input = torch.zeros(1, 2), torch.zeros(1)

    def __init__(self):
        self.ledger, self.reads = None, []

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if self.ledger is not None:
            self.reads.append(self.ledger.count)
        return torch.ones(2), torch.ones(())


@pytest.mark.parametrize("kind", [PrivateArgmin, FirstBelow])
def test_nothing_is_read_before_it_is_paid_for(kind):
    data = Watched()
    descent = Descent(data=data, rho=0.2)  # one gradient costs 0.125
    descent.run.release(descent.loss, next(iter(descent.run)))
    data.ledger = descent.ledger
    models = [{"weight": torch.zeros(1, 2)}]
    given_models = (models,) if kind is PrivateArgmin else (models[0], [(models[0], 0.0)])
    with pytest.raises(dpfy.BudgetExhausted):
        kind(descent.run, 1.0, 5.0).of(descent.loss, *given_models)
    assert data.reads == []
    kind(descent.run, 1.0, 0.1).of(descent.loss, *given_models)
    assert set(data.reads) == {2} and len(data.reads) >= 6
    descent.run.close()


def test_other_samples_are_refused():
    plan = dpfy.dpsgd(
        records=5,
        batch_size=2,
        epochs=1,
        noise_multiplier=2.0,
        sampling="shuffled",
        relation="zero_out",
    ).under(ZcdpFilter(1e6))
    begun = Started(TensorDataset(ROWS), plan=plan)
    with pytest.raises(dpfy.InvalidArgument, match="poisson or full"):
        PrivateArgmin(begun.run, 1.0, 1.0)
    begun.run.close()
