"""One step ahead: paid for before it is drawn, the same releases, and settled by a clean close."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from runs import Dot, Started
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import dpfy
from dpfy.ledger import Ledger
from dpfy.mechanisms.controllers import ValidationDecay
from dpfy.mechanisms.sampling import PoissonSampler
from dpfy.noise import LatticeGaussian
from dpfy.records.workers import Workers
from dpfy.run.context import StepContext
from dpfy.run.loss_queries import PrivateArgmin

ROWS = torch.randn(40, 3, generator=torch.Generator().manual_seed(3))


class Rows(Dataset):
    """Rows, of which some do something else than being loaded."""

    example_input = torch.zeros(1, 3)

    def __init__(self, rows=ROWS, bad=(), deed=None):
        self.rows, self.bad, self.deed = rows, set(bad), deed

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if index in self.bad:
            self.deed()
        return self.rows[index]


def ahead(started, data=None, **options):
    """A run of five steps that is one step ahead, with a worker."""
    options = {"num_workers": 1, "prefetch": 1, "rate": 0.5, **options}
    return started(ROWS if data is None else data, **options)


def released(s, steps=5):
    return torch.stack([s.release() for _ in range(steps)])


# The order


def test_the_next_step_is_paid_for_drawn_and_loading_before_this_one_is_released(
    started, monkeypatch
):
    """A draw or a load before the payment would show, and so would one that waits for the release;
    and there is no step behind the last.
    """
    s, seen = ahead(started, steps=3, noise_multiplier=1.0), []
    s.release()  # the engine is chosen, for which workers look at records
    for owner, name in (
        (Ledger, "reserve"),
        (Ledger, "prepay"),
        (PoissonSampler, "draw"),
        (Workers, "begin"),
        (LatticeGaussian, "release"),
    ):
        original = getattr(owner, name)

        def noted(*given, original=original, name=name, **named):
            seen.append(name)
            return original(*given, **named)

        monkeypatch.setattr(owner, name, noted)
    for expected in (
        ["reserve", "prepay", "prepay", "draw", "begin", "release"],
        ["reserve", "prepay", "release"],  # a reservation takes what was prepaid
    ):
        seen.clear()
        s.release()
        assert seen == expected


def test_the_ledger_holds_a_step_before_the_workers_load_it(started, tmp_path):
    """A loader that runs before the line is on disk would leave reads without a record."""
    path, log = tmp_path / "run.dpl", tmp_path / "log"

    class Looking(Rows):
        def __getitem__(self, index):
            with log.open("a") as file:
                file.write(f"{Ledger.read(path).count}\n")
            return self.rows[index]

    s = ahead(started, Looking(ROWS[:4]), rate=1.0, ledger=path, steps=3)
    s.release()  # the engine is chosen by then, and what was read for it is in the log
    log.write_text("")
    s.release()
    s.run.close()
    assert set(log.read_text().split()) <= {"2", "3"}


# The releases


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_physical_batch": 4, "num_workers": 2},
        {"microbatches": 3},
        {"rate": 0.02},
        {"plan": dpfy.dpsgd(records=40, batch_size=8, steps=8, noise_multiplier=1.0,
                            sampling="shuffled", relation="replace_one")},
        {"plan": dpfy.dpsgd(rate=0.5, divisor=1, steps=5, noise_multiplier=1.0,
                            clip_schedule="time:1", noise_schedule="time:0.5")},
    ],
    ids=["one chunk", "several chunks", "microbatches", "empty samples", "epochs", "schedules"],
)  # fmt: skip
def test_releases_and_ledger_are_those_of_a_run_that_is_not_ahead(started, options):
    """One draw too many, or another order of draws, would move every sample after it."""
    found = []
    for prefetch in (0, 1):
        s = ahead(started, prefetch=prefetch, **{"noise_multiplier": 1.0, **options})
        found.append(released(s, s.plan.steps))
        s.run.close()
        found.append(s.ledger.uses)
    assert torch.equal(found[0], found[2]) and found[1] == found[3]


def test_users_are_loaded_ahead_as_they_are_on_demand(started):
    plan = dpfy.dpsgd(rate=0.5, divisor=1, steps=4, noise_multiplier=1.0, unit="user")
    owners = [row % 7 for row in range(40)]
    here, there = (
        released(ahead(started, plan=plan, unit_of=owners, rows_per_user=3, prefetch=each), 4)
        for each in (0, 1)
    )
    assert torch.equal(here, there)


class Brittle(Dot):
    """Raises on chunks with a record whose first number is large."""

    def forward(self, x):
        if bool((x[..., 0] > 1.2).any()):
            raise ValueError("a record")
        return super().forward(x)


def fail():
    raise ValueError("record 5")


@pytest.mark.parametrize(
    ("deed", "model"),
    [(lambda: os._exit(1), Dot), (fail, Brittle)],
    ids=["exits", "raises, as others do in the loss"],
)
def test_records_that_fail_to_load_ahead_are_left_out_in_silence(started, deed, model, capfd):
    """They may end a worker that has loaded parts of two steps; nothing of these is lost."""
    bad = {5, 6, 23}
    kept = ROWS.clone()
    kept[list(bad)] = torch.nan  # as records without a finite gradient, which contribute nothing
    settings = {"engine": "loop", "max_physical_batch": 6}
    s = ahead(started, Rows(ROWS, bad, deed), model=model(), num_workers=2, **settings)
    found = released(s, 3)
    s.run.close()
    assert torch.equal(found, released(started(kept, rate=0.5, model=model(), **settings), 3))
    assert capfd.readouterr() == ("", "")


def test_a_step_in_other_parts_than_were_loaded_ahead_is_loaded_again(started, monkeypatch):
    """As when a loss needs another engine; the parts of the one before are of no use."""
    largest = [None]
    monkeypatch.setattr(StepContext, "largest_chunk", lambda *_: largest[0])

    def found(prefetch):
        s, largest[0] = ahead(started, prefetch=prefetch, noise_multiplier=1.0), None
        first = s.release()
        largest[0] = 3
        return torch.stack([first, s.release(), s.release()])

    assert torch.equal(found(0), found(1))


# Paid for and not taken


@pytest.mark.parametrize(("taken", "block"), [(0, 1), (2, 1), (5, 1), (2, 3), (3, 3)])
def test_a_clean_close_hands_the_step_ahead_back(started, tmp_path, taken, block):
    path = tmp_path / "run.dpl"
    s = ahead(started, ledger=path, noise_multiplier=1.0, block=block)
    released(s, taken) if taken else None
    assert Ledger.read(path).count > taken or taken in (0, 5)
    assert s.run.steps_taken == s.run.ledger.count == taken
    s.run.close()
    assert Ledger.read(path).count == taken


def test_an_epoch_that_was_paid_for_ahead_is_handed_back(started):
    plan = dpfy.dpsgd(
        records=40, batch_size=20, steps=6, noise_multiplier=1.0, sampling="shuffled",
        relation="replace_one",
    )  # fmt: skip
    for taken, epochs in ((2, 1), (3, 2)):
        s = ahead(started, plan=plan)
        released(s, taken)
        s.run.close()
        assert s.ledger.count == epochs


def test_an_error_and_an_early_stop_hand_the_step_ahead_back(started, tmp_path):
    path = tmp_path / "run.dpl"
    s = ahead(started, ledger=path, noise_multiplier=1.0)
    with pytest.raises(KeyboardInterrupt), s.run as run:
        for batch in run:
            if batch.step == 3:
                raise KeyboardInterrupt
            run.backward(s.loss, batch)
            s.opt.step()
    assert Ledger.read(path).count == 2


def test_a_step_that_fails_costs_itself_and_the_next_one_goes_on(started, monkeypatch):
    s = ahead(started, noise_multiplier=1.0)
    s.release()
    with monkeypatch.context() as patch:
        patch.setattr(LatticeGaussian, "release", lambda *given, **named: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            s.release()
    s.release()
    assert s.run.steps_taken == 3 and s.ledger.count == 3


def test_a_budget_that_ends_before_the_plan_stops_at_its_own_step(started, tmp_path):
    """A payment ahead that the guard refuses must not take the paid step along."""
    path = tmp_path / "run.dpl"
    s = ahead(started, ledger=path, noise_multiplier=1.0, steps=3)
    s.release()
    s.run.ledger.reserve(s.plan.event_at(2, 1.0, None))  # by hand: the plan has one step less
    s.release()
    with pytest.raises(dpfy.BudgetExhausted):
        s.release()
    s.run.close()
    assert Ledger.read(path).count == 3


# Checkpoints


def resumed(folder, **options):
    model = Dot()
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    return dpfy.resume(
        folder, model, opt, TensorDataset(ROWS), num_workers=1, prefetch=1, **options
    )


def test_a_checkpoint_counts_the_step_ahead_as_lost_only_if_it_was_not_handed_back(
    started, tmp_path, capsys
):
    s = ahead(started, ledger=tmp_path / "run.dpl", noise_multiplier=1.0, key=None)
    released(s, 2)
    s.run.save(tmp_path)
    s.run.close()
    capsys.readouterr()  # of the engine
    with resumed(tmp_path) as run:
        assert (run.lost_steps, run.steps_taken, run.steps_left) == (0, 2, 3)
    assert capsys.readouterr().out == ""


def test_after_a_crash_the_step_ahead_is_lost_and_not_drawn_again(tmp_path, capsys):
    child = os.fork()
    if child == 0:
        s = Started(
            TensorDataset(ROWS), ledger=tmp_path / "run.dpl", noise_multiplier=1.0, key=None,
            rate=0.5, num_workers=1, prefetch=1,
        )  # fmt: skip
        released(s, 2)
        s.run.save(tmp_path)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    with resumed(tmp_path) as run:
        assert (run.lost_steps, run.steps_taken, run.steps_left) == (1, 3, 2)
        for batch in run:
            run.release(lambda x: run.model(x), batch)
    assert Ledger.read(tmp_path / "run.dpl").count == 5
    assert "1 step after the checkpoint was paid for" in capsys.readouterr().out


class Stopping(dpfy.Callback):
    """Interrupts training after its third step."""

    def on_step(self, step):
        if step.step == 3:
            raise KeyboardInterrupt


def test_a_trainer_that_is_interrupted_pays_for_what_it_released_and_goes_on(tmp_path, capsys):
    data = TensorDataset(ROWS, torch.arange(40) % 2)
    config = dpfy.TrainConfig(
        data="own", records=40, batch_size=8, epochs=1, delta=1e-3, learning_rate=0.1, csv=False,
        num_workers=1, prefetch=1, out=str(tmp_path), name="a",
    )  # fmt: skip
    ledger = tmp_path / "a" / "ledger.dpl"

    def trainer(*callbacks):
        return dpfy.Trainer(config, model=nn.Linear(3, 2), train=data, callbacks=callbacks)

    with pytest.raises(dpfy.TrainingInterrupted):
        trainer(Stopping()).fit()
    assert Ledger.read(ledger).count == 3
    trainer().resume()
    assert Ledger.read(ledger).count == 5 and "lost" not in capsys.readouterr().out


# Refusals


DPIS = dpfy.dpis(records=40, batch_size=8, steps=5, ratio=0.5, noise_multiplier=4.0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_workers": 0}, "num_workers=1"),
        ({"prefetch": 2}, "prefetch=2 to be 0 or 1"),
        ({"prefetch": True}, "prefetch=True to be 0 or 1"),
        ({"plan": DPIS, "engine": "loop"}, "importance sampling"),
        ({"controllers": [dpfy.QuantileClipping(0.5)]}, "QuantileClipping chooses the bounds"),
        ({"controllers": [ValidationDecay()]}, "ValidationDecay chooses the noise"),
    ],
)
def test_what_cannot_be_ahead_is_refused_before_a_ledger_is_begun(started, tmp_path, options, says):
    controllers = options.pop("controllers", None)
    if controllers:
        plan = dpfy.dpsgd(
            records=40, batch_size=8, steps=5, noise_multiplier=1.0, controllers=controllers
        )
        options = {**options, "plan": plan}
    with pytest.raises(dpfy.InvalidArgument, match=says):
        ahead(started, ledger=tmp_path / "run.dpl", **options)
    assert not (tmp_path / "run.dpl").exists()


def test_a_search_over_losses_does_not_come_between(started):
    with pytest.raises(dpfy.InvalidArgument, match="prefetch=0"):
        PrivateArgmin(ahead(started).run, bound=1.0, epsilon=0.1)


# Killed at any instant


def kill_after(path, calls):
    """Release in a child that is killed before its ``calls``-th call of Python in a step, and
    return how many steps it released.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        s = Started(
            TensorDataset(ROWS[:8]), ledger=path, noise_multiplier=1.0, key=None, rate=0.5,
            steps=10**6, num_workers=1, prefetch=1,
        )  # fmt: skip
        s.release()
        os.write(write_end, b".")
        left = calls

        def count(*_):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(count)
        while True:
            s.release()
            os.write(write_end, b".")
    os.close(write_end)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    found = 0
    while some := os.read(read_end, 4096):
        found += len(some)
    os.close(read_end)
    return found


def check_kills(path: Path, instants):
    warm = Started(TensorDataset(ROWS[:8]), rate=0.5, noise_multiplier=1.0)
    warm.release()  # imports and caches, before the first fork
    warm.run.close()
    spent = 0
    for calls in instants:
        found = kill_after(path, calls)
        before, spent = spent, Ledger.read(path).count
        assert found <= spent - before <= found + 2  # the step under way, and the one ahead


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_at_a_few_instants_a_run_counts_at_least_what_it_released(tmp_path):
    check_kills(tmp_path / "run.dpl", (1, 700, 2900))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_at_two_hundred_instants_a_run_counts_at_least_what_it_released(tmp_path):
    check_kills(tmp_path / "run.dpl", range(1, 200 * 43, 43))
