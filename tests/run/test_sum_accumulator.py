"""Whichever way the chunks of a step are summed up, the sums are the same to the last bit."""

import pytest
import torch
from torch import nn

from dpfy.gradients import ENGINES
from dpfy.gradients.base import Summed
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.controllers import Coordinates, StepConfig
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.mechanisms.query import ClippedSum, Query, SampleSize
from dpfy.run.release_layout import ReleaseLayout
from dpfy.run.sum_accumulator import SumAccumulator, SumBuffer


def subject(name, records, statistics=()):
    torch.manual_seed(0)
    model = (
        nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
        if name != "bookkeeping"
        else Mixed()
    )
    parameters = dict(model.named_parameters())
    query = Query((ClippedSum(0.7),), statistics)
    engine = ENGINES[name](model, parameters)

    def loss(x):
        return model(x).square().sum(1)

    def examples(count, seed):
        return Chunk((torch.randn(count, 6, generator=torch.Generator().manual_seed(seed)),), count)

    engine.prepare(loss, examples)
    layout = ReleaseLayout(query, parameters, statistics)
    return layout, [
        engine.bounded_sums(loss, examples(count, 7 + count), layout.clipping(2.0**-30))
        for count in records
    ]


class Mixed(nn.Module):
    """One time step and several, biases, and a layer that is not used."""

    def __init__(self):
        super().__init__()
        self.first, self.steps, self.last = nn.Linear(6, 5), nn.Linear(1, 3), nn.Linear(15, 2)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        return self.last(self.steps(self.first(x).tanh().unsqueeze(2)).flatten(1))


def vector(layout):
    return torch.full(
        (sum(layout.sizes),), torch.nan, dtype=torch.float64
    )  # what it holds does not matter


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("records", [(), (1,), (130,), (5, 3), (200, 1, 2)])
def test_formed_sums_are_those_in_the_vector(name, records):
    results = []
    for several in (False, True):
        layout, chunks = subject(name, records, (SampleSize(),))
        sums = SumAccumulator(layout, vector(layout), several)
        for chunk in chunks:
            sums.add_chunk(chunk)
        results.append(torch.cat([each.double().flatten() for each in sums.tensors]))
        assert torch.equal(sums.vector, results[-1])
    layout, chunks = subject(name, records, (SampleSize(),))
    totals = [torch.zeros(size, dtype=torch.float64) for size in layout.sizes]
    for chunk in chunks:
        chunk.add_to(
            [
                total.view(p.shape)
                for total, p in zip(totals, layout.parameters.values(), strict=False)
            ]
        )
        layout.add_statistics(chunk.seen, totals[-1:])
    assert torch.equal(results[0], torch.cat(totals)) and torch.equal(results[1], results[0])
    assert float(results[0][-1]) * layout.query.sum_scale(layout.statistics[0]) == pytest.approx(
        sum(records)
    )


def test_the_only_chunk_of_a_step_needs_no_vector():
    layout, (chunk,) = subject("bookkeeping", (100,))
    room = vector(layout)
    sums = SumAccumulator(layout, room, several=False)
    sums.add_chunk(chunk)
    formed = [each.dtype for each in sums.tensors]
    assert formed.count(torch.float32) >= 4 and bool(room.isnan().any())


def test_what_is_released_takes_the_place_of_its_sum_and_never_that_of_the_vector():
    # The vector is used again in the next step: a gradient there would be overwritten by sums
    # without noise.
    for dtype in (torch.float32, torch.float64):
        layout, (chunk,) = subject("bookkeeping", (1000,), (SampleSize(),))
        for parameter in layout.parameters.values():
            parameter.data = parameter.data.to(dtype)
        room = vector(layout)
        sums = SumAccumulator(layout, room, several=False)
        sums.add_chunk(chunk)
        outputs, shared = layout.outputs(sums.tensors), 0
        for output, total, p in zip(
            outputs, sums.tensors, layout.parameters.values(), strict=False
        ):
            assert (output.shape, output.dtype) == (p.shape, dtype) and output.is_contiguous()
            assert output.untyped_storage().data_ptr() != room.untyped_storage().data_ptr()
            shared += output.data_ptr() == total.data_ptr()
        assert shared >= 4 if dtype is torch.float32 else shared == 0
        assert outputs[-1].data_ptr() != sums.tensors[-1].data_ptr()


def test_a_sum_that_is_formed_in_float64_is_taken_as_it_is():
    layout, _ = subject("vmap", ())
    gradients = [torch.ones(p.shape, dtype=torch.float64) for p in layout.parameters.values()]
    sums = SumAccumulator(layout, vector(layout), several=False)
    sums.add_chunk(Summed(gradients))
    assert all(one is other for one, other in zip(sums.tensors, gradients, strict=True))


@pytest.mark.parametrize("rows", [1, 40])
def test_a_step_that_fails_leaves_no_sum_without_noise_in_memory(rows, started, monkeypatch):
    """The vector is kept for the next step, and what the first chunk formed lives as long as
    somebody holds it.
    """
    s, held = started(torch.ones(40, 3), steps=2, max_physical_batch=rows), []
    take = SumAccumulator.add_chunk

    def taking(sums, chunk):
        take(sums, chunk)
        held[:] = sums.tensors

    def failing(*_):
        assert any(bool(each.any()) for each in held)  # there was something to forget
        raise MemoryError

    monkeypatch.setattr(SumAccumulator, "add_chunk", taking)
    monkeypatch.setattr(GaussianSum, "release_pieces", failing)
    with pytest.raises(MemoryError):
        s.release()
    assert not any(bool(each.any()) for each in held) and not s.run.context.buffer.vector.any()


@pytest.mark.parametrize("engine", ENGINES)
def test_records_and_modules_that_require_gradients_are_of_no_consequence(engine, started):
    """They put the sums of vectorised chunks on a graph, and the second chunk could not be
    added.
    """
    rows, beside = torch.eye(3).repeat(4, 1), nn.Linear(3, 3, bias=False)
    nn.init.eye_(beside.weight)
    linear = nn.Linear(3, 1, bias=False)
    plain, watched = (
        started(data, model=linear, engine=engine, max_physical_batch=2).release(
            lambda x: linear(beside(x)).squeeze(1)
        )
        for data in (rows, rows.clone().requires_grad_())
    )
    assert torch.equal(plain, watched) and torch.allclose(plain, torch.full((3,), 4.0), atol=1e-3)


def test_a_layout_is_kept_while_nothing_changes_that_it_depends_on():
    """Fails if a layout is used again for another query, step, set or kind of parameters."""
    size = SampleSize(0.1, every=2)
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)
    both = dict(model.named_parameters())
    plain, bound = Query((ClippedSum(1.0),), (size,)), Query((ClippedSum(2.0),), (size,))
    zero = {name: Coordinates(0.0, 1.0) for name in both}
    buffer, different = SumBuffer(), []
    for step, config, parameters in (
        (1, StepConfig(plain), both),
        (2, StepConfig(plain), both),  # a statistic is due
        (2, StepConfig(bound), both),
        (2, StepConfig(bound), {"weight": model.weight}),  # the bias is frozen
        (2, StepConfig(bound), {"bias": model.weight}),
        (2, StepConfig(bound), dict(other.named_parameters())),
        (2, StepConfig(bound), dict(reversed([*other.named_parameters()]))),
        (2, StepConfig(bound, coordinates=zero), both),
    ):
        layout = buffer.layout_of(step, config, parameters)
        expected = ReleaseLayout.of_step(step, config, parameters)
        assert all(layout is not each for each in different)
        assert layout.clipping(0.5) == expected.clipping(0.5)
        assert layout.statistics == expected.statistics
        assert [*layout.parameters] == [*parameters]
        same = buffer.layout_of(step, StepConfig(config.query), dict(parameters))
        assert (same is layout) is not bool(config.coordinates)
        different.append(layout)
    assert layout is not buffer.layout_of(2, StepConfig(bound, coordinates=zero), both)
