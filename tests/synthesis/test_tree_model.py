"""A tree of cliques says the same as its joint table, in pairs and in what is drawn."""

import numpy as np
import pytest

from dpfy.synthesis.tree_model import Clique, TreeModel, all_pairs, independent

RNG = np.random.default_rng(0)
SIZES = (2, 3, 2, 4, 3)


def joint_table():
    """A distribution of five columns: 0-1-2 and 1-3 hang together, and 4 is apart."""
    table = np.zeros(SIZES)
    first, second, alone = RNG.random((2, 3, 2)), RNG.random((3, 4)), RNG.random(3)
    for place in np.ndindex(*SIZES):
        a, b, c, d, e = place
        table[place] = first[a, b, c] * second[b, d] / second[b].sum() * alone[e]
    return table / table.sum()


TABLE = joint_table()


def marginal(columns):
    others = tuple(k for k in range(5) if k not in columns)
    return TABLE.sum(axis=others)


def tree(scale=1.0):
    cliques = (
        Clique((0, 1, 2), scale * marginal((0, 1, 2))),
        Clique((1, 3), scale * marginal((1, 3)), parent=0),
        Clique((4,), scale * marginal((4,))),
    )
    return TreeModel(SIZES, cliques)


@pytest.mark.parametrize("scale", [1.0, 30_000.0])
def test_pairs_and_columns_are_those_of_the_joint_table(scale):
    model = tree(scale)
    assert set(model.pairs) == set(all_pairs(5))
    for pair, found in model.pairs.items():
        assert found == pytest.approx(marginal(pair), abs=1e-12), pair
    for column in range(5):
        assert model.expected((column,)) == pytest.approx(marginal((column,)), abs=1e-12)


def test_a_pair_three_cliques_apart_goes_through_those_between():
    link = np.array([[0.4, 0.1], [0.2, 0.3]])
    given = link / link.sum(axis=0)
    cliques = [Clique((0, 1), link)]
    for column in range(1, 4):
        before = cliques[-1].probabilities.sum(axis=0)
        cliques.append(Clique((column, column + 1), before[:, None] * given.T, parent=column - 1))
    model = TreeModel((2,) * 5, tuple(cliques))
    wanted = link @ given.T @ given.T @ given.T
    assert model.pairs[0, 4] == pytest.approx(wanted, abs=1e-12)


def test_what_is_drawn_is_spread_as_the_table_is():
    rows = 60_000
    drawn = tree().draw(rows, np.random.default_rng(1))
    for pair in all_pairs(5):
        shape = tuple(SIZES[k] for k in pair)
        found = np.zeros(shape)
        np.add.at(found, tuple(drawn[k] for k in pair), 1 / rows)
        # a share of 60,000 draws is off by 0.013 with a probability below 1e-9
        assert found == pytest.approx(marginal(pair), abs=0.013), pair


def test_rounding_keeps_the_counts_of_a_clique_close():
    rows = 1000
    drawn = tree().draw(rows, np.random.default_rng(2))
    found = np.bincount(drawn[4], minlength=3)
    assert np.all(abs(found - rows * marginal((4,))) <= 1)


def test_a_value_without_probability_is_never_drawn():
    pair = np.array([[0.0, 0.5, 0.0], [0.5, 0.0, 0.0]])
    model = TreeModel((2, 3), (Clique((0,), pair.sum(1)), Clique((0, 1), pair, parent=0)))
    first, second = model.draw(5000, np.random.default_rng(3))
    assert np.array_equal(second, 1 - first)


def test_nothing_known_means_all_values_alike():
    model = independent([np.array([-1.0, -2.0]), np.array([np.nan, 1.0])])
    assert model.ones[0].tolist() == [0.5, 0.5] and model.ones[1].tolist() == [0, 1]
    assert [len(each) for each in model.draw(7, np.random.default_rng(0))] == [7, 7]
    assert [len(each) for each in model.draw(1, np.random.default_rng(0))] == [1, 1]
