"""Leaks that are planted on purpose: a hunt that misses one of them would miss its like."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hunt_cases import drawn, possible
from hunt_pairs import Leak, check, mixed_up

from dpfy.gradients.bookkeeping.engine import CapturingEngine
from dpfy.gradients.vmap import VmapEngine
from dpfy.mechanisms.clipping import ClipEach, Clipping
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.mechanisms.query import Query
from dpfy.records import rows, users
from dpfy.run import step
from dpfy.run.sum_accumulator import SumAccumulator
from dpfy.sandbox import rng_isolation

FEW, MANY = 20, 300  # cases: of those that a leak is about, and of all
PROBED = 5  # records that the probe's own passes have: who cheats, cheats beyond


def needed(budget: int, about: dict[str, object]) -> int | None:
    """Return how many cases, in ordinary surroundings, it takes to find a leak; None if the budget
    is too small.
    """
    for number in range(budget):
        try:
            check(possible(replace(drawn(number), hazard="", ambient=(), **about)))
        except Leak:
            return number + 1
    return None


def an_engine_that_does_not_clip(patch):
    clipped = VmapEngine.bounded_sums

    def unclipped(self, loss_fn, chunk, clipping):
        if chunk.size > PROBED:
            clipping = replace(clipping, weigh=torch.ones_like)
        return clipped(self, loss_fn, chunk, clipping)

    patch.setattr(VmapEngine, "bounded_sums", unclipped)


def records_that_see_their_neighbours(patch):
    passed = CapturingEngine._pass

    def mixed(self, loss_fn, chunk, consumer):
        return passed(
            self,
            (lambda x, y: loss_fn(mixed_up(x, 1.0), y)) if chunk.size > PROBED else loss_fn,
            chunk,
            consumer,
        )

    patch.setattr(CapturingEngine, "_pass", mixed)


def sums_in_eight_bits(patch):
    exact = SumAccumulator.tensors
    patch.setattr(
        SumAccumulator,
        "tensors",
        property(lambda self: [each.bfloat16().to(each.dtype) for each in exact.fget(self)]),
    )


def co_batched_records_that_are_not_charged(patch):
    charged = step.mechanism_for
    patch.setattr(step, "mechanism_for", lambda *facts: replace(charged(*facts), co_batched=0))


def a_scale_that_is_not_squared(patch):
    patch.setattr(
        Clipping,
        "scaled",
        lambda self, position, squared: squared / self.scales[position] if self.scales else squared,
    )


def numbers_that_are_none(patch):
    weigh = ClipEach.__call__
    patch.setattr(
        ClipEach,
        "__call__",
        lambda self, norms: torch.where(norms.isnan(), 1.0, weigh(self, norms)),
    )


def microbatches_that_count_once(patch):
    patch.setattr(Query, "sensitivity_factor", 1)


def half_of_the_noise(patch):
    full = GaussianSum.stddev
    patch.setattr(GaussianSum, "stddev", property(lambda self: full.func(self) / 2))


def masks_that_are_known(patch):
    patch.setattr(rng_isolation, "_reseed", lambda stream: torch.manual_seed(0))


def records_that_end_the_run(patch):
    patch.setattr(rows, "_guarded", lambda function, *given: function(*given))


def rows_that_count_as_users(patch):
    def by_row(groups, lengths):
        owners = np.repeat(np.arange(len(lengths)), lengths)
        for chunk, positions in groups:
            yield chunk, owners[positions].tolist()

    patch.setattr(users, "by_unit", by_row)


PLANTED = {
    an_engine_that_does_not_clip: {"engine": "vmap"},
    records_that_see_their_neighbours: {"engine": "bookkeeping"},
    sums_in_eight_bits: {},
    co_batched_records_that_are_not_charged: {"engine": "vmap", "odd": "nan"},
    a_scale_that_is_not_squared: {"clip": "mixed scales"},
    numbers_that_are_none: {"odd": "nan", "rows": 1},
    microbatches_that_count_once: {"clip": "microbatches", "model": "linear", "loss": "mse"},
    half_of_the_noise: {},
    masks_that_are_known: {"model": "dropout mlp", "training": True},
    records_that_end_the_run: {"odd": "raises"},
    rows_that_count_as_users: {"rows": 2},
}
"""What is planted, and where."""

# Processors differ in where they add in another order: some in large chunks, some in small ones.
SIZES = {co_batched_records_that_are_not_charged: ({"size": 300}, {"chunk": 3})}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_leak_is_found_where_it_is(plant, monkeypatch):
    plant(monkeypatch)
    sizes = SIZES.get(plant, ({},))
    assert any(needed(FEW, PLANTED[plant] | size) is not None for size in sizes)


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_leak_is_found_anywhere(plant, monkeypatch):
    plant(monkeypatch)
    assert needed(MANY, {}) is not None


def test_nothing_is_found_where_nothing_is_planted():
    """Without this, a hunt that calls everything a leak would have found them all."""
    for about in PLANTED.values():
        assert needed(1, about) is None
