"""What a run rests on is in its ledger before the first release, and nothing of it depends on a
record.
"""

import pytest
import torch
import torch.nn.functional as F
from runs import Dot
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import dpfy
from dpfy.errors import LedgerWriteFailed
from dpfy.ledger import Ledger
from dpfy.ledger.basis import Ground, Kind, grounds_in
from dpfy.run.release_layout import ReleaseLayout
from dpfy.run.terms import mechanism_for

ROWS = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.5, 0.5, 0.5]])


class Rows(Dataset):
    """Rows that are not stacked."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return (self.rows[index],)


def kinds(ledger):
    return {ground.key: ground.kind for ground in grounds_in(ledger.basis)}


def test_a_run_records_once_what_it_rests_on(started):
    run = started(ROWS)
    for _ in range(2):
        run.release()
        run.release(lambda x: run.model(x))  # another function, the same engine
    (facts,) = run.ledger.basis
    assert facts["engine"] == run.run.engine and facts["strict"] is False
    machine = facts["environment"]
    assert machine["torch"] == torch.__version__ and machine["threads"] == torch.get_num_threads()
    assert (
        machine["parameters"] == "float32"
        and machine["matmul_precision"] == "highest"
        and machine["processor"]
    )


@pytest.mark.parametrize(
    ("engine", "isolation"),
    [("bookkeeping", "check"), ("ghost", "check"), ("vmap", "theorem"), ("loop", "theorem")],
)
def test_what_is_proved_is_told_from_what_is_checked_and_allowed_for(started, engine, isolation):
    run = started(ROWS, engine=engine, model=nn.Linear(3, 1))
    run.release(lambda x: run.model(x).flatten())
    found = kinds(run.ledger)
    assert found["isolation"] == isolation and found["contribution"] == Kind.THEOREM
    assert found["last_bits"] == Kind.ALLOWANCE and found["no_memory"] == Kind.CHECK
    assert ("agreement" in found) == (engine != "loop")


def test_the_allowance_is_the_one_that_the_noise_is_scaled_for(started):
    run = started(ROWS, engine="vmap")
    run.release()
    setting, engine = run.run.context.controllers.config(1), run.run.context.engines.current
    (text,) = [ground.text for ground in grounds_in(run.ledger.basis) if ground.key == "last_bits"]
    co_batched = mechanism_for(
        run.run.context, engine, 1, setting, _layout(run.run, setting)
    ).co_batched
    assert f"up to {co_batched} others" in text and f"{engine.rounding:.2g} clip bounds" in text


def _layout(run, setting):
    return ReleaseLayout(
        setting.query, run.context.trained(), setting.query.due(1), setting.coordinates
    )


def test_nothing_in_it_is_from_records(started):
    # One record more, and one that no loss survives: the lines must be the same to the byte.
    found = []
    for rows in (ROWS, torch.cat([ROWS, torch.tensor([[torch.nan, 1e30, -7.0]])])):
        run = started(rows)
        run.release()
        found.append(run.ledger.basis)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        (TensorDataset(ROWS), {"example_input": None}, "stacked tensors: float32 [3]"),
        (Rows(ROWS), {"example_input": (torch.rand(2, 3),)}, "example_input: float32 [3]"),
    ],
    ids=["stacked", "declared"],
)
def test_how_the_shape_is_known(started, data, options, said):
    run = started(data, **options)
    run.release()
    (ground,) = [ground for ground in grounds_in(run.ledger.basis) if ground.key == "shape"]
    assert ground.kind == Kind.DECLARATION and said in ground.text


def test_dropout_rests_on_an_allowance_and_only_where_it_draws(started):
    model = nn.Sequential(nn.Dropout(0.5), Dot())
    run = started(ROWS, model=model)
    run.release()
    assert kinds(run.ledger)["random_numbers"] == Kind.ALLOWANCE
    quiet = started(ROWS, model=nn.Sequential(nn.Dropout(0.5), Dot()).eval())
    quiet.release()
    assert "random_numbers" not in kinds(quiet.ledger)


def test_microbatches_share_their_arithmetic_with_nobody(started):
    run = started(ROWS, rate=0.5, microbatches=2)
    run.release()
    found = kinds(run.ledger)
    assert found["slots"] == Kind.THEOREM and "last_bits" not in found and "isolation" not in found


def test_statistics_and_importance_sampling_have_allowances_of_their_own():
    data = TensorDataset(torch.randn(60, 3), torch.randint(2, (60,)))
    by_norm = dpfy.dpis(records=60, batch_size=10, steps=2, clip=1.0, noise_multiplier=2.0)
    told = dpfy.dpsgd(
        records=60,
        batch_size=10,
        steps=2,
        clip=1.0,
        noise_multiplier=2.0,
        statistics=[dpfy.Statistic("loss", bound=1.0)],
    )
    for plan, key in ((by_norm, "last_bits_of_norms"), (told, "last_bits_of_statistics")):
        model, ledger = nn.Linear(3, 2), Ledger.in_memory()

        def loss(x, y, model=model):
            losses = F.cross_entropy(model(x), y, reduction="none")
            return dpfy.Losses(losses, {"loss": losses})

        with dpfy.privatize(
            model, torch.optim.SGD(model.parameters(), lr=0.1), data, plan, ledger
        ) as run:
            run.backward(loss, next(iter(run)))
        assert kinds(ledger)[key] == Kind.ALLOWANCE


def test_loading_processes_are_told(started):
    run = started(Rows(ROWS), num_workers=1)
    run.release()
    assert kinds(run.ledger)["loading"] == Kind.THEOREM
    assert run.ledger.basis[0]["environment"]["loading_processes"] == 1


def test_facts_that_cannot_be_written_end_the_run(started, monkeypatch):
    # Released all the same, the report of the run would say "not recorded" of something that rests
    # on allowances.
    run = started(ROWS)
    whole = run.ledger._store.append

    def full(data, head):
        if b'"basis"' in data:
            raise OSError(28, "No space left on device")
        whole(data, head)

    monkeypatch.setattr(run.ledger._store, "append", full)
    for _ in range(2):
        with pytest.raises(LedgerWriteFailed):
            run.release()


def test_a_kind_of_tomorrow_counts_as_an_allowance():
    told = {
        "grounds": [
            {"kind": "conjecture", "key": "x", "title": "X", "text": "…"},
            "noise",
            {"kind": "theorem"},
        ]
    }
    found = grounds_in([told, told, {}, {"grounds": 3}])
    assert [ground.kind for ground in found] == [Kind.THEOREM, Kind.ALLOWANCE]
    assert Ground(Kind.ALLOWANCE, "x", "X", "…").status == "allowed for, not proved"


def test_only_theorems_hold():
    words = {kind: Ground(kind, "", "", "").status for kind in Kind}
    assert [kind for kind, word in words.items() if "hold" in word] == [Kind.THEOREM]
