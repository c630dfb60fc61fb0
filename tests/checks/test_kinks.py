"""Gradients at a kink differ between a batch and one record, and no engine is refused for it."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dpfy
from dpfy.checks import oracle, probe
from dpfy.checks.compare_engines import parity
from dpfy.checks.fix import fix


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential()
        if stride > 1:
            conv = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outside))

    def forward(self, x):
        found = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        found += self.shortcut(x)
        return self.relu(found)


class ResNet18(nn.Sequential):
    """He et al. 2016, Table 1, with the initialisation of its reference implementation."""

    def __init__(self):
        widths = (64, 64, 128, 256, 512)
        blocks = [
            nn.Sequential(
                Block(inside, outside, 1 if inside == outside else 2), Block(outside, outside, 1)
            )
            for inside, outside in itertools.pairwise(widths)
        ]
        super().__init__(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
            *blocks,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(512, 10),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


@pytest.mark.slow
def test_a_deep_network_has_the_fast_engine_whatever_its_initial_weights():
    # With one draw of synthetic records, two of forty were given to the loop: one activation of
    # 2e-7 was positive for the record alone and negative in its batch.
    for seed in range(40):
        torch.manual_seed(seed)
        model = fix(ResNet18(), "group")
        batch = torch.randn(2, 3, 64, 64), torch.randint(10, (2,))

        def loss(x, y, model=model):
            return F.cross_entropy(model(x), y, reduction="none")

        assert dpfy.explain(model, batch, loss).engine == "bookkeeping", seed


@pytest.fixture
def wrong_in(monkeypatch):
    """Make every engine wrong in some draws of synthetic records."""

    def make(draws, factor=0.99):
        right = oracle.engine_sums

        def found(trial, engine, draw=0, record=None):
            sums = right(trial, engine, draw, record)
            return [each * factor for each in sums] if draw in draws else sums

        for module in (oracle, probe):
            monkeypatch.setattr(module, "engine_sums", found)
        monkeypatch.setattr("dpfy.checks.compare_engines.engine_sums", found)

    return make


def chosen():
    model = nn.Linear(3, 2)
    found = dpfy.explain(model, torch.rand(4, 3))
    (agrees,) = (
        each.agrees
        for each in parity(model, torch.rand(4, 3), lambda x: model(x).sum(1))
        if each.engine == "bookkeeping"
    )
    assert agrees == (found.engine == "bookkeeping")
    return found.engine


@pytest.mark.parametrize("draws", [{0}, {0, 4}, {0, 2, 6}])
def test_an_engine_that_differs_in_few_draws_is_used(wrong_in, draws):
    wrong_in(draws)
    assert chosen() == "bookkeeping"


@pytest.mark.parametrize("draws", [{0, 1, 2, 3}, {*range(7)}])
def test_an_engine_that_differs_in_most_draws_is_not(wrong_in, draws):
    wrong_in(draws)
    with pytest.raises(dpfy.errors.IsolationError, match="does not give the gradients"):
        chosen()  # loop is made wrong, too


@pytest.mark.parametrize("factor", [1.01, 10.0, float("nan")])
@pytest.mark.parametrize("draws", [{0}, {0, 2, 6}])
def test_an_engine_that_exceeds_the_bound_where_it_differs_is_not(wrong_in, draws, factor):
    """A kink changes a gradient, and never by how much a record can change the sum."""
    wrong_in(draws, factor)
    with pytest.raises(dpfy.errors.IsolationError, match="does not give the gradients"):
        chosen()


def test_what_one_record_adds_is_the_clipped_gradient_that_it_has_in_the_chunk():
    model, example = nn.Linear(3, 2), torch.rand(2, 3)
    trained = dict(model.named_parameters())
    judge = probe.Probe(
        model, trained, lambda x: model(x).square().sum(1), oracle.Chunk.of(example, 2), True
    )
    for kind in judge.engines.values():
        engine = kind(model, trained)
        engine.prepare(judge.loss_fn, judge.input)
        alone = [oracle.engine_sums(judge, engine, 1, record) for record in range(3)]
        for each in alone:
            assert sum(float(part.square().sum()) for part in each) == pytest.approx(1, rel=1e-3)
        for parts, whole in zip(
            zip(*alone, strict=True), oracle.engine_sums(judge, engine, 1), strict=True
        ):
            torch.testing.assert_close(sum(parts), whole)


def test_the_draws_are_different_records_also_where_they_are_declared():
    model, example = nn.Linear(3, 2), torch.rand(2, 3)
    judge = probe.Probe(
        model,
        dict(model.named_parameters()),
        lambda x: model(x).sum(1),
        oracle.Chunk.of(example, 2),
        declared=True,
    )
    drawn = [oracle._clipped(judge, draw)[1].arguments[0] for draw in range(4)]
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(drawn))
    assert all(float(each.min()) >= 0 and float(each.max()) <= 1 for each in drawn)
