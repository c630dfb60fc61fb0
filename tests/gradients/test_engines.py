"""Every engine against the oracle, and the oracle against plain autograd."""

import contextlib

import pytest
import torch
from torch import nn

from dpfy.gradients import ENGINES, Engine, ExactBookkeepingEngine, LoopEngine, Summed
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.clipping import Clipping, clip_to, lattice_sum, squared_norms, weighed_sum
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.noise.lattice import round_to_lattice
from dpfy.testing import ENGINE_CASES, check_engine

GRID = 2.0**-40
REFUSED = {  # "auto" then takes the next engine
    (
        "vmap",
        "lstm",
        torch.float64,
    ): RuntimeError,  # torch writes batched gates into an unbatched state
    ("vmap", "gru, time first", torch.float64): RuntimeError,
    ("vmap", "gru, time first", torch.float32): RuntimeError,
}


@pytest.mark.parametrize("grouped", [False, True], ids=["flat", "grouped"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", ENGINE_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_every_engine_conforms(engine, case, dtype, grouped, device):
    if device != "cpu" and dtype == torch.float64:
        pytest.skip("devices compute as they do in float32, and more slowly")
    refusal = REFUSED.get((engine.name, case.name, dtype))
    expected = contextlib.nullcontext()
    if refusal:  # a device has kernels of its own, which may serve
        expected = pytest.raises(refusal) if device == "cpu" else contextlib.suppress(refusal)
    with expected:
        check_engine(engine, case, dtype, grouped=grouped, device=device)


@pytest.mark.parametrize("case", ENGINE_CASES, ids=lambda case: case.name)
def test_book_keeping_for_importance_sampling_conforms(case, device):
    check_engine(ExactBookkeepingEngine, case, torch.float32, device=device)


def test_the_oracle_sums_clipped_gradients_of_plain_autograd():
    model = nn.Linear(3, 2).double()
    x, bound = torch.randn(4, 3, dtype=torch.float64) * 5, 0.7
    expected = torch.zeros(8, dtype=torch.float64)
    for row in x:
        gradient = torch.cat(
            [
                g.flatten()
                for g in torch.autograd.grad(model(row).square().sum(), model.parameters())
            ]
        )
        expected += gradient * min(1.0, bound / float(gradient.norm()))
    engine = LoopEngine(model, dict(model.named_parameters()))
    clipping = Clipping(clip_to(bound), GRID, groups=(0, 0))
    found = engine.bounded_sums(lambda x: model(x).square().sum(1), Chunk((x,), 4), clipping)
    torch.testing.assert_close(torch.cat([g.flatten() for g in found.gradients]), expected)


class _MeanClipped(Engine):
    """The classic bug: the aggregate is clipped instead of every record."""

    name, isolation, isolates, rounding = "broken", "none", False, 0.0

    def bounded_sums(self, loss_fn, chunk, clipping):
        gradients = torch.autograd.grad(
            loss_fn(*chunk.arguments).sum(), list(self.parameters.values())
        )
        norm = torch.stack([g.double().square().sum() for g in gradients]).sum()
        return Summed(
            [g.double() * clipping.weigh(norm.reshape(1, 1)).squeeze() for g in gradients]
        )


def test_the_suite_catches_an_engine_that_clips_the_aggregate():
    with pytest.raises(AssertionError):
        check_engine(_MeanClipped, ENGINE_CASES[0])


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_engines_leave_model_gradients_and_buffers_alone(engine):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = torch.randn(3, 1, 5, 5)
    with contextlib.suppress(
        RuntimeError
    ):  # vmap cannot write a batched value into a buffer; the probe comes first
        engine(model, dict(model.named_parameters())).bounded_sums(
            lambda x: model(x).square().flatten(1).sum(1),
            Chunk((x,), 3),
            Clipping(clip_to(1.0), GRID, (0, 0)),
        )
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_norms_of_short_floats_neither_overflow_nor_vanish(dtype):
    large = torch.full((1, 1000), 6e4, dtype=dtype)
    small = torch.full((1, 1000), 1e-5, dtype=dtype)
    assert float(squared_norms(large)) == pytest.approx(float(large.double().square().sum()))
    assert float(squared_norms(small)) == pytest.approx(float(small.double().square().sum()))


def test_the_lattice_sum_is_exact_under_permutation_and_chunking():
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(4096, 3, generator=generator) * torch.logspace(-6, 3, 4096).unsqueeze(1)
    weights = torch.rand(4096, generator=generator)
    whole = lattice_sum(rows, weights, 2.0**-20)
    order = torch.randperm(4096, generator=generator)
    pieces = sum(
        lattice_sum(r, w, 2.0**-20)
        for r, w in zip(rows[order].split(7), weights[order].split(7), strict=True)
    )
    assert torch.equal(whole, pieces)


def test_one_more_aligned_record_moves_a_long_float32_sum_by_no_more_than_the_bound():
    # A float32 sum would lose a thousandth of each of these records.
    records, d = 12_001, 50
    rows = torch.full((records, d), 1 / d**0.5)
    weights = clip_to(1.0)(squared_norms(rows).unsqueeze(1)).squeeze(1)
    moved = weighed_sum(rows, weights) - weighed_sum(rows[:-1], weights[:-1])
    assert float(moved.norm()) <= 1 + (d + 16 + 2 * records**2) * 2.0**-53
    assert (
        float(
            (
                lattice_sum(rows, weights, 2.0**-28)
                - lattice_sum(rows[:-1], weights[:-1], 2.0**-28)
            ).norm()
        )
        <= 1 + 51 * 2.0**-53 + 50**0.5 * 2.0**-29
    )


def test_chunks_change_a_weighed_sum_by_no_more_than_float64_is_charged_for():
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(2000, 40, generator=generator)
    weights = clip_to(1.0)(squared_norms(rows).unsqueeze(1)).squeeze(1)
    order = torch.randperm(2000, generator=generator)
    pieces = sum(
        weighed_sum(r, w)
        for r, w in zip(rows[order].split(7), weights[order].split(7), strict=True)
    )
    assert float((weighed_sum(rows, weights) - pieces).norm()) <= 2 * 2000**2 * 2.0**-53


@pytest.mark.parametrize("noise_multiplier", [1.0, 30.0])
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_last_bits_of_companions_are_not_rounded_up_to_steps_of_the_lattice(
    engine, noise_multiplier
):
    # Every number of every companion is just below the middle between two points of the lattice,
    # and moves by its last bit to just above. Rounded before they are added, the companions move by
    # a step in all coordinates, each of them.
    co_batched, d = (
        7,
        2**16,
    )  # an odd number: their sum is between two points of the lattice as well
    mechanism = GaussianSum(1.0, noise_multiplier, d, co_batched, engine.rounding)
    model = nn.Linear(d, 1, bias=False)

    def rounded_sum(x):
        total = torch.zeros(1, d, dtype=torch.float64)
        clipping = Clipping(clip_to(1.0), mechanism.grid, (0,))
        made.bounded_sums(loss_fn, Chunk((x,), len(x)), clipping).add_to([total])
        return round_to_lattice(total, mechanism.grid)

    def loss_fn(x):
        return model(x).sum(1)  # linear: the gradient is the record itself

    made, examples = engine(model, dict(model.named_parameters())), torch.rand(3, 5, d)
    made.prepare(loss_fn, lambda size, variant: Chunk((examples[variant % 3, :size],), size))
    generator = torch.Generator().manual_seed(2)
    steps = torch.rand(co_batched, d, generator=generator).mul_(
        0.001 / mechanism.grid
    ).floor() + int(2.0**-8.3 / mechanism.grid)
    above = (steps + 0.5) * mechanism.grid
    assert (
        torch.equal(above.double(), (steps.double() + 0.5) * mechanism.grid)
        and float(above.norm(dim=1).max()) < 1
    )
    below = torch.nextafter(above, torch.zeros(()))
    assert float((above - below).norm(dim=1).max()) <= 2.0**-23  # what is allowed to kernels
    moved = float((rounded_sum(above) - rounded_sum(below)).norm())
    assert 0 < moved <= mechanism.sensitivity - 1


def test_zero_bound_weights_and_extreme_norms():
    squares = torch.tensor(
        [[0.0], [float("inf")], [float("nan")], [1e300], [5e-324]], dtype=torch.float64
    )
    weights = clip_to(1e-3)(squares).flatten()
    assert weights.isfinite().all()
    assert weights.tolist()[:3] == [1.0, 0.0, 0.0]
    assert float(weights[3] * 1e150) <= 1e-3 * (1 + 1e-12)
