"""What a client sends, whatever it is, moves the sums by one bound and reaches nobody else."""

import math
import threading
import warnings

import numpy as np
import pytest
import torch
from federations import Two, change, planned, served, update
from hypothesis import example, given, settings, strategies as st

import dpfy

ODD = [0.0, -0.0, 1.0, -1.0, 5e-324, 1e-45, 1e30, -1e30, 3e38, 1e200, 1.7e308]
ODD += [math.nan, math.inf, -math.inf]
GROUPS = dpfy.clip_groups(Two(), "tensor", clip=0.7)
PLANS = {
    "flat": planned(clip=0.7),
    "per layer": planned(clip=GROUPS),
    "adaptive": planned(
        clip=0.7, noise_multiplier=1.0, controllers=[dpfy.QuantileClipping(share=0.3)]
    ),
    "adaptive per layer": planned(
        clip=GROUPS, noise_multiplier=1.0, controllers=[dpfy.QuantileClipping(share=0.2)]
    ),
    "statistics": planned(
        clip=0.7,
        statistics=[
            dpfy.Contributing(share=0.2),
            dpfy.SampleSize(share=0.1),
            dpfy.Statistic("loss", bound=2.0, share=0.2),
        ],
    ),
    "automatic": planned(clip=dpfy.clip_automatically(0.7)),
}


def sums(server, answers):
    """The sums of a round without noise, as a vector in units of the noise."""
    cohort = next(iter(server))
    for client, (sent, weight, row) in enumerate(answers):
        cohort.add(client, sent, weight=weight, statistics={"loss": row})
    return cohort._taken().clone(), cohort._terms.mechanism


numbers = st.sampled_from(ODD) | st.floats(width=32) | st.floats(-2, 2, width=32)
updates = st.builds(
    lambda weight, bias, dtype: {
        "weight": torch.tensor(weight, dtype=dtype),
        "bias": torch.tensor(bias, dtype=dtype),
    },
    st.lists(numbers, min_size=3, max_size=3),
    st.lists(numbers, min_size=2, max_size=2),
    st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
)
answers = st.tuples(updates, numbers, numbers)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("largest_weight", [None, 3.0])
@settings(max_examples=25, deadline=None)
@given(others=st.lists(answers, max_size=3), more=answers)
@example(others=[], more=(update(1e30, 0.0, 0.0), 1e30, 1e30))
@example(others=[(update(1.0, 1.0, 1.0), 1.0, 1.0)], more=(update(math.nan, 9.0, 9.0), 1.0, 1.0))
def test_an_answer_moves_the_sums_by_at_most_the_sensitivity(name, largest_weight, others, more):
    options = {"largest_weight": largest_weight}
    without, mechanism = sums(served(PLANS[name], **options), others)
    added, _ = sums(served(PLANS[name], **options), [*others, more])
    assert torch.isfinite(added).all()
    assert float(torch.linalg.vector_norm(added - without)) <= mechanism.sensitivity
    alone, _ = sums(served(PLANS[name], **options), [more])
    assert torch.equal(added - without, alone)  # exactly: the lattice loses nothing


def test_the_sum_does_not_depend_on_the_order_of_answers():
    sent = [update(*each) for each in torch.randn(10, 3).mul(1e3).tolist()]
    found = []
    for clients in (range(10), reversed(range(10))):
        server = served(planned(clip=0.3))
        cohort = next(iter(server))
        for client in clients:
            cohort.add(client, sent[client])
        found.append(cohort._taken().clone())
    assert torch.equal(*found)


def test_an_update_is_clipped_as_a_whole_and_summed_in_its_own_direction():
    server = served(planned(clip=1.0, divisor=4))
    cohort = next(iter(server))
    cohort.add(0, update(3.0, 0.0, 0.0, bias=(0.0, 4.0)))  # of norm 5
    cohort.add(1, update(0.0, 0.5, 0.0))
    expected = torch.tensor([0.6, 0.5, 0.0, 0.0, 0.8]) / 4
    assert torch.allclose(change(server, cohort), expected, atol=1e-6)


def test_a_gradient_is_descended_and_a_change_is_added():
    for local, sign in (("fedavg", 1), ("fedsgd", -1)):
        server = served(planned(divisor=1), local=local)
        cohort = next(iter(server))
        cohort.add(0, update(0.5, 0.0, 0.0))
        assert change(server, cohort)[0] == pytest.approx(sign * 0.5)


MALFORMED = {
    "nothing": {},
    "no mapping": None,
    "a name is missing": {"weight": torch.ones(3)},
    "another shape": {"weight": torch.ones(4), "bias": torch.zeros(2)},
    "a shape that broadcasts": {"weight": torch.ones(()), "bias": torch.zeros(2)},
    "complex": {"weight": torch.ones(3, dtype=torch.complex64), "bias": torch.zeros(2)},
    "sparse": {"weight": torch.ones(3).to_sparse(), "bias": torch.zeros(2)},
    "text": {"weight": "weight", "bias": torch.zeros(2)},
    "nan": update(math.nan, 9.0, 9.0),
    "infinite in one group": update(1.0, 0.0, 0.0, bias=(math.inf, 0.0)),
}


@pytest.mark.parametrize("clip", [1.0, GROUPS], ids=["flat", "per layer"])
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_answer_contributes_zero_and_is_the_only_one_of_its_client(name, clip):
    server = served(planned(clip=clip, divisor=1, statistics=[dpfy.Contributing()]))
    cohort = next(iter(server))
    cohort.add(3, MALFORMED[name])
    assert not cohort.fits(MALFORMED[name])
    cohort.add(3, update(0.5, 0.0, 0.0))  # too late: it has answered
    released = server.step(cohort)
    assert not any(gradient.any() for gradient in released.gradients.values())
    assert released.statistics["contributing"] == 0


def test_who_answers_twice_or_was_not_drawn_or_comes_late_contributes_zero():
    server = served(planned(divisor=1))
    cohort = next(iter(server))
    sent = update(0.5, 0.0, 0.0)
    cohort.add("stranger", sent)
    cohort.add([], sent)  # no id at all
    cohort.add(1, sent)
    cohort.add(1, sent)
    assert change(server, cohort)[0] == pytest.approx(0.5)
    cohort.add(2, sent)
    assert not cohort._sums.eq(0.5).any() and change(server, next(iter(server)))[0] == 0


@pytest.mark.parametrize(
    ("weight", "part"),
    [
        (2.0, 0.5),
        (4.0, 1.0),
        (1e9, 1.0),
        (math.inf, 1.0),
        (np.int64(2), 0.5),
        (np.float32(2.0), 0.5),
        (10**400, 0.0),
        (0, 0.0),
        (-1.0, 0),
        (math.nan, 0),
        ("4", 0),
        (True, 0),
        (None, 0),
    ],
)
def test_weights_are_capped_and_the_divisor_stays(weight, part):
    server = served(planned(divisor=1), largest_weight=4.0)
    cohort = next(iter(server))
    cohort.add(0, update(8.0, 0.0, 0.0), weight=weight)
    assert change(server, cohort)[0] == pytest.approx(part)


def test_arrays_that_cannot_be_written_to_count_without_a_warning():
    sent = {"weight": np.array([0.5, 0.0, 0.0]), "bias": np.zeros(2)}
    for each in sent.values():
        each.setflags(write=False)  # as those are that come from a buffer
    server = served(planned(divisor=1))
    cohort = next(iter(server))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        cohort.add(0, sent)
    assert not heard and change(server, cohort)[0] == 0.5


def test_weights_do_not_count_unless_they_are_declared():
    server = served(planned(divisor=1))
    cohort = next(iter(server))
    cohort.add(0, update(8.0, 0.0, 0.0), weight=math.nan)
    assert change(server, cohort)[0] == pytest.approx(1.0)


def test_statistics_are_bounded_and_others_are_dropped():
    rows = [{"loss": 1.5}, {"loss": 99.0}, {"loss": math.nan}, {"loss": [1.0, 1.0]}, {"other": 3.0}]
    server = served(planned(divisor=1, statistics=[dpfy.Statistic("loss", bound=2.0)]))
    cohort = next(iter(server))
    for client, row in enumerate([*rows, None]):
        cohort.add(client, update(0.0, 0.0, 0.0), statistics=row)
    released = server.step(cohort).statistics
    assert [*released] == ["loss"] and released["loss"] == pytest.approx(3.5)


def test_answers_may_come_from_several_threads():
    server = served(planned(records=64, batch_size=64, divisor=1), clients=range(64))
    cohort = next(iter(server))
    threads = [
        threading.Thread(target=cohort.add, args=(client % 64, update(0.25, 0.0, 0.0)))
        for client in range(128)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert change(server, cohort)[0] == 16.0


def test_a_copy_of_the_model_is_trained_and_the_released_one_stays():
    server = served()
    cohort = next(iter(server))
    copy = cohort.model()
    with torch.no_grad():
        copy.weight += torch.tensor([0.5, 0.0, 0.0])
    assert cohort.update_of(copy)["weight"].tolist() == [0.5, 0.0, 0.0]
    assert cohort.update_of(copy.state_dict())["weight"].tolist() == [0.5, 0.0, 0.0]
    assert not server.model.weight.any() and not cohort.model().weight.any()


def test_nothing_of_a_cohort_is_shown():
    assert repr(next(iter(served()))) == "Cohort(step=1, sensitive)"
