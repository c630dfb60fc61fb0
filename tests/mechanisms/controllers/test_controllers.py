"""Controllers and schedules without a training loop: formulas, events, sensitivities, and what they
refuse.
"""

import json
import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

import dpfy
from dpfy.accounting import RenyiFilter, account
from dpfy.accounting.to_pairs import noise_multiplier
from dpfy.gradients.base import RecordStats
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.mechanisms import controllers as c
from dpfy.mechanisms.clipping import lattice_sum, squared_norms
from dpfy.mechanisms.controllers.former_names import HOOKS
from dpfy.mechanisms.query import ClippedSum, Query
from dpfy.run.release_layout import ReleaseLayout
from dpfy.run.released import Released
from dpfy.testing import check_controller

HALVED = c.Schedule("halved", (1.0, 0.5), length=3)
EVERY = [
    c.QuantileClipping(),
    c.QuantileClipping(0.8, share=0.1, allocation="global", rescale=True),
    c.MeanNormClipping(),
    c.AdaClip(),
    c.ClipSchedule(HALVED),
    c.ValidationDecay(),
    c.GradientNormNoise(),
    c.GradientNormNoise(1.0),
]
GROUPS = (ClippedSum(0.5, "a", ("w",), share=0.5), ClippedSum(2.0, "b", share=0.5))
Z = 1.25


def planned(**options):
    return dpfy.dpsgd(**{"rate": 0.1, "divisor": 10, "steps": 40, "noise_multiplier": Z, **options})


def outcome(statistics, bounds=None, gradients=None, stddevs=None):
    return Released(
        gradients or {},
        1,
        {name: torch.tensor(value, dtype=torch.float64) for name, value in statistics.items()},
        Z,
        bounds or {},
        stddevs or {},
    )


# Conformance


@pytest.mark.parametrize("controller", EVERY, ids=lambda each: each.tag)
def test_every_controller_conforms(controller):
    check_controller(controller)


@dataclass(frozen=True)
class Secretive(c.Controller, tag="secretive_test"):
    """Changes the noise and does not say so."""

    controls = "noise"

    def configure(self, state, step, setting):
        return replace(setting, noise=0.5)


@dataclass(frozen=True)
class Shifting(c.Controller, tag="shifting_test"):
    """Gives one group more of the budget, which makes another event."""

    controls = "bounds"

    def configure(self, state, step, setting):
        leaves = setting.query.leaves
        if len(leaves) == 1:
            return setting
        moved = (replace(leaves[0], share=0.9), replace(leaves[1], share=0.1))
        return replace(setting, query=replace(setting.query, leaves=moved))


@dataclass(frozen=True)
class InPlace(c.Controller, tag="in_place_test"):
    """Writes into its state."""

    controls = "bounds"

    def start(self, query, parameters):
        return {"steps": [0]}

    def update(self, state, released):
        state["steps"][0] += 1
        return state


@dataclass(frozen=True)
class Aimless(c.Controller, tag="aimless_test"):
    """Does not say what it controls, so that two of a kind could be in one plan."""


@pytest.mark.parametrize(
    ("controller", "found"),
    [
        (Secretive(), "adaptive"),
        (Shifting(), "events"),
        (InPlace(), "in place"),
        (Aimless(), "does not say that it controls"),
    ],
)
def test_the_suite_catches_bad_controllers(controller, found):
    with pytest.raises(AssertionError, match=found):
        check_controller(controller)


# Schedules


@pytest.mark.parametrize(
    ("text", "time", "factor"),
    [
        ("time:0.5", 4, 1 / 3),
        ("exponential:0.1", 3, math.exp(-0.3)),
        ("step:0.7:2", 5, 0.7**2),
        ("step:0.7:2", 1, 1.0),
        ("polynomial:2:10:0.25", 5, 0.75 * 0.25 + 0.25),
        ("polynomial:2:10:0.25", 12, 0.25),
        ("dynamic:0.98", 8, 0.98**2),
        ("strongly_convex:0.98", 8, 0.98**4),
        ("convex", 3, 0.25),
    ],
)
def test_schedules_follow_their_formulas(text, time, factor):
    assert c.named_schedule(text)(time) == pytest.approx(factor, rel=1e-14)


def test_the_dynamic_schedule_minimises_the_noise_of_the_last_iterate():
    """Hong et al.: among schedules with the same Σσ⁻², γ^(t/4) has the least Σγ^(T−t)σ²; any other
    shape has more.
    """
    gamma, steps = 0.9, 30
    shape = [c.dynamic_decay(gamma)(t) for t in range(steps)]

    def weighed(sigmas):
        scale = sum(sigma**-2 for sigma in sigmas)  # brings Σσ⁻² to one
        return scale * sum(gamma ** (steps - t) * sigma**2 for t, sigma in enumerate(sigmas))

    rates = (0.0, 1 / 8, 3 / 8, 1 / 2)
    assert all(
        weighed(shape) < weighed([gamma ** (rate * t) for t in range(steps)]) for rate in rates
    )


def test_epochs_count_from_zero_and_steps_are_tabulated():
    plan = planned(noise_schedule=lambda epochs: 1 / (1 + epochs))
    assert (
        plan.noise_schedule.factors == (1.0, 1 / 2, 1 / 3, 1 / 4)
        and plan.noise_schedule.length == 10
    )
    assert [plan.noise_at(step) for step in (1, 10, 11, 40)] == [Z, Z, Z / 2, Z / 4]
    assert [run.times for run in plan.envelope] == [10] * 4
    assert (
        dpfy.Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    )  # a function became numbers
    assert len(planned(noise_schedule="convex").envelope) == 40


def test_a_plan_without_adaptation_has_the_json_it_had():
    assert not {"controllers", "noise_schedule"} & set(planned().to_json())
    assert set(planned().to_json()["query"]) == {
        "type",
        "leaves",
        "statistics",
        "slots",
        "least_sample",
    }


def test_a_schedule_with_statistics_that_are_not_always_due_lists_every_step_once():
    plan = planned(noise_schedule="step:0.5:1", steps=25, statistics=[dpfy.SampleSize(every=3)])
    events = [run.event for run in plan.envelope for _ in range(run.times)]
    assert events == [plan.event_at(step) for step in range(1, 26)]
    assert {len(event.queries) for event in events} == {1, 2}


def test_calibration_scales_the_whole_schedule_to_the_budget():
    plan = dpfy.dpsgd(rate=0.2, divisor=10, steps=20, noise_schedule="step:0.5:2").calibrate(
        epsilon=2.0, delta=1e-5
    )
    z = plan.noise_multiplier
    by_hand = [Repeated(Sampled(Poisson(0.2), (SumQuery(1.0, noise),)), 10) for noise in (z, z / 2)]
    claim = account(by_hand).claim(1e-5)
    assert account(plan).claim(1e-5) == claim
    assert 2.0 * (1 - 2e-4) < claim <= 2.0


@pytest.mark.parametrize(
    "options",
    [
        {"noise_schedule": "tim:1"},
        {"noise_schedule": "time"},
        {"noise_schedule": "time:x"},
        {"noise_schedule": 3.0},
        {"noise_schedule": "time:-1"},
        {"noise_schedule": lambda t: -1.0},
        {"noise_schedule": lambda t: math.inf},
        {"clip_schedule": "polynomial:1:2"},
    ],
)
def test_schedules_that_cannot_be_are_refused(options):
    with pytest.raises(dpfy.InvalidArgument, match="Expected"):
        planned(**options)


def test_where_one_event_pays_for_an_epoch_noise_changes_between_epochs_only():
    options = {
        "records": 100,
        "batch_size": 30,
        "epochs": 4,
        "sampling": "shuffled",
        "relation": "zero_out",
        "noise_multiplier": Z,
    }
    plan = dpfy.dpsgd(noise_schedule="time:1", **options)
    assert [(run.event.queries[0].stddev, run.times) for run in plan.envelope] == [
        (Z, 1),
        (Z / 2, 1),
        (pytest.approx(Z / 3), 1),
        (Z / 4, 1),
    ]
    with pytest.raises(dpfy.InvalidArgument, match="one event pays for 4 steps"):
        dpfy.dpsgd(noise_schedule="convex", **options)
    with pytest.raises(dpfy.InvalidArgument, match="one by one"):
        dpfy.dpsgd(controllers=[c.ValidationDecay()], **options)


# Events


def test_quantile_clipping_costs_what_its_formula_says():
    """Andrew et al.: with counts at σ_b, the gradient has σ_Δ = (z⁻² − (2σ_b)⁻²)^(−½), and z is
    what is composed.
    """
    share = 0.04
    gradient, below = planned(controllers=[c.QuantileClipping(share=share)]).event.queries
    sigma_b = below.stddev / 2  # the query is in units of its bound ½
    assert gradient.stddev == pytest.approx((Z**-2 - (2 * sigma_b) ** -2) ** -0.5, rel=1e-12)
    by_hand = Sampled(
        Poisson(0.1), (SumQuery(1.0, gradient.stddev), SumQuery(0.5, sigma_b, "bits"))
    )
    assert noise_multiplier(by_hand.queries) == pytest.approx(Z, rel=1e-12)


@pytest.mark.parametrize("allocation", ["equal", "global"])
def test_quantiles_of_groups_cost_what_their_formula_says(allocation):
    """He et al.: σ_b = (σ/2)√(K/r) and σ_new = σ/√(1 − r)."""
    share = 0.1
    plan = planned(
        clip=GROUPS, controllers=[c.QuantileClipping(share=share, allocation=allocation)]
    )
    *gradients, below = plan.event.queries
    assert below.stddev * math.sqrt(2) / 2 == pytest.approx(Z / 2 * math.sqrt(2 / share))
    assert 1 / math.hypot(*(1 / each.stddev for each in gradients)) == pytest.approx(
        Z / math.sqrt(1 - share)
    )
    assert len(gradients) == (
        2 if allocation == "equal" else 1
    )  # shares that move are not in the event
    assert noise_multiplier(plan.event.queries) == pytest.approx(Z)


def test_norm_clipping_costs_what_its_formula_says():
    """van der Veen et al.: z⁻² = Σ_ℓ (σ_g⁻² + σ_n⁻²), σ_n in units of each layer's limit."""
    *gradients, norms = planned(
        clip=GROUPS, controllers=[c.MeanNormClipping(share=0.1)]
    ).event.queries
    sigma_n = norms.stddev * math.sqrt(2)  # the query is in units of its bound √2
    assert sum(each.stddev**-2 for each in gradients) + 2 * sigma_n**-2 == pytest.approx(Z**-2)


def test_adaptive_noise_is_marked_and_needs_a_filter():
    plan = planned(controllers=[c.ValidationDecay()])
    assert plan.event.adaptive and plan.event_at(3, noise=0.5).queries[0].stddev == Z / 2
    with pytest.raises(dpfy.InvalidArgument, match="validation_decay chooses the noise"):
        plan.guard()
    calibrated = plan.calibrate(epsilon=2.0, delta=1e-5)
    assert isinstance(calibrated.filter, RenyiFilter) and calibrated.budget is None
    guard = calibrated.guard()
    guard.admit(calibrated.event, 39)  # all steps but perhaps the last, at the noise it begins with
    with pytest.raises(dpfy.BudgetExhausted):
        guard.admit(calibrated.event_at(1, noise=0.8), 40)
    assert dpfy.Plan.from_json(json.loads(json.dumps(calibrated.to_json()))) == calibrated


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"controllers": [c.QuantileClipping(), c.MeanNormClipping()]},
            "one controller, got quantile_clipping and norm",
        ),
        ({"controllers": [c.QuantileClipping()], "clip_schedule": "time:1"}, "one controller"),
        ({"controllers": [c.ValidationDecay(), c.GradientNormNoise()]}, "one controller"),
        (
            {"controllers": [c.AdaClip()], "clip_schedule": "time:1"},
            "AdaClip chooses its own bounds",
        ),
        ({"controllers": [c.AdaClip()], "clip": GROUPS}, "groups"),
        (
            {"controllers": [c.QuantileClipping()], "clip": dpfy.clip_automatically()},
            "automatic clipping has none",
        ),
        (
            {"controllers": [c.QuantileClipping()], "microbatches": 4},
            "no statistics or norms of single records",
        ),
        ({"controllers": [c.GradientNormNoise()], "clip": GROUPS}, "leave out groups"),
        ({"controllers": [c.GradientNormNoise()], "least_sample": 5}, "leave out groups"),
    ],
)
def test_what_cannot_be_combined_is_refused_with_a_reason(options, reason):
    with pytest.raises(dpfy.InvalidArgument, match=reason):
        planned(**({} if "least_sample" not in options else {"divisor": 5}) | options)


# What controllers do


def test_a_quantile_moves_the_bound_by_the_geometric_rule():
    controller = c.QuantileClipping(0.6, learning_rate=0.3)
    state = controller.start(controller.extend_query(Query.of([ClippedSum(2.0)])), {})
    state = controller.update(
        state, outcome({"below the clip bound": [0.25]})
    )  # three quarters are below
    assert state["bounds"]["gradient"] == pytest.approx(2.0 * math.exp(-0.3 * (0.75 - 0.6)))
    assert controller.update(state, outcome({})) is state  # not due


def test_bounds_of_groups_share_the_noise_as_declared():
    query = Query.of(GROUPS)
    equal, pooled = (c.QuantileClipping(share=0.1, allocation=name) for name in ("equal", "global"))
    for controller, expected in (
        (equal, {"a": 0.3 * math.sqrt(2), "b": 0.4 * math.sqrt(2)}),
        (pooled, {"a": 0.5, "b": 0.5}),
    ):
        setting = controller.configure(
            {"bounds": {"a": 0.3, "b": 0.4}, "norm": 1.0},
            1,
            c.StepConfig(controller.extend_query(query)),
        )
        stddevs = {
            leaf.name: Z * setting.query.sum_scale(leaf) * math.sqrt(0.9)
            for leaf in setting.query.leaves
        }
        assert stddevs == pytest.approx({name: Z * value for name, value in expected.items()})
        assert setting.query.statistics[0].thresholds == (0.3, 0.4)


def test_rescaled_bounds_keep_their_squares():
    controller = c.QuantileClipping(rescale=True, learning_rate=1.0)
    state = controller.start(controller.extend_query(Query.of(GROUPS)), {})
    state = controller.update(state, outcome({"below the clip bound": [0.5, -0.5]}))
    assert math.hypot(*state["bounds"].values()) == pytest.approx(math.hypot(0.5, 2.0))
    assert state["bounds"]["b"] / state["bounds"]["a"] == pytest.approx(4 * math.e)


def test_norms_set_the_bounds_of_the_next_step():
    controller = c.MeanNormClipping(factor=1.5, limit=2.0, least=0.1, most=1.2)
    query = controller.extend_query(Query.of(GROUPS))
    assert query.statistics[0].limits == (1.0, 4.0)
    state = controller.update(
        controller.start(query, {}), outcome({"norms for the clip bound": [0.2, 0.9]})
    )
    assert state["bounds"] == pytest.approx(
        {"a": 1.5 * 0.2 * 1.0, "b": 1.2 * 2.0}
    )  # 1.5·0.9·4 is too much
    setting = controller.configure(state, 2, c.StepConfig(query))
    assert setting.query.statistics[0].limits == pytest.approx((0.6, 4.8))
    state = controller.update(state, outcome({"norms for the clip bound": [-7.0, math.nan]}))
    assert state["bounds"] == pytest.approx({"a": 0.05, "b": 0.2})


def test_adaclip_begins_as_clipping_and_learns_scales():
    controller, parameters = c.AdaClip(), {"w": torch.zeros(2), "b": torch.zeros(2)}
    query = Query.of([ClippedSum(0.5)])
    state = controller.start(query, parameters)
    first = controller.configure(state, 1, c.StepConfig(query))
    assert all(
        torch.allclose(place.scale, torch.ones(2).double()) for place in first.coordinates.values()
    )
    gradients = {"w": torch.tensor([2.0, 0.5]), "b": torch.tensor([0.1, 0.0])}
    state = controller.update(state, outcome({}, gradients=gradients, stddevs={"w": 0.3, "b": 0.3}))
    found = torch.cat([gradients["w"], gradients["b"]]).double()
    variance = 0.9 * 0.25 / 4 + 0.1 * (found**2 - 0.09).clamp(1e-12, 10)
    scale = (variance.sqrt() * variance.sqrt().sum()).sqrt()  # b = √(s·Σs), in units of the bound ½
    setting = controller.configure(state, 2, c.StepConfig(query))
    places = [setting.coordinates[name] for name in ("w", "b")]
    assert torch.allclose(torch.cat([place.scale for place in places]), scale / 0.5)
    assert torch.allclose(torch.cat([place.offset for place in places]), 0.01 * found)


def test_validation_decay_compares_moving_averages_and_their_sign():
    controller = c.ValidationDecay(factor=0.5, threshold=0.01, window=2)
    state, noises = {"noise": 1.0, "values": []}, []
    for accuracy in (0.4, 0.5, 0.6, 0.3, 0.9):
        state = controller.on_public_metric(state, accuracy)
        noises.append(state["noise"])
    # averages .4, .45, .55, .45, .6: the fall by a tenth is no rise, whatever its size
    assert noises == [1.0, 1.0, 1.0, 0.5, 0.5]
    assert (
        controller.on_public_metric({"noise": 1.0, "values": []}, 0.01)["noise"] == 0.5
    )  # compared with 0 at first


def test_noise_follows_the_released_norm_within_its_limits():
    def after(ratio, norm, noise=1.0):
        controller = c.GradientNormNoise(ratio, least=0.5, most=2.0)
        state = {
            **controller.start(Query.of([ClippedSum(0.5)]), {"w": torch.zeros(16)}),
            "noise": noise,
        }
        return controller.update(
            state, outcome({"norm of the sum": norm}, {"gradient": 0.5}, stddevs={"w": 0.1})
        )

    # σ = ratio·norm·bound/√d = 3·0.32·0.5/4 = 0.12, which is 1.2 times the present
    assert after(3.0, 0.32)["noise"] == pytest.approx(1.2) and after(3.0, 0.32, 1.5)[
        "noise"
    ] == pytest.approx(1.8)
    assert after(3.0, 9.0)["noise"] == 2.0 and after(3.0, -1.0)["noise"] == 0.5
    first = after(None, 0.32)
    assert first["noise"] == 1.0 and first["ratio"] == pytest.approx(0.1 / 0.04)
    assert after(None, -1.0)["ratio"] is None


# Sensitivity


RECORD = st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=4, max_size=4)
RELEASES = st.lists(st.floats(-3, 3), min_size=0, max_size=4)


def piece(setting, record, step):
    """What a record adds to the vector that is noised, whose norm must not exceed 1."""
    parameters = {"w": torch.nn.Parameter(torch.zeros(2)), "v": torch.nn.Parameter(torch.zeros(2))}
    pieces = ReleaseLayout(setting.query, parameters, setting.query.due(step), setting.coordinates)
    clipping, vector = (
        pieces.clipping(2.0**-40),
        torch.zeros(sum(pieces.sizes), dtype=torch.float64),
    )
    gradients = clipping.transformed([torch.tensor([record[:2]]), torch.tensor([record[2:]])])
    norms = clipping.norms([squared_norms(each) for each in gradients])
    totals, statistics = pieces.split(vector)
    for total, gradient, weight in zip(totals, gradients, clipping.weights(norms), strict=True):
        total += lattice_sum(gradient, weight, clipping.grid)
    pieces.add_statistics([RecordStats(norms, {})], statistics)
    pieces.complete(vector, 1, divisor=10.0)
    return vector


def accepted():
    """Every controller, and none, with every kind of clipped sums that it accepts."""
    leaves = {
        "flat": (ClippedSum(0.7),),
        "groups": GROUPS,
        "auto": dpfy.clip_automatically(0.7),
        "auto groups": dpfy.clip_automatically(GROUPS),
    }
    for name, some in leaves.items():
        yield pytest.param(None, Query.of(some), id=name)
        for number, controller in enumerate(EVERY):
            try:
                yield pytest.param(
                    controller,
                    controller.extend_query(Query.of(some)),
                    id=f"{name}-{controller.tag}-{number}",
                )
            except dpfy.InvalidArgument:
                continue


@pytest.mark.parametrize(("controller", "query"), [*accepted()])
def test_no_record_adds_more_than_one_unit_after_any_releases(controller, query):
    """A threshold, limit, scale or share that does not move with its bound would let a record add
    more.
    """

    @settings(max_examples=15, deadline=None, derandomize=True)
    @given(record=RECORD, releases=RELEASES)
    def check(record, releases):
        parameters = {"w": torch.zeros(2), "v": torch.zeros(2)}
        setting = c.StepConfig(query)
        state = controller.start(query, parameters) if controller else {}
        for step, size in enumerate(releases, start=1):
            if controller:
                setting = controller.configure(state, step, c.StepConfig(query))
                released = Released(
                    {name: torch.full((2,), size) for name in parameters},
                    step,
                    {each.name: torch.full(each.shape, size).double() for each in query.due(step)},
                    Z,
                    {leaf.name: leaf.bound for leaf in setting.query.leaves},
                    dict.fromkeys(parameters, 0.1),
                )
                state = controller.update(state, released)
        if controller:
            setting = controller.configure(state, len(releases) + 1, c.StepConfig(query))
        vector = piece(setting, record, len(releases) + 1)
        assert bool(vector.isfinite().all())
        assert float(vector.norm()) <= 1 + 1e-9

    check()


def test_the_norm_of_a_sum_moves_by_no_more_than_the_sum():
    plan = planned(controllers=[c.GradientNormNoise()])
    pieces = ReleaseLayout(
        plan.query, {"w": torch.nn.Parameter(torch.zeros(5))}, plan.query.statistics
    )
    share = plan.query.noise_share(plan.query.leaves[0])
    generator = torch.Generator().manual_seed(1)
    for size in (0.0, 0.3, 7.0, 39.0, 1e4):
        base = torch.zeros(6, dtype=torch.float64)
        base[:5] = size * torch.nn.functional.normalize(
            torch.randn(5, generator=generator).double(), dim=0
        )
        record = torch.nn.functional.normalize(
            torch.randn(5, generator=generator).double(), dim=0
        ) * math.sqrt(share)
        other = base.clone()
        other[:5] += record
        for vector in (base, other):
            pieces.complete(vector, 1, divisor=10.0)
        assert float((other - base).norm()) <= 1 + 1e-12
        released = float(base[5]) * pieces.factors(10.0)[1]
        assert released == pytest.approx(min(size / math.sqrt(share), 40.0) / 10)


# Names of earlier versions


def test_a_controller_with_the_hooks_of_an_earlier_version_works_and_is_told_so():
    with pytest.warns(DeprecationWarning) as told:

        @dataclass(frozen=True)
        class Old(c.Controller, tag="of an earlier version"):
            steers = "bounds"

            def extended(self, query):
                return replace(query, pooled=True)

            def beside(self, steps):
                return (Repeated(Sampled(Poisson(1.0), (SumQuery(1.0, 9.0),)), steps),)

            def applied(self, state, step, setting):
                return replace(setting, noise=2.0)

            def updated(self, state, released):
                return {"updates": 1}

            def measured(self, state, value):
                return {"value": value}

    assert [str(each.message).split(";")[0] for each in told] == [
        f"Old.{old} is now called Old.{new}" for old, new in HOOKS.items()
    ]
    assert all(each.filename == __file__ for each in told)
    old = Old()
    query = Query.of([ClippedSum(1.0)])
    assert old.controls == "bounds" and old.extend_query(query).pooled
    assert old.extra_events(3)[0].times == 3
    assert old.configure({}, 1, c.StepConfig(query)).noise == 2.0
    assert old.update({}, outcome({})) == {"updates": 1}
    assert old.on_public_metric({}, 0.5) == {"value": 0.5}
    plan = planned(controllers=[old])
    assert plan.query.pooled and dpfy.Plan.from_json(plan.to_json()) == plan


def test_hooks_of_a_base_class_are_not_reported_again():
    class New(c.QuantileClipping):
        controls = "bounds"

    assert New.update is c.QuantileClipping.update


def test_a_class_has_its_former_name_too():
    with pytest.warns(DeprecationWarning, match="RecipeControlled"):
        from dpfy.mechanisms.controllers import Directed
    assert Directed is c.RecipeControlled and Directed().to_json()["type"] == "directed"
    with pytest.raises(AttributeError, match="Undirected"):
        c.Undirected  # noqa: B018
