"""Cells follow from the schema alone, every row is in one of them, and draws stay inside of it."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.support.synthetic import SCHEMA

from dpfy.errors import InvalidArgument
from dpfy.synthesis.cells import Cells, Domain, counts
from dpfy.tabular import Column


class Nasty:
    """A cell that cannot be converted, printed or compared."""

    def __float__(self):
        raise RuntimeError("secret")

    __str__ = __repr__ = __float__


NUMBER = st.one_of(
    st.floats(),
    st.sampled_from([None, "", "x", "12", Nasty(), 10**400, -0.0, 1e308, 0, 30, 60, 100, True]),
)
TEXT = st.sampled_from(["cook", "nurse", "F", "M", "other", None, "", 3, Nasty()])
ROW = st.tuples(NUMBER, TEXT, TEXT, NUMBER)
DOMAIN = Domain.of(SCHEMA, 8, ["age"])
PAIRS = [(0,), (3,), (0, 1), (2, 3), (0, 1, 2, 3)]


def marginals(rows):
    table = {name: np.empty(len(rows), dtype=object) for name in SCHEMA.names}
    for number, row in enumerate(rows):
        for name, cell in zip(SCHEMA.names, row, strict=True):
            table[name][number] = cell
    codes = DOMAIN.codes(table)
    return [counts(codes, DOMAIN.sizes, pair) for pair in PAIRS]


@settings(max_examples=150, deadline=None)
@given(st.lists(ROW, max_size=6), ROW, st.integers(0, 6))
def test_a_row_adds_one_to_one_cell_of_every_marginal(rows, row, place):
    with_it = marginals([*rows[:place], row, *rows[place:]])
    for more, less in zip(with_it, marginals(rows), strict=True):
        assert more.shape == less.shape
        assert sorted((more - less).ravel().tolist())[-2:] in ([0, 1], [1])
        assert abs(more - less).sum() == 1


def test_the_shape_of_marginals_does_not_depend_on_the_rows():
    empty = marginals([])
    assert [each.shape for each in empty] == [each.shape for each in marginals([(1, 2, 3, 4)])]
    assert all(each.sum() == 0 for each in empty)


def test_cells_between_knots_are_equally_many():
    assert Cells(Column("x", bounds=(0, 100), knots=(20,)), 4).edges.tolist() == [
        0,
        10,
        20,
        60,
        100,
    ]
    assert Cells(Column("x", bounds=(0, 1)), 1).size == 1
    assert Cells(Column("x", bounds=(0, 3), knots=(1, 2)), 1).edges.tolist() == [0, 1, 2, 3]


def test_a_value_at_an_edge_belongs_to_the_cell_above_and_the_last_to_the_last():
    cells = Cells(Column("x", bounds=(0, 4)), 4)
    assert cells.codes(np.array([0, 1, 1.5, 3, 4])).tolist() == [0, 1, 1, 3, 3]


@pytest.mark.parametrize(
    ("bounds", "bins", "numbers"),
    [((0, 3), 32, 4), ((0.5, 2.5), 4, 2), ((-2, 2), 3, 5), ((1, 1.5), 8, 1), ((0, 1000), 10, 1001)],
)
def test_whole_numbers_are_all_in_a_cell_and_are_drawn_from_it(bounds, bins, numbers):
    cells = Cells(Column("x", bounds=bounds), bins, whole=True)
    low, high = np.ceil(bounds[0]), np.floor(bounds[1])
    every = np.arange(low, high + 1)
    codes = cells.codes(every)
    assert len(every) == numbers and set(codes) == set(range(cells.size))
    rng = np.random.default_rng(0)
    for cell in range(cells.size):
        drawn = cells.draw(np.full(40 * numbers, cell), rng)
        inside = every[codes == cell]
        assert drawn.dtype == np.int64 and set(drawn) <= set(inside)
        # every one of k numbers is missed with a chance below k·e^-40
        assert len(inside) > 30 or set(drawn) == set(inside)
    assert len(cells.names()) == cells.size


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.booleans())
def test_what_is_drawn_from_a_cell_is_in_that_cell(bins, low, width, whole):
    try:
        cells = Cells(Column("x", bounds=(low, low + width)), bins, whole)
    except InvalidArgument:
        assert whole and np.ceil(low) > np.floor(low + width)
        return
    codes = np.arange(cells.size)
    drawn = cells.draw(codes, np.random.default_rng(0)).astype(float)
    assert np.all((drawn >= low) & (drawn <= low + width))
    assert cells.codes(drawn).tolist() == codes.tolist()


def test_categories_are_drawn_as_they_were_declared_and_others_are_missing():
    cells = Cells(Column("job", categories=("cook", "nurse")))
    assert cells.draw(np.array([1, 0, 2]), np.random.default_rng(0)).tolist() == [
        "nurse",
        "cook",
        None,
    ]
    assert cells.names() == ["cook", "nurse", "(other)"]


@pytest.mark.parametrize(
    ("whole", "complaint"),
    [(["age", "age"], "once"), (["job"], "categories"), (["nobody"], "nobody"), (["pay"], None)],
)
def test_columns_of_whole_numbers_are_checked(whole, complaint):
    if complaint is None:
        assert Domain.of(SCHEMA, 8, whole).cells[3].edges.tolist() == [-1, 0, 1, 2]
    else:
        with pytest.raises(InvalidArgument, match=complaint):
            Domain.of(SCHEMA, 8, whole)


def test_bounds_without_a_whole_number_are_refused():
    with pytest.raises(InvalidArgument, match="no whole number"):
        Cells(Column("x", bounds=(0.2, 0.8)), whole=True)


@pytest.mark.parametrize("bounds", [(0, 2**53), (-1e19, 0)])
def test_whole_numbers_that_could_not_be_drawn_are_refused(bounds):
    with pytest.raises(InvalidArgument, match="skips whole numbers"):
        Cells(Column("x", bounds=bounds), whole=True)
    cells = Cells(
        Column("x", bounds=[min(max(each, 1 - 2**53), 2**53 - 1) for each in bounds]), 8, whole=True
    )
    assert len(cells.draw(np.arange(cells.size), np.random.default_rng(0))) == cells.size
