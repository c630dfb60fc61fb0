"""From any source to a claim."""

import json
import math
from dataclasses import dataclass

import pytest

import dpfy
from dpfy.accounting import account
from dpfy.errors import InvalidArgument, LedgerError, UnsupportedEvent
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import NonPrivate, Poisson, Repeated, Sampled, SumQuery
from dpfy.types import Interval, Relation, Unit

DELTA = 1e-5
STEP = Sampled(Poisson(0.1), (SumQuery(1.0, 1.0),))
COST = account(Repeated(STEP, 5)).epsilon(DELTA)


@dataclass(frozen=True)
class Plan:
    envelope: tuple = (Repeated(STEP, 5),)
    relation: Relation = Relation.ADD_OR_REMOVE_ONE
    unit: Unit = Unit.USER
    filter: None = None


def ledger(steps=5, **header):
    book = Ledger.in_memory(header=Header(envelope=(Repeated(STEP, 8),), **header))
    for _ in range(steps):
        book.reserve(STEP)
    return book


@pytest.mark.parametrize(
    "source",
    [
        Repeated(STEP, 5),
        [STEP] * 5,
        (Repeated(STEP, 2), Repeated(STEP, 3)),
        (event for event in [STEP] * 5),
        [STEP.to_json()] * 5,
        [{"event": STEP.to_json(), "times": 5}],
        {"event": STEP.to_json(), "times": 5},
        json.dumps([{"event": STEP.to_json(), "times": 5}]),
        Plan(),
        ledger(),
    ],
    ids=lambda source: type(source).__name__,
)
def test_every_source_of_the_same_events_costs_the_same(source):
    assert account(source).epsilon(DELTA) == COST


def test_a_path_is_a_ledger_or_a_list_of_events(tmp_path):
    with Ledger.open(tmp_path / "run.dpl", header=Header()) as book:
        for _ in range(5):
            book.reserve(STEP)
    (tmp_path / "events.json").write_text(json.dumps([STEP.to_json()] * 5))
    for path in (tmp_path / "run.dpl", str(tmp_path / "run.dpl"), tmp_path / "events.json"):
        assert account(path).epsilon(DELTA) == COST
    assert account(tmp_path / "run.dpl").durable is True
    assert account(tmp_path / "events.json").durable is None


def test_the_public_name_is_the_same_function():
    assert dpfy.account is account


def test_a_ledger_is_charged_for_what_it_reserved_and_keeps_what_it_registered():
    guarantee = account(ledger())
    assert guarantee.steps == 5 and guarantee.envelope.steps == 8
    assert guarantee.envelope.epsilon(DELTA) == account(Repeated(STEP, 8)).epsilon(DELTA)
    assert guarantee.envelope.claim(DELTA) > guarantee.claim(DELTA)
    assert guarantee.envelope.envelope is None
    assert guarantee.durable is False


def test_context_comes_from_the_source_and_can_be_overridden():
    guarantee = account(ledger(unit="user", relation="zero_out"))
    assert (guarantee.unit, guarantee.relation) == ("user", "zero_out")
    assert account(Plan()).unit == "user"
    assert account(ledger(), relation="replace_one", unit="user").relation == "replace_one"
    assert account(ledger(), relation="replace_one").claim(DELTA) > COST.upper
    assert account(ledger(), relation="zero_out").claim(DELTA) == COST.upper


@pytest.mark.parametrize(
    ("key_source", "private"),
    [("operating system", True), ("os", True), ("insecure test key", False), ("dice", False)],
)
def test_only_a_secret_key_is_private(key_source, private):
    assert account(ledger(key_source=key_source)).private is private


def test_shared_values_are_reported_only_if_shared():
    same, mixed = (
        account(Repeated(STEP, 5)),
        account([STEP, Sampled(Poisson(0.2), (SumQuery(1.0, 1.0),))]),
    )
    assert (same.rate, same.noise_multiplier) == (0.1, 1.0)
    assert (mixed.rate, mixed.noise_multiplier) == (None, None)


def test_numerical_delta_is_set_aside_before_epsilon_is_claimed():
    event = Sampled(Poisson(0.1), (SumQuery(1.0, 1.0),), numerical_delta=1e-6)
    guarantee = account(Repeated(event, 5))
    assert guarantee.numerical_delta == pytest.approx(5e-6)
    assert guarantee.epsilon(DELTA).upper == pytest.approx(
        account(Repeated(STEP, 5)).claim(5e-6), rel=1e-6
    )
    assert guarantee.epsilon(DELTA).lower < COST.lower
    assert guarantee.epsilon(4e-6).upper == math.inf
    clean = account(Repeated(STEP, 5)).delta(1.0)
    assert guarantee.delta(1.0).upper == pytest.approx(clean.upper + 5e-6)


def test_no_protection_costs_everything():
    assert account([STEP, NonPrivate("printed a record")]).epsilon(DELTA) == Interval(
        math.inf, math.inf
    )
    assert account([STEP, NonPrivate("printed a record")]).delta(1.0) == Interval(1.0, 1.0)
    bare = account(Sampled(Poisson(0.1), (SumQuery(1.0, 0.0),)))
    assert bare.epsilon(DELTA) == Interval(math.inf, math.inf)
    assert bare.delta(3.0).lower == pytest.approx(0.1)
    rare = account(Sampled(Poisson(1e-9), (SumQuery(1.0, 0.0),)))
    assert rare.epsilon(DELTA) == Interval(
        0.0, math.inf
    )  # (0, 1e-9)-DP is true, and we do not claim it


def test_delta_and_epsilon_are_inverse():
    guarantee = account(Repeated(STEP, 50))
    claim = guarantee.claim(DELTA)
    assert guarantee.delta(claim).upper == pytest.approx(DELTA, rel=1e-2)
    assert guarantee.delta(0.0).upper > guarantee.delta(1.0).upper


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, "auto", None, True])
def test_delta_outside_its_domain_is_refused(delta):
    with pytest.raises(InvalidArgument, match="delta"):
        account(STEP).epsilon(delta)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (7, InvalidArgument),
        ("[1, 2", InvalidArgument),
        ("[1, 2]", InvalidArgument),
        ([{"type": "nonsense"}], InvalidArgument),
        ("/nowhere/run.dpl", LedgerError),
        (Ledger.in_memory(), LedgerError),
        ([STEP, 3], InvalidArgument),
    ],
)
def test_what_is_not_a_source_is_refused_in_one_sentence(source, error):
    with pytest.raises(error) as caught:
        account(source)
    assert "\n" not in str(caught.value)


def test_method_relation_and_unit_are_checked():
    for arguments in ({"method": "gdp"}, {"relation": "shuffle"}, {"unit": "planet"}):
        with pytest.raises(InvalidArgument, match=next(iter(arguments))):
            account(STEP, **arguments)


def test_a_ledger_with_a_filter_is_left_to_the_filter():
    with pytest.raises(UnsupportedEvent, match="filter"):
        account(ledger(filter={"name": "renyi"}))


def test_a_bracket_that_rounding_keeps_wide_says_so():
    events = [
        Repeated(Sampled(Poisson(rate), (SumQuery(1.0, noise),)), times)
        for rate, noise, times in (
            (5.278290168144765e-08, 0.0816237600094698, 1),
            (3.297617786453356e-07, 0.34291418908927324, 2),
            (9.520130485742105e-07, 0.2669770490541304, 3),
            (0.022281937763160745, 4.441416218055131, 497),
        )
    ]
    found = account(events, relation="replace_one")
    lower, upper = found.epsilon(5.179697204708457e-171)
    assert ("wide" in found.note(5.179697204708457e-171)) == (upper - lower > 0.01 * upper)
    assert account(Repeated(STEP, 5)).note(DELTA) == ""
