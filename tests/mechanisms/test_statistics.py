"""What records add to statistics: ramps in the place of steps, and what companions may move."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

import dpfy
from dpfy.errors import InvalidArgument
from dpfy.mechanisms.query import (
    ClippedSum,
    Contributing,
    Query,
    RecordNormsBelow,
    SampleSize,
    Statistic,
)
from dpfy.mechanisms.statistics import ROUNDING, bounded_sum, shared_rounding

LAST_BITS = 15 * 2.0**-23
NEAR_ONE = st.floats(-LAST_BITS, LAST_BITS).map(lambda moved: 1 + moved)


def below(norms, thresholds):
    """What each record adds for each threshold."""
    statistic = RecordNormsBelow(thresholds=thresholds)
    squares = torch.tensor(norms, dtype=torch.float64).square().unsqueeze(1)
    return torch.stack(
        [bounded_sum(statistic, {}, row.unsqueeze(1), ["gradient"], 1.0) for row in squares]
    )


@settings(max_examples=300, deadline=None)
@given(
    threshold=st.floats(1e-6, 1e6),
    place=st.one_of(st.just(1.0), st.floats(0.9, 1.1)),
    moved=NEAR_ONE,
    count=st.integers(1, 5),
)
def test_the_last_bits_of_a_norm_move_its_count_by_no_more_than_is_charged(
    threshold, place, moved, count
):
    """A step at the threshold would move it by two bounds, a ramp of half the width by twice the
    charge.
    """
    norms = [threshold * place, threshold * place * moved]
    one, other = below(norms, (threshold,) * count)
    assert float((one - other).norm()) <= ROUNDING * math.sqrt(count) / 2


def test_norms_count_in_full_beside_a_threshold_and_by_half_at_it():
    rows = below([0.0, 0.93, 1.0, 1.07, 1e200, math.inf, math.nan], (1.0,))
    assert rows.flatten().tolist() == [0.5, 0.5, 0.0, -0.5, -0.5, -0.5, -0.5]


def test_the_mean_is_the_share_of_norms_below_less_one_half():
    """Over a smooth law a ramp is as good as a step: of norms e^N(0, 1) at its quantiles, to a
    quarter of a percent. One that is not centred at the threshold, by half its width, is off by ten
    times that.
    """
    quantiles = torch.distributions.Normal(0, 1).icdf(
        (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    )
    thresholds = (0.3, 1.0, 2.5)
    shares = below(quantiles.exp().tolist(), thresholds).mean(0) + 0.5
    expected = torch.distributions.Normal(0, 1).cdf(torch.tensor(thresholds).double().log())
    assert float((shares - expected).abs().max()) < 0.0025


def contributes(*norms):
    """What a record adds whose gradients have these norms, one for each group."""
    squares = torch.tensor([norms], dtype=torch.float64).square()
    return float(bounded_sum(Contributing(), {}, squares, ["g"] * len(norms), 1.0))


@pytest.mark.parametrize(
    ("norms", "adds"),
    [
        ((0.0,), 1),
        ((1.0,), 1),
        ((1e-300, 1e16), 1),
        ((2.0**58,), 0.5),
        ((2.0**60,), 0),
        ((1e200,), 0),
        ((math.nan,), 0),
        ((math.inf,), 0),
        ((1.0, math.nan), 0),
        ((math.inf, 0.0), 0),
        ((math.nan, 1.0, 1.0), 0),
    ],
)
def test_a_record_contributes_if_all_of_its_gradients_are_finite(norms, adds):
    """Were the first group asked alone, or NaN taken for small, the fourth and later rows would
    count.
    """
    assert contributes(*norms) == adds


@settings(max_examples=300, deadline=None)
@given(octave=st.floats(50, 66), moved=NEAR_ONE, other=st.floats(0, 2.0**60))
def test_the_last_bits_of_a_norm_move_who_contributes_by_no_more_than_is_charged(
    octave, moved, other
):
    """``isfinite`` would turn all records round at once where gradients overflow: by one bound
    each.
    """
    assert (
        abs(contributes(2.0**octave, other) - contributes(2.0**octave * moved, other * moved))
        <= 2.0**-20
    )


@settings(max_examples=300, deadline=None)
@given(
    scores=st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=6),
    lead=st.floats(-0.1, 0.1),
    moved=st.lists(st.floats(-LAST_BITS, LAST_BITS), min_size=6, max_size=6),
    label=st.integers(0, 5),
)
def test_the_last_bits_of_scores_move_a_right_answer_by_no_more_than_is_charged(
    scores, lead, moved, label
):
    """``argmax`` would move it by one bound at a tie."""
    label %= len(scores)
    largest = max(abs(score) for score in scores)
    scores[label] = max(scores[:label] + scores[label + 1 :]) + lead * largest
    largest = max(abs(score) for score in scores)
    other = [score + shift * largest for score, shift in zip(scores, moved, strict=False)]
    one, two = (
        float(dpfy.soft_accuracy(torch.tensor([each], dtype=torch.float64), torch.tensor([label])))
        for each in (scores, other)
    )
    assert abs(one - two) <= ROUNDING


def test_soft_accuracy_is_accuracy_where_no_answer_is_close():
    generator = torch.Generator().manual_seed(1)
    scores, labels = (
        torch.randn(4000, 10, generator=generator),
        torch.randint(10, (4000,), generator=generator),
    )
    soft, hard = dpfy.soft_accuracy(scores, labels), (scores.argmax(1) == labels).double()
    first, second = scores.topk(2).values.unbind(1)
    clear = first - second > scores.abs().amax(1) / 16
    assert 0.5 < float(clear.double().mean()) < 0.95 and torch.equal(soft[clear], hard[clear])
    assert abs(float(soft.mean() - hard.mean())) < 0.01  # what is close adds up to the same


def test_soft_accuracy_takes_what_losses_take():
    tokens, labels = torch.eye(3).expand(2, 3, 3), torch.tensor([[0, 1, 1], [-100, 7, 2]])
    assert dpfy.soft_accuracy(tokens, labels).tolist() == [
        [1, 1, 0],
        [0, 0, 1],
    ]  # what is no class is no right answer
    assert dpfy.soft_accuracy(torch.zeros(1, 3), torch.tensor([1])).tolist() == [0.5]
    assert (
        dpfy.soft_accuracy(torch.tensor([[math.nan, 1.0]]), torch.tensor([1])).isnan().all()
    )  # counts as zero
    assert not dpfy.soft_accuracy(
        torch.ones(1, 2, requires_grad=True), torch.tensor([0])
    ).requires_grad
    one = torch.func.vmap(
        lambda row, label: dpfy.soft_accuracy(row.unsqueeze(0), label.unsqueeze(0))
    )
    assert one(torch.eye(3), torch.tensor([0, 1, 0])).flatten().tolist() == [1, 1, 0]
    with pytest.raises(InvalidArgument, match=r"\(4, 3\) and \(4, 1\)"):
        dpfy.soft_accuracy(torch.zeros(4, 3), torch.zeros(4, 1))


def test_what_companions_move_is_charged_for_every_sum_by_its_share():
    """√(Σ share·rounding²) over the reach; a statistic that is not due costs nothing."""
    query = Query.of(
        [ClippedSum(1.0)], [Statistic("s", share=0.1), SampleSize(share=0.04, every=3)]
    )
    first = math.sqrt(0.86 * 1e-6**2 + 0.14 * ROUNDING**2)
    second = math.sqrt((0.86 * 1e-6**2 + 0.1 * ROUNDING**2) / 0.96)
    assert shared_rounding(query, 1, 1e-6) == pytest.approx(first)
    assert shared_rounding(query, 2, 1e-6) == pytest.approx(second)
    assert shared_rounding(Query.of([ClippedSum(1.0)]), 1, 1e-6) == 1e-6
    counted = Query.of([ClippedSum(1.0)], [Contributing(share=0.1)])
    assert shared_rounding(counted, 1, 1e-6) == pytest.approx(
        math.sqrt(0.9 * 1e-12 + 0.1 * 2.0**-40)
    )


def test_rows_that_are_not_finite_missing_or_of_another_shape_add_nothing():
    statistic, norms = Statistic("s", bound=2.0, shape=(2,)), torch.ones(3, 1, dtype=torch.float64)
    rows = torch.tensor([[math.inf, 0.0], [3.0, 4.0], [math.nan, 1.0]])
    assert bounded_sum(statistic, {"s": rows}, norms, ["g"], 0.5).tolist() == pytest.approx(
        [2.4, 3.2]
    )
    for stats in ({}, {"s": torch.ones(3)}, {"s": torch.ones(3, 4)}):
        assert bounded_sum(statistic, stats, norms, ["g"], 0.5).tolist() == [0, 0]
