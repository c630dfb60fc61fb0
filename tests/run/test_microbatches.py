"""Clipped means of slots: what one record can do to their sum, and what it could do with slots of
another kind.
"""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from runs import Dot, Started
from torch.utils.data import TensorDataset

import dpfy
from dpfy.gradients import LoopEngine
from dpfy.gradients.chunk import Chunk
from dpfy.ledger.events import SumQuery
from dpfy.mechanisms.clipping import Clipping, clip_to
from dpfy.noise import SecureStream
from dpfy.run.microbatches import clipped_mean
from dpfy.run.partition import drawn_from

WIDTH, BOUND = 3, 0.7
GRID = 2.0**-40
NUMBERS = st.one_of(
    st.floats(-1e3, 1e3, width=32), st.sampled_from([0.0, 1e-30, 1e30, float("nan"), float("inf")])
)
ROW = st.lists(NUMBERS, min_size=WIDTH, max_size=WIDTH)


def slot_sums(rows, slots, count):
    """The noiseless sum for records whose gradients are ``rows``, in given slots."""
    model = Dot(WIDTH)
    data = torch.tensor(rows, dtype=torch.float32).reshape(-1, WIDTH)
    total = torch.zeros(WIDTH, dtype=torch.float64)

    engine = LoopEngine(model, dict(model.named_parameters()))
    for slot in range(count):
        rows_of_slot = data[torch.tensor(slots, dtype=torch.long) == slot]

        def visit(compute, take, rows=rows_of_slot):
            if len(rows):
                take(compute(Chunk((rows,), len(rows))))

        clipped_mean(engine, model, visit, Clipping(clip_to(BOUND), GRID, (0,))).add_to([total])
    return total


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.tuples(ROW, st.integers(0, 3)), max_size=8),
    extra=ROW,
    slot=st.integers(0, 3),
    position=st.integers(0, 8),
)
def test_one_record_more_moves_the_sum_by_at_most_two_bounds(rows, extra, slot, position):
    neighbour = [*rows[:position], (extra, slot), *rows[position:]]
    one, other = (
        slot_sums([r for r, _ in data], [s for _, s in data], 4) for data in (rows, neighbour)
    )
    assert bool(one.isfinite().all()) and bool(other.isfinite().all())
    assert float((one - other).norm()) <= 2 * BOUND * (1 + 1e-9)


def test_the_two_bounds_are_reached():
    """A lone record's mean turns round when one of the other sign and twice the size joins it."""
    lone, joined = (
        slot_sums([[5.0, 0, 0]], [0], 1),
        slot_sums([[5.0, 0, 0], [-15.0, 0, 0]], [0, 0], 1),
    )
    assert float((lone - joined).norm()) == pytest.approx(2 * BOUND)


def test_blocks_of_consecutive_records_would_move_the_sum_by_many_bounds():
    """The reason for drawing slots: 100, -99, 98, ... has means of 1/2 in blocks of two, and of
    -1/2 one place on.
    """
    rows = [[(-1.0) ** k * (100 - k), 0, 0] for k in range(100)]
    one_more = [[0.0, 0, 0], *rows]
    blocks = [k // 2 for k in range(101)]
    before = slot_sums(rows, blocks[:100], 51)
    assert float((slot_sums(one_more, [50, *blocks[:100]], 51) - before).norm()) <= 2 * BOUND
    assert float((slot_sums(one_more, blocks, 51) - before).norm()) == pytest.approx(49.5)


def test_slots_are_uniform():
    """χ² with 6 degrees of freedom exceeds 50 with probability 5e-9."""
    lots = torch.from_numpy((SecureStream(insecure_test_key=3).words(70_000) >> 1).astype("int64"))
    counts = torch.bincount(drawn_from(7, lots), minlength=7)
    assert len(counts) == 7 and float(((counts - 10_000) ** 2 / 10_000).sum()) < 50


def test_the_event_says_that_one_record_counts_twice():
    plan = dpfy.dpsgd(
        records=100, batch_size=20, steps=3, clip=BOUND, noise_multiplier=1.5, microbatches=4
    )
    assert plan.event.queries == (SumQuery(l2_bound=2.0, stddev=3.0),)
    assert plan.divisor == 4
    assert dpfy.Plan.from_json(plan.to_json()) == plan
    per_record = dpfy.dpsgd(records=100, batch_size=20, steps=3, clip=BOUND, noise_multiplier=1.5)
    assert dpfy.account(plan).epsilon(1e-5).upper == pytest.approx(
        dpfy.account(per_record).epsilon(1e-5).upper
    )


@pytest.mark.parametrize("slots", [1, 3])
def test_a_run_releases_clipped_means_with_noise_for_two_bounds(slots):
    """Noise: |Σ(x/σ)²/d − 1| < 6·√(2/d), a false alarm of about 2e-9 for d = 20 000, rejecting 2/3
    and 3/2.
    """
    dimension, multiplier = 20_000, 2.0
    data = TensorDataset(torch.zeros(5, dimension))
    noise = Started(
        data, dimension=dimension, noise_multiplier=multiplier, clip=BOUND, microbatches=slots
    ).release()
    sigma = multiplier * 2 * BOUND
    ratio = float((noise.double() / sigma).square().mean())
    assert abs(ratio - 1) < 6 * (2 / dimension) ** 0.5 + 1e-3


def test_empty_samples_and_records_that_raise_leave_their_slot_to_the_others():
    model = Dot(WIDTH)
    data = TensorDataset(torch.tensor([[3.0, 0, 0], [float("nan"), 0, 0]]))

    def loss(x):
        if bool(x.isnan().any()):
            raise ValueError("a record that cannot be computed")
        return model(x)

    s = Started(data, model=model, noise_multiplier=0.0, clip=BOUND, microbatches=1)
    released = s.release(loss)
    assert released.tolist() == pytest.approx([BOUND, 0, 0], abs=1e-6)
