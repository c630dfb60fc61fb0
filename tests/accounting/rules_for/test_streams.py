"""Streams: sensitivities against every participation pattern of small strategies, and costs against
closed forms.
"""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.rdp import RdpAccountant

from dpfy.accounting import account
from dpfy.accounting.rules_for.participation import _Search, _within_reach, largest_square
from dpfy.accounting.rules_for.streams import _seen, sensitivity
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
        return np.array(
            [
                [
                    strategy.coefficients[i - j] if 0 <= i - j < len(strategy.coefficients) else 0.0
                    for j in range(steps)
                ]
                for i in range(steps)
            ]
        )
    if isinstance(strategy, Columns):
        return np.array(
            [
                [
                    strategy.columns[j][i - j] if 0 <= i - j < len(strategy.columns[j]) else 0.0
                    for j in range(steps)
                ]
                for i in range(steps)
            ]
        )
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
    """The worst pattern with vectors of one line, over all signs, and a bound on it: absolute
    products.
    """
    gram = matrix.T @ matrix
    on_a_line, absolute = 0.0, 0.0
    for pattern in patterns(len(gram), most, separation):
        block = gram[np.ix_(pattern, pattern)]
        absolute = max(absolute, np.abs(block).sum())
        if np.abs(block).sum() > on_a_line:
            signs = np.array(
                [(1, *rest) for rest in itertools.product((1, -1), repeat=len(block) - 1)]
            )
            on_a_line = max(on_a_line, np.einsum("ni,ij,nj->n", signs, block, signs).max())
    return math.sqrt(on_a_line), math.sqrt(absolute)


STRATEGIES = {
    "independent": Toeplitz((1.0,)),
    "falling": Toeplitz((1.0, 0.6, 0.3, 0.1)),
    "prefix": Toeplitz((1.0,) * 9),
    "rising": Toeplitz((0.5, 1.0, 0.2)),
    "signed": Toeplitz((1.0, -0.5, 0.25)),
    "tree": Tree(),
    "completed": Tree(completed=True),
    "restarted": Tree(restart=4),
    "both": Tree(restart=3, completed=True),
    "columns": Columns(
        (
            (1.0, 0.2, 0.7),
            (0.4,),
            (2.0, 1.0),
            (0.3, 0.9, 0.8),
            (1.5,),
            (1.0, 0.1, 0.1),
            (0.2, 2.0, 1.0),
            (1.0, 1.0),
            (0.7,),
        )
    ),
    "mixed": Columns(
        (
            (1.0, -0.2, 0.7),
            (0.4,),
            (2.0, -1.0),
            (0.3, 0.9, 0.8),
            (1.5,),
            (-1.0, 0.1, 0.1),
            (0.2, 2.0, 1.0),
            (1.0, 1.0),
            (0.7,),
        )
    ),
}
CLASHING = ("mixed",)  # signs of products that no line of vectors has at once


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(
    ("most", "separation"), [(1, 1), (2, 1), (3, 1), (2, 3), (3, 2), (3, 3), (2, 4), (9, 1)]
)
def test_every_pattern_is_within_the_bracket(name, most, separation):
    """Fails for a truncated column, a restart that is ignored, a lost cross term, or a pattern left
    out.
    """
    strategy, steps = STRATEGIES[name], 9
    attained, absolute = brute_force(matrix_of(strategy, steps), most, separation)
    found = sensitivity(strategy, steps, most, separation)
    assert attained * (1 - 2e-9) <= found.upper <= absolute * (1 + 2e-9)
    assert found.lower == pytest.approx(found.upper, rel=1e-8)  # the bracket is closed
    if name not in CLASHING:
        assert found.upper == pytest.approx(attained, rel=1e-8)


@pytest.mark.parametrize(
    "tree",
    [
        Tree(),
        Tree(completed=True),
        Tree(restart=3),
        Tree(restart=4, completed=True),
        Tree(restart=7),
        Tree(restart=5, completed=True),
    ],
)
@pytest.mark.parametrize("steps", [3, 6, 8, 10])
def test_trees_that_see_a_record_often_are_exact(tree, steps):
    """Fails if nodes are filled level by level, or if steps that are early are not early enough."""
    gram = matrix_of(tree, steps).T @ matrix_of(tree, steps)
    for separation in (1, 2, 3, 5):
        sums = {}
        for pattern in patterns(steps, steps, separation):
            sums[len(pattern)] = max(
                sums.get(len(pattern), 0), gram[np.ix_(pattern, pattern)].sum()
            )
        for most in range(1, steps + 1):
            worst = max(value for count, value in sums.items() if count <= most)
            found = sensitivity(tree, steps, most, separation)
            assert found.upper**2 == pytest.approx(
                worst, rel=1e-8
            ) and found.lower**2 == pytest.approx(worst, rel=1e-8)


@pytest.mark.parametrize(
    ("tree", "steps", "most", "separation"),
    [
        (Tree(), 1000, 7, 97),
        (Tree(restart=300), 1000, 9, 64),
        (Tree(completed=True), 700, 20, 33),
        (Tree(), 512, 512, 1),
    ],
)
def test_no_pattern_of_a_large_tree_exceeds_the_exact_one(tree, steps, most, separation):
    """Random patterns, tight and loose ones; the level bound, which no pattern attains, is never
    below.
    """
    rng = np.random.default_rng(2)
    found = sensitivity(tree, steps, most, separation).upper
    size = tree.restart or steps
    for _ in range(60):
        gaps = separation + rng.geometric(0.3, size=most) - 1
        pattern = np.cumsum(np.concatenate(([rng.integers(0, 30)], gaps[1:])))
        pattern = pattern[pattern < steps]
        assert (
            math.sqrt(
                sum(_seen(pattern, size, steps, 1 << level, tree.completed) for level in range(11))
            )
            <= found
        )


@pytest.mark.parametrize("count", [3, 5, 7, 9])
def test_signs_that_clash_around_a_cycle_have_a_closed_form(count):
    """Neighbours on an odd cycle want to be opposed: all angles π(1 − 1/n) are best, and no line
    has them.
    """
    gram = 3.0 * np.eye(count)
    for place in range(count):
        gram[place, (place + 1) % count] = gram[(place + 1) % count, place] = -1.0
    found = largest_square(gram)
    exact = 3 * count + 2 * count * math.cos(math.pi / count)
    assert found.low == pytest.approx(exact, rel=1e-8) and found.high == pytest.approx(
        exact, rel=1e-8
    )
    assert found.high > 3 * count + 2 * (count - 2) + 1e-3  # more than every choice of signs
    assert largest_square(np.abs(gram)).high == np.abs(gram).sum()


@pytest.mark.parametrize(("band", "separation", "most"), [(20, 5, 6), (40, 9, 5), (40, 1, 40)])
def test_dynamic_programme_and_search_agree(band, separation, most):
    """Two ways to the worst pattern of forty steps: fails if either forgets a product or a
    pattern.
    """
    rng = np.random.default_rng(band)
    matrix = np.tril(rng.random((40, 40)) / np.sqrt(1 + np.arange(40))[:, None])
    matrix[np.subtract.outer(np.arange(40), np.arange(40)) >= band] = 0
    gram = matrix.T @ matrix
    searched = _Search(gram, most, separation, clash=False).run()
    assert searched.low == pytest.approx(searched.high, rel=1e-9)
    bands = np.array(
        [np.pad(np.diagonal(gram, distance), (distance, 0)) for distance in range(band)]
    )
    programmed = _within_reach(bands, most, separation)
    assert (programmed is None) == (separation == 1)  # too many patterns within a band
    assert programmed is None or programmed == pytest.approx(searched.high, rel=1e-9)


def test_what_is_too_much_to_search_is_bounded():
    """Long bands of many columns: fails if a bound for lack of time is not above what a pattern
    attains.
    """
    coefficients = (0.5, 1.0, *(0.9**place for place in range(60)))
    found = sensitivity(Toeplitz(coefficients), 6000, participations=500, separation=3)
    total = np.zeros(6000 + 62)
    for place in range(0, 1500, 3):
        total[place : place + 62] += coefficients
    assert math.sqrt(total[:6000] @ total[:6000]) <= found.upper * (1 + 1e-9)
    assert found.lower < found.upper < 1.4 * found.lower


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 10])
@pytest.mark.parametrize("completed", [False, True])
def test_a_tree_that_sees_a_record_once_is_exact(steps, completed):
    found = sensitivity(Tree(completed=completed), steps)
    assert found.upper == pytest.approx(
        brute_force(matrix_of(Tree(completed=completed), steps), 1, 1)[0], rel=1e-8
    )
    assert found.lower == pytest.approx(found.upper, rel=1e-8)


def test_restarts_that_see_a_record_once_each_add_up():
    found = sensitivity(Tree(restart=8), 32, participations=4, separation=8)
    assert found == pytest.approx((4.0, 4.0), rel=1e-8)  # √(4 trees · 4 levels)
    assert sensitivity(Tree(restart=8), 32, 4, 5).upper > 4.0


@pytest.mark.parametrize("kind", ["columns", "toeplitz"])
def test_random_matrices_are_within_a_closed_bracket(kind):
    rng = np.random.default_rng(5)
    for _ in range(40):
        steps, most, separation = (
            int(rng.integers(2, 9)),
            int(rng.integers(1, 6)),
            int(rng.integers(1, 4)),
        )
        band = int(rng.integers(1, steps + 1))
        columns = tuple(
            tuple(rng.normal(0.3, 1, size=min(band, steps - place)).tolist())
            for place in range(steps)
        )
        strategy = Columns(columns) if kind == "columns" else Toeplitz(columns[0])
        attained, absolute = brute_force(matrix_of(strategy, steps), most, separation)
        found = sensitivity(strategy, steps, most, separation)
        assert attained * (1 - 2e-9) <= found.upper <= absolute * (1 + 2e-9)
        assert found.lower == pytest.approx(found.upper, rel=1e-7)
        if band <= 2 * separation:
            assert found.upper == pytest.approx(attained, rel=1e-8)


def test_cost_is_that_of_one_gaussian_vector():
    event = Stream(Tree(), steps=1000, noise_multiplier=8.0)
    same = Sampled(Poisson(1.0), (SumQuery(math.sqrt(10.0), 8.0),))
    for method, relation in (("pld", "zero_out"), ("rdp", "zero_out"), ("pld", "replace_one")):
        assert account(event, method, relation).claim(1e-6) == pytest.approx(
            account(same, method, relation).claim(1e-6), rel=1e-6
        )


def test_tree_agrees_with_an_independent_accountant():
    peer = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_SPECIAL)
    peer.compose(dp_event.SingleEpochTreeAggregationDpEvent(8.0, 1023))
    claim = account(Stream(Tree(), 1023, 8.0), "rdp", "zero_out").claim(1e-6)
    assert claim == pytest.approx(peer.get_epsilon(1e-6), rel=1e-2)


def test_independent_noise_is_the_identity_strategy():
    event = Stream(Toeplitz((1.0,)), 100, 5.0, participations=4, separation=20)
    steps = Repeated(Sampled(Poisson(1.0), (SumQuery(1.0, 5.0),)), 4)
    assert account(event, relation="zero_out").claim(1e-6) == pytest.approx(
        account(steps).claim(1e-6), rel=1e-6
    )


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
        event = Stream(
            **{
                "strategy": Tree(),
                "steps": 64,
                "noise_multiplier": 6.0,
                "participations": 2,
                "separation": 16,
            }
            | changed
        )
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


@pytest.mark.parametrize(
    "event",
    [
        Stream(Columns(((1.0, 0.5), (2.0,))), 2, 1.5, 2, 1),
        Stream(Tree(4, True), 9, 1.0),
        SampledStream(Toeplitz((1.0, 0.5)), 50, 2.0, rate=0.04),
    ],
)
def test_round_trip(event):
    assert Event.from_json(event.to_json()) == event
    assert len({event.address, Event.from_json(event.to_json()).address}) == 1
