"""Private BatchNorm in a run: bounded for every engine, changed by releases alone, and nothing
stays behind.
"""

import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import dpfy
from dpfy.checks.fix import batchnorm_statistics
from dpfy.gradients import ENGINES
from dpfy.models import PrivateBatchNorm

CHANNELS = 5
NAME = "batchnorm 1"
GOOD = torch.randn(6, 4, generator=torch.Generator().manual_seed(2)) * 2 + 1
BAD = (
    1e6,
    -1e6,
    0.0,
    1.0,
    3e38,
    math.inf,
    math.nan,
)  # times a good record; from the fifth on no number is left


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, CHANNELS), PrivateBatchNorm(CHANNELS), nn.Tanh(), nn.Linear(CHANNELS, 2)
    )


def start(started, rows, *, noise=0.0, steps=4, bound=0.5, every=1, rate=1.0, divisor=1, **options):
    """A run over rows with a small bound, so that every record's moments are clipped."""
    model = network()
    plan = dpfy.dpsgd(
        rate=rate,
        divisor=divisor,
        steps=steps,
        noise_multiplier=noise,
        statistics=batchnorm_statistics(model, bound=bound, every=every),
    )
    s = started(
        rows, model=model, plan=plan, **{"example_input": GOOD[:0].new_zeros(1, 4), **options}
    )
    s.loss_fn = lambda x: model(x).square().sum(1)
    return s


def moments(s):
    return s.run.release(s.loss_fn, next(iter(s.run))).statistics[NAME]


@pytest.mark.parametrize("engine", ENGINES)
def test_one_record_moves_the_moments_by_at_most_the_bound_and_leaves_those_of_others(
    started, engine
):
    # Fails if moments were clipped together, taken over the batch, or counted although they are not
    # numbers.
    rows, bound = list(GOOD), 0.5 * math.sqrt(CHANNELS)
    s = start(started, rows, engine=engine, steps=20)
    without = moments(s)
    for place, factor in enumerate(BAD):
        rows.append(GOOD[0] * factor)
        added = moments(s) - without
        assert float(added.norm()) <= bound * (1 + 1e-6)
        assert float(added.norm()) == pytest.approx(bound if place < 4 else 0, abs=1e-6)
        rows[:] = rows[-1:]
        assert torch.allclose(added, moments(s), atol=1e-6)
        rows[:] = list(GOOD)


def test_engines_release_the_same_moments_and_gradients(started):
    released = {}
    for engine in ENGINES:
        s = start(started, GOOD, engine=engine, bound=100.0, max_physical_batch=4)
        found = s.run.release(s.loss_fn, next(iter(s.run)))
        released[engine] = [found.statistics[NAME], *found.gradients.values()]
    with torch.no_grad():
        pairs = torch.stack([(distances := s.model[0](GOOD)), distances.square() - 1])
    expected = pairs.mul(4.0 / pairs.norm(dim=0).clamp(min=4.0)).sum(1)
    assert torch.allclose(released["loop"][0].float(), expected, rtol=1e-3)
    for engine in ENGINES:
        assert torch.allclose(released[engine][0], released["loop"][0], atol=1e-5)
        for found, wanted in zip(released[engine][1:], released["loop"][1:], strict=True):
            assert float((found - wanted).norm()) <= 1e-3 * float(
                wanted.norm()
            )  # certified norms are a little larger


def test_the_fast_engine_serves_it(started):
    s = start(started, GOOD)
    moments(s)
    assert s.run.engine == "bookkeeping"


@pytest.mark.parametrize("engine", ENGINES)
def test_only_backward_changes_the_statistics_and_nothing_else_stays_on_the_model(started, engine):
    s = start(started, GOOD, engine=engine)
    norm, before = (
        s.model[1],
        {name: tensor.clone() for name, tensor in s.model.state_dict().items()},
    )
    attributes = set(vars(norm))
    s.run.release(s.loss_fn, next(iter(s.run)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in s.model.state_dict().items())
    s.run.backward(s.loss_fn, next(iter(s.run)))
    assert not torch.equal(norm.running_mean, before["1.running_mean"])
    assert norm._seen is None and set(vars(norm)) == attributes


def test_records_whose_loss_raises_leave_neither_moments_nor_traces(started):
    engine = "loop"  # values cannot make others raise: what decides by them is not given to these
    s = start(started, torch.cat([GOOD, GOOD[:1] + 50]), engine=engine)

    def raising(x):
        losses = s.model(x).square().sum(1)  # the layer has seen the record by now
        if bool((x > 40).any()):
            raise RuntimeError
        return losses

    found = s.run.release(raising, next(iter(s.run))).statistics[NAME]
    assert s.model[1]._seen is None
    assert torch.allclose(found, moments(start(started, GOOD, engine=engine)), atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_interrupt_leaves_no_traces(started, engine):
    s = start(started, GOOD, engine=engine)
    s.run.backward(s.loss_fn, next(iter(s.run)))  # the model is probed by now
    before = s.model[1].running_mean.clone()
    stopped = False

    def interrupted(x):
        losses = s.loss_fn(x)
        if stopped:
            raise KeyboardInterrupt
        return losses

    s.run.backward(interrupted, next(iter(s.run)))
    after, stopped = s.model[1].running_mean.clone(), True
    with pytest.raises(KeyboardInterrupt):
        s.run.backward(interrupted, next(iter(s.run)))
    assert not torch.equal(before, after)
    assert s.model[1]._seen is None and torch.equal(s.model[1].running_mean, after)


def test_statistics_are_released_and_absorbed_when_they_are_due(started):
    s = start(started, GOOD, every=3)
    means = []
    for batch in s.run:
        released = s.run.backward(s.loss_fn, batch)
        means.append((NAME in released.statistics, s.model[1].running_mean.clone()))
    assert [due for due, _ in means] == [True, False, False, True]
    assert torch.equal(means[0][1], means[2][1]) and not torch.equal(means[2][1], means[3][1])


def test_statistics_come_near_those_of_the_data_with_noise(started):
    # Per coordinate and step the noise is z·bound·√(5/0.05)/records = 0.1·2·10/2000 = 0.001 in
    # standard deviations, and clipping biases the variance by a few percent: a tenth is reached
    # unless an update is wrong.
    rows = torch.randn(2000, 4, generator=torch.Generator().manual_seed(5)) * 3 + 2
    s = start(started, rows, noise=0.1, steps=60, bound=2.0, divisor=2000)
    for batch in s.run:
        s.run.backward(s.loss_fn, batch)
        s.opt.zero_grad()  # the layer before stays what it was
    with torch.no_grad():
        inputs = s.model[0](rows)
    assert torch.allclose(s.model[1].running_mean, inputs.mean(0), atol=0.1 * float(inputs.std()))
    assert torch.allclose(s.model[1].running_var.sqrt(), inputs.std(0), rtol=0.15)


def test_a_checkpoint_has_the_statistics_and_a_resumed_run_goes_on_with_them(started, tmp_path):
    s = start(started, GOOD, ledger=tmp_path / "run.dpl", noise=1.0)
    s.run.backward(s.loss_fn, next(iter(s.run)))
    s.run.save(tmp_path)
    s.run.close()
    model = network()
    batchnorm_statistics(model)  # gives the layer its name
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    run = dpfy.resume(tmp_path, model, opt, TensorDataset(GOOD), insecure_test_key=2)
    assert (
        torch.equal(model[1].running_mean, s.model[1].running_mean)
        and float(model[1].running_mean.abs().max()) > 0
    )
    run.backward(lambda x: model(x).square().sum(1), next(iter(run)))
    assert not torch.equal(model[1].running_mean, s.model[1].running_mean)
    run.close()


def test_convolutions_and_private_statistics_fit_together(started):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
    )
    dpfy.fix(model, "private")
    plan = dpfy.dpsgd(
        rate=1.0, divisor=4, steps=1, noise_multiplier=1.0, statistics=batchnorm_statistics(model)
    )
    s = started(TensorDataset(torch.randn(4, 1, 6, 6)), model=model, plan=plan)
    released = s.run.backward(lambda x: model(x).square().sum(1), next(iter(s.run)))
    assert released.statistics["batchnorm 1"].shape == (2, 4) and s.run.engine == "bookkeeping"


class Odd(nn.Module):
    """Uses a parameter in a way that no rule knows, so that the fast engine would vectorise it as a
    whole.
    """

    def __init__(self):
        super().__init__()
        self.angle, self.norm = nn.Parameter(torch.ones(CHANNELS)), PrivateBatchNorm(CHANNELS)

    def forward(self, x):
        return self.norm(x) * torch.sin(self.angle)


def test_a_layer_inside_of_a_module_that_is_vectorised_is_observed_by_another_engine(started):
    model = nn.Sequential(nn.Linear(4, CHANNELS), Odd(), nn.Linear(CHANNELS, 2))
    plan = dpfy.dpsgd(
        rate=1.0, divisor=1, steps=2, noise_multiplier=0.0, statistics=batchnorm_statistics(model)
    )
    s = started(GOOD, model=model, plan=plan)
    released = s.run.backward(lambda x: model(x).square().sum(1), next(iter(s.run)))
    assert s.run.engine == "vmap" and float(released.statistics["batchnorm 1.norm"].norm()) > 0
    assert model[1].norm._seen is None


def test_nothing_stays_on_the_model_where_activations_are_computed_twice(started):
    s = start(started, GOOD, engine="loop")
    s.run.backward(
        lambda x: checkpoint(s.model, x, use_reentrant=False).square().sum(1), next(iter(s.run))
    )
    assert s.model[1]._seen is None and float(s.model[1].running_mean.abs().max()) > 0


def test_rows_that_are_not_records_are_refused_on_synthetic_input(started):
    # Positions folded into the batch: the layer cannot know whose they are.
    class Folding(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = PrivateBatchNorm(2), nn.Linear(2, 2)

        def forward(self, x):
            return self.head(self.norm(x.reshape(-1, 2))).reshape(len(x), -1)

    model = Folding()
    plan = dpfy.dpsgd(
        rate=1.0, divisor=4, steps=1, noise_multiplier=1.0, statistics=batchnorm_statistics(model)
    )
    s = started(TensorDataset(torch.randn(4, 3, 2)), model=model, plan=plan)
    with pytest.raises(
        dpfy.LossError, match="'batchnorm norm' must be a tensor with one row per example"
    ):
        s.run.backward(lambda x: model(x).sum(1), next(iter(s.run)))
