"""Steps on a device: the same engine and the same release as on the CPU, and little traffic."""

import pretend
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.gradients import ENGINES
from dpfy.noise import LatticeGaussian, SecureStream, prefetch


class Tokens(nn.Module):
    """A table that is also the weight of the last layer."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.table.weight

    def _apply(self, function, recurse=True):
        super()._apply(function, recurse)
        self.head.weight = self.table.weight  # which a tensor of a class of its own would forget
        return self

    def forward(self, x):
        return self.head(torch.tanh(self.table(x.abs().mul(2).long().clamp(max=8))).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.gru(x.unflatten(1, (4, 2)))[0][:, -1])


MODELS = {
    "linear": lambda: nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 1)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 4)), nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.Flatten()
    ),
    "dropout": lambda: nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.5), nn.Linear(6, 1)),
    "tied embedding": Tokens,
    "recurrent": Recurrent,
}


def layers(count, width=16):
    """A model with twice as many tensors as layers."""
    return nn.Sequential(nn.Linear(8, width), *(nn.Linear(width, width) for _ in range(count - 1)))


def rows(count=40):
    return TensorDataset(torch.randn(count, 8, generator=torch.Generator().manual_seed(1)))


def plan(**options):
    return dpfy.dpsgd(
        **{"rate": 0.3, "divisor": 12, "steps": 3, "clip": 1.0, "noise_multiplier": 1.0, **options}
    )


class Training:
    """A run on a device, whose batches come from the CPU."""

    def __init__(self, model, device, which=None, **options):
        torch.manual_seed(0)
        self.device, self.model = device, model().to(device)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.run = dpfy.privatize(
            self.model,
            self.opt,
            options.pop("data", None) or rows(),
            which or plan(),
            options.pop("ledger", None) or dpfy.Ledger.in_memory(),
            insecure_test_key=1,
            **options,
        )
        self.batches = iter(self.run)

    def loss(self, x, *_):
        return self.model(x.to(self.device)).square().flatten(1).sum(1)

    def step(self):
        released = self.run.backward(self.loss, next(self.batches))
        self.opt.step()
        self.opt.zero_grad()
        return torch.cat([each.flatten() for each in released.gradients.values()]).cpu()


@pytest.fixture
def training():
    made = []

    def make(*args, **options):
        made.append(Training(*args, **options))
        return made[-1]

    yield make
    for each in made:
        each.run.close()


@pytest.mark.parametrize(
    "name",
    [
        "linear",
        "tied embedding",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("convolution", "dropout", "recurrent")),
    ],
)
def test_auto_takes_the_engine_that_it_takes_on_the_cpu(name, training):
    here, there = (training(MODELS[name], device) for device in ("cpu", pretend.NAME))
    expected, found = here.step(), there.step()
    assert there.run.engine == here.run.engine == "bookkeeping"
    if name != "dropout":  # whose masks come from the device's own generator
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("engine", "count"),
    [
        ("bookkeeping", 2),
        ("bookkeeping", 30),
        ("vmap", 2),
        *(
            pytest.param(engine, count, marks=pytest.mark.slow)
            for engine, count in (("ghost", 2), ("ghost", 30), ("vmap", 30), ("loop", 30))
        ),
    ],
)
def test_a_step_waits_three_times_and_copies_four_bytes_a_parameter(engine, count, training):
    there = training(lambda: layers(count), pretend.NAME, engine=engine)
    there.step()
    with pretend.counted() as traffic:
        there.step()
    assert len([*there.model.parameters()]) == 2 * count
    assert traffic.waits <= 3, traffic.syncs
    assert traffic.bytes <= 4 * sum(p.numel() for p in there.model.parameters()), traffic


@pytest.mark.parametrize(
    "options",
    [
        {"clip": dpfy.clip_groups(layers(4), "layer", clip=1.0)},
        pytest.param({"microbatches": 4}, marks=pytest.mark.slow),
    ],
    ids=["groups", "microbatches"],
)
def test_groups_and_slots_do_not_wait_for_every_tensor(options, training):
    there = training(lambda: layers(4), pretend.NAME, which=plan(**options))
    there.step()
    with pretend.counted() as traffic:
        there.step()
    assert traffic.waits <= 3, traffic.syncs


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"controllers": [dpfy.QuantileClipping(0.5)]}, marks=pytest.mark.slow),
        pytest.param({"controllers": [dpfy.AdaClip()]}, marks=pytest.mark.slow),
    ],
    ids=["quantile", "adaclip"],
)
def test_controllers_learn_on_a_device_what_they_learn_on_the_cpu(options, training):
    here, there = (
        training(MODELS["linear"], device, which=plan(**options)) for device in ("cpu", "pretend")
    )
    for _ in range(3):
        torch.testing.assert_close(there.step(), here.step(), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_importance_sampling_runs_on_a_device(training):
    by_norm = dpfy.dpis(records=40, batch_size=6, steps=3, clip=1.0, noise_multiplier=2.0)
    here, there = (
        training(MODELS["linear"], device, which=by_norm) for device in ("cpu", "pretend")
    )
    for _ in range(3):
        torch.testing.assert_close(there.step(), here.step(), rtol=1e-5, atol=1e-7)


def test_a_checkpoint_goes_from_a_device_to_the_cpu(training, tmp_path):
    there = training(MODELS["linear"], pretend.NAME, ledger=tmp_path / "ledger.dpl")
    there.step()
    there.run.save(tmp_path)
    there.run.close()
    model = MODELS["linear"]()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with dpfy.resume(tmp_path, model, opt, rows(), insecure_test_key=2) as run:
        assert run.steps_taken == 1
    for saved, parameter in zip(model.parameters(), there.model.parameters(), strict=True):
        assert torch.equal(saved, parameter.cpu())


def test_dropout_draws_from_the_device_and_leaves_its_generator_as_it_was(training):
    there = training(MODELS["dropout"], pretend.NAME, engine="ghost")  # draws its masks twice
    before = pretend._generator.get_state()
    first = there.step()
    assert torch.equal(pretend._generator.get_state(), before)
    assert not torch.equal(first, training(MODELS["dropout"], "cpu", engine="ghost").step())


def test_an_engine_that_mixes_devices_is_reported_and_not_replaced(training, monkeypatch):
    there = training(MODELS["linear"], pretend.NAME)
    engine = ENGINES["bookkeeping"]
    monkeypatch.setattr(
        engine, "bounded_sums", lambda self, *_: torch.ones(2) + torch.ones(2, device="pretend")
    )
    with pytest.raises(dpfy.IsolationError, match=r"'bookkeeping'.*device"):
        there.step()


def test_ghost_is_refused_where_its_passes_may_differ(training):
    class Running(nn.Linear):
        def forward(self, x):
            return super().forward(x).cumsum(1)

    def running():
        return Running(8, 3)

    with pytest.raises(dpfy.IsolationError, match=r"'ghost'.*deterministic"):
        training(running, pretend.NAME, engine="ghost").step()
    other = training(running, pretend.NAME)
    other.step()
    assert other.run.engine == "bookkeeping"


def test_noise_is_drawn_ahead_while_a_device_computes(monkeypatch):
    monkeypatch.setattr(prefetch, "_has_core_to_spare", lambda: False)
    noise, count = LatticeGaussian(SecureStream(insecure_test_key=1)), 2**15
    for device, ahead in (("cpu", False), (pretend.NAME, True)):
        sums = torch.zeros(count, dtype=torch.float64, device=device)
        noise.add_noise(sums, 1.0, 2.0**-28)  # from here on it knows of the device
        noise.prefetch(count, 1.0, 2.0**-28)
        assert (noise._prefetcher._prefetched is not None) is ahead
    noise.close()
