"""Streams: sensitivities against every participation pattern of small strategies, and costs against closed forms."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.rdp import RdpAccountant

from dpfy.accounting import account
from dpfy.accounting.streams import sensitivity
from dpfy.errors import InvalidArgument, UnsupportedEvent
from dpfy.ledger.events import Event, Poisson, Repeated, Sampled, SumQuery
from dpfy.ledger.streams import Columns, SampledStream, Stream, Toeplitz, Tree


def patterns(steps, most, separation):
    for count in range(1, most + 1):
        for pattern in itertools.combinations(range(steps), count):
            if all(b - a >= separation for a, b in itertools.pairwise(pattern)):
                yield list(pattern)


def matrix_of(strategy, steps):
    """The strategy written out, independently of the rules."""
    if isinstance(strategy, Toeplitz):
        return np.array([[strategy.coefficients[i - j] if 0 <= i - j < len(strategy.coefficients) else 0.0
                          for j in range(steps)] for i in range(steps)])
    if isinstance(strategy, Columns):
        return np.array([[strategy.columns[j][i - j] if 0 <= i - j < len(strategy.columns[j]) else 0.0
                          for j in range(steps)] for i in range(steps)])
    rows, size = [], strategy.restart or steps
    for first in range(0, steps, size):
        length = min(size, steps - first)
        height = (length - 1).bit_length() if strategy.completed else length.bit_length() - 1
        for level in range(height + 1):
            for node in range(0, length, 1 << level):
                if strategy.completed or node + (1 << level) <= length:
                    leaves = range(first + node, first + min(node + (1 << level), length))
                    rows.append([float(step in leaves) for step in range(steps)])
    return np.array(rows)


def brute_force(matrix, most, separation):
    """A bound from above on the worst pattern (absolute products), and the worst with equal or orthogonal vectors."""
    gram = matrix.T @ matrix
    blocks = [gram[np.ix_(pattern, pattern)] for pattern in patterns(len(gram), most, separation)]
    return (math.sqrt(max(max(block.sum(), np.trace(block)) for block in blocks)),
            math.sqrt(max(np.abs(block).sum() for block in blocks)))


STRATEGIES = {
    "independent": Toeplitz((1.0,)), "falling": Toeplitz((1.0, 0.6, 0.3, 0.1)), "prefix": Toeplitz((1.0,) * 9),
    "rising": Toeplitz((0.5, 1.0, 0.2)), "signed": Toeplitz((1.0, -0.5, 0.25)), "tree": Tree(),
    "completed": Tree(completed=True), "restarted": Tree(restart=4), "both": Tree(restart=3, completed=True),
    "columns": Columns(((1.0, 0.2, 0.7), (0.4,), (2.0, 1.0), (0.3, 0.9, 0.8), (1.5,), (1.0, 0.1, 0.1), (0.2, 2.0, 1.0),
                        (1.0, 1.0), (0.7,))),
    "mixed": Columns(((1.0, -0.2, 0.7), (0.4,), (2.0, -1.0), (0.3, 0.9, 0.8), (1.5,), (-1.0, 0.1, 0.1),
                      (0.2, 2.0, 1.0), (1.0, 1.0), (0.7,))),
}
EXACT = ("independent", "falling", "prefix", "columns")


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(("most", "separation"), [(1, 1), (2, 1), (3, 1), (2, 3), (3, 2), (3, 3), (2, 4), (9, 1)])
def test_every_pattern_is_within_the_bracket(name, most, separation):
    """Fails for a truncated column, a restart that is ignored, a lost cross term, or a pattern left out."""
    strategy, steps = STRATEGIES[name], 9
    attained, absolute = brute_force(matrix_of(strategy, steps), most, separation)
    found = sensitivity(strategy, steps, most, separation)
    assert found.upper >= attained * (1 - 1e-12)
    assert found.lower <= attained
    assert found.upper >= absolute * (1 - 1e-12)
    if name in EXACT and (name != "columns" or separation >= 2):
        assert found.upper == pytest.approx(attained, rel=1e-8)
        assert found.lower == pytest.approx(attained, rel=1e-8)


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 10])
@pytest.mark.parametrize("completed", [False, True])
def test_a_tree_that_sees_a_record_once_is_exact(steps, completed):
    found = sensitivity(Tree(completed=completed), steps)
    assert found.upper == pytest.approx(brute_force(matrix_of(Tree(completed=completed), steps), 1, 1)[0], rel=1e-8)
    assert found.lower == pytest.approx(found.upper, rel=1e-8)


def test_restarts_that_see_a_record_once_each_add_up():
    found = sensitivity(Tree(restart=8), 32, participations=4, separation=8)
    assert found == pytest.approx((4.0, 4.0), rel=1e-8)  # √(4 trees · 4 levels)
    assert sensitivity(Tree(restart=8), 32, 4, 5).upper > 4.0


def test_random_matrices_are_within_the_bracket():
    rng = np.random.default_rng(5)
    for _ in range(40):
        steps, most, separation = int(rng.integers(2, 9)), int(rng.integers(1, 5)), int(rng.integers(1, 4))
        band = int(rng.integers(1, steps + 1))
        columns = tuple(tuple(rng.normal(0.3, 1, size=min(band, steps - place)).tolist()) for place in range(steps))
        attained, absolute = brute_force(matrix_of(Columns(columns), steps), most, separation)
        found = sensitivity(Columns(columns), steps, most, separation)
        assert attained * (1 - 1e-9) <= found.upper
        assert found.lower <= absolute * (1 + 1e-9)
        if band <= separation:
            assert found.upper == pytest.approx(attained, rel=1e-8)


def test_cost_is_that_of_one_gaussian_vector():
    event = Stream(Tree(), steps=1000, noise_multiplier=8.0)
    same = Sampled(Poisson(1.0), (SumQuery(math.sqrt(10.0), 8.0),))
    for method, relation in (("pld", "zero_out"), ("rdp", "zero_out"), ("pld", "replace_one")):
        assert (account(event, method, relation).claim(1e-6)
                == pytest.approx(account(same, method, relation).claim(1e-6), rel=1e-6))


def test_tree_agrees_with_an_independent_accountant():
    peer = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_SPECIAL)
    peer.compose(dp_event.SingleEpochTreeAggregationDpEvent(8.0, 1023))
    claim = account(Stream(Tree(), 1023, 8.0), "rdp", "zero_out").claim(1e-6)
    assert claim == pytest.approx(peer.get_epsilon(1e-6), rel=1e-2)


def test_independent_noise_is_the_identity_strategy():
    event = Stream(Toeplitz((1.0,)), 100, 5.0, participations=4, separation=20)
    steps = Repeated(Sampled(Poisson(1.0), (SumQuery(1.0, 5.0),)), 4)
    assert account(event, relation="zero_out").claim(1e-6) == pytest.approx(account(steps).claim(1e-6), rel=1e-6)


def test_sampled_stream_is_rounds_at_its_rate():
    plain = Repeated(Sampled(Poisson(0.02), (SumQuery(1.0, 2.0),)), 50)
    event = SampledStream(Toeplitz((1.0,)), 50, 2.0, rate=0.02)
    assert account(event).claim(1e-6) == pytest.approx(account(plain).claim(1e-6), rel=1e-3)
    banded = SampledStream(Toeplitz((1.0, 0.5)), 50, 2.0, rate=0.04)
    rounds = Repeated(Sampled(Poisson(0.04), (SumQuery(math.sqrt(1.25), 2.0),)), 25)
    assert account(banded).claim(1e-6) == pytest.approx(account(rounds).claim(1e-6), rel=1e-3)
    unsampled = Stream(banded.strategy, 50, 2.0, participations=25, separation=2)
    assert account(banded).claim(1e-6) < account(unsampled, relation="zero_out").claim(1e-6)


@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_costs_follow_noise_steps_and_participations(method):
    def claim(**changed):
        event = Stream(**{"strategy": Tree(), "steps": 64, "noise_multiplier": 6.0, "participations": 2,
                          "separation": 16} | changed)
        return account(event, method, "zero_out").claim(1e-5)

    assert claim(noise_multiplier=7.0) < claim() < claim(participations=3)
    assert claim(separation=32) <= claim() < claim(steps=128, separation=1)
    assert claim(noise_multiplier=0.0) == math.inf


def test_streams_are_refused_where_others_would_move():
    with pytest.raises(UnsupportedEvent, match="stream"):
        account(Stream(Tree(), 8, 1.0), relation="add_or_remove_one")
    with pytest.raises(InvalidArgument, match="band"):
        SampledStream(Tree(), 8, 1.0, rate=0.1)
    with pytest.raises(InvalidArgument, match="columns"):
        Stream(Columns(((1.0,),)), 2, 1.0)
    with pytest.raises(InvalidArgument, match="rows"):
        Columns(((1.0, 1.0),))


@pytest.mark.parametrize("event", [
    Stream(Columns(((1.0, 0.5), (2.0,))), 2, 1.5, 2, 1), Stream(Tree(4, True), 9, 1.0),
    SampledStream(Toeplitz((1.0, 0.5)), 50, 2.0, rate=0.04)])
def test_round_trip(event):
    assert Event.from_json(event.to_json()) == event
    assert len({event.address, Event.from_json(event.to_json()).address}) == 1
