"""Records that tie with a threshold to the last bit, in a block that has one record more."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.gradients import ENGINES
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.query import ClippedSum, Query, RecordNormsBelow, Statistic
from dpfy.mechanisms.statistics import ROUNDING
from dpfy.records.records import Records, visit
from dpfy.run import terms
from dpfy.run.release_layout import ReleaseLayout

WIDTH, CLASSES = 40, 5


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 60), nn.Tanh(), nn.Linear(60, CLASSES))
    with torch.no_grad():
        model[2].weight[1:] = model[2].weight[0]  # all classes tie, but for last bits
        model[2].bias.zero_()
    return model


def loss_of(model):
    def loss(x, y):
        scores = model(x)
        return dpfy.Losses(
            F.cross_entropy(scores, y, reduction="none"),
            {"accuracy": dpfy.soft_accuracy(scores, y), "scores": scores},
        )

    return loss


def made_up(size, seed, width=WIDTH, classes=CLASSES):
    generator = torch.Generator().manual_seed(seed)
    return Chunk(
        (
            torch.rand(size, width, generator=generator),
            torch.randint(classes, (size,), generator=generator),
        ),
        size,
    )


@pytest.mark.parametrize("name", ENGINES)
def test_one_record_more_moves_counts_by_its_own_and_the_last_bits_of_equal_records(name):
    """Equal records whose norm is a threshold: kernels of another size move its last bit in all but
    the ``loop``. Had each of them counted as ±½, three of four would have turned round at once, and
    the sum moved by six bounds.
    """
    model = network()
    parameters, loss = dict(model.named_parameters()), loss_of(model)
    engine = ENGINES[name](model, parameters)
    engine.prepare(loss, made_up)
    one, other = made_up(1, 9), made_up(1, 8)

    def pieces(*statistics):
        return ReleaseLayout(Query.of([ClippedSum(1.0)], statistics), parameters, statistics)

    def seen(records, more):
        chunk = Chunk.joined([one] * records + [other] * more)
        return engine.bounded_sums(loss, chunk, pieces().clipping(2.0**-40)).seen

    def sums(seen, statistics):
        totals = [torch.zeros(each.size, dtype=torch.float64) for each in statistics]
        pieces(*statistics).add_statistics(seen, totals)
        return totals

    for records in (1, 2, 3, 4, 7, 8, 15, 16):
        before, after = seen(records, 0), seen(records, 1)
        thresholds = {
            float(norm.sqrt()) for part in (*before, *after) for norm in part.norms[:records, 0]
        }
        statistics = (
            RecordNormsBelow(thresholds=tuple(thresholds), share=0.1),
            Statistic("accuracy", share=0.1),
        )
        for statistic, was, now in zip(
            statistics, sums(before, statistics), sums(after, statistics), strict=True
        ):
            moved = float((now - was).norm()) * pieces(*statistics).query.sum_scale(statistic)
            assert moved <= statistic.bound * (1 + records * ROUNDING)


@pytest.mark.parametrize("engine", ["vmap", "bookkeeping"])
def test_the_noise_of_a_step_with_statistics_is_scaled_for_what_they_move(engine, monkeypatch):
    """A step that releases the statistic has the larger charge, and the next one, which does not,
    the engine's own.
    """
    made, formed = [], terms.GaussianSum
    monkeypatch.setattr(
        terms,
        "GaussianSum",
        lambda *given, **named: made.append(formed(*given, **named)) or made[-1],
    )
    model = network()
    plan = dpfy.dpsgd(
        records=20,
        batch_size=10,
        steps=2,
        noise_multiplier=1.0,
        statistics=[Statistic("accuracy", share=0.1, every=2)],
    )
    chunk = made_up(20, 3)
    with dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(*chunk.arguments),
        plan,
        dpfy.Ledger.in_memory(),
        engine=engine,
        insecure_test_key=2,
    ) as run:
        for batch in run:
            run.release(loss_of(model), batch)
    with_it, expected, without = made
    assert expected == without  # that noise is drawn for before the engine is asked for
    assert without.rounding == pytest.approx(
        ENGINES[engine].rounding, abs=1e-12
    )  # and float64 additions of blocks
    assert with_it.rounding == pytest.approx((0.9 * without.rounding**2 + 0.1 * ROUNDING**2) ** 0.5)
    assert with_it.co_batched >= 20


def jumping():
    """A network with a derivative that jumps, and a record that it maps to where it does, up to
    last bits.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1000, 8, bias=False), nn.ReLU(), nn.Linear(8, 2, bias=False))
    weight = model[0].weight.detach().double()
    record = torch.randn(1000).double()
    record -= weight.T @ torch.linalg.solve(weight @ weight.T, weight @ record)
    return model, record.float()


@pytest.mark.parametrize("name", ENGINES)
def test_a_record_that_raises_moves_no_bit_of_others(name):
    """Had the others been computed one by one, kernels of another size would turn their signs
    round: by 20 bounds.
    """
    model, record = jumping()
    parameters = dict(model.named_parameters())
    engine = ENGINES[name](model, parameters)

    def loss(x, y):
        return F.cross_entropy(model(x), y, reduction="none")

    engine.prepare(loss, lambda size, seed: made_up(size, seed, width=1000, classes=2))
    clipping = ReleaseLayout(Query.of([ClippedSum(1.0)]), parameters, ()).clipping(2.0**-40)

    def total(labels):
        data = TensorDataset(record.repeat(len(labels), 1), torch.tensor(labels))
        gradients = [
            torch.zeros_like(parameter, dtype=torch.float64) for parameter in parameters.values()
        ]
        visit(
            Records(data, None, 0),
            [torch.arange(len(labels))],
            lambda chunk: engine.bounded_sums(loss, chunk, clipping),
            lambda sums: sums.add_to(gradients),
        )
        return torch.cat([gradient.flatten() for gradient in gradients])

    undisturbed = total([0] * 40)
    assert undisturbed.norm() > 0
    assert torch.equal(total([0] * 20 + [5] + [0] * 20), undisturbed)  # there is no class 5


class Labelled(torch.utils.data.Dataset):
    """Records of two classes, of which some claim to be of another."""

    def __init__(self, bad):
        self.bad = bad

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((WIDTH,), index / 24), torch.tensor(CLASSES if index in self.bad else 0)


@pytest.mark.parametrize("workers", [0, 1])
def test_chunks_that_raise_leave_those_behind_them_to_the_loader(workers):
    """Loading once more while chunks are still coming would reset the workers and lose the rest,
    aloud.
    """
    model = nn.Linear(WIDTH, CLASSES)
    parts = torch.arange(24).split(6)
    seen = []

    def compute(chunk):
        x, y = chunk.arguments
        F.cross_entropy(model(x), y, reduction="none")
        return len(x)

    visit(Records(Labelled({0, 13}), None, workers), parts, compute, seen.append)
    assert sorted(seen) == [5, 5, 6, 6]
