"""Private predictions: paid before teachers are asked, within the budget, and equal for equals."""

import json
import math
import os
import signal
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings as budgeted, strategies as st

from dpfy import BudgetExhausted, Ledger, PrivatePredictor, Teachers
from dpfy.ensembles import Partition, predictor as module
from dpfy.errors import InvalidArgument, LedgerLocked, LedgerMismatch
from dpfy.noise import SecureStream
from dpfy.plans.prediction import PredictionPlan

BUDGET = {"noise": 8.0, "epsilon": 3.0, "delta": 1e-6}
VOTES = {**BUDGET, "classes": 3, "shape": (2,)}


class Constant:
    def __init__(self, label):
        self.label = label

    def predict(self, x):
        return np.full(len(x), self.label)


class Raising:
    def predict(self, x):
        raise RuntimeError(f"a secret: {x}")


class Leaving:
    def predict(self, x):
        raise SystemExit(7)


class Shapeless:
    def predict(self, x):
        return np.zeros((len(x), 4))


class Texts:
    def predict(self, x):
        return np.array(["1"] * len(x) + ["x"])


class Adversary:
    """A teacher that answers each input by something else, valid or not."""

    def predict(self, x):
        return np.array([0, 1, 2, 3, -1, 0.5, math.inf, 1e300])[(x[:, 0].astype(int) * 5 + 2) % 8]


BEHAVIOURS = [
    None,
    *(Constant(label) for label in (0, 1, 2, 3, -1, 0.5, math.nan, math.inf, 1e300)),
    Raising(),
    Leaving(),
    Shapeless(),
    Texts(),
    Adversary(),
]
PARTS = Teachers([Constant(1)] * 40)


def paid(path):
    return sum(run.times for run in Ledger.read(path).uses)


def stored(path):
    lines = path.with_name(path.name + ".answers").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "service.dpl"


def test_budget_is_exact_to_the_last_answer(file):
    service = PrivatePredictor(PARTS, ledger=file, **VOTES)
    assert service.plan.answers == service.answers_left == 13
    for number in range(13):
        assert service.predict([number, 0]) in (0, 1, 2)
        assert paid(file) == number + 1 and service.answers_left == 12 - number
    before = file.read_bytes()
    with pytest.raises(BudgetExhausted, match="used up"):
        service.predict([13, 0])
    assert file.read_bytes() == before and 0 <= service.left < 1 / 13
    assert service.guarantee.claim(1e-6) <= 3.0
    assert [each["paid"] for each in stored(file)] == list(range(1, 14))


def test_several_inputs_are_answered_as_far_as_the_budget_goes(file):
    service = PrivatePredictor(PARTS, ledger=file, **VOTES)
    rows = [[number, 1] for number in range(20)]
    answers = service.predict_each(rows)
    assert answers.count(None) == 7 and None not in answers[:13] and paid(file) == 13
    assert service.predict_each(rows) == answers and paid(file) == 13


def test_equal_inputs_cost_nothing_and_get_the_same_answer(file):
    service = PrivatePredictor(PARTS, ledger=file, **{**VOTES, "noise": 400.0, "epsilon": 0.5})
    forms = [
        [0.1, -0.0],
        (0.1, 0),
        np.array([0.1, 0.0], dtype=np.float32),
        np.array([0.1, 0.0], dtype=">f8"),
        torch.tensor([0.1, 0.0]),
        np.asfortranarray(np.array([[0.1, 9], [0.0, 9]]))[:, 0],
    ]
    first = service.predict(forms[0])
    assert {service.predict(form) for form in forms * 30} == {first} and paid(file) == 1
    again = PrivatePredictor(PARTS, ledger=file, **{**VOTES, "noise": 400.0, "epsilon": 0.5})
    assert again.predict(forms[1]) == first and again.count_new(forms[:1]) == 0
    assert again.predict_each([[0.1, 0.0]] * 5) == [first] * 5 and paid(file) == 1
    again.predict([0.1, 1e-9])
    assert paid(file) == 2


def test_answer_is_reserved_before_teachers_are_asked_and_kept_before_it_is_handed_out(file):
    seen = []

    class Watching:
        parts, key_source, unit = 40, "operating system", "record"

        def answers(self, x):
            seen.append((paid(file), len(stored(file)), len(x)))
            return np.ones((40, len(x)))

    service = PrivatePredictor(Watching(), ledger=file, **VOTES)
    service.predict([0, 0])
    service.predict_each([[1, 0], [2, 0], [0, 0], [1, 0]])
    assert seen == [(1, 0, 1), (3, 1, 2)]


@pytest.mark.parametrize("crash", [KeyboardInterrupt, MemoryError])
def test_crash_between_reservation_and_answer_is_paid_for_and_answers_nothing(file, crash):
    class Failing:
        parts, key_source, unit, fails = 40, "operating system", "record", True

        def answers(self, x):
            if self.fails:
                raise crash
            return np.ones((40, len(x)))

    teachers = Failing()
    service = PrivatePredictor(teachers, ledger=file, **VOTES)
    with pytest.raises(crash):
        service.predict([0, 0])
    assert paid(file) == 1 and stored(file) == []
    teachers.fails = False
    answer = service.predict([0, 0])
    assert paid(file) == 2 and [each["paid"] for each in stored(file)] == [2]
    assert service.predict([0, 0]) == answer and paid(file) == 2


def ends_itself(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def writes_half(descriptor, data):
    if b"question" in data:
        os.pwrite(descriptor, data[: len(data) // 2], os.fstat(descriptor).st_size)
        ends_itself()
    return WRITE(descriptor, data)


WRITE = os.write


@pytest.mark.parametrize("place", ["asked", "writing"])
def test_process_that_is_killed_has_paid_and_has_answered_nothing(file, place, monkeypatch):
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(
            *(Constant, "predict", ends_itself) if place == "asked" else (os, "write", writes_half)
        )
        try:
            PrivatePredictor(PARTS, ledger=file, **VOTES).predict([0, 0])
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    service = PrivatePredictor(PARTS, ledger=file, **VOTES)
    assert paid(file) == 1 and stored(file) == []
    service.predict([0, 0])
    assert paid(file) == 2 and [each["paid"] for each in stored(file)] == [2]


def test_two_writers_share_a_budget_and_agree(file):
    # Each thread has a predictor of its own, as a process has: they meet in the files alone.
    services = [PrivatePredictor(PARTS, ledger=file, **VOTES) for _ in range(3)]
    found = [[] for _ in services]

    def ask(number):
        for place in range(20):
            found[number].append(services[number].predict_each([[place, 0]])[0])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paid(file) == len(stored(file)) == 13
    for answers in zip(*found, strict=True):
        assert len(set(answers) - {None}) <= 1
    known = {each["question"]: each["answer"] for each in stored(file)}
    assert len(known) == 13


def test_ledger_that_is_written_to_by_others_is_waited_for_and_then_refused(file):
    service = PrivatePredictor(PARTS, ledger=file, patience=0.05, **VOTES)
    with Ledger.open(file, service.plan.filter.guard()):
        with pytest.raises(LedgerLocked):
            service.predict([0, 0])
        with pytest.raises(LedgerLocked):
            PrivatePredictor(PARTS, ledger=file, patience=0.0, **VOTES)
    assert service.predict([0, 0]) in (0, 1, 2)


@pytest.mark.parametrize(
    ("x", "text"),
    [
        ([math.nan, 0], "finite"),
        ([math.inf, 0], "finite"),
        ([1e39, 0], "finite"),
        ([10**400, 0], "array of numbers"),
        ([1, 2, 3], r"declared shape \(2,\)"),
        ([[1, 2]], "declared shape"),
        ([], "declared shape"),
        (3.0, "declared shape"),
        (["a", "b"], "array of numbers"),
        ([1, [2, 3]], "array of numbers"),
        ([1j, 0], "array of numbers"),
        (None, "array of numbers"),
    ],
)
def test_bad_inputs_are_refused_by_declarations_and_cost_nothing(file, x, text):
    service = PrivatePredictor(PARTS, ledger=file, **VOTES)
    with pytest.raises(InvalidArgument, match=text):
        service.predict(x)
    assert paid(file) == 0


def test_huge_and_empty_inputs_are_answered(file):
    service = PrivatePredictor(PARTS, ledger=file, **VOTES)
    assert service.predict([3e38, -3e38]) in (0, 1, 2) and service.predict_each([]) == []
    assert paid(file) == 1


def test_input_that_no_teacher_understands_is_answered_by_noise(file):
    # Without a declared shape teachers fail in silence: an error would tell of the records.
    service = PrivatePredictor(Teachers([Raising()] * 40), ledger=file, **{**VOTES, "shape": None})
    assert service.predict([[1.0], [2.0]]) in (0, 1, 2) and paid(file) == 1


class Told:
    """The exact values that a service hands to its noise."""

    def __init__(self, monkeypatch):
        self.values = []
        released = module.Gaussian.release

        def release(mechanism, values, stream):
            self.values.append((mechanism, np.array(values, dtype=float)))
            return released(mechanism, values, stream)

        monkeypatch.setattr(module.Gaussian, "release", release)

    def of(self, teachers, **settings):
        self.values.clear()
        PrivatePredictor(teachers, **settings).predict_each([[0, 0], [1, 0]])
        return self.values[:]


@pytest.fixture(scope="module")
def told():
    with pytest.MonkeyPatch.context() as patch:
        yield Told(patch)


@budgeted(max_examples=40)
@given(st.lists(st.sampled_from(BEHAVIOURS), min_size=2, max_size=6), st.sampled_from(BEHAVIOURS))
@pytest.mark.parametrize(
    "settings",
    [
        {"classes": 3},
        {"classes": 3, "threshold": 0, "check_noise": 0.01},
        {"bounds": (-1.0, 0.7)},
    ],
)
def test_any_behaviour_of_one_teacher_moves_what_gets_noise_by_at_most_the_bound(
    told, settings, behaviours, other
):
    settings = {**BUDGET, "epsilon": 1e6, **settings}
    before, after = (
        told.of(Teachers([first, *behaviours[1:]]), **settings) for first in (behaviours[0], other)
    )
    if "threshold" in settings:  # no consensus with no votes: what follows is then not asked
        before, after = (
            [each for each in values if each[0].l2_bound == 1.0] for values in (before, after)
        )
    assert len(before) == len(after) == 2
    for (mechanism, values), (same, others) in zip(before, after, strict=True):
        assert mechanism == same
        assert np.linalg.norm(values - others) <= mechanism.l2_bound


@pytest.mark.parametrize(
    "settings",
    [{"classes": 3}, {"classes": 3, "threshold": 1, "check_noise": 30.0}, {"bounds": (0, 9)}],
)
def test_noise_has_the_recorded_scale(settings):
    # The mean of 4,000 squares leaves 5 standard deviations with probability below 1e-6; 2/3 and
    # 3/2 of the scale are 25 and 56 away.
    plan = PredictionPlan(parts=40, **{**BUDGET, **settings})
    for event in filter(None, (plan.answer, plan.check)):
        stream = SecureStream(insecure_test_key=11)
        found = module._noisy(event, np.zeros(4000), stream) / event.queries[0].stddev
        band = 5 * math.sqrt(2 / 4000)
        assert abs(np.mean(found**2) - 1) < band and abs(np.mean(found)) < 5 / math.sqrt(4000)
        for wrong in (2 / 3, 3 / 2):
            assert abs(np.mean((wrong * found) ** 2) - 1) > band


def test_answers_get_the_noise_that_was_recorded(told):
    # The mechanism that runs is that of the event on record, not of another setting.
    for settings in (
        {"classes": 3},
        {"classes": 3, "threshold": 0, "check_noise": 9.0},
        {"bounds": (0.0, 9.0)},
    ):
        service = PrivatePredictor(PARTS, **{**BUDGET, "epsilon": 100.0, **settings})
        told.values.clear()
        service.predict([0, 0])
        ran = [(each.l2_bound, each.stddev) for each, _ in told.values]
        queries = [run.event.queries[0] for run in service.ledger.uses]
        assert ran and ran == [(query.l2_bound, query.stddev) for query in queries]


def test_means_are_divided_by_the_public_number_of_parts():
    # Dividing by those who answered would tell how many did.
    teachers = Teachers([Constant(1.0)] * 10 + [Raising()] * 30)
    service = PrivatePredictor(
        teachers, bounds=(0.0, 1.0), noise=0.01, epsilon=1e4, delta=1e-6, insecure_test_key=1
    )
    assert service.predict([0]) == pytest.approx(0.5 + 0.5 * 10 / 40, abs=1e-3)


def test_threshold_costs_the_check_and_the_answer_only_with_consensus(file):
    split = Teachers([Constant(label) for label in range(4)] * 10)
    settings = {**VOTES, "classes": 4, "noise": 1.0, "epsilon": 1e4, "check_noise": 1.0}
    service = PrivatePredictor(split, ledger=file, threshold=30, **settings)
    assert service.predict([0, 0]) == -1 and service.predict([0, 0]) == -1
    assert [run.event for run in Ledger.read(file).uses] == [service.plan.check] and paid(file) == 1
    agreed = PrivatePredictor(PARTS, ledger=file.with_name("b.dpl"), threshold=30, **settings)
    assert agreed.predict([0, 0]) == 1
    uses = [run.event for run in Ledger.read(file.with_name("b.dpl")).uses]
    assert uses == [agreed.plan.check, agreed.plan.answer]


def test_with_a_threshold_the_budget_is_never_exceeded(file):
    settings = {**VOTES, "threshold": 20.0, "check_noise": 8.0}
    service = PrivatePredictor(PARTS, ledger=file, **settings)
    refused = [[number, 0] for number in range(40)]
    while service.answers_left:  # a question below the threshold leaves a part of its price
        answers = service.predict_each(refused)
        refused = [each for each, answer in zip(refused, answers, strict=True) if answer is None]
    used = 1 - service.left
    assert refused and used <= 1
    # None is refused although it could be paid for.
    plan, guard = service.plan, service.plan.filter.guard()
    for run in Ledger.read(file).uses:
        guard.record(run.event, run.times)
    with pytest.raises(BudgetExhausted):
        guard.admit(plan.price, 1)


def test_files_hold_no_votes(file):
    # Answers and reservations are all that is written.
    service = PrivatePredictor(PARTS, ledger=file, **{**VOTES, "threshold": 1, "check_noise": 9.0})
    service.predict_each([[number, 0] for number in range(4)])
    assert {tuple(sorted(each)) for each in stored(file)} == {("answer", "paid", "question")}
    assert {each["answer"] for each in stored(file)} <= {-1, 0, 1, 2}
    assert "note" not in file.read_text()


@pytest.mark.parametrize(
    "other", [{"noise": 9.0}, {"epsilon": 4.0}, {"classes": 4}, {"shape": (3,)}]
)
def test_ledger_of_another_plan_is_refused(file, other):
    PrivatePredictor(PARTS, ledger=file, **VOTES)
    with pytest.raises(LedgerMismatch, match="another plan"):
        PrivatePredictor(PARTS, ledger=file, **{**VOTES, **other})


def test_plan_of_other_teachers_is_refused():
    plan = PredictionPlan(parts=41, **VOTES)
    with pytest.raises(InvalidArgument, match="41 teachers"):
        PrivatePredictor.from_plan(PARTS, plan)
    assert PrivatePredictor.from_plan(PARTS, PredictionPlan(parts=40, **VOTES)).answers_left == 13


def test_unit_is_that_of_the_teachers(file):
    users = Teachers([Constant(1)] * 40, unit="user")
    service = PrivatePredictor(users, ledger=file, **VOTES)
    assert service.plan.unit == service.ledger.header.unit == "user"
    with pytest.raises(InvalidArgument, match="the unit 'user', and"):
        PrivatePredictor.from_plan(PARTS, service.plan)


def test_teachers_that_share_records_are_refused():
    shared = Teachers([Constant(1)] * 4, Partition(4, copies={"open": 2}))
    with pytest.raises(InvalidArgument, match="several parts"):
        PrivatePredictor(shared, **VOTES)


@pytest.mark.parametrize("key", ["noise", "parts"])
def test_test_keys_make_the_report_say_not_private(tmp_path, key):
    teachers = Teachers([Constant(1)] * 40, key_source="insecure test key")
    service = (
        PrivatePredictor(teachers, **VOTES)
        if key == "parts"
        else PrivatePredictor(PARTS, insecure_test_key=3, **VOTES)
    )
    service.predict([0, 0])
    markdown, _, _ = service.report(tmp_path)
    assert "NOT PRIVATE" in markdown.read_text()


def test_fork_cannot_spend_what_is_in_memory():
    service = PrivatePredictor(PARTS, **VOTES)
    child = os.fork()
    if child == 0:
        try:
            service.predict([0, 0])
        except BaseException as error:
            os._exit(0 if "forked process" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
