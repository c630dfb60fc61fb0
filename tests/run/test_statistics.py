"""Statistics of a record must not depend on its neighbours, whatever the engine, and must not stop
a run.
"""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
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


ENGINES = ("auto", "bookkeeping", "ghost", "vmap", "loop")
ONE_BY_ONE = ("auto", "vmap", "loop")
"""Engines, chosen or named, that give a loss one record at a time and so serve every loss."""


def require_bounded(stat, **options):
    """The run must accept the statistic, and one record must move it by 1 at most."""
    before, after = (released(rows, stat, **options) for rows in (ONES, ONE_MORE))
    assert abs(after - before) <= 1 + 1e-6


def require_refused(stat, **options):
    """The run must refuse the statistic because records mix, on both of two neighbours."""
    for rows in (ONES, ONE_MORE):
        with pytest.raises(dpfy.IsolationError):
            released(rows, stat, **options)


def of_one_record(x):
    return x[:, 0].clamp(max=1)


def over_batch_maximum(x):
    return 10 * x[:, 0] / x.abs().max().clamp(min=10)


def by_batch_size(x):
    return x[:, 0] * (-1.0) ** len(x)


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_accepts_a_statistic_of_one_record(engine, dropout):
    """Refusing everything would pass all tests of what is refused."""
    require_bounded(of_one_record, engine=engine, dropout=dropout)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_statistic_over_the_largest_of_the_batch_is_refused_or_bounded(engine):
    """Extreme records must be shown to statistics, and not to the loss only."""
    require = require_bounded if engine in ONE_BY_ONE else require_refused
    require(over_batch_maximum, engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_with_dropout_a_statistic_that_knows_the_batch_is_refused(engine):
    """A record alone and in a batch can be compared once random layers are switched off."""
    require_refused(by_batch_size, engine=engine, dropout=True)


@pytest.mark.parametrize("engine", ONE_BY_ONE)
def test_microbatches_have_no_statistics_of_single_records(engine):
    """A slot is computed as one batch, whatever the engine that was chosen because it shows one
    record at a time.
    """
    with pytest.raises(dpfy.InvalidArgument, match="no statistics or norms of single records"):
        released(ONES, of_one_record, engine=engine, microbatches=1)


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_no_record_stops_a_run_by_the_kind_of_tensor_that_its_statistic_is(engine):
    """What is taken after the records are computed is outside of the guard that silences them: it
    must not fail.
    """

    def stat(x):
        return x[:, 0].to_sparse() if float(x.detach().max()) > 50 else x[:, 0]

    released(ONES, stat, engine=engine)
    released(ONE_MORE, stat, engine=engine)
