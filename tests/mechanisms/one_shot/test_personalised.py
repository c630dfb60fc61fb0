"""Personalised counts, means and medians: the loss of every group by brute force over all samples
and neighbours, the law of answers, and that nothing is read before it is paid for.

Frequencies are compared within 5.4 standard deviations: a false alarm has probability below 1e-7.
"""

import math
from itertools import combinations_with_replacement, product

import numpy as np
import pytest

from dpfy.accounting import EnvelopeGuard, account
from dpfy.errors import BudgetExhausted, InvalidArgument, LedgerMismatch, UnsupportedEvent
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import Repeated
from dpfy.mechanisms.one_shot import best_threshold, personalised
from dpfy.mechanisms.one_shot.questions import METHODS
from dpfy.mechanisms.one_shot.scores import UNIT_STEPS
from dpfy.types import GroupBudgets

GROUPS = {"strict": (0.4, 0.5), "usual": (1.0, 0.3), "open": (2.5, 0.2)}
BUDGETS = {name: epsilon for name, (epsilon, _) in GROUPS.items()}
CANDIDATES = [0.0, 0.5, 1.0]  # also the values of records
KINDS = list(product(GROUPS, CANDIDATES))
THRESHOLDS = [None, 0.8, 0.4]
DRAWS = 1500


def ledger(relation="zero_out"):
    header = Header(relation=relation, key_source="insecure test key")
    return Ledger.in_memory(header=header)


def ask(name, values, group_of, book=None, key=1, **options):
    """One of the three questions, with the public arguments that it needs."""
    book = ledger() if book is None else book
    fixed = {"count": {}, "mean": {"bounds": (0, 1)}, "median": {"candidates": CANDIDATES}}[name]
    return getattr(personalised, name)(
        values, group_of, GROUPS, book, insecure_test_key=key, **fixed, **options
    )


def reserved(name, **options):
    """The event of a question."""
    book = ledger()
    ask(name, [1.0], ["open"], book, **options)
    return book.uses[0].event


# The exact values of some records, written down once more


def exact_count(values):
    return [sum(value != 0 for value in values)]


def exact_mean(values):
    return [sum(values), sum(1 - value for value in values)]


def exact_median(values):
    scores = []
    for at in CANDIDATES:
        below, above = sum(value < at for value in values), sum(value > at for value in values)
        scores.append(-max(0, abs(below - above) - (len(values) - below - above)))
    return scores


EXACT = {"count": exact_count, "mean": exact_mean, "median": exact_median}


def log_densities(name, weights, values, query):
    """The mixture of a mechanism's laws, at all points where a ratio of two can be largest.

    Between the values of sums, a ratio of mixtures of Laplace densities is monotone in each
    coordinate, and beyond them it is constant.
    """
    values = np.array(values, dtype=float)
    if name == "median":
        scores = values / query.scale
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.log(weights @ (odds / odds.sum(axis=1, keepdims=True)))
    axis = np.arange(-1, 10) if name == "count" else np.arange(-1, 9.5, 0.5)
    points = np.array(list(product(axis, repeat=values.shape[1])))
    distances = np.abs(points[:, None, :] - values[None, :, :]).sum(axis=2)
    return np.log(np.exp(-distances / query.scale) @ weights)


def sampled_law(name, records, event):
    """The law of the answer on a sample, by all subsets of the records."""
    rates = dict(zip(event.policy.names, event.policy.rates, strict=True))
    weights, values = [], []
    for kept in product((False, True), repeat=len(records)):
        odds = [
            rates[group] if is_kept else 1 - rates[group]
            for is_kept, (group, _) in zip(kept, records, strict=True)
        ]
        weights.append(math.prod(odds))
        values.append(
            EXACT[name]([v for is_in, (_, v) in zip(kept, records, strict=True) if is_in])
        )
    return log_densities(name, np.array(weights), values, event.queries[0])


def data_sets(name):
    """All of up to three records, and some of up to eight."""
    largest = 2 if name == "mean" else 3  # its law has 441 points
    yield from (
        list(each)
        for size in range(1, largest + 1)
        for each in combinations_with_replacement(KINDS, size)
    )
    source = np.random.default_rng(5)
    for size in (4, 6, 8, 8):
        yield [KINDS[place] for place in source.integers(len(KINDS), size=size)]


def largest_losses(law, records_of):
    """The largest loss of each group, when any record of any data set is removed or added."""
    worst = dict.fromkeys(GROUPS, 0.0)
    for records in records_of:
        whole = law(records)
        for place, (group, _) in enumerate(records):
            without = law(records[:place] + records[place + 1 :])
            worst[group] = max(worst[group], float(np.abs(whole - without).max()))
    return worst


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_no_sample_costs_a_group_more_than_its_budget(name, threshold):
    event = reserved(name, method="sampling", threshold=threshold)
    worst = largest_losses(lambda records: sampled_law(name, records, event), data_sets(name))
    claims = account(event).groups
    for group, epsilon in BUDGETS.items():
        allowed = min(epsilon, threshold or 2.5)
        assert worst[group] <= allowed * (1 + 1e-9)
        assert worst[group] <= claims[group].claim(1e-15) <= allowed * (1 + 1e-6)
        if name != "median":  # one record alone attains it; three candidates say less of a median
            assert worst[group] >= allowed * (1 - 1e-9)


@pytest.mark.parametrize("name", EXACT)
def test_no_partition_costs_a_group_more_than_its_budget(name):
    event = reserved(name, method="partitioning")
    assert len(event.parts) > 1 and not event.moves
    assert np.sum([part.policy.rates for part in event.parts], axis=0).tolist() == [1, 1, 1]

    worst = dict.fromkeys(GROUPS, 0.0)
    for records in data_sets(name):
        whole = [sampled_law(name, records, part) for part in event.parts]
        for place, (group, _) in enumerate(records):
            fewer = records[:place] + records[place + 1 :]
            losses = [
                float(np.abs(log - sampled_law(name, fewer, part)).max())
                for log, part in zip(whole, event.parts, strict=True)
            ]
            assert sorted(losses)[-2] == 0  # answers are independent, and one alone is touched
            worst[group] = max(worst[group], *losses)
    claims = account(event).groups
    for group, epsilon in BUDGETS.items():
        assert worst[group] <= claims[group].claim(1e-15) <= epsilon * (1 + 1e-6)


@pytest.fixture
def told(monkeypatch):
    """What the mechanisms are given, which answer the first candidate or the value itself."""
    seen = []

    def remember(answer):
        def release(mechanism, values, stream):
            seen.append(values)
            return answer(values)

        return release

    for kind in ("Laplace", "LaplaceVector", "ExponentialMechanism"):
        at = getattr(personalised, kind)
        number = (lambda values: 0) if kind == "ExponentialMechanism" else (lambda values: values)
        monkeypatch.setattr(at, "release", remember(number))
    return seen


def chosen_law(name, records, told):
    """The law of a choice, from the scores that the library computes."""
    ask(name, [v for _, v in records], [group for group, _ in records], method="exponential")
    scores = np.array(told.pop()) / 2
    return scores - scores.max() - np.log(np.exp(scores - scores.max()).sum())


@pytest.mark.parametrize("name", EXACT)
def test_no_choice_costs_a_group_more_than_its_budget(name, told):
    """A list of people, any of whom loses a record or has one more: NaN is none."""
    event, worst = reserved(name, method="exponential"), dict.fromkeys(GROUPS, 0.0)
    kinds, source = list(product(GROUPS, [math.nan, 0.0, 1.0])), np.random.default_rng(6)
    lists = [list(each) for each in combinations_with_replacement(kinds, 3)]
    lists += [[kinds[at] for at in source.integers(len(kinds), size=8)] for _ in range(60)]
    lists += [[(group, v)] * 8 for group, v in kinds] + [[kinds[0]] * 7 + [each] for each in kinds]
    for people in lists:
        whole = chosen_law(name, people, told)
        for place, (group, _) in enumerate(people):
            without = [*people[:place], (group, math.nan), *people[place + 1 :]]
            loss = np.abs(whole - chosen_law(name, without, told)).max()
            worst[group] = max(worst[group], float(loss))
    claims = account(event, relation="zero_out").groups
    for group, epsilon in BUDGETS.items():
        assert worst[group] <= claims[group].claim(1e-15) <= epsilon * (1 + 1e-6)
        assert worst[group] >= 0.3 * epsilon  # the guarantee is not won by telling nothing


@pytest.mark.parametrize("name", EXACT)
def test_mechanisms_are_given_the_values_of_records_that_are_there(name, told):
    values = [1.0, math.nan, 0.5, "no number", 0.0, math.inf, None, 1.0, 0.5]
    group_of = ["open", "open", "strict", "open", None, "open", "open", "usual", "elsewhere"]
    ask(name, values, group_of, method="partitioning")
    bins = [part.policy.rates for part in reserved(name, method="partitioning").parts]
    there = [("open", 1.0), ("strict", 0.5), ("usual", 1.0)]
    taken = [[v for group, v in there if rates[list(GROUPS).index(group)] == 1] for rates in bins]
    given = [np.atleast_1d(each).tolist() for each in told[: len(bins)]]
    assert given == [EXACT[name](each) for each in taken]


def test_the_cost_of_a_sample_is_that_of_its_worst_neighbours_at_every_epsilon():
    """One record more or none: (1 − q)·Lap(0) + q·Lap(1) against Lap(0), by fine sums."""
    event = reserved("count", method="sampling")
    scale, found = event.queries[0].scale, account(event).groups
    x = np.linspace(-40, 41, 2_000_001)
    none, one = (np.exp(-np.abs(x - at) / scale) / (2 * scale) * (x[1] - x[0]) for at in (0, 1))
    for group, rate in zip(event.policy.names, event.policy.rates, strict=True):
        mixed = (1 - rate) * none + rate * one
        for epsilon in (0.1, 0.3, 0.8):
            odds = math.exp(epsilon)
            delta = max(
                np.maximum(a - odds * b, 0).sum() for a, b in ((mixed, none), (none, mixed))
            )
            lower, upper = found[group].delta(epsilon)
            assert lower - 1e-6 <= delta <= upper + 1e-6 and upper - lower < 1e-3


# The law of what is answered


def frequent(seen, odds, draws=DRAWS):
    return abs(seen - draws * odds) <= 5.4 * math.sqrt(draws * odds * (1 - odds)) + 1e-9


def below(level, kept, scale):
    """The probability of a noisy count below a level, of a mixture of counts."""
    gap = level - np.arange(len(kept))
    odds = np.where(gap < 0, np.exp(-np.abs(gap) / scale) / 2, 1 - np.exp(-np.abs(gap) / scale) / 2)
    return float(kept @ odds)


@pytest.mark.parametrize(("strict", "wrong"), [(4, "scale"), (30, "rate")])
def test_a_count_has_the_law_of_its_event_and_no_other(strict, wrong):
    group_of = ["strict"] * strict + ["open"] * 2 + ["elsewhere"] * 3
    event, book = reserved("count", method="sampling"), ledger()
    right = {"rate": event.policy.rates[0], "scale": event.queries[0].scale}
    told = event.policy.rate * np.array(
        [ask("count", [1] * (strict + 5), group_of, book, key) for key in range(DRAWS)]
    )

    def fits(rate, scale):
        law = [
            math.comb(strict, k) * rate**k * (1 - rate) ** (strict - k) for k in range(strict + 1)
        ]
        kept = np.array([0, 0, *law])
        return all(
            frequent((told < level).sum(), below(level, kept, scale))
            for level in (1.0, 1.5, 2.25, 2.5, 3.5)
        )

    assert fits(**right)
    for factor in (2 / 3, 3 / 2):
        assert not fits(**right | {wrong: factor * right[wrong]})


def test_a_choice_has_the_law_of_its_event_and_no_other():
    """Three people of the open group, two of whom count: how often each number is told."""
    book = ledger()
    told = [
        ask("count", [1, 1, 0], ["open"] * 3, book, key, method="exponential")
        for key in range(DRAWS)
    ]
    seen = np.bincount(np.array(told, dtype=int), minlength=4)

    def fits(scale):
        law = np.exp(-np.array([2, 1, 0, 1]) * BUDGETS["open"] / scale)
        return all(frequent(*pair) for pair in zip(seen, law / law.sum(), strict=True))

    assert fits(2.0) and not fits(2.0 * 2 / 3) and not fits(2.0 * 3 / 2)


@pytest.mark.parametrize("method", METHODS)
def test_answers_are_near_the_truth_where_groups_are_alike(method):
    source, book = np.random.default_rng(2), ledger()
    values = source.uniform(0, 1, 4000)
    group_of = source.choice(list(GROUPS), 4000, p=[share for _, share in GROUPS.values()])
    counted = (values > 0.7).astype(int)
    grid = np.linspace(0, 1, 101)
    count = ask("count", counted, group_of, book, method=method)
    mean = ask("mean", values, group_of, book, method=method)
    median = personalised.median(
        values, group_of, GROUPS, book, candidates=grid, method=method, insecure_test_key=1
    )
    assert abs(count - counted.sum()) < 300
    assert abs(mean - values.mean()) < 0.05 and abs(median - np.median(values)) < 0.06


def test_a_public_number_of_records_chooses_threshold_and_bins():
    few, many = (reserved("count", records=records) for records in (2, 10**6))
    assert few == reserved("count", threshold=best_threshold(GROUPS, 2)) != many
    assert many == reserved("count", threshold=BUDGETS["strict"])  # no coin is worth its error
    assert len(reserved("count", method="partitioning", records=10**6).parts) == 1


def test_values_are_clipped_to_the_bounds():
    group_of, book = ["open"] * 300, ledger()
    for method in METHODS:
        assert ask("mean", [1e9] * 300, group_of, book, method=method) > 0.95
        assert ask("mean", [-1e9] * 300, group_of, book, method=method) < 0.05


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(
    ("values", "group_of"),
    [
        ([], []),
        ([math.nan, math.inf], ["open", "open"]),
        ([1.0], ["open"]),
        ([1.0, 0.0], ["elsewhere", None]),
        (np.array([1, 0], dtype=np.int8), np.array(["open", "strict"])),
    ],
)
def test_few_records_none_and_bad_ones_are_answered_like_others(method, name, values, group_of):
    book = ledger()
    assert math.isfinite(ask(name, values, group_of, book, method=method))
    assert book.uses[0].event == reserved(name, method=method)  # the event tells nothing of them


# Before anything is read


class Watched(list):
    """Values that note how many events were recorded when they are first read."""

    def __init__(self, values, book, seen):
        super().__init__(values)
        self.book, self.seen = book, seen

    def __iter__(self):
        self.seen.append(self.book.count)
        return super().__iter__()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", EXACT)
def test_nothing_is_read_before_it_is_paid_for(name, method):
    event = reserved(name, method=method)
    header = Header(relation="zero_out", key_source="insecure test key")
    budgets = GroupBudgets(tuple(GROUPS), tuple(2 * each for each in BUDGETS.values()), 1e-6)
    guard = EnvelopeGuard((Repeated(event, 1),), budgets, "zero_out")
    with Ledger.in_memory(guard, header) as book:
        seen = []
        values, labels = Watched([1.0], book, seen), Watched(["open"], book, seen)
        ask(name, values, labels, book, method=method)
        assert set(seen) == {1}
        seen.clear()
        with pytest.raises(BudgetExhausted):
            ask(name, values, labels, book, method=method)
        assert not seen


@pytest.mark.parametrize("method", METHODS)
def test_what_breaks_while_records_are_read_is_paid_for(method):
    class Broken(list):
        def __iter__(self):
            raise OSError("disk")

    book = ledger()
    with pytest.raises(OSError, match="disk"):
        ask("count", Broken([1.0]), ["open"], book, method=method)
    assert book.count == 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"method": "laplace"}, "method='laplace'"),
        ({"threshold": 3.0}, "largest epsilon of a group"),
        ({"threshold": "auto"}, "no event pays for"),
        ({"threshold": lambda values: 1.0}, "no event pays for"),
        ({"threshold": 1.0, "method": "partitioning"}, "no meaning with method='partitioning'"),
        ({"threshold": 1.0, "method": "exponential"}, "no meaning with method='exponential'"),
        ({"records": [1.0, 0.0]}, "no event pays for"),
        ({"records": 0}, "at least 1"),
        ({"records": 9, "method": "exponential"}, "no meaning with method='exponential'"),
        ({"bounds": (1.0, 1.0)}, "least value below the largest"),
        ({"bounds": (0.0, math.inf)}, "largest bound"),
        ({"bounds": 1.0}, "least, largest"),
        ({"candidates": [0.5]}, "no meaning with method='sampling'"),
        ({"candidates": [], "method": "exponential"}, "finite public numbers"),
        ({"candidates": [math.nan], "method": "exponential"}, "finite public numbers"),
        ({"groups": {"open": (1.0, 0.9)}}, "add up to 1"),
        ({"group_of": ["open"]}, "do not fit the 1 labels of group_of"),
        ({"values": np.ones((2, 2))}, "got 2 axes"),
    ],
)
def test_a_wrong_declaration_is_refused_before_anything_is_read(options, match):
    book, seen = ledger(), []
    given = {
        "values": Watched([1.0, 0.0], book, seen),
        "group_of": Watched(["open", "open"], book, seen),
        "groups": GROUPS,
        "ledger": book,
        "bounds": (0.0, 1.0),
        "insecure_test_key": 1,
    } | options
    with pytest.raises(InvalidArgument, match=match):
        personalised.mean(**given)
    assert not seen and book.count == 0


@pytest.mark.parametrize("name", ["count", "median"])
def test_a_private_list_of_people_is_refused(name):
    for book in (ledger("add_or_remove_one"), Ledger.in_memory()):
        with pytest.raises((InvalidArgument, LedgerMismatch)):
            ask(name, [1.0], ["open"], book, method="exponential")
        assert book.count == 0
    with pytest.raises(InvalidArgument, match="'zero_out'"):
        ask(name, [1.0], ["open"], ledger("add_or_remove_one"), method="exponential")
    assert ask("mean", [1.0], ["open"], ledger("add_or_remove_one"), method="exponential") >= 0


@pytest.mark.parametrize("name", ["count", "median"])
def test_what_was_asked_of_a_public_list_has_no_guarantee_for_a_private_one(name):
    """A ledger may be accounted for another relation than its own."""
    event = reserved(name, method="exponential")
    for relation, times in (("zero_out", 1), ("replace_one", 2)):
        claims = account(event, relation=relation).groups
        for group, epsilon in BUDGETS.items():
            assert claims[group].claim(1e-15) <= times * epsilon * (1 + 1e-6)
    for method in ("pld", "rdp"):
        with pytest.raises(UnsupportedEvent, match="list of people that neighbours share"):
            account(event, method, "add_or_remove_one")
    account(reserved("mean", method="exponential"), relation="add_or_remove_one")


def test_a_test_key_needs_a_ledger_that_says_so():
    with pytest.raises(LedgerMismatch, match="insecure test key"):
        ask("count", [1.0], ["open"], Ledger.in_memory())
    with Ledger.in_memory() as book:
        assert math.isfinite(personalised.count([1.0], ["open"], GROUPS, book))


def test_a_mean_is_summed_in_steps_that_no_order_of_records_changes(told):
    values = [0.1, 0.7, 1 / 3, 0.9999999]
    for order in (values, values[::-1]):
        ask("mean", order, ["open"] * 4, method="sampling")
    assert told[0] == told[1]
    assert all((each * UNIT_STEPS).is_integer() for each in told[0]) and sum(told[0]) == 4
