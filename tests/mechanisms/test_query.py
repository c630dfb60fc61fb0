"""Sums of one sample: how they compose, what they cost, and what is refused."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import dpfy
from dpfy.accounting.to_pairs import noise_multiplier
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Fact, SumQuery
from dpfy.mechanisms.groups import clip_groups, clip_jointly, composed_multiplier
from dpfy.mechanisms.query import (
    ClippedSum,
    Contributing,
    Query,
    RecordNormsBelow,
    SampleSize,
    Statistic,
)


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def sizes(model):
    return {name: p.numel() for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("layer", ["0", "2"]),
        ("tensor", ["0.weight", "0.bias", "2.weight", "2.bias"]),
        ("kind", ["weights", "biases"]),
        ({"head": "2.*", "rest": "*"}, ["rest", "head"]),
        (lambda name, p: "small" if p.numel() < 9 else "large", ["large", "small"]),
    ],
)
def test_groups_hold_every_parameter_once_in_the_order_of_the_model(by, names):
    groups = clip_groups(network(), by)
    assert [group.name for group in groups] == names
    assert sorted(name for group in groups for name in group.parameters) == sorted(sizes(network()))


@pytest.mark.parametrize("bounds", ["equal", "dimension"])
def test_squared_bounds_add_up(bounds):
    """The paper prints the dimension-adjusted bound inverted: S/√(d/D) would add up to more
    than S.
    """
    groups = clip_groups(network(), "tensor", clip=1.7, bounds=bounds)
    assert math.fsum(group.bound**2 for group in groups) == pytest.approx(1.7**2)
    found = {group.name: group.bound for group in groups}
    ratio = 1.0 if bounds == "equal" else math.sqrt(32 / 3)
    assert found["0.weight"] / found["2.bias"] == pytest.approx(ratio)


@pytest.mark.parametrize("noise", ["proportional", "dimension"])
def test_the_noise_of_the_paper_s_strategies(noise):
    """Section 4: σ_g = z√G·S_g, or z√(D/d_g)·S_g; either way the groups compose to z."""
    model, z = network(), 1.3
    groups = clip_groups(model, "tensor", noise=noise)
    queries = Query.of(groups).sum_queries(z)
    total, count = sum(sizes(model).values()), len(groups)
    for query in queries:
        share = 1 / count if noise == "proportional" else sizes(model)[query.name] / total
        assert query.stddev == pytest.approx(z / math.sqrt(share)) and query.l2_bound == 1
    assert noise_multiplier(queries) == pytest.approx(z, rel=1e-12)


def test_noise_of_one_s_own_composes_as_section_3_says():
    stddevs = {"0": 2.0, "2": 3.0}
    groups = clip_groups(network(), bounds={"0": 1.0, "2": 0.5}, noise=stddevs)
    z = composed_multiplier(groups, stddevs)
    assert z == pytest.approx(((1 / 2) ** 2 + (0.5 / 3) ** 2) ** -0.5)
    queries = Query.of(groups).sum_queries(z)
    realised = [query.stddev * group.bound for query, group in zip(queries, groups, strict=True)]
    assert realised == pytest.approx(list(stddevs.values()))


def test_layers_with_a_bound_each_cost_as_much_as_their_root_sum():
    """Counting L layers of bound C, each with noise σ = zC, as one of bound C would forget a factor
    √L.
    """
    layers = 7
    queries = tuple(SumQuery(1.0, 2.0, f"layer {k}") for k in range(layers))
    assert noise_multiplier(queries) == pytest.approx(2.0 / math.sqrt(layers))
    own = clip_groups(
        nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers))),
        bounds={str(k): 1.0 for k in range(layers)},
    )
    assert Query.of(own).sum_queries(2.0)[0].stddev == pytest.approx(2.0 * math.sqrt(layers))
    assert dpfy.dpsgd(records=10, batch_size=5, steps=1, clip=own).clip == pytest.approx(
        math.sqrt(layers)
    )


def test_the_joint_example_of_the_paper():
    """Section 2: v₁ on the scale of 1 with noise 0.01, v₂ on that of 100 with noise 1, one of them
    always zero.
    """
    leaf = clip_jointly(
        nn.ParameterDict({"v1": nn.Parameter(torch.zeros(2)), "v2": nn.Parameter(torch.zeros(2))}),
        {"v1": 1.0, "v2": 100.0},
        clip=1.0,
    )
    query = Query.of([leaf])
    (summed,) = query.sum_queries(noise_multiplier=0.01)
    assert (summed.l2_bound, summed.stddev) == (1.0, 0.01)
    noises = [0.01 * query.sum_scale(leaf) * leaf.scale_of(name) for name in ("v1", "v2")]
    assert noises == pytest.approx([0.01, 1.0])


@settings(max_examples=100, deadline=None)
@given(
    shares=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6),
    every=st.lists(st.integers(1, 5), max_size=3),
    z=st.floats(0.1, 50),
    step=st.integers(1, 60),
)
def test_what_a_step_records_is_what_its_noise_is_worth(shares, every, z, step):
    """A step without a statistic costs less; were its share still charged, or not charged when due,
    this would fail.
    """
    query = Query.of(
        [ClippedSum(1.0, str(k), (str(k),), share=share) for k, share in enumerate(shares)],
        [Statistic(f"s{k}", every=each, share=0.1) for k, each in enumerate(every)],
    )
    assert noise_multiplier(query.sum_queries(z, step)) == pytest.approx(
        z / query.joint_sensitivity(step), rel=1e-12
    )
    assert noise_multiplier(query.sum_queries(z, 1)) == pytest.approx(z, rel=1e-12)
    assert query.sum_queries(z, step) == query.sum_queries(z, step + query.period)


def test_a_plan_lists_the_steps_that_have_a_statistic_and_those_that_have_not():
    plan = dpfy.dpsgd(
        records=100,
        batch_size=10,
        steps=8,
        noise_multiplier=1.0,
        statistics=[Statistic("a", every=3)],
    )
    counts = [(len(run.event.queries), run.times) for run in plan.envelope]
    assert counts == [(2, 1), (1, 2), (2, 1), (1, 2), (2, 1), (1, 1)]
    always = dpfy.dpsgd(
        records=100, batch_size=10, steps=8, noise_multiplier=1.0, statistics=[Statistic("a")]
    )
    rarely, often = (dpfy.account(each.envelope).epsilon(1e-5) for each in (plan, always))
    assert rarely.upper < often.lower


def test_a_calibrated_plan_with_statistics_stays_within_its_budget():
    plan = dpfy.dpsgd(
        records=1000,
        batch_size=50,
        steps=100,
        clip=clip_groups(network()),
        statistics=[Statistic("accuracy", every=4), SampleSize()],
    ).calibrate(2.0, 1e-5)
    found = dpfy.account(plan.envelope).epsilon(1e-5)
    assert 2.0 * (1 - 2e-3) <= found.upper <= 2.0
    assert dpfy.Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    "leaf",
    [
        ClippedSum(1.0, "a", ("x", "y"), (1.0, 2.0), 0.5),
        Statistic("s", 2.0, (3, 4), 5, 0.1),
        SampleSize(share=0.2),
        Contributing(every=2),
        RecordNormsBelow(thresholds=(0.5, 1.0, 2.0), of=("g", "g", "h")),
    ],
)
def test_sums_survive_a_round_trip(leaf):
    assert Fact.from_json(leaf.to_json()) == leaf


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Query.of([ClippedSum(1.0), ClippedSum(1.0)]), "called 'gradient'"),
        (
            lambda: Query.of([ClippedSum(1.0, "a", ("w",)), ClippedSum(1.0, "b", ("w",))]),
            "in two clipped sums",
        ),
        (
            lambda: Query.of([ClippedSum(1.0, "a"), ClippedSum(1.0, "b")]),
            "no parameters of their own",
        ),
        (lambda: Query((ClippedSum(1.0, share=0.7),)), "add up to 1"),
        (
            lambda: Query.of(
                [ClippedSum(1.0)], [Statistic("s", share=0.6), Statistic("t", share=0.5)]
            ),
            "smaller shares",
        ),
        (
            lambda: Query.of(
                [ClippedSum(1.0)], [RecordNormsBelow(thresholds=(1.0,), of=("other",))]
            ),
            "'other'",
        ),
        (
            lambda: Query.of([ClippedSum(1.0)], [RecordNormsBelow()], slots=4),
            "norms of single records",
        ),
        (lambda: Query.of([ClippedSum(1.0)], [Statistic("s")], slots=4), "no statistics"),
        (lambda: ClippedSum(1.0, "a", ("x",), (1e160,)), "scale"),
        (lambda: Query.of([ClippedSum(1.0)], slots=4, least_sample=3.0), "no sample size"),
        (lambda: ClippedSum(1.0, "a", ("x",), (1.0, 2.0)), "one scale for each"),
        (lambda: SampleSize(bound=2.0), "bound 1"),
        (lambda: Contributing(bound=0.5), "bound 1"),
        (lambda: Query.of([ClippedSum(1.0)], [Contributing()], slots=4), "no statistics"),
        (lambda: clip_groups(network(), {"first": "0.*"}), "fits none of the patterns"),
        (lambda: clip_groups(network(), "layers"), "by"),
        (lambda: clip_groups(network(), bounds={"0": 1.0}), "0, 2"),
        (lambda: clip_groups(network(), noise={"0": 1.0, "2": 0.0}), "noise of 2"),
        (lambda: clip_groups(network(), lambda name, p: None), "NoneType"),
        (lambda: clip_groups(network().requires_grad_(False)), "no trainable parameter"),
        (lambda: clip_jointly(network(), {"0.*": 1.0, "*": -1.0}), "scale"),
        (
            lambda: dpfy.dpsgd(records=10, batch_size=5, steps=1, least_sample=3.0, divisor=5),
            "least_sample",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(make, text):
    with pytest.raises(InvalidArgument, match=text):
        make()
