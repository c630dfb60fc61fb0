"""Labels by noisy votes: paid for first, within the limit, and with the noise that is on record."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import laplace, norm

import dpfy
from dpfy import InvalidArgument, Ledger, LedgerMismatch, Teachers, account
from dpfy.accounting import GroupFilterGuarantee
from dpfy.ensembles import Partition
from dpfy.ensembles.asking import Asking
from dpfy.noise import SecureStream
from dpfy.plans.pate import PatePlan
from dpfy.plans.pate_groups import TeacherGroups

GROUPS = {"strict": (1.0, 0.34), "usual": (2.0, 0.43), "open": (3.0, 0.23)}
DELTA = 1e-5


class Says:
    """A predictor with one answer."""

    def __init__(self, label):
        self.label = label

    def predict(self, x):
        return np.full(len(x), self.label)


def voting(*counts: int, **options) -> Teachers:
    """Return teachers of which so many vote for each class; the last number has no vote."""
    votes = [label for label, count in enumerate(counts[:-1]) for _ in range(count)]
    return Teachers([*map(Says, votes), *[None] * counts[-1]], **options)


def inputs(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.float64)[:, None]


def noisy(event: str, scale: float) -> np.ndarray:
    """Return the noise of 4,000 counts by the recorded event of a plan."""
    mechanism = {"answer_noise": "gnmax", "check_noise": "confident"}.get(event, "lnmax")
    noise = {"answer_noise" if event == "laplace" else event: scale}
    plan = dpfy.pate(classes=2, parts=20, mechanism=mechanism, answers=3, **noise)
    with Ledger.in_memory() as ledger:
        asking = Asking(plan, voting(20, 0, 0), inputs(1), None, ledger, SecureStream(1))
        return asking._noisy(plan.check or plan.answer, np.zeros(4000))


# The mean absolute value of 4,000 numbers has a deviation of 1.6 % (Laplace; Gaussian 1.2 %): the
# rate of false alarms at 9 % is below 2e-8, and the scales that are rejected are 33 % off.
@pytest.mark.parametrize(
    ("event", "law"), [("answer_noise", norm), ("check_noise", norm), ("laplace", laplace)]
)
def test_noise_has_the_recorded_scale(event, law):
    found = np.abs(noisy(event, 10.0)).mean()
    typical = law.expect(abs)
    assert found == pytest.approx(10 * typical, rel=0.09)
    for wrong in (2 / 3, 3 / 2):
        assert found != pytest.approx(wrong * 10 * typical, rel=0.09)


@pytest.mark.parametrize("mechanism", ["gnmax", "lnmax", "confident"])
def test_without_much_noise_the_majority_is_the_label(mechanism):
    plan = dpfy.pate(classes=3, parts=9, mechanism=mechanism, answer_noise=0.01, answers=5)
    assert plan.ask(voting(1, 8, 0, 0), inputs(5)).tolist() == [1] * 5


def test_the_limit_is_filled_to_the_last_label():
    plan = dpfy.pate(classes=3, parts=20, mechanism="gnmax", answer_noise=8, epsilon=2, delta=DELTA)
    with Ledger.in_memory() as ledger:
        labels = plan.ask(voting(18, 1, 1, 0), inputs(40), ledger)
        assert (labels >= 0).sum() == plan.most_answers == ledger.count < 40
        assert (labels[plan.most_answers :] == -1).all()
        assert not ledger.admits(plan.answer)
        assert account(ledger).claim(DELTA) == plan.guarantee.claim(DELTA) <= 2
    mu = math.sqrt(2 * (plan.most_answers + 1)) / 8
    assert mu > plan.mu >= math.sqrt(2 * plan.most_answers) / 8


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.integers(0, 20))
def test_no_order_of_comparisons_and_labels_exceeds_the_limit(key, agreeing):
    plan = dpfy.pate(
        classes=2, parts=20, answer_noise=6, check_noise=8, threshold=15, epsilon=2, delta=DELTA
    )
    with Ledger.in_memory() as ledger:
        plan.ask(voting(agreeing, 20 - agreeing, 0), inputs(30), ledger, insecure_test_key=key)
        spent = sum(
            run.times * sum((each.l2_bound / each.stddev) ** 2 for each in run.event.queries)
            for run in ledger.uses
        )
        assert spent <= plan.mu**2 * (1 + 1e-9)
        assert ledger.count >= 30 or not ledger.admits(plan.price)


def test_a_comparison_that_no_label_could_follow_is_not_paid_for():
    plan = dpfy.pate(classes=2, parts=5, answer_noise=4, check_noise=4, threshold=0, answers=3)
    with Ledger.in_memory() as ledger:
        labels = plan.ask(voting(5, 0, 0), inputs(9), ledger)
        assert ledger.count == 2 * (labels >= 0).sum() + (labels[:3] < 0).sum()


class Watched(Teachers):
    """Teachers that know how much was on record when they were asked."""

    def answers(self, x):
        self.seen.append(self.ledger.count)
        if len(self.seen) == self.dies_at:
            raise KeyboardInterrupt
        return super().answers(x)


def test_nothing_is_read_before_it_is_paid_for_and_a_crash_repeats_no_label(tmp_path):
    plan = dpfy.pate(classes=2, parts=6, mechanism="gnmax", answer_noise=3, answers=5)
    teachers = Watched([Says(1)] * 6)
    teachers.seen, teachers.dies_at = [], 3
    path = tmp_path / "votes.dpl"
    with Ledger.open(path) as teachers.ledger, pytest.raises(KeyboardInterrupt):
        plan.ask(teachers, inputs(4), teachers.ledger)
    assert teachers.seen == [1, 2, 3]
    teachers.dies_at = 0
    with Ledger.open(path) as teachers.ledger:
        labels = plan.ask(teachers, inputs(4), teachers.ledger)
        assert teachers.ledger.count == 5  # the third was paid for twice, none of the others
    assert (labels >= 0).all()
    assert plan.ask(teachers, inputs(4)[::-1], path).tolist() == labels[::-1].tolist()
    assert (plan.ask(teachers, 9 + inputs(2), path) == -1).all()
    assert teachers.seen == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("mechanism", ["gnmax", "confident", "lnmax"])
def test_teachers_see_no_input_that_is_not_paid_for(mechanism):
    plan = dpfy.pate(classes=2, parts=6, mechanism=mechanism, answer_noise=3, answers=4)
    seen = []

    class Spy(Says):
        def predict(self, x):
            seen.extend(x[:, 0].tolist())
            assert len(seen) <= ledger.count
            return super().predict(x)

    with Ledger.in_memory() as ledger:
        plan.ask(Teachers([Spy(1), *[Says(1)] * 5]), inputs(9), ledger)
        assert seen == list(range(len(seen))) and 4 <= len(seen) <= ledger.count


@pytest.mark.parametrize(
    "options", [{"mechanism": "lnmax", "answers": 4}, {"groups": GROUPS, "delta": DELTA}]
)
def test_a_ledger_goes_on_where_it_was_closed(options, tmp_path):
    plan = dpfy.pate(classes=2, parts=9, **options)
    teachers, path = Teachers([Says(1)] * 9, plan.partition), tmp_path / "votes.dpl"
    first = plan.ask(teachers, inputs(2), path)
    spent = Ledger.read(path).count
    both = plan.ask(teachers, inputs(3), path)
    assert both[:2].tolist() == first.tolist() and Ledger.read(path).count > spent
    assert account(path).claim(DELTA) <= plan.guarantee.claim(DELTA)


def test_teachers_in_another_order_of_groups_are_refused():
    plan = dpfy.pate(classes=2, parts=9, groups=GROUPS, delta=DELTA)
    other = Partition(dict(reversed(plan.partition.parts.items())))
    with pytest.raises(InvalidArgument, match=r"parts=plan\.partition"):
        plan.ask(Teachers([Says(1)] * 9, other), inputs(1))


def test_a_ledger_of_another_plan_is_refused(tmp_path):
    first, second = (
        dpfy.pate(classes=2, parts=6, answer_noise=noise, epsilon=1, delta=DELTA)
        for noise in (8, 9)
    )
    first.ask(voting(6, 0, 0), inputs(1), tmp_path / "votes.dpl")
    with pytest.raises(LedgerMismatch, match="begun with the plan"):
        second.ask(voting(6, 0, 0), inputs(1), tmp_path / "votes.dpl")


def test_a_test_key_is_on_record(tmp_path):
    plan = dpfy.pate(classes=2, parts=6, mechanism="gnmax", answers=2)
    for number, (teachers, key) in enumerate(
        [(voting(6, 0, 0), 7), (voting(6, 0, 0, key_source="insecure test key"), None)]
    ):
        plan.ask(teachers, inputs(1), tmp_path / str(number), insecure_test_key=key)
        assert not account(tmp_path / str(number)).private


def test_no_votes_at_all_are_noise_and_no_error():
    plan = dpfy.pate(classes=4, parts=3, mechanism="gnmax", answers=40)
    labels = plan.ask(Teachers([None] * 3), inputs(40), insecure_test_key=3)
    assert set(labels.tolist()) == {0, 1, 2, 3}


def test_interactive_asks_where_a_student_has_more_to_learn():
    plan = dpfy.pate(
        classes=2, parts=100, mechanism="interactive", answer_noise=1, check_noise=1,
        threshold=50, confidence=0.9, answers=20,
    )  # fmt: skip
    knows, errs, unsure = [0.95, 0.05], [0.0, 1.0], [0.8, 0.2]
    predicted = [knows, errs, unsure, [math.nan, math.inf]]
    with Ledger.in_memory() as ledger:
        labels = plan.ask(voting(100, 0, 0), inputs(4), ledger, predicted=predicted)
        assert labels.tolist() == [0, 0, -1, 0]  # its own, the teachers', none, the teachers'
        assert ledger.count == 4 + 2


def test_interactive_asks_again_where_there_was_no_label(tmp_path):
    plan = dpfy.pate(
        classes=2, parts=100, mechanism="interactive", answer_noise=1, check_noise=1,
        threshold=50, confidence=0.9, answers=20,
    )  # fmt: skip
    path, teachers = tmp_path / "votes.dpl", voting(100, 0, 0)
    first = plan.ask(teachers, inputs(2), path, predicted=[[0.8, 0.2], [0.0, 1.0]])
    again = plan.ask(teachers, inputs(2), path, predicted=[[0.0, 1.0]] * 2)
    assert first.tolist() == [-1, 0] and again.tolist() == [0, 0]
    assert Ledger.read(path).count == 3 + 2


@settings(deadline=None)
@given(
    arrays(np.float64, (5, 1), elements=st.sampled_from([0.0, 1.0, 2.0, math.nan])),
    arrays(np.float64, 3, elements=st.floats(0, 1)),
    st.integers(0, 4),
    st.sampled_from([0.0, 1.0, 2.0, math.nan]),
)
def test_a_teacher_moves_a_students_lead_by_at_most_one(answers, predicted, teacher, other):
    plan = dpfy.pate(classes=3, parts=5, mechanism="interactive", answers=1)

    def lead(voted):
        found = Teachers([Says(each) for each in voted[:, 0]])
        with Ledger.in_memory() as ledger:
            asking = Asking(plan, found, inputs(1), [predicted], ledger, None)
            return asking._lead(0, asking._votes(0))

    changed = answers.copy()
    changed[teacher] = other
    assert abs(lead(answers) - lead(changed)) <= 1


def transcripts(plan: PatePlan, votes: tuple[tuple[int, int], ...]) -> dict[tuple[int, ...], float]:
    """Return the exact probability of every series of outcomes: −1, 0 or 1 for each input."""
    found = {(): 1.0}
    for zero, one in votes:
        label = norm.cdf((zero - one) / (plan.answer_noise * math.sqrt(2)))
        passes = 1.0
        if plan.check_noise is not None:
            passes = norm.cdf((max(zero, one) - plan.threshold) / plan.check_noise)
        outcomes = {-1: 1 - passes, 0: passes * label, 1: passes * (1 - label)}
        found = {
            (*past, each): before * chance
            for past, before in found.items()
            for each, chance in outcomes.items()
        }
    return found


@pytest.mark.parametrize("mechanism", ["gnmax", "confident"])
def test_exact_delta_of_all_outcomes_is_within_the_claim(mechanism):
    checked = {} if mechanism == "gnmax" else {"check_noise": 2.0, "threshold": 2.0, "checks": 2}
    plan = dpfy.pate(
        classes=2, parts=3, mechanism=mechanism, answer_noise=1.5, answers=2, **checked
    )
    worst = {epsilon: 0.0 for epsilon in (0.0, 0.5, 1.0, 2.0)}
    ways = list(itertools.product((0, 1, None), repeat=2))  # of one teacher, on both inputs
    others = list(itertools.product((0, 1), repeat=2))
    for first, second in itertools.product(others, repeat=2):
        laws = [transcripts(plan, _tallied(first, second, way)) for way in ways]
        for law, other in itertools.permutations(laws, 2):
            for epsilon, before in worst.items():
                delta = sum(max(0, law[key] - math.exp(epsilon) * other[key]) for key in law)
                worst[epsilon] = max(before, delta)
    claimed = {epsilon: plan.guarantee.delta(epsilon).upper for epsilon in worst}
    assert all(worst[epsilon] <= claimed[epsilon] for epsilon in worst)
    assert worst[0.0] > claimed[0.0] / 3  # the claim is about this mechanism


def _tallied(*teachers) -> tuple[tuple[int, int], ...]:
    return tuple(
        (sum(each[place] == 0 for each in teachers), sum(each[place] == 1 for each in teachers))
        for place in range(2)
    )


def test_exact_delta_of_laplace_labels_is_within_the_claim():
    plan = dpfy.pate(classes=2, parts=3, mechanism="lnmax", answer_noise=1.5, answers=1)
    chances = []
    for lead in (3, 2, 1, 0, -1, -2, -3):  # a teacher moves the lead by up to two
        steps = laplace.ppf((np.arange(40_000) + 0.5) / 40_000) * 1.5
        chances.append(float(laplace.cdf(lead - steps, scale=1.5).mean()))
    for epsilon in (0.0, 0.3, 0.6):
        worst = max(
            max(p - math.exp(epsilon) * q, (1 - p) - math.exp(epsilon) * (1 - q))
            for p, q in itertools.permutations(chances, 2)
            if abs(chances.index(p) - chances.index(q)) <= 2
        )
        assert worst <= plan.guarantee.delta(epsilon).upper


def test_cost_of_the_published_setting_agrees_with_dp_accounting():
    plan = dpfy.pate(
        classes=10, threshold=200, check_noise=150, answer_noise=40, answers=286, checks=640
    )
    reference = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for noise, times in ((150, 640), (40 / math.sqrt(2), 286)):
        reference.compose(dp_accounting.GaussianDpEvent(noise), times)
    assert plan.guarantee.claim(1e-5) == pytest.approx(reference.get_epsilon(1e-5), rel=2e-3)
    assert plan.guarantee.claim(1e-5) == pytest.approx(2.54, abs=0.005)
    laplaces = dpfy.pate(classes=10, mechanism="lnmax", answer_noise=20, answers=100)
    reference = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    reference.compose(dp_accounting.LaplaceDpEvent(10), 100)
    assert laplaces.guarantee.claim(1e-5) == pytest.approx(reference.get_epsilon(1e-5), rel=5e-3)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one", "zero_out"])
@pytest.mark.parametrize("mechanism", ["gnmax", "lnmax", "confident"])
def test_a_budget_is_never_exceeded_and_nearly_used(mechanism, relation):
    plan = dpfy.pate(classes=10, mechanism=mechanism, epsilon=1.0, delta=DELTA, relation=relation)
    claim = plan.guarantee.claim(DELTA)
    assert claim <= 1.0
    counted = dpfy.pate(
        classes=10, mechanism=mechanism, answers=plan.most_answers, relation=relation
    )
    more = dpfy.pate(
        classes=10, mechanism=mechanism, answers=plan.most_answers + 1, relation=relation
    )
    assert counted.most_answers == plan.most_answers
    assert counted.guarantee.claim(DELTA) <= claim < more.guarantee.claim(DELTA)


@pytest.mark.parametrize("method", ["weight", "upsample"])
def test_every_group_has_its_own_budget(method, tmp_path):
    plan = dpfy.pate(classes=10, parts=40, groups=GROUPS, delta=DELTA, method=method)
    teachers = Teachers([Says(3)] * 40, plan.partition)
    plan.ask(teachers, inputs(60), tmp_path / "votes.dpl")
    for found in (plan.guarantee, account(tmp_path / "votes.dpl")):
        assert isinstance(found, GroupFilterGuarantee) and len(repr(found)) < 300
        for name, (epsilon, _) in GROUPS.items():
            assert 0.99 * epsilon < found.groups[name].claim(DELTA) <= epsilon
        assert found.claim(DELTA) == found.groups["open"].claim(DELTA)


def test_weights_are_in_proportion_to_mu():
    plan = dpfy.pate(classes=10, parts=250, groups=GROUPS, delta=DELTA)
    groups = plan.groups
    ratios = [mu / bound for mu, bound in zip(groups.mus, groups.bounds, strict=True)]
    assert max(ratios) / min(ratios) < 1 + 1e-5
    assert groups.teachers == (85, 108, 57)
    assert 250 - 1e-3 < sum(groups.weights) <= 250
    uniform = dpfy.pate(classes=10, parts=250, epsilon=1.0, delta=DELTA)
    assert plan.most_answers >= 3 * uniform.most_answers
    assert groups.gain == pytest.approx(plan.most_answers / uniform.most_answers, rel=0.05)


def test_copies_are_few_by_default():
    plan = dpfy.pate(classes=10, parts=250, groups=GROUPS, delta=DELTA, method="upsample")
    assert plan.partition.copies == {"strict": 1, "usual": 2, "open": 3}
    assert plan.groups.gain == pytest.approx(2.857, abs=1e-3)
    # at as many teachers of as many records each, and as much more noise
    scaled = dpfy.pate(
        classes=10, parts=472, answer_noise=75.6, groups=GROUPS, delta=DELTA, method="upsample"
    )
    uniform = dpfy.pate(classes=10, parts=250, epsilon=1.0, delta=DELTA)
    assert scaled.most_answers == pytest.approx(2.857 * uniform.most_answers, rel=0.03)


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_a_record_of_a_group_moves_votes_by_its_bound(data):
    method = data.draw(st.sampled_from(["weight", "upsample"]))
    plan = dpfy.pate(classes=3, parts=12, groups=GROUPS, delta=DELTA, method=method)
    groups = data.draw(st.lists(st.sampled_from(list(GROUPS)), min_size=1, max_size=30))
    place = data.draw(st.integers(0, len(groups) - 1))
    divided = plan.partition.draw(len(groups), bytes(32), group_of=groups)
    touched = [part for part, rows in enumerate(divided) if place in rows]
    answers = st.sampled_from([0.0, 1.0, 2.0, math.nan])
    before = data.draw(arrays(np.float64, (12, 1), elements=answers))
    after = before.copy()
    for part in touched:
        after[part] = data.draw(answers)
    votes = [dpfy.ensembles.count_votes(each, 3, plan.groups.weights) for each in (before, after)]
    bound = plan.groups.bounds[plan.groups.names.index(groups[place])]
    assert np.linalg.norm(votes[0] - votes[1]) <= math.sqrt(2) * bound * (1 + 1e-15)


@pytest.mark.parametrize(
    "plan",
    [
        dpfy.pate(classes=3, epsilon=1, delta=DELTA),
        dpfy.pate(classes=3, mechanism="lnmax", answers=4),
        dpfy.pate(classes=3, mechanism="interactive", answers=4, unit="user"),
        dpfy.pate(classes=3, groups=GROUPS, delta=DELTA),
        dpfy.pate(classes=3, groups=GROUPS, delta=DELTA, method="upsample", copies=[1, 2, 4]),
    ],
    ids=["confident", "lnmax", "interactive", "weight", "upsample"],
)
def test_json_round_trip(plan):
    assert type(plan).from_json(plan.to_json()) == plan
    assert plan.header().plan == plan.to_json()


def test_answers_follow_from_consensus():
    plan = dpfy.pate(classes=10, threshold=200, check_noise=150, epsilon=2.6, delta=DELTA)
    for share in (0.1, 0.5, 1.0):
        answers = plan.answers_at(share)
        cost = [2 * each / 40**2 + each / share / 150**2 for each in (answers, answers + 1)]
        assert cost[0] <= plan.mu**2 * (1 + 1e-9) and cost[1] > plan.mu**2 * (1 - 0.01)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "epsilon= and delta=, or"),
        ({"epsilon": 1}, "epsilon= and delta=, or"),
        ({"epsilon": 1, "delta": DELTA, "answers": 3}, "and not both"),
        ({"epsilon": 1, "delta": DELTA, "checks": 3}, "belongs to answers="),
        ({"answers": 3, "mechanism": "best"}, "mechanism='best'"),
        ({"answers": 3, "mechanism": "gnmax", "threshold": 3}, "threshold= to be left out"),
        ({"answers": 3, "confidence": 0.5}, "confidence= to be left out"),
        ({"answers": 3, "threshold": 300}, "threshold=300"),
        ({"answers": 0}, "answers=0"),
        ({"answers": 3, "answer_noise": 0}, "answer_noise=0"),
        ({"groups": GROUPS}, "Expected delta="),
        ({"groups": GROUPS, "delta": DELTA, "epsilon": 1}, "of its own"),
        ({"groups": GROUPS, "delta": DELTA, "mechanism": "lnmax"}, "Gaussian noise only"),
        ({"groups": GROUPS, "delta": DELTA, "copies": [1, 2, 3]}, "copies= belongs"),
        ({"groups": {"a": 1.0}, "delta": DELTA}, "an epsilon and a share"),
        ({"groups": GROUPS, "delta": DELTA, "parts": 2}, "at least one teacher"),
        ({"epsilon": 1e-3, "delta": DELTA, "mechanism": "lnmax"}, "buys no label"),
    ],
)
def test_what_does_not_fit_is_refused(options, said):
    with pytest.raises(InvalidArgument, match=said):
        dpfy.pate(classes=10, **options)


def test_teachers_and_inputs_that_do_not_fit_are_refused():
    plan = dpfy.pate(classes=2, parts=5, answers=1)
    with pytest.raises(InvalidArgument, match=r"parts=plan\.partition"):
        plan.ask(voting(4, 0, 0), inputs(1))
    with pytest.raises(InvalidArgument, match="unit 'record'"):
        plan.ask(voting(5, 0, 0, unit="user"), inputs(1))
    with pytest.raises(InvalidArgument, match="for no other"):
        plan.ask(voting(5, 0, 0), inputs(1), predicted=[[0.5, 0.5]])
    student = dpfy.pate(classes=2, parts=5, answers=1, mechanism="interactive")
    with pytest.raises(InvalidArgument, match=r"shape \(1, 2\)"):
        student.ask(voting(5, 0, 0), inputs(1), predicted=[0.5, 0.5])
    with pytest.raises(InvalidArgument, match="2⁻²⁰"):
        TeacherGroups(("a",), (1.0,), (1.0,), (1 / 3,), (5,))
    assert plan.partition == Partition(5)
