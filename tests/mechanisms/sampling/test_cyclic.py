"""Samplers that follow a schedule: counted on what they draw, wherever a run begins anew."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Cyclic, CyclicPoisson
from dpfy.mechanisms.sampling import sampler_for
from dpfy.noise import SecureStream


def taken(policy, steps, resumed=()):
    """Return which record is in which step, with a new sampler at each resumed step."""
    found, sampler = np.zeros((steps, policy.records), dtype=bool), None
    for step in range(1, steps + 1):
        if sampler is None or step in resumed:
            sampler = sampler_for(policy, SecureStream(insecure_test_key=step, purpose="sampling"))
            sampler.turn_to(step)
        found[step - 1, sampler.draw(policy.records)] = True
    return found


def apart(found):
    """Return the smallest distance between two steps of one record."""
    steps = (np.flatnonzero(column) for column in found.T)
    return min((int(np.diff(each).min()) for each in steps if len(each) > 1), default=len(found))


@given(
    records=st.integers(1, 23),
    batch_size=st.integers(1, 23),
    steps=st.integers(1, 40),
    resumed=st.sets(st.integers(1, 40)),
)
def test_a_fixed_order_keeps_its_distance_across_resumes(records, batch_size, steps, resumed):
    """Fails if a resume begins a new epoch, or a partial batch is filled up."""
    policy = Cyclic(min(batch_size, records), records)
    found, epoch = taken(policy, steps, resumed), policy.steps_per_event
    assert apart(found) >= min(epoch, steps)
    assert found.sum(axis=0).max() <= -(-steps // epoch)
    assert (found == taken(policy, steps)).all()
    for first in range(steps - epoch + 1):
        assert (found[first : first + epoch].sum(axis=0) == 1).all()


@given(
    records=st.integers(1, 23),
    parts=st.integers(1, 9),
    steps=st.integers(1, 40),
    resumed=st.sets(st.integers(1, 40)),
    chance=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_a_record_is_in_steps_of_its_part_alone(records, parts, steps, resumed, chance):
    parts = min(parts, records)
    found = taken(CyclicPoisson(chance, parts, records), steps, resumed)
    turns = np.add.outer(np.arange(steps), -np.arange(records)) % parts == 0
    assert not (found & ~turns).any()
    if chance == 1:
        assert (found == turns).all()
    if not chance:
        assert not found.any()


def test_samples_of_a_part_are_drawn_anew():
    found = taken(CyclicPoisson(0.5, 2, 200), 8)
    assert all((found[step] != found[step + 2]).any() for step in range(6))


@pytest.mark.parametrize("policy", [Cyclic(2, 5), CyclicPoisson(0.5, 2, 5)])
def test_other_numbers_of_records_and_steps_before_the_first_are_refused(policy):
    sampler = sampler_for(policy, SecureStream(purpose="sampling"))
    with pytest.raises(InvalidArgument):
        sampler.draw(6)
    with pytest.raises(InvalidArgument, match="step"):
        sampler.turn_to(0)
