"""The norm by which every form of clipping goes, against an oracle in plain numbers, on every
engine and in runs.
"""

import functools
import math

import numpy as np
import pytest
import torch
from clipping_forms import (
    FORMS,
    NUMBERS,
    SIZES,
    TOKENS,
    Bounded,
    Layers,
    distance,
    expected_sum,
    gradients,
    units,
)
from hypothesis import given, settings, strategies as st
from torch.utils.data import TensorDataset

import dpfy
from dpfy.gradients import ENGINES, PER_RECORD_GRADIENTS
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.clipping import ClipEach, Clipping
from dpfy.mechanisms.controllers import AdaClip, Coordinates
from dpfy.mechanisms.query import ClippedSum, Query
from dpfy.run.release_layout import ReleaseLayout

GRID = 2.0**-60
MAGNITUDE = st.floats(-9, 9).map(lambda exponent: 10.0**exponent)
MODERATE = st.one_of(MAGNITUDE, MAGNITUDE.map(lambda value: -value), st.sampled_from([0.0, 1.0]))
ANYTHING = st.one_of(st.floats(width=32), st.sampled_from([0.0, 1e-45, 1e-38, 3.4e38, 1.0]))
SCALE = st.one_of(
    st.floats(-6, 6).map(lambda exponent: 10.0**exponent), st.sampled_from([1e-6, 1.0, 1e6])
)
SCALES = st.fixed_dictionaries(dict.fromkeys(SIZES, SCALE))
BOUNDS = st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
GAMMA = st.floats(1e-6, 10.0)


def records(numbers, count):
    row = st.lists(numbers, min_size=NUMBERS, max_size=NUMBERS)
    return st.lists(st.tuples(row, st.integers(0, TOKENS - 1)), min_size=1, max_size=count)


@st.composite
def moderate_records(draw):
    """Up to three records with known gradients, the last of which may have a number that is
    none.
    """
    found = draw(records(MODERATE, 3))
    if draw(st.booleans()):
        found[-1][0][draw(st.integers(0, NUMBERS - 1))] = draw(
            st.sampled_from([math.inf, math.nan])
        )
    return found


@functools.cache
def prepared(engine):
    """A model and an engine that knows it."""
    torch.manual_seed(0)
    model = Layers()
    found = ENGINES[engine](model, dict(model.named_parameters()))
    found.prepare(
        lambda x, token: model(x, token),
        lambda size, seed: Chunk(
            (
                torch.rand(size, NUMBERS, generator=torch.Generator().manual_seed(seed)),
                torch.arange(size) % TOKENS,
            ),
            size,
        ),
    )
    return model, found


def query_of(clip):
    return Query.of([clip] if isinstance(clip, ClippedSum) else clip)


def chunk_of(rows):
    return Chunk(
        (
            torch.tensor([row for row, _ in rows], dtype=torch.float32),
            torch.tensor([token for _, token in rows]),
        ),
        len(rows),
    )


def found_sum(engine, clip, form, rows):
    """What an engine sums up, by parameter: in the units of the oracle, which the library's own
    must be.
    """
    model, at_work = prepared(engine)
    clipping = ReleaseLayout(query_of(clip), dict(model.named_parameters()), ()).clipping(GRID)
    totals = [torch.zeros(p.shape, dtype=torch.float64) for p in model.parameters()]
    at_work.bounded_sums(lambda x, token: model(x, token), chunk_of(rows), clipping).add_to(totals)
    return {
        name: [value * units(form)[name] for value in total.flatten().tolist()]
        for (name, _), total in zip(model.named_parameters(), totals, strict=True)
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=5)
@given(rows=moderate_records(), scales=SCALES, bounds=BOUNDS, gamma=GAMMA)
def test_every_form_clips_by_the_norm_that_it_is_defined_by(
    engine, name, rows, scales, bounds, gamma
):
    """α for α² in the joint norm, a forgotten root, another group's norm or bound, a sum in other
    units: each moves what is summed by far more than rounding. Scales are above one, below one, and
    both.
    """
    clip, form = FORMS[name](prepared(engine)[0], scales, bounds, gamma)
    expected = expected_sum(form, [gradients(*row) for row in rows])
    assert distance(form, found_sum(engine, clip, form, rows), expected) <= 1e-4 * len(rows)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=4)
@given(rows=records(ANYTHING, 1), scales=SCALES, bounds=BOUNDS, gamma=GAMMA)
def test_no_record_adds_more_than_is_paid_for(engine, name, rows, scales, bounds, gamma):
    """Whatever float32 holds: the vector that gets noise of one size has norm 1 at most."""
    clip, form = FORMS[name](prepared(engine)[0], scales, bounds, gamma)
    nothing = {parameter: [0.0] * size for parameter, size in SIZES.items()}
    assert distance(form, found_sum(engine, clip, form, rows), nothing) <= 1 + 1e-5  # NaN is not


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=8)
@given(rows=moderate_records(), scales=SCALES, bounds=BOUNDS, gamma=GAMMA)
def test_clipping_itself_weighs_by_the_oracle_s_norms(name, rows, scales, bounds, gamma):
    """Without an engine: from the squared norms of single parameters to the weight of each record
    in each of them.
    """
    model, _ = prepared("loop")
    clip, form = FORMS[name](model, scales, bounds, gamma)
    clipping = ReleaseLayout(query_of(clip), dict(model.named_parameters()), ()).clipping(GRID)
    found = [gradients(*row) for row in rows]
    with np.errstate(all="ignore"):
        squared = [
            torch.tensor(
                [float(np.square(record[each]).sum()) for record in found], dtype=torch.float64
            )
            for each in SIZES
        ]
    weights = dict(zip(SIZES, clipping.weights(clipping.norms(squared)), strict=True))
    for leaf in form:
        factors = [leaf.factor(record) or 0.0 for record in found]
        for each in leaf.scales:
            assert weights[each].tolist() == pytest.approx(
                [f / leaf.sum_scale(each) for f in factors], rel=1e-12
            )


MIXED = {
    "bare": 1e-3,
    "dense.weight": 1e3,
    "dense.bias": 0.5,
    "sequence.weight": 1.0,
    "table.weight": 1e-6,
}
ROWS = [
    ([3.0, 1.0, -2.0, 0.5, 0.25, 1.0, -4.0, 1e-4, 2.0, 1e-7, 5.0], 0),
    ([0.0] * NUMBERS, 1),
    ([-1e3, 0.1, 1e-5, 1e-6, 0.0, 2.0, 1.0, 1e-9, 1e-8, 1e-8, 1e-9], 2),
    ([1e-6] * NUMBERS, 2),
    ([math.nan] + [1.0] * (NUMBERS - 1), 0),
]


def run_of(clip, rows, model=None, **options):
    """A run whose samples are all of its rows."""
    model = model or Layers()
    settings = {
        name: options.pop(name)
        for name in ("noise_multiplier", "controllers", "microbatches", "steps")
        if name in options
    }
    plan = dpfy.dpsgd(
        **{
            "rate": 1.0,
            "divisor": 1.0,
            "steps": 1,
            "clip": clip,
            "noise_multiplier": 0.0,
            **settings,
        }
    )
    data = TensorDataset(
        torch.tensor([row for row, _ in rows], dtype=torch.float32),
        torch.tensor([token for _, token in rows]),
    )
    return dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data,
        plan,
        dpfy.Ledger.in_memory(),
        insecure_test_key=1,
        **options,
    )


def released(run):
    found = run.release(lambda x, token: run.model(x, token), next(iter(run)))
    return {
        name: gradient.double().flatten().tolist() for name, gradient in found.gradients.items()
    }, found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FORMS)
def test_a_run_releases_what_the_oracle_sums_up(engine, name):
    clip, form = FORMS[name](Layers(), MIXED, (0.3, 2.0), 0.01)
    with run_of(clip, ROWS, engine=engine) as run:
        found, _ = released(run)
    assert run.engine == engine
    expected = expected_sum(form, [gradients(*row) for row in ROWS])
    assert distance(form, found, expected) <= 1e-4 * len(ROWS)


@functools.cache
def drawn_flat():
    """What a run with the bound 1 releases of records of zeros."""
    with run_of(1.0, [([0.0] * NUMBERS, 0)] * 3, noise_multiplier=1.5) as flat:
        return released(flat)[0]


@pytest.mark.parametrize("name", FORMS)
def test_a_run_adds_the_noise_of_the_oracle_s_units(name):
    """The same key draws the same Gaussians, so each form's noise is the flat one's in its own
    units. Records of zeros add exactly nothing. Were a unit forgotten in sum and release alike,
    sums would be right and noise wrong.
    """
    clip, form = FORMS[name](Layers(), MIXED, (0.3, 2.0), 0.01)
    nothing = [([0.0] * NUMBERS, 0)] * 3
    with run_of(clip, nothing, noise_multiplier=1.5) as run:
        found, told = released(run)
    drawn = drawn_flat()
    for each, unit in units(form).items():
        assert found[each] == pytest.approx([unit * value for value in drawn[each]], rel=1e-5)
        assert told.stddevs[each] == pytest.approx(
            1.5 * unit, rel=1e-2
        )  # and the allowances for rounding


@pytest.mark.parametrize("name", FORMS)
def test_the_mean_of_a_microbatch_is_clipped_by_the_oracle_s_norm(name):
    clip, form = FORMS[name](Layers(), MIXED, (0.3, 2.0), 0.01)
    finite = ROWS[:4]
    with run_of(clip, finite, microbatches=1) as run:
        found, _ = released(run)
    per_record = [gradients(*row) for row in finite]
    mean = {
        each: [
            math.fsum(values) / len(finite)
            for values in zip(*(record[each] for record in per_record), strict=True)
        ]
        for each in SIZES
    }
    assert distance(form, found, expected_sum(form, [mean])) <= 1e-5


COORDINATE = st.tuples(st.floats(-10, 10), st.floats(-6, 6).map(lambda exponent: 10.0**exponent))


@pytest.mark.parametrize("engine", PER_RECORD_GRADIENTS)
@settings(max_examples=5)
@given(
    rows=moderate_records(),
    bound=st.floats(1e-3, 1e3),
    places=st.fixed_dictionaries(
        {name: st.lists(COORDINATE, min_size=size, max_size=size) for name, size in SIZES.items()}
    ),
)
def test_coordinates_are_clipped_by_the_oracle_s_norm(engine, rows, bound, places):
    """(g − a)/b is what has a norm: b² in its place, or the norm of g, would not be the bound that
    is paid for.
    """
    model, at_work = prepared(engine)
    shapes = {name: p.shape for name, p in model.named_parameters()}
    coordinates = {
        name: Coordinates(
            *(
                torch.tensor([place[which] for place in places[name]], dtype=torch.float64).view(
                    shapes[name]
                )
                for which in (0, 1)
            )
        )
        for name in shapes
    }
    pieces = ReleaseLayout(
        Query.of([ClippedSum(bound)]), dict(model.named_parameters()), (), coordinates
    )
    totals = [torch.zeros(shape, dtype=torch.float64) for shape in shapes.values()]
    at_work.bounded_sums(
        lambda x, token: model(x, token), chunk_of(rows), pieces.clipping(GRID)
    ).add_to(totals)
    inside = [
        {
            name: [
                (value - a) / b for value, (a, b) in zip(record[name], places[name], strict=True)
            ]
            for name in SIZES
        }
        for record in (gradients(*row) for row in rows)
    ]
    form = [Bounded(dict.fromkeys(SIZES, 1.0), bound, 1.0)]
    found = {
        name: [bound * value for value in total.flatten().tolist()]
        for name, total in zip(shapes, totals, strict=True)
    }
    assert distance(form, found, expected_sum(form, inside)) <= 1e-6 * len(rows)


@pytest.mark.parametrize("engine", PER_RECORD_GRADIENTS)
def test_a_run_with_adaclip_releases_what_the_oracle_finds(engine):
    """Pichapati et al. 2019, algorithm 2, in plain numbers: two steps, of which the second has
    learnt coordinates.
    """
    bound, divisor, rows = 0.3, 4.0, ROWS[:4]
    dimension = sum(SIZES.values())
    per_record = [gradients(*row) for row in rows]
    form = [Bounded(dict.fromkeys(SIZES, 1.0), bound, 1.0)]
    means = {name: [0.0] * size for name, size in SIZES.items()}
    variances = {name: [bound**2 / dimension] * size for name, size in SIZES.items()}
    plan = dpfy.dpsgd(
        rate=1.0,
        divisor=divisor,
        steps=2,
        clip=bound,
        noise_multiplier=0.0,
        controllers=[AdaClip()],
    )
    model = Layers()
    data = TensorDataset(
        torch.tensor([row for row, _ in rows]), torch.tensor([token for _, token in rows])
    )
    with dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data,
        plan,
        dpfy.Ledger.in_memory(),
        insecure_test_key=1,
        engine=engine,
    ) as run:
        for _ in range(2):
            total = math.fsum(math.sqrt(v) for values in variances.values() for v in values)
            scales = {
                name: [math.sqrt(math.sqrt(v) * total) / bound for v in values]
                for name, values in variances.items()
            }
            inside = [
                {
                    name: [
                        (g - a) / b
                        for g, a, b in zip(record[name], means[name], scales[name], strict=True)
                    ]
                    for name in SIZES
                }
                for record in per_record
            ]
            summed = expected_sum(form, inside)
            expected = {
                name: [
                    s / divisor * b + a
                    for s, b, a in zip(summed[name], scales[name], means[name], strict=True)
                ]
                for name in SIZES
            }
            found, _ = released(run)
            for name in SIZES:
                assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6)
            squares = {
                name: [
                    min(max((r - a) ** 2, 1e-12), 10.0)
                    for r, a in zip(expected[name], means[name], strict=True)
                ]
                for name in SIZES
            }
            means = {
                name: [
                    0.99 * a + 0.01 * r for a, r in zip(means[name], expected[name], strict=True)
                ]
                for name in SIZES
            }
            variances = {
                name: [
                    0.9 * v + 0.1 * s for v, s in zip(variances[name], squares[name], strict=True)
                ]
                for name in SIZES
            }


def test_a_group_that_is_clipped_by_itself_has_its_own_bound_and_gamma():
    """What engines do that sum a group as soon as it is complete."""
    both = ClipEach((0.5, 2.0), (0.0, 3.0))
    squared = torch.tensor([[4.0, 1.0], [0.01, 9.0]], dtype=torch.float64)
    assert both(squared).flatten().tolist() == pytest.approx([0.25, 0.5, 1.0, 1 / 3])
    for group in (0, 1):
        assert torch.equal(
            both.only(group)(squared[:, group : group + 1]), both(squared)[:, group : group + 1]
        )


def test_scales_divide_norms_by_their_squares():
    """The line that no test pinned: with α for α², a scale of a tenth would let √10 bounds
    through.
    """
    clipping = Clipping(ClipEach((1.0,)), GRID, (0, 0), scales=(0.1, 10.0), sum_scales=(0.1, 10.0))
    (norms,) = clipping.norms([torch.tensor([9.0]), torch.tensor([1600.0])]).tolist()
    assert norms == pytest.approx([9 / 0.01 + 1600 / 100])
