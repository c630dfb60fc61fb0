"""Two copies of a machine that was restored from one snapshot, and what their runs draw from there
on.
"""

import os

import pytest
import torch
from runs import Dot
from torch.utils.data import TensorDataset

import dpfy
from dpfy.accounting import ZcdpFilter
from dpfy.noise import SecureStream
from dpfy.run.loss_queries import FirstBelow, PrivateArgmin
from recipes import Descent

STREAMS = ("noise", "sampling", "training")
WIDTH = 64


@pytest.fixture
def restored(monkeypatch):
    """Start two runs whose streams have the same keys, as copies of one run have."""
    runs = []

    def start(plan):
        for _ in range(2):
            model = Dot(WIDTH).double()
            with monkeypatch.context() as snapshot:
                snapshot.setattr(os, "urandom", lambda count: bytes(range(count)))
                runs.append(
                    dpfy.privatize(
                        model,
                        torch.optim.SGD(model.parameters(), lr=0.1),
                        TensorDataset(torch.eye(WIDTH).double()),
                        plan,
                        dpfy.Ledger.in_memory(),
                    )
                )
        return runs

    yield start
    for run in runs:
        run.close()


def releases(run, count):
    return [
        run.release(lambda x: run.model(x), next(iter(run))).gradients["weight"]
        for _ in range(count)
    ]


def test_copies_of_a_run_have_no_noise_in_common(restored):
    """With the same noise in both, the difference of what they release is free of it."""
    one, other = (
        torch.cat(releases(run, 3))
        for run in restored(dpfy.dpsgd(rate=1.0, divisor=1, steps=3, noise_multiplier=1.0))
    )
    assert not bool(
        (one == other).any()
    )  # by chance: 2e-7, for 192 values at 2^28 lattice steps to σ


def test_copies_of_a_run_draw_samples_of_their_own(restored):
    """Equal samples would make two releases of one, at a price that was found for two. By chance:
    2^-64.
    """
    one, other = (
        torch.cat(releases(run, 1))
        for run in restored(dpfy.dpsgd(rate=0.5, divisor=1, steps=1, noise_multiplier=0.0))
    )
    assert not torch.equal(one, other)


def test_copies_of_a_run_share_no_word_of_any_stream_after_a_step(restored):
    one, other = restored(dpfy.dpsgd(rate=0.5, divisor=1, steps=1, noise_multiplier=1.0))
    for run in (one, other):
        releases(run, 1)
    for name in STREAMS:
        drawn, again = (getattr(run.context.streams, name).words(500) for run in (one, other))
        assert not set(drawn) & set(again), name


@pytest.fixture
def drawn_from(monkeypatch):
    """Note for every stream, by its purpose, when it is refreshed and drawn from."""
    noted = []
    fill, refresh = SecureStream.fill, SecureStream.refresh

    def noting_fill(self, out):
        noted.append((self.purpose, "drawn from"))
        fill(self, out)

    def noting_refresh(self):
        noted.append((self.purpose, "refreshed"))
        refresh(self)

    monkeypatch.setattr(SecureStream, "fill", noting_fill)
    monkeypatch.setattr(SecureStream, "refresh", noting_refresh)
    return noted


def require_refreshed(noted, *purposes):
    for purpose in purposes:
        happened = [what for whose, what in noted if whose == purpose]
        assert happened[0] == "refreshed" and "drawn from" in happened, f"{purpose}: {happened[:3]}"


def test_every_stream_is_refreshed_before_a_step_draws_from_it(drawn_from):
    descent = Descent(rate=0.5)
    for _ in range(3):
        drawn_from.clear()
        descent.run.release(descent.loss, next(iter(descent.run)))
        require_refreshed(drawn_from, *STREAMS)


@pytest.mark.parametrize("search", [PrivateArgmin, FirstBelow])
def test_every_stream_is_refreshed_before_a_search_draws_from_it(drawn_from, search):
    descent = Descent(rate=0.5)
    weights = {"weight": torch.ones(1, 2)}
    asked = search(descent.run, 1.0, 0.5)
    drawn_from.clear()
    if search is PrivateArgmin:
        asked.of(descent.loss, [weights, weights])
    else:
        asked.of(descent.loss, weights, [(weights, 0.1)])
    require_refreshed(drawn_from, *STREAMS)


def test_a_sum_of_norms_and_the_step_after_it_have_keys_of_their_own(drawn_from):
    """Both are releases: two refreshes of the noise, each before it is drawn from."""
    model = torch.nn.Linear(3, 1)
    plan = dpfy.dpis(
        records=40, batch_size=10, epochs=1, noise_multiplier=1.0, norm_sum="released"
    ).under(ZcdpFilter(1000.0))
    with dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(torch.randn(40, 3)),
        plan,
        dpfy.Ledger.in_memory(),
        insecure_test_key=1,
    ) as run:
        drawn_from.clear()
        run.release(lambda x: model(x).squeeze(1), next(iter(run)))
    require_refreshed(drawn_from, *STREAMS)
    assert drawn_from.count(("noise", "refreshed")) == 2
