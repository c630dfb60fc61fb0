"""Importance sampling: with which probability records take part, how much they contribute, and what
that tells.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dpfy.accounting import account
from dpfy.accounting.group import group_epsilon
from dpfy.errors import InvalidArgument, UnsupportedEvent
from dpfy.ledger.composite_events import Composed, Parallel
from dpfy.ledger.events import (
    Importance,
    ImportanceSchedule,
    Poisson,
    Policy,
    Repeated,
    Sampled,
    SumQuery,
)
from dpfy.mechanisms.importance_bounds import (
    JITTER,
    LARGEST_RATE,
    LEAST_RATE,
    LIKELIEST_PROPOSAL,
    MARGIN,
    MAX_BLOCK_RECORDS,
    MOVED,
    co_batched_for,
    rounding_allowance,
)
from dpfy.mechanisms.sampling import importance
from dpfy.mechanisms.sampling.importance import ImportanceSampler
from dpfy.noise.random_stream import SecureStream

CLIP, BOUND = 2.0, 0.6
NORMS = np.array([0.0, 1e-30, 0.01, 0.12, 0.13, 0.5, 1.0, 1.99, 2.0, 2.01, 50.0, 1e30])


def sampler_of(rate=0.1, ratio=0.3, slack=3.0, floor=1 / 16, n=1000, key=1):
    schedule = ImportanceSchedule(rate * ratio * n, n, (ratio,), 10, slack, floor, JITTER)
    return ImportanceSampler(
        schedule, CLIP, SecureStream(insecure_test_key=key, purpose="sampling")
    )


def probabilities(sampler, learned, norms):
    """The chance of being proposed and that of being accepted then, each by the thresholds that
    coins meet.
    """
    sampler.learn(1, learned)
    proposed = importance._threshold(sampler._proposed(1, sampler._guesses)) / 2.0**64
    shares = np.maximum(norms / CLIP, sampler.policy.floor)
    return proposed, importance._threshold(sampler._accepted(1, sampler._guesses, shares)) / 2.0**64


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, LARGEST_RATE])
def test_the_guess_cancels_from_inclusion_also_where_coins_saturate(rate):
    """An acceptance that was capped at 1, or divided by an uncapped proposal, would leave the guess
    in the product.
    """
    learned, norms = map(np.ravel, np.meshgrid(NORMS, NORMS))
    sampler = sampler_of(rate, n=len(norms))
    proposed, accepted = probabilities(sampler, learned, norms)
    counted = np.minimum(np.minimum(np.maximum(norms / CLIP, 1 / 16), sampler._guesses), 1.0)
    rate = sampler.policy.at(1).rate
    assert np.allclose(proposed * accepted, rate * counted, rtol=1e-9, atol=0)
    assert (proposed * accepted <= rate).all()
    assert proposed.max() <= LIKELIEST_PROPOSAL and accepted.max() <= 1 - MARGIN
    assert (
        rate < LARGEST_RATE or (proposed == LIKELIEST_PROPOSAL).any()
    )  # saturation was among the cases


def test_nobody_is_proposed_in_vain():
    """A record whose norm is at the clip bound is accepted as often as coins may be, however large
    the slack is.
    """
    sampler = sampler_of(n=3, slack=5.0)
    proposed, accepted = probabilities(
        sampler, np.array([0.2, 1.0, 4.0]) * CLIP, np.array([0.2, 1.0, 4.0]) * CLIP
    )
    assert np.allclose(proposed, 0.1 / (1 - MARGIN)) and np.allclose(
        accepted, (1 - MARGIN) * np.array([0.2, 1.0, 1.0])
    )


@pytest.mark.parametrize("norms", [NORMS, np.array([np.nan, np.inf, -np.inf])])
def test_contributions_have_the_norm_of_the_bound(norms):
    sampler = sampler_of(n=len(norms))
    sampler.learn(1, norms)
    sampler._coins = np.zeros(len(norms), dtype=np.uint64)  # everyone is accepted
    weights = sampler.weights(1, np.arange(len(norms)), norms, BOUND)
    if not np.isfinite(norms).all():
        assert (weights == 0).all()
        return
    above = norms >= CLIP / 16
    assert np.allclose((weights * norms)[above], BOUND, rtol=1e-15)
    assert ((weights * norms)[~above] <= BOUND).all() and (weights * norms)[0] == 0


def test_the_expected_sum_is_that_of_clipped_gradients():
    """Inclusion times contribution is rate·ratio = batch_size/records times the gradient, up to the
    clip bound.
    """
    norms = NORMS[NORMS <= CLIP]
    sampler = sampler_of(n=len(norms))
    proposed, accepted = probabilities(sampler, norms, norms)
    sampler._coins = np.zeros(len(norms), dtype=np.uint64)
    weights = sampler.weights(1, np.arange(len(norms)), norms, sampler.policy.ratio_at(1) * CLIP)
    assert np.allclose(
        proposed * accepted * weights * norms, sampler.policy.rate * norms, rtol=1e-9
    )


def test_records_are_included_as_often_as_their_norms_say():
    """Binomial counts over 12000 coins a group; three groups at 1e-7 each, and 2/3 or 3/2 of a rate
    are noticed.
    """
    group = np.repeat([0.25, 1.0, 5.0], 20)
    sampler, steps = sampler_of(rate=0.3, n=len(group)), 600
    counts = np.zeros(len(group))
    sampler.learn(1, 2 * group)
    for _ in range(steps):
        proposed = sampler.draw(1, len(group))
        taken = sampler.weights(1, proposed, group[proposed], BOUND) > 0
        counts[proposed[taken]] += 1
    for norm, expected in ((0.25, 0.3 / 8), (1.0, 0.3 / 2), (5.0, 0.3)):
        count, coins = int(counts[group == norm].sum()), steps * 20
        assert stats.binomtest(count, coins, expected).pvalue > 1e-7
        for wrong in (2 / 3, 3 / 2):
            assert stats.binomtest(count, coins, wrong * expected).pvalue < 1e-7


def test_norms_are_learned_once_an_epoch():
    sampler = sampler_of(rate=0.5, ratio=0.4, n=10)  # five steps in an epoch
    assert sampler.due(7)
    sampler.learn(7, np.ones(10))
    assert [step for step in range(7, 14) if sampler.due(step)] == [12, 13]
    with pytest.raises(InvalidArgument, match="learned before"):
        sampler.draw(7, 11)


def moved_by(likeliest, occasions=1):
    """How far, in standard deviations, last bits move a Gaussian that decides a coin: tried for all
    probabilities.
    """
    p = np.linspace(0.01, likeliest, 500)
    return (stats.norm.ppf(p) - stats.norm.ppf(p / (1 + MOVED) ** occasions)).max()


def test_the_jitter_pays_for_all_coins_and_bits():
    """Of the companions in a step, and of those when norms were learned: their proposals and their
    acceptances, which move twice as far for who is both. Coins that are likelier are moved more.
    """
    proposal, once, twice = (
        moved_by(LIKELIEST_PROPOSAL),
        moved_by(1 - MARGIN),
        moved_by(1 - MARGIN, 2),
    )
    for noise in (0.5, 1.0, 2.0, 2.5, 4.0, 20.0):
        part, co_batched = math.sqrt(1 - rounding_allowance(noise) ** -2), co_batched_for(noise)
        bits = co_batched * MOVED / (noise * part)
        assert 64 <= co_batched <= MAX_BLOCK_RECORDS == 192
        for both in (0, 10, co_batched):
            accepted = (MAX_BLOCK_RECORDS + co_batched - 2 * both) * once**2 + both * twice**2
            assert MAX_BLOCK_RECORDS * proposal**2 + accepted + bits**2 <= JITTER**2
        assert co_batched == 64 or rounding_allowance(noise) < 1.006
    with pytest.raises(InvalidArgument, match="last bits"):
        rounding_allowance(0.05)


@pytest.mark.parametrize("rate", [LEAST_RATE / 8, 0.001, 0.5, LARGEST_RATE])
def test_last_bits_of_norms_move_coins_by_what_is_paid_for(rate):
    """The coins that the sampler tosses. Those of norms that have grown, which are the likeliest to
    be accepted, and of norms at the clip bound reach what is paid for. If a coin could become a
    certainty, or so rare that its 64 bits are few, there would be no bound.
    """
    grid = np.concatenate([CLIP * np.array([1 / 16, 0.2, 0.333, 0.99, 1.0, 1.1]), NORMS])
    learned, norms = map(np.ravel, np.meshgrid(grid, np.concatenate([grid, 3 * grid, 2.99 * grid])))
    sampler, most = sampler_of(rate, n=len(norms)), 0.0
    for sign, moves in itertools.product((1, -1), ((1, 0), (0, 1), (1, -1))):
        before = map(stats.norm.ppf, probabilities(sampler, learned, norms))
        factors = [1 + sign * move * MOVED for move in moves]
        after = map(
            stats.norm.ppf, probabilities(sampler, factors[0] * learned, factors[1] * norms)
        )
        proposals, acceptances = (np.abs(a - b).max() for a, b in zip(before, after, strict=True))
        assert proposals <= 1.001 * abs(moves[0]) * moved_by(LIKELIEST_PROPOSAL)
        assert acceptances <= 1.001 * moved_by(1 - MARGIN, sum(map(abs, moves)))
        most = max(most, acceptances)
    assert most > 1.9 * moved_by(1 - MARGIN)


def test_last_bits_of_a_gradient_move_what_it_adds_by_as_little():
    """At and around the floor, in the direction that moves it most: a norm that moved as well would
    count twice.
    """
    generator = np.random.default_rng(4)
    sampler = sampler_of(n=2)
    sampler.learn(1, np.full(2, CLIP))
    sampler._coins = np.zeros(2, dtype=np.uint64)
    for norm in (CLIP / 64, CLIP / 16, 1.001 * CLIP / 16, CLIP, 50 * CLIP):
        direction, other = (row / np.linalg.norm(row) for row in generator.normal(size=(2, 30)))
        for step in (direction, other, direction + other):
            moved = 1e-5 * max(norm, CLIP / 16) * step / np.linalg.norm(step)
            pair = np.stack([norm * direction, norm * direction + moved])
            added = (
                sampler.weights(1, np.arange(2), np.linalg.norm(pair, axis=1), BOUND)[:, None]
                * pair
            )
            assert np.linalg.norm(added[0] - added[1]) <= 1e-5 * BOUND * (1 + 1e-4)


def present(rate_proposed, accepted, coins, moved, shifts, noise, outputs):
    """Densities, given the coins of companions, of a sum with one record more; ``moved`` coins if
    it is proposed.
    """
    density = []
    for bits in itertools.product((0, 1), repeat=len(coins)):
        still = math.prod(p if bit else 1 - p for p, bit in zip(coins, bits, strict=True))
        turned = math.prod(p if bit else 1 - p for p, bit in zip(moved, bits, strict=True))
        centre, bent = float(sum(bits)), sum(bits) + shifts * sum(bits)
        density.append(
            (1 - rate_proposed) * still * stats.norm.pdf(outputs, centre, noise)
            + rate_proposed
            * turned
            * (
                (1 - accepted) * stats.norm.pdf(outputs, bent, noise)
                + accepted * stats.norm.pdf(outputs, bent + 1, noise)
            )
        )
    return np.concatenate(density)


@pytest.mark.parametrize(
    ("rate", "accepted", "noise", "null", "learned"),
    [
        (0.4, 0.5, 0.8, 0.0, 1.0),
        (0.8, 0.3, 1.5, 0.0, 1.0),
        (0.05, 0.87, 0.6, 0.0, 1.0),
        (0.4, 0.5, 0.8, 0.3, 1.0),
        (0.4, 0.5, 0.8, 0.0, 1.08),
        (0.4, 0.5, 0.8, 0.3, 0.93),
    ],
)
def test_no_test_tells_one_record_apart_better_than_the_event_allows(
    rate, accepted, noise, null, learned
):
    """Two companions whose coins and contributions move when the record is proposed, by far more
    than is allowed for: one and two steps, both directions, by quadrature. Without the Gaussian of
    the jitter it would fail. Where a record is set to zero, a null one is proposed instead, and
    moves companions on its own; and where norms were ``learned`` without it, coins differ as well.
    """
    outputs = np.linspace(-8 * noise, 3 + 8 * noise, 301)
    coins, moved, by_null, bend, part = (
        np.array([0.3, 0.9]),
        np.array([0.36, 0.84]),
        np.array([0.34, 0.86]),
        0.04,
        0.3,
    )
    one = present(rate, accepted, coins, moved, bend, noise, outputs)
    none = present(null, 0.0, learned * coins, learned * by_null, bend / 2, noise, outputs)
    one, none = one / one.sum(), none / none.sum()
    contexts = itertools.product((coins, moved), (coins, by_null) if null else (coins,))
    told = max(np.linalg.norm(stats.norm.ppf(a) - stats.norm.ppf(learned * b)) for a, b in contexts)
    event = Sampled(
        Importance(rate * accepted, math.hypot(told, 2 * bend / (noise * part))),
        (SumQuery(1.0, noise * math.sqrt(1 - part**2)),),
    )
    plain = Sampled(Poisson(rate * accepted), (SumQuery(1.0, noise),))
    exceeded = False
    for steps in (1, 2):
        first, second = (
            (one, none)
            if steps == 1
            else (np.outer(one, one).ravel(), np.outer(none, none).ravel())
        )
        for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
            found = max(
                np.maximum(a - math.exp(epsilon) * b, 0).sum()
                for a, b in ((first, second), (second, first))
            )
            assert found <= account(Repeated(event, steps)).delta(epsilon).upper + 1e-6
            exceeded |= found > account(Repeated(plain, steps)).delta(epsilon).upper + 1e-6
    assert exceeded


def test_events_cost_what_poisson_samples_do_and_the_jitter():
    step = Sampled(Importance(0.01, JITTER), (SumQuery(1.0, 1.0),))
    both = [
        Repeated(Sampled(Poisson(0.01), (SumQuery(1.0, 1.0),)), 300),
        Repeated(Sampled(Poisson(1.0), (SumQuery(1.0, 1 / JITTER),)), 300),
    ]
    for method in ("pld", "rdp"):
        cost = account(Repeated(step, 300), method).epsilon(1e-5).upper
        assert cost == pytest.approx(account(both, method).epsilon(1e-5).upper, rel=1e-9)
        assert cost > account(both[:1], method).epsilon(1e-5).upper
    with pytest.raises(UnsupportedEvent, match="coins of two records"):
        account(step, "pld", "replace_one")


def test_groups_are_claimed_from_the_guarantee_alone():
    """The law of a group's coins is not that of Poisson samples."""
    step = Repeated(Sampled(Importance(0.01, JITTER), (SumQuery(1.0, 1.0),)), 100)
    plain = Repeated(Sampled(Poisson(0.01), (SumQuery(1.0, 1.0),)), 100)
    wrapped = Repeated(Parallel((Composed.of([step]),), moves=False), 1)
    least = 1.2 * group_epsilon([plain], 3, 1e-5)
    assert group_epsilon([step], 3, 1e-5) > least and group_epsilon([wrapped], 3, 1e-5) > least


def test_schedules_survive_json_and_change_with_their_steps():
    schedule = ImportanceSchedule(5, 100, (0.5, 0.25), 20, 3.0, 0.1, JITTER)
    assert Policy.from_json(schedule.to_json()) == schedule
    assert [schedule.at(step).rate for step in (1, 20, 21, 400)] == [0.1, 0.1, 0.2, 0.2]
    with pytest.raises(InvalidArgument, match="ratios of at least"):
        ImportanceSchedule(5, 100, (0.01,), 20, 3.0, 0.1, JITTER)
