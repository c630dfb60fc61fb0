"""The mechanism as it runs: sensitivity on neighbouring data, the scale of its noise, an audit of
the whole path.
"""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from runs import Dot, Started
from scipy.stats import beta
from torch.utils.data import TensorDataset

import dpfy
from dpfy.gradients import ENGINES
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.clipping import Clipping, clip_to
from dpfy.mechanisms.gaussian_sum import GaussianSum

WIDTH = 4
ADVERSARIAL = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 1e-45, 3.4e38, -3.4e38, 1.0, 0.1, 1 / 3]),
)
ROWS = st.lists(st.lists(ADVERSARIAL, min_size=WIDTH, max_size=WIDTH), max_size=6)


def bounded_sum(rows, engine, bound):
    """The noiseless sum, flat, of records whose gradients are ``rows``."""
    model = Dot(WIDTH)
    chunk = Chunk((torch.tensor(rows, dtype=torch.float32).reshape(-1, WIDTH),), len(rows))
    if not rows:
        return torch.zeros(WIDTH, dtype=torch.float64)
    mechanism = GaussianSum(bound, 0.0, WIDTH)
    engine = ENGINES[engine](model, dict(model.named_parameters()))
    return engine.bounded_sums(
        model, chunk, Clipping(clip_to(bound), mechanism.grid, (0,))
    ).gradients[0]


def released(rows, **options):
    data = TensorDataset(
        torch.tensor(rows, dtype=torch.float32).reshape(-1, options.get("dimension", WIDTH))
    )
    return Started(data, **{"dimension": WIDTH, **options}).release().double()


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=100, deadline=None)
@given(
    rows=ROWS,
    extra=st.lists(ADVERSARIAL, min_size=WIDTH, max_size=WIDTH),
    other=st.lists(ADVERSARIAL, min_size=WIDTH, max_size=WIDTH),
    position=st.integers(0, 6),
    bound=st.sampled_from([1e-3, 1.0, 7.3]),
)
def test_neighbours_differ_by_at_most_the_sensitivity(engine, rows, extra, other, position, bound):
    sensitivity = GaussianSum(bound, 0.0, WIDTH).sensitivity
    with_extra = [*rows[:position], extra, *rows[position:]]
    with_other = [*rows[:position], other, *rows[position:]]
    sums = [bounded_sum(data, engine, bound) for data in (rows, with_extra, with_other)]
    assert all(bool(total.isfinite().all()) for total in sums)
    assert float((sums[1] - sums[0]).norm()) <= sensitivity
    assert float((sums[2] - sums[1]).norm()) <= 2 * sensitivity


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 20.0])
def test_the_noise_has_the_scale_that_is_recorded(multiplier):
    """|Σ(x/σ)²/d − 1| < 6·√(2/d): a false alarm of about 2e-9 for d = 20 000, and no power is lost
    at 2/3 or 3/2.
    """
    dimension, clip = 20_000, 0.5
    noise = released(
        [[0.0] * dimension], dimension=dimension, noise_multiplier=multiplier, clip=clip
    )

    def fits(stddev):
        return abs(float((noise / stddev).square().mean()) - 1) < 6 * math.sqrt(2 / dimension)

    assert fits(multiplier * clip)
    assert not fits(multiplier * clip * 2 / 3) and not fits(multiplier * clip * 3 / 2)


def test_the_recorded_ratio_holds_with_the_slack_inside():
    for dimension in (1, 10, 10**8):
        for multiplier in (1e-3, 0.5, 60.0):
            mechanism = GaussianSum(0.1, multiplier, dimension)
            worst = (
                0.1 * (1 + (dimension + 16) * 2.0**-53) + math.sqrt(dimension) * mechanism.grid / 2
            )
            assert mechanism.stddev >= multiplier * worst
            assert mechanism.stddev <= multiplier * 0.1 * (1 + 1e-2)


def test_noise_and_scale_do_not_move_with_the_number_of_records():
    few, more = (released([[0.0] * WIDTH] * n, noise_multiplier=1.0) for n in (5, 6))
    assert torch.equal(few, more)


def test_released_sums_lie_on_a_lattice_that_was_fixed_before_the_data_was_seen():
    grid = GaussianSum(1.0, 1.0, WIDTH).grid
    model_rows = torch.randn(50, WIDTH, generator=torch.Generator().manual_seed(1)).double()
    s = Started(TensorDataset(model_rows), dimension=WIDTH, noise_multiplier=1.0, model=None)
    s.model.double()
    steps = s.release() / grid
    assert torch.equal(steps, steps.round())


def test_two_runs_never_share_noise():
    """A resumed run with one record less must not repeat a noise value: their difference would be
    that record.
    """
    noise = torch.stack(
        [released([[0.0] * WIDTH], noise_multiplier=1.0, key=None) for _ in range(10)]
    )
    assert len(noise.unique()) == noise.numel()


def test_noise_and_sampling_ignore_torch_s_generator():
    draws = []
    for _ in range(2):
        torch.manual_seed(0)
        draws.append(released([[1.0] * WIDTH] * 50, noise_multiplier=1.0, rate=0.5, key=None))
    assert not torch.equal(*draws)


def test_rows_of_an_embedding_that_no_record_touched_get_noise():
    model = torch.nn.Embedding(30, 2)
    s = Started(
        TensorDataset(torch.zeros(5, 1, dtype=torch.long)), model=model, noise_multiplier=1.0
    )
    gradient = s.release(lambda tokens: model(tokens).sum((1, 2))).reshape(30, 2)
    assert gradient.abs().min() > 0


# An audit of the whole path


def audited_epsilon(delta, trials=1500):
    """A lower bound of ε at ``delta`` that a correct mechanism exceeds with probability below 1e-6.

    The canary's gradient is the clip bound along one axis. Whoever sees a released value above the
    bound guesses that the canary was there; Clopper–Pearson bounds both error rates at 5e-7 each.
    """
    plan = dpfy.dpsgd(rate=1.0, divisor=1, steps=trials, clip=1.0, noise_multiplier=1.0)

    def hits(rows, key):
        s = Started(
            TensorDataset(torch.tensor(rows).reshape(-1, 1)),
            dimension=1,
            plan=plan,
            key=key,
            engine="loop",
        )
        return sum(float(s.release()) > 1.0 for _ in range(trials))

    with_canary, without = hits([5.0], key=11), hits([], key=12)
    true_positive = beta.ppf(5e-7, with_canary, trials - with_canary + 1)
    false_positive = beta.ppf(1 - 5e-7, without + 1, trials - without)
    return math.log(max(true_positive - delta, 1e-300) / false_positive)


@pytest.mark.slow  # dpfy audit --self-test does this, in seconds
def test_the_audit_passes_the_mechanism_and_catches_half_the_noise(monkeypatch):
    delta = 0.05
    claimed = (
        dpfy.account(dpfy.dpsgd(rate=1.0, divisor=1, steps=1, noise_multiplier=1.0))
        .epsilon(delta)
        .upper
    )
    assert audited_epsilon(delta) <= claimed
    right = GaussianSum.stddev.fget
    monkeypatch.setattr(GaussianSum, "stddev", property(lambda self: right(self) / 2))
    assert audited_epsilon(delta) > claimed
