"""Statistics of a record must not depend on its neighbours, whatever the engine, and must not stop
a run.
"""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.errors import DpfyError
from dpfy.mechanisms.query import Statistic

ONES = torch.ones(20, 3)
ONE_MORE = torch.cat([ONES, torch.full((1, 3), 100.0)])


def released(rows, stat, engine="auto", dropout=False, **options):
    """The noiseless statistic of all rows, in its own units."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 4), nn.Dropout(0.5) if dropout else nn.Identity(), nn.Linear(4, 1)
    )
    plan = dpfy.dpsgd(
        rate=1.0,
        divisor=1,
        steps=1,
        noise_multiplier=0.0,
        statistics=[Statistic("s", share=0.1)],
        **options,
    )
    run = dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(rows),
        plan,
        dpfy.Ledger.in_memory(),
        insecure_test_key=1,
        engine=engine,
    )
    found = run.release(lambda x: dpfy.Losses(model(x).squeeze(1), {"s": stat(x)}), next(iter(run)))
    return float(found.statistics["s"])


def require_bounded_or_refused(stat, **options):
    try:
        before, after = (released(rows, stat, **options) for rows in (ONES, ONE_MORE))
    except DpfyError:
        return
    assert abs(after - before) <= 1 + 1e-6


def over_batch_maximum(x):
    return 10 * x[:, 0] / x.abs().max().clamp(min=10)


def by_batch_size(x):
    return x[:, 0] * (-1.0) ** len(x)


def by_value_of_any(x):
    return -x[:, 0] if float(x.detach().max()) > 50 else x[:, 0]


@pytest.mark.parametrize("engine", ["auto", "bookkeeping", "ghost", "vmap", "loop"])
def test_a_statistic_over_the_largest_of_the_batch_is_refused_or_bounded(engine):
    """Extreme records must be shown to statistics, and not to the loss only."""
    require_bounded_or_refused(over_batch_maximum, engine=engine)


@pytest.mark.parametrize("engine", ["auto", "bookkeeping", "ghost", "vmap", "loop"])
def test_with_dropout_a_statistic_that_knows_the_batch_is_refused_or_bounded(engine):
    """A record alone and in a batch can be compared once random layers are switched off."""
    require_bounded_or_refused(by_batch_size, engine=engine, dropout=True)


@pytest.mark.parametrize("engine", ["auto", "vmap", "loop"])
@pytest.mark.parametrize("stat", [over_batch_maximum, by_value_of_any])
def test_microbatches_keep_statistics_apart_as_the_engine_does(engine, stat):
    """A slot is computed as one batch, whatever the engine that was chosen because it shows one
    record at a time.
    """
    require_bounded_or_refused(stat, engine=engine, microbatches=1)


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_no_record_stops_a_run_by_the_kind_of_tensor_that_its_statistic_is(engine):
    """What is taken after the records are computed is outside of the guard that silences them: it
    must not fail.
    """

    def stat(x):
        return x[:, 0].to_sparse() if float(x.detach().max()) > 50 else x[:, 0]

    released(ONES, stat, engine=engine)
    released(ONE_MORE, stat, engine=engine)
