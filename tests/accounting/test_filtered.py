"""Filters stop before they are exceeded, and their limit, not the realised list, is the
guarantee.
"""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from dpfy.accounting import account, rdp
from dpfy.accounting.dominating_pairs import Pair
from dpfy.accounting.filtered import FilterGuarantee, Reading, odometer
from dpfy.accounting.filters import DominatedBy, Filter, GaussianFilter, RenyiFilter, ZcdpFilter
from dpfy.accounting.pld import closed_forms
from dpfy.accounting.rules import RULES
from dpfy.accounting.to_pairs import canonical
from dpfy.errors import (
    BudgetExhausted,
    InvalidArgument,
    LedgerError,
    LedgerMismatch,
    UnsupportedEvent,
)
from dpfy.ledger import Header, Ledger
from dpfy.ledger.composite_events import Composed, Parallel
from dpfy.ledger.events import (
    BallsInBins,
    Cyclic,
    FixedSize,
    Importance,
    LaplaceSum,
    NonPrivate,
    Poisson,
    Repeated,
    Sampled,
    Shuffled,
    SumQuery,
    TruncatedPoisson,
)
from dpfy.ledger.one_shot import NoisyMax, RandomizedAnswer
from dpfy.ledger.selection import PoissonTrials, Selected
from dpfy.types import Interval

DELTA = 1e-5


def step(rate: float, noise: float, **fields: object) -> Sampled:
    return Sampled(Poisson(rate), (SumQuery(1.0, noise),), **{"adaptive": True, **fields})


COMMITTED = (
    Repeated(step(0.1, 1.0, adaptive=False), 2),
    Repeated(step(1.0, 4.0, adaptive=False), 1),
)
FILTERS = [
    RenyiFilter(2.0, DELTA),
    RenyiFilter(2.0, DELTA, (8.0, 16.0, 32.0)),
    ZcdpFilter(0.1),
    GaussianFilter(0.5),
    DominatedBy(COMMITTED),
]
by_name = pytest.mark.parametrize(
    "rule", FILTERS, ids=lambda rule: f"{rule.tag}{len(rule.to_json())}"
)


def opened(path, rule: Filter, **header: object) -> Ledger:
    return Ledger.open(path, rule.guard(), Header(filter=rule.to_json(), **header))


def fill(rule: Filter, event: Sampled) -> int:
    """Take steps until the filter refuses, and return how many were admitted."""
    guard = rule.guard()
    for taken in range(10_000):
        try:
            guard.admit(event, 1)
        except BudgetExhausted:
            return taken
        guard.record(event, 1)
    raise AssertionError("the filter never stops")


# The filter itself


@by_name
def test_filter_survives_json(rule):
    assert Filter.from_json(json.loads(json.dumps(rule.to_json()))) == rule


def test_gaussian_filter_stops_exactly_at_its_limit():
    assert fill(GaussianFilter(1.0), step(1.0, 3.0)) == 9
    assert (
        fill(GaussianFilter(1.0), step(1.0, 3.0 * (1 - 1e-9))) == 8
    )  # a cost that is 2e-9 too large does not fit


def test_zcdp_filter_stops_exactly_at_its_limit():
    assert fill(ZcdpFilter(0.5), step(1.0, 2.0)) == 4
    assert fill(ZcdpFilter(0.5), step(1.0, 2.0 * (1 - 1e-9))) == 3


@pytest.mark.parametrize("orders", [(6.0,), (8.0, 12.0, 24.0)])
def test_renyi_filter_takes_every_step_that_one_order_affords_and_no_more(orders):
    rule, event, pair = RenyiFilter(2.0, DELTA, orders), step(0.01, 1.0), Pair(0.01, 1.0)
    afforded = max(
        math.floor(limit / rdp.renyi_divergence(pair, order))
        for order, limit in zip(rule.orders, rule.limits, strict=True)
    )
    assert fill(rule, event) == afforded > 100


def test_a_set_of_orders_pays_for_each_of_them():
    # With all of δ for each order, the best order could be chosen afterwards: the unsound
    # optimisation.
    one, three = RenyiFilter(2.0, DELTA, (12.0,)), RenyiFilter(2.0, DELTA, (8.0, 12.0, 24.0))
    assert one.limits[0] - three.limits[1] == pytest.approx(math.log(3) / 11)


def test_the_default_order_is_the_best_for_full_batches():
    best = fill(RenyiFilter(2.0, DELTA), step(1.0, 20.0))
    assert best >= max(
        fill(RenyiFilter(2.0, DELTA, (order,)), step(1.0, 20.0))
        for order in (8.0, 11.0, 18.0, 24.0)
    )


def test_the_tuned_order_affords_what_it_was_tuned_to():
    event = step(0.01, 1.0)
    tuned = RenyiFilter.tuned(2.0, DELTA, (Repeated(event, 1000),))
    others = [RenyiFilter(2.0, DELTA, (order,)) for order in (6.0, 8.0, 12.0, 20.0)]
    assert fill(tuned, event) >= max(fill(rule, event) for rule in others)


@pytest.mark.parametrize("rule", FILTERS[:4], ids=lambda rule: rule.tag)
def test_costs_of_mixed_steps_add_up_in_any_order(rule):
    events = [step(1.0, 12.0), step(1.0, 9.0), step(1.0, 31.0)]
    forward, backward = rule.guard(), rule.guard()
    for event in events * 2:
        forward.record(event, 1)
    for event in reversed(events):
        backward.record(event, 5)
        backward.record(event, -3)  # a block that was handed back
    assert forward.used == backward.used > 0


def test_no_noise_and_no_privacy_are_never_admitted():
    for rule in FILTERS:
        for event in (step(0.1, 0.0), NonPrivate("looked")):
            with pytest.raises(BudgetExhausted):
                rule.guard().admit(event, 1)


def test_what_costs_nothing_is_always_admitted():
    for rule in FILTERS[:4]:
        guard = rule.guard()
        guard.record(step(1.0, 0.01), 1)  # far beyond any limit
        with pytest.raises(BudgetExhausted):
            guard.admit(step(1.0, 100.0), 1)
        fresh = rule.guard()
        fresh.admit(step(0.0, 1.0), 10**9)
        fresh.admit(Sampled(Poisson(0.5), (), adaptive=True), 10**9)


def test_sampling_is_rewarded_by_the_renyi_filter_only():
    assert fill(GaussianFilter(0.5), step(0.01, 3.0)) == fill(GaussianFilter(0.5), step(1.0, 3.0))
    rule = RenyiFilter(2.0, DELTA, (6.0,))
    assert fill(rule, step(0.01, 1.0)) > 50 * max(1, fill(rule, step(1.0, 1.0)))


def test_replacing_a_record_costs_four_times_the_square():
    guard = GaussianFilter(1.0).guard("replace_one")
    guard.admit(step(1.0, 2.0), 1)
    with pytest.raises(BudgetExhausted):
        guard.admit(step(1.0, 2.0), 2)


def test_numerical_delta_is_set_aside_or_refused():
    event = step(1.0, 100.0, numerical_delta=1e-8)
    for rule in (GaussianFilter(1.0), ZcdpFilter(1.0), RenyiFilter(2.0, DELTA)):
        with pytest.raises(BudgetExhausted, match="numerical_delta"):
            rule.guard().admit(event, 1)
        generous = replace(rule, numerical_delta=3e-8)
        generous.guard().admit(event, 3)
        with pytest.raises(BudgetExhausted, match="numerical_delta"):
            generous.guard().admit(event, 4)
    rule = RenyiFilter(2.0, DELTA, (6.0,))
    assert replace(rule, numerical_delta=5e-6).limits < rule.limits


def few_runs(numerical_delta: float) -> Selected:
    return Selected(
        step(1.0, 40.0, adaptive=False, numerical_delta=numerical_delta), PoissonTrials(4.0)
    )


@pytest.mark.parametrize(
    "wrap",
    [
        lambda event: event,
        lambda event: Composed((event,), (1,)),
        lambda event: Parallel((event, event), moves=False),
    ],
)
def test_the_mass_of_a_selection_is_set_aside_or_refused(wrap):
    # Of four runs, 4·1e-6 has no Rényi curve: a filter that adds up curves only lets an unlimited
    # number of them pass.
    event = wrap(few_runs(1e-6))
    with pytest.raises(BudgetExhausted, match=r"adds 1 times [48]e-06 to delta.*numerical_delta=0"):
        RenyiFilter(8.0, DELTA).guard().admit(event, 1)
    mass = (
        canonical((Repeated(event, 1),), "rdp", "add_or_remove_one").failure + event.numerical_delta
    )
    guard = RenyiFilter(8.0, 1e-3, numerical_delta=2.5 * mass).guard()
    guard.admit(event, 2)
    guard.record(event, 2)
    with pytest.raises(BudgetExhausted, match="numerical_delta"):
        guard.admit(event, 1)
    guard.record(event, -1)
    guard.admit(event, 1)


def test_a_filter_pays_for_selections_as_much_as_for_lists_of_them():
    # The declared (ε, δ) holds for what fills the filter: within it, a list of as many selections
    # costs less.
    event = few_runs(1e-9)
    rule = RenyiFilter(4.0, DELTA, numerical_delta=2e-7)
    guard, taken = rule.guard(), 0
    while True:
        try:
            guard.admit(event, 1)
        except BudgetExhausted:
            break
        guard.record(event, 1)
        taken += 1
    assert taken > 3
    assert account([event] * taken, "rdp").claim(DELTA) <= 4.0 * (1 + 1e-3)


def test_renyi_rules_of_steps_have_no_failure_that_a_filter_would_owe_more_for():
    policies = (
        Poisson(0.1),
        FixedSize(10, 100),
        TruncatedPoisson(0.1, 12, 100),
        Shuffled(10, 100),
        Cyclic(10, 100),
        BallsInBins(10, 100),
        Importance(0.1, 2.0**-10),
    )
    for (method, policy, _, _), rule in RULES.items():
        if method == "rdp":
            assert all(rule.failure(each) == 0 for each in policies if type(each) is policy)


@pytest.mark.parametrize("query", [LaplaceSum(1.0, 2.0), RandomizedAnswer(0.7), NoisyMax(1.0, 8.0)])
@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_cuts_are_not_rewarded_where_nothing_pays_for_them(query, relation):
    """A capacity of 1 cuts most samples: that a record is seldom drawn says nothing then, and the
    failure has no part in a filter's limit. The cost is that of all records.
    """
    cut, every = (
        Sampled(policy, (query,), adaptive=True)
        for policy in (TruncatedPoisson(0.1, 1, 100), Poisson(1.0))
    )
    for wrap in (
        lambda event: event,
        lambda event: Parallel((replace(event, adaptive=False),), moves=False),
    ):
        costs = []
        for event in (cut, every):
            guard = ZcdpFilter(50.0).guard(relation)
            guard.record(wrap(event), 1)
            costs.append(guard.used)
        assert costs[0] >= costs[1] * (1 - 1e-12)


@pytest.mark.parametrize(
    "event", [step(0.11, 1.0), step(0.1, 0.99), step(0.1, 1.0, numerical_delta=1e-12)]
)
def test_a_step_that_the_committed_one_does_not_dominate_is_refused(event):
    with pytest.raises(BudgetExhausted, match="committed"):
        DominatedBy(COMMITTED).guard().admit(event, 1)


def test_dominated_steps_follow_the_committed_list_to_its_end():
    guard = DominatedBy(COMMITTED).guard()
    gentle = step(0.05, 4.5)
    guard.admit(gentle, 3)  # across the boundary of two runs
    guard.record(gentle, 2)
    guard.admit(step(0.9, 4.0), 1)
    guard.record(gentle, 1)
    with pytest.raises(BudgetExhausted, match="3 of 3"):
        guard.admit(gentle, 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RenyiFilter(2.0, DELTA, (1.0,)),
        lambda: RenyiFilter(2.0, DELTA, (2.0,)),
        lambda: RenyiFilter(-1.0, DELTA),
        lambda: ZcdpFilter(0.0),
        lambda: GaussianFilter(math.nan),
        lambda: RenyiFilter(2.0, DELTA, numerical_delta=DELTA),
        lambda: DominatedBy((Repeated(step(0.1, 1.0), 1),)),
        lambda: GaussianFilter(1.0).guard("nobody"),
        lambda: Filter.from_json({"type": "poisson", "rate": 0.1}),
    ],
)
def test_bad_declarations_are_refused(make):
    with pytest.raises(InvalidArgument):
        make()


# The ledger


@by_name
def test_a_ledger_goes_on_where_its_filter_was(rule, tmp_path):
    event = step(0.1, 5.0)
    with opened(tmp_path / "run.dpl", rule) as ledger:
        ledger.reserve(event)
    with opened(tmp_path / "run.dpl", rule, plan={"added": "after looking"}) as ledger:
        ledger.reserve(event)
    guard = rule.guard()
    guard.record(event, 2)
    assert odometer(Ledger.read(tmp_path / "run.dpl"), DELTA).used == guard.used > 0
    assert isinstance(account(tmp_path / "run.dpl"), FilterGuarantee)


def test_the_ledger_refuses_before_the_step_that_would_exceed(tmp_path):
    with opened(tmp_path / "run.dpl", GaussianFilter(1.0)) as ledger:
        ledger.reserve(step(1.0, 1.25))
        with pytest.raises(BudgetExhausted, match=r"64\.00%"):
            ledger.reserve(step(1.0, 1.6))
        ledger.reserve(step(1.0, 1.7))
        assert ledger.count == 2


def test_another_filter_or_guard_cannot_take_over(tmp_path):
    opened(tmp_path / "run.dpl", GaussianFilter(1.0)).close()
    with pytest.raises(LedgerMismatch, match="filter"):
        opened(tmp_path / "run.dpl", GaussianFilter(2.0))
    with pytest.raises(LedgerMismatch, match="guard"):
        Ledger.open(
            tmp_path / "run.dpl",
            GaussianFilter(2.0).guard(),
            Header(filter=GaussianFilter(1.0).to_json()),
        )
    with pytest.raises(LedgerMismatch, match="guard"):
        Ledger.open(
            tmp_path / "run.dpl", None, Header(plan={"n": 2}, filter=GaussianFilter(1.0).to_json())
        )


def test_an_adaptive_step_without_a_filter_is_refused_before_it_is_recorded():
    with Ledger.in_memory(header=Header()) as ledger:
        with pytest.raises(LedgerMismatch, match="filter"):
            ledger.reserve(step(0.1, 1.0))
        assert ledger.count == 0


# The guarantee


def accounted(rule: Filter, *events: Sampled, **kwargs: object) -> FilterGuarantee:
    with Ledger.in_memory(rule.guard(), Header(filter=rule.to_json())) as ledger:
        for event in events:
            ledger.reserve(event)
    return account(ledger, **kwargs)


@by_name
def test_the_guarantee_is_the_filters_however_little_was_spent(rule):
    nothing, something = accounted(rule), accounted(rule, step(0.05, 8.0))
    for delta in (1e-9, DELTA, 1e-2):
        assert nothing.epsilon(delta) == something.epsilon(delta)
    assert (nothing.steps, something.steps) == (0, 1)
    assert nothing.epsilon(DELTA).upper > 0
    assert something.envelope is something.rate is something.noise_multiplier is None
    assert rule.title in something.note(DELTA)


@pytest.mark.parametrize("orders", [(), (6.0,), (8.0, 16.0, 32.0)])
@pytest.mark.parametrize("numerical_delta", [0.0, 4e-6])
def test_renyi_filter_claims_its_declared_budget_and_never_more(orders, numerical_delta):
    guarantee = accounted(RenyiFilter(2.0, DELTA, orders, numerical_delta))
    assert 2.0 * (1 - 1e-9) < guarantee.claim(DELTA) <= 2.0
    assert guarantee.delta(2.0).upper == pytest.approx(DELTA)
    assert guarantee.claim(1e-7) > 2.0 > guarantee.claim(1e-3)
    assert guarantee.claim(1e-6 if numerical_delta else 1e-300) == (
        math.inf if numerical_delta else pytest.approx(guarantee.claim(1e-300))
    )


def test_zcdp_and_gaussian_filters_claim_what_their_parameter_means():
    mu = 0.8
    exact = closed_forms.epsilon(mu, DELTA).upper
    assert accounted(GaussianFilter(mu)).claim(DELTA) == pytest.approx(exact, rel=1e-9)
    zcdp = accounted(ZcdpFilter(mu**2 / 2))
    assert (
        exact < zcdp.claim(DELTA) < 1.15 * exact
    )  # a conversion through ρ loses something, never gains
    assert zcdp.delta(zcdp.claim(DELTA)).upper == pytest.approx(DELTA, rel=1e-6)
    textbook = mu**2 / 2 + 2 * math.sqrt(
        mu**2 / 2 * math.log(1 / DELTA)
    )  # Bun & Steinke 2016, Proposition 1.3
    assert zcdp.claim(DELTA) < textbook


@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_domination_claims_the_committed_list(method):
    guarantee = accounted(DominatedBy(COMMITTED), step(0.01, 9.0), method=method)
    assert guarantee.claim(DELTA) == account(COMMITTED, method).claim(DELTA)
    assert guarantee.method == method


def test_domination_is_as_accurate_as_asked():
    committed = (Repeated(step(0.05, 1.0, adaptive=False), 50),)
    wide, narrow = (
        accounted(DominatedBy(committed), accuracy=accuracy).epsilon(DELTA)
        for accuracy in (1e-2, 1e-5)
    )
    assert narrow == account(committed, accuracy=1e-5).epsilon(DELTA)
    assert narrow.upper - narrow.lower < 1e-5 * narrow.upper < wide.upper - wide.lower
    with pytest.raises(InvalidArgument, match="accuracy"):
        accounted(GaussianFilter(1.0), accuracy=0.0)


def test_guarantee_is_refused_where_nothing_enforced_the_filter():
    rule = GaussianFilter(1.0)
    with Ledger.in_memory(header=Header(filter=rule.to_json())) as ledger:
        ledger.reserve(step(1.0, 10.0))
    with pytest.raises(UnsupportedEvent, match="unguarded"):
        account(ledger)


def test_guarantee_is_refused_for_steps_that_the_filter_does_not_admit():
    class Lenient:
        """Calls itself the filter's guard and admits everything."""

        def describe(self):
            return GaussianFilter(1.0).guard().describe()

        def admit(self, event, times): ...

        def record(self, event, times): ...

    with Ledger.in_memory(Lenient(), Header(filter=GaussianFilter(1.0).to_json())) as ledger:
        ledger.reserve(step(1.0, 0.5))
    with pytest.raises(UnsupportedEvent, match="does not admit"):
        account(ledger)


def test_guarantee_is_refused_for_another_relation_and_unknown_filters():
    with pytest.raises(UnsupportedEvent, match="replace_one"):
        accounted(GaussianFilter(1.0), relation="replace_one")
    with (
        Ledger.in_memory(header=Header(filter={"type": "from the future"})) as ledger,
        pytest.raises(UnsupportedEvent, match="filter"),
    ):
        account(ledger)


def test_an_odometer_reading_cannot_pass_for_a_guarantee():
    rule = GaussianFilter(1.0)
    with Ledger.in_memory(rule.guard(), Header(filter=rule.to_json())) as ledger:
        ledger.reserve(step(1.0, 4.0))
    reading = odometer(ledger, DELTA)
    assert reading.if_fixed_in_advance == pytest.approx(
        closed_forms.epsilon(0.25, DELTA).upper, rel=1e-9
    )
    assert reading.if_fixed_in_advance < account(ledger).claim(DELTA)
    assert not isinstance(reading, Interval | float)
    assert not {"epsilon", "upper", "claim", "delta", "lower"} & set(dir(reading))
    assert "not a guarantee" in str(reading)
    with pytest.raises(LedgerError):
        odometer(Ledger.in_memory(header=Header()), DELTA)
    assert isinstance(reading, Reading)


# Why filters: choosing the second step from the first one's output


FIRST, LARGE, SHARP = Pair(0.3, 1.0), Pair(1.0, 8.0), Pair(0.02, 0.506)
EPSILON, REALISED, ADAPTIVE = 0.5, 0.03279, 0.03450


def losses(pair: Pair, x: np.ndarray) -> np.ndarray:
    """The privacy loss of the sum x when a record is removed."""
    return np.logaddexp(
        math.log1p(-pair.rate) if pair.rate < 1 else -math.inf,
        math.log(pair.rate) + (2 * x - 1) / (2 * pair.noise_multiplier**2),
    )


def profile(pair: Pair, epsilon: np.ndarray) -> np.ndarray:
    """δ(ε) of removing a record, any real ε: q·δ_G(log(1 + (e^ε − 1)/q)), or 1 − e^ε below all
    losses.
    """
    mu, odds = 1 / pair.noise_multiplier, 1 + np.expm1(epsilon) / pair.rate
    base = np.log(np.where(odds > 0, odds, 1.0))
    full_batch = norm.cdf(mu / 2 - base / mu) - np.exp(base) * norm.cdf(-mu / 2 - base / mu)
    return np.where(odds > 0, pair.rate * full_batch, -np.expm1(epsilon))


def choose(second_steps: list[Pair]) -> float:
    """δ(EPSILON) of FIRST followed by whichever second step is worst for the output that was
    seen.
    """
    x = np.linspace(-9, 10, 20_001)
    first = FIRST
    density = (1 - first.rate) * norm.pdf(x) + first.rate * norm.pdf(x, 1)
    rest = EPSILON - losses(first, x)
    worst = np.max([profile(pair, rest) for pair in second_steps], axis=0)
    return float(np.trapezoid(density * worst, x))


def as_steps(*pairs: Pair) -> list[Sampled]:
    return [step(pair.rate, pair.noise_multiplier) for pair in pairs]


def test_composing_the_realised_list_would_be_unsound():
    fixed = [
        [replace(event, adaptive=False) for event in as_steps(FIRST, second)]
        for second in (LARGE, SHARP)
    ]
    for events in fixed:
        assert account(events).delta(EPSILON).upper == pytest.approx(REALISED, rel=1e-3)
    assert choose([LARGE]) == pytest.approx(REALISED, rel=1e-3)
    assert choose([SHARP]) == pytest.approx(REALISED, rel=1e-3)
    adaptive = choose([LARGE, SHARP])
    assert adaptive == pytest.approx(ADAPTIVE, rel=1e-3)
    assert adaptive > 1.05 * max(account(events).delta(EPSILON).upper for events in fixed)


def test_filters_refuse_or_cover_the_adaptive_choice():
    committed = tuple(
        Repeated(replace(event, adaptive=False), 1) for event in as_steps(FIRST, LARGE)
    )
    guard = DominatedBy(committed).guard()
    guard.record(as_steps(FIRST)[0], 1)
    guard.admit(as_steps(LARGE)[0], 1)
    with pytest.raises(BudgetExhausted):
        guard.admit(as_steps(SHARP)[0], 1)
    both = DominatedBy(
        tuple(
            Repeated(step(pair.rate, pair.noise_multiplier, adaptive=False), 1)
            for pair in (FIRST, Pair(1.0, 0.506))
        )
    )
    assert accounted(both, *as_steps(FIRST, SHARP)).delta(EPSILON).upper > ADAPTIVE

    for orders in (
        (2.0,),
        (3.0,),
        (2.0, 4.0),
    ):  # wherever both ways are admitted, the declared δ covers the choice
        for delta in np.geomspace(0.02, 0.9, 40):
            try:
                rule = RenyiFilter(EPSILON, float(delta), orders)
                for events in (as_steps(FIRST, LARGE), as_steps(FIRST, SHARP)):
                    accounted(rule, *events)
            except (BudgetExhausted, InvalidArgument):
                continue
            assert delta >= ADAPTIVE
            break
        else:
            raise AssertionError("the comparison never took place")


def test_a_gaussian_filter_is_exact_for_steps_chosen_from_outputs():
    # Two full-batch steps with Σ1/z² = 1, the second's noise chosen by the sign of the first
    # output. Exactly 1-GDP.
    rule = GaussianFilter(1.0)
    first, second = step(1.0, 1 / 0.6), step(1.0, 1 / 0.8)
    guarantee = accounted(rule, first, second)
    x = np.linspace(-12, 12, 4001)
    mean, z = 1.0, 1 / 0.6
    loss = (2 * x - mean) / (2 * z**2)
    rest = np.where(x > 0, 0.8, 0.3)  # spend all that is left, or less
    below = [
        closed_forms.delta(mu, value)
        if value >= 0
        else 1 - math.exp(value) + math.exp(value) * closed_forms.delta(mu, -value)
        for mu, value in zip(rest, 1.0 - loss, strict=True)
    ]
    true = float(np.trapezoid(norm.pdf(x, mean, z) * below, x))
    assert true < guarantee.delta(1.0).upper
    assert guarantee.delta(1.0).upper == pytest.approx(closed_forms.delta(1.0, 1.0), rel=1e-9)
