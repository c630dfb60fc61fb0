"""Numbers at and beyond the limits of clipping: refused, or a gradient of zero adds exactly
nothing.
"""

import math

import pytest
import torch
from clipping_forms import FORMS, NUMBERS, SIZES, Layers
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.errors import InvalidArgument
from dpfy.gradients import ENGINES, PER_RECORD_GRADIENTS
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.clipping import ClipEach, Clipping, squared_norms, weighed_sum
from dpfy.mechanisms.controllers import AdaClip, Coordinates, Schedule
from dpfy.mechanisms.controllers.base import StepConfig, kept_within, with_bounds
from dpfy.mechanisms.query import LEAST, MOST, ClippedSum, NormalisedSum, Query, Statistic
from dpfy.run.loss_queries import FirstBelow, PrivateArgmin
from dpfy.run.release_layout import ReleaseLayout
from recipes import Descent


def released(clip, engine, rows, dtype=torch.float32, **options):
    """The noiseless sum of some rows, by parameter."""
    model = Layers().to(dtype)
    plan = dpfy.dpsgd(
        rate=1.0, divisor=1.0, steps=1, clip=clip(model), noise_multiplier=0.0, **options
    )
    data = TensorDataset(torch.as_tensor(rows, dtype=dtype), torch.arange(len(rows)) % 3)
    with dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data,
        plan,
        dpfy.Ledger.in_memory(),
        insecure_test_key=1,
        engine=engine,
    ) as run:
        return run.release(lambda x, token: model(x, token), next(iter(run))).gradients


def one_scale(scale, clip=1.0):
    return lambda model: dpfy.clip_jointly(model, {"dense.*": scale, "*": 1.0}, clip=clip)


BEYOND = {
    "a unit that underflows": one_scale(1e-100, clip=1e-250),
    "a bound without a reciprocal": lambda model: ClippedSum(1e-320),
    "a gamma without a reciprocal": lambda model: dpfy.clip_automatically(1.0, gamma=1e-310),
    "a bound over a gamma that overflows": lambda model: dpfy.clip_automatically(
        1e200, gamma=1e-200
    ),
    "groups of such": lambda model: dpfy.clip_groups(model, "tensor", clip=1e-320),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", BEYOND)
def test_a_gradient_of_zero_never_has_an_infinite_weight(engine, name):
    """∞·0 is NaN: one record whose gradient is zero would turn the whole release into NaN."""
    try:
        found = released(BEYOND[name], engine, [[0.0] * NUMBERS])
    except InvalidArgument:
        return
    assert all(not gradient.any() for gradient in found.values())  # NaN is not zero


def test_a_norm_that_underflows_is_not_taken_for_zero():
    """Squares of numbers below 1e-154 are zero in float64: with a smaller bound, 1e30 of them
    passed unclipped.
    """
    with pytest.raises(InvalidArgument, match="clip"):
        ClippedSum(1e-200)
    weights = ClipEach((LEAST,))(
        squared_norms(torch.full((1, 5), 1e-140, dtype=torch.float64)).unsqueeze(1)
    )
    assert weights.tolist() == [[1.0]]
    large = torch.full((1, 5), 1e-20, dtype=torch.float64)
    clipped = weighed_sum(large, ClipEach((LEAST,))(squared_norms(large).unsqueeze(1))[:, 0])
    assert float(clipped.norm()) == pytest.approx(LEAST)


def at_the_limits():
    """Every form with the smallest and largest numbers that it may have."""
    for name, form in FORMS.items():
        for scale in (LEAST, MOST):
            for bound in (LEAST, MOST):
                for gamma in (LEAST, MOST) if "normalised" in name else (1.0,):
                    yield pytest.param(
                        form,
                        dict.fromkeys(SIZES, 1.0) | {"dense.weight": scale},
                        bound,
                        gamma,
                        id=f"{name}, scale {scale:g}, bound {bound:g}, gamma {gamma:g}",
                    )


@pytest.mark.parametrize(("form", "scales", "bound", "gamma"), [*at_the_limits()])
def test_weights_at_the_limits_are_finite(form, scales, bound, gamma):
    """And so is every product with them. Engines that sum in float32 take no norm for less than its
    least number.
    """
    model = Layers()
    clip, _ = form(model, scales, (bound / 2 if bound == MOST else bound * 3, bound), gamma)
    query = Query.of([clip] if isinstance(clip, ClippedSum) else clip)
    clipping = ReleaseLayout(query, dict(model.named_parameters()), ()).clipping(1.0)
    lengths = torch.tensor([0.0, 1e-45, 1e-19, 1.0, 1e38, math.inf, math.nan], dtype=torch.float64)
    for weights in clipping.weights(clipping.norms([lengths.square()] * len(SIZES))):
        assert (
            bool(weights.isfinite().all()) and bool((weights >= 0).all()) and not weights[-2:].any()
        )
        assert bool((weights[:5] * lengths[:5]).isfinite().all())
    least = torch.full((1,), torch.finfo(torch.float32).tiny ** 2, dtype=torch.float64)
    for weights in clipping.weights(clipping.norms([least] * len(SIZES))):
        assert bool(weights.float().isfinite().all())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "clip",
    [
        one_scale(LEAST, LEAST),
        one_scale(LEAST, MOST),
        lambda model: dpfy.clip_automatically(MOST, gamma=LEAST),
        lambda model: dpfy.clip_automatically(
            dpfy.clip_jointly(model, {"dense.*": LEAST, "*": MOST}, clip=LEAST), gamma=LEAST
        ),
    ],
    ids=["α and C least", "α least, C most", "C most, γ least", "all least"],
)
def test_records_of_zeros_add_exactly_nothing_at_the_limits(engine, clip):
    found = released(clip, engine, [[0.0] * NUMBERS] * 3)
    assert all(not gradient.any() for gradient in found.values())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_record_of_zeros_leaves_the_others_what_they_are(engine):
    """With scales at both limits: all that a record with gradients adds is what it adds alone."""
    clip = lambda model: dpfy.clip_jointly(model, {"dense.*": LEAST, "bare": MOST, "*": 1.0})  # noqa: E731
    row = [1.0] * NUMBERS
    alone = released(clip, engine, [row], torch.float64)
    among = released(clip, engine, [row, *[[0.0] * NUMBERS] * 3], torch.float64)
    assert all(bool(each.isfinite().all()) for each in alone.values()) and any(
        bool(each.any()) for each in alone.values()
    )
    for name, gradient in alone.items():
        assert torch.allclose(gradient, among[name], rtol=1e-5)


@pytest.mark.parametrize("engine", PER_RECORD_GRADIENTS)
@pytest.mark.parametrize("scale", [0.0, 5e-324, 1e-320, math.inf, math.nan])
def test_coordinates_that_are_no_scales_add_nothing_that_is_no_number(engine, scale):
    """0/0 is NaN and 1/0 infinite: such a record is left out, as one with a gradient that is no
    number is.
    """
    model = nn.Linear(2, 1, bias=False)
    place = Coordinates(
        torch.zeros(1, 2, dtype=torch.float64), torch.full((1, 2), scale, dtype=torch.float64)
    )
    clipping = Clipping(ClipEach((1.0,)), 1.0, (0,), sum_scales=(1.0,), coordinates=(place,))
    at_work = ENGINES[engine](model, dict(model.named_parameters()))
    total = torch.zeros(1, 2, dtype=torch.float64)
    rows = torch.tensor([[0.0, 0.0], [1.0, -1.0]])
    at_work.bounded_sums(lambda x: model(x).squeeze(1), Chunk((rows,), 2), clipping).add_to([total])
    assert bool(total.isfinite().all()) and float(total.norm()) <= 2


@pytest.mark.parametrize("engine", PER_RECORD_GRADIENTS)
@pytest.mark.parametrize("bound", [LEAST, MOST])
def test_adaclip_adds_nothing_for_zeros_at_the_limits(engine, bound):
    found = released(lambda model: bound, engine, [[0.0] * NUMBERS] * 3, controllers=[AdaClip()])
    assert all(not gradient.any() for gradient in found.values())


@pytest.mark.parametrize(
    "value", [0.0, LEAST / 2, 2 * MOST, 1e-320, math.inf, math.nan, -1.0, True, "1"]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda value: ClippedSum(value),
        lambda value: ClippedSum(1.0, "a", ("x",), (value,)),
        lambda value: NormalisedSum(1.0, gamma=value),
        lambda value: Statistic("s", bound=value),
        lambda value: dpfy.clip_jointly(nn.Linear(1, 1), {"*": value}),
    ],
    ids=["bound", "scale", "gamma", "statistic", "clip_jointly"],
)
def test_what_is_beyond_the_limits_is_refused(make, value):
    with pytest.raises(InvalidArgument, match="Expected"):
        make(value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ClipEach((1e-31,)),
        lambda: ClipEach((1.0,), (1e-31,)),
        lambda: Clipping(ClipEach((1.0,)), 1.0, (0,), scales=(0.0,)),
        lambda: Clipping(ClipEach((1.0,)), 1.0, (0,), sum_scales=(1e-310,)),
    ],
)
def test_the_arithmetic_itself_refuses_them(make):
    with pytest.raises(InvalidArgument):
        make()


@pytest.mark.parametrize("search", [PrivateArgmin, FirstBelow])
def test_losses_have_the_same_limits(search):
    """Steps per bound would be infinite, and a loss of zero, which is no number of them, end the
    run.
    """
    with pytest.raises(InvalidArgument, match="bound"):
        search(Descent().run, 1e-310, 0.5)


def test_what_controllers_choose_stays_within_the_limits():
    """A schedule that decays, or a recipe that divides, reaches any number; the run would end at a
    public step.
    """
    query = Query.of([ClippedSum(LEAST)])
    (leaf,) = with_bounds(StepConfig(query), {"gradient": LEAST / 1e6}).query.leaves
    assert leaf.bound == LEAST
    assert kept_within(1e-40, least=1e-50) == LEAST and kept_within(1e40, most=1e50) == MOST
    assert kept_within(math.nan, least=1e-50) == LEAST and kept_within(1.0, 2.0, 3.0) == 2.0


def test_a_run_goes_on_when_its_schedule_leaves_the_limits():
    plan = dpfy.dpsgd(
        rate=1.0,
        divisor=1.0,
        steps=2,
        clip=LEAST,
        noise_multiplier=1.0,
        clip_schedule=Schedule("down", (1.0, 1e-9)),
    )
    model = nn.Linear(2, 1)
    with dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(torch.ones(3, 2)),
        plan,
        dpfy.Ledger.in_memory(),
        insecure_test_key=1,
    ) as run:
        bounds = [run.release(lambda x: model(x).squeeze(1), batch).bounds for batch in run]
    assert bounds == [{"gradient": LEAST}] * 2
