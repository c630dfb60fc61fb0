"""Runs with correlated noise: records by the step, rows by the ledger, and nothing of it saved."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from runs import Dot, Started
from torch.utils.data import TensorDataset

import dpfy
from dpfy.errors import InvalidArgument, LedgerError, LedgerMismatch
from dpfy.ledger.streams import Row, Toeplitz
from dpfy.noise import CorrelatedGaussian, LatticeGaussian, lattice_step
from dpfy.optim import ADADP, AdamBC

RECORDS, STEPS = 7, 12
EYE = torch.eye(RECORDS)
COEFFICIENTS = (1.0, 0.6, 0.4)


def planned(noise_multiplier=0.0, records=RECORDS, **options):
    options = {"strategy": Toeplitz(COEFFICIENTS), "batch_size": 2, "steps": STEPS, **options}
    return dpfy.dpftrl(records=records, noise_multiplier=noise_multiplier, divisor=1.0, **options)


def on_disk(folder, rows=EYE, key=None, **options):
    """Start, or go on with, a run whose ledger is a file."""
    plan = planned(**options)
    return Started(
        TensorDataset(rows),
        dimension=rows.shape[1],
        plan=plan,
        key=key,
        ledger=folder / "run.dpl",
        announce=False,
    )


def due(step):
    """Return the records of a step of batches of two."""
    first = (step - 1) % 4 * 2
    return torch.eye(RECORDS)[first : first + 2].sum(0)


# The schedule of records, and the rows on record


@pytest.mark.parametrize("at", range(1, STEPS))
def test_a_resume_goes_on_with_the_next_step_and_its_records(tmp_path, at):
    """Without noise, a release is the records of its step: a new epoch would show."""
    first = on_disk(tmp_path)
    seen = [first.release() for _ in range(at)]
    first.run.save(tmp_path / "saved")
    first.run.close()
    model = Dot(RECORDS)
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    with dpfy.resume(tmp_path / "saved", model, opt, TensorDataset(EYE)) as run:
        assert run.steps_left == STEPS - at and run.lost_steps == 0
        for batch in run:
            seen.append(run.release(model, batch).gradients["weight"])
    assert torch.equal(torch.stack(seen), torch.stack([due(step + 1) for step in range(STEPS)]))
    ledger = dpfy.Ledger.read(tmp_path / "run.dpl")
    events = {run.event for run in ledger.uses}
    assert events == {planned().event} and ledger.count == STEPS
    assert isinstance(events.pop(), Row)


def test_a_step_that_failed_keeps_its_records(started):
    """The next step has the records after those of the one that was lost."""
    s = started(EYE, dimension=RECORDS, plan=planned())
    s.release()

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        s.release(interrupt)
    assert torch.equal(s.release(), due(3))
    assert s.ledger.count == 3


@pytest.mark.parametrize("sampling", ["cyclic", "cyclic_poisson"])
def test_steps_ahead_have_the_records_of_their_number(started, sampling):
    options = {"bands": 3, "strategy": "banded"} if sampling == "cyclic_poisson" else {}
    s = started(
        EYE,
        dimension=RECORDS,
        plan=planned(sampling=sampling, **options),
        num_workers=1,
        prefetch=1,
    )
    for step in range(1, 8):
        found = s.release()
        if sampling == "cyclic":
            assert torch.equal(found, due(step))
        else:
            assert all(int(place) % 3 == (step - 1) % 3 for place in found.nonzero().flatten())


def test_no_more_rows_than_planned(started):
    s = started(EYE, dimension=RECORDS, plan=planned(1.0))
    for _ in range(STEPS):
        s.release()
    assert s.run.steps_left == 0 and [*s.run] == []
    with pytest.raises((LedgerError, InvalidArgument, dpfy.DpfyError)):
        s.ledger.reserve(s.plan.event)


def test_what_is_spent_grows_step_by_step_to_the_budget(started):
    plan = planned(None).calibrate(epsilon=3.0, delta=1e-3)
    s = started(EYE, dimension=RECORDS, plan=plan)
    spent = []
    for _ in range(STEPS):
        s.release()
        spent.append(s.run.spent(1e-3).upper)
    assert spent == sorted(spent) and spent[0] < spent[-1] <= 3.0 <= 1.01 * spent[-1]


KILLED = """
import os, signal, sys, torch, dpfy
sys.path.insert(0, {support!r})
sys.path.insert(0, {here!r})
from test_correlation import on_disk
from pathlib import Path
s = on_disk(Path({folder!r}))
for _ in range(4):
    s.release()
s.release(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.mark.slow
def test_a_killed_process_loses_a_row_and_no_place(tmp_path):
    here = str(__file__).rpartition("/")[0]
    code = KILLED.format(support=f"{here}/../support", here=here, folder=str(tmp_path))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    again = on_disk(tmp_path)
    assert again.run.steps_left == STEPS - 5
    assert torch.equal(again.release(), due(6))
    again.run.close()


# The noise of rows

WIDE = 4000
SIX_SIGMA = 6.0  # two-sided 2e-9


def score(one, other):
    """Return the correlation of two rows, in standard deviations."""
    centred = (each / each.square().mean().sqrt() for each in (one.double(), other.double()))
    return float(torch.dot(*centred)) / WIDE**0.5


def nothing(records=RECORDS):
    return torch.zeros(records, WIDE)


def fresh(rows, cuts):
    """Undo the correlation of rows whose noise was begun anew before each cut."""
    found = []
    for step in range(len(rows)):
        begun = max([cut for cut in cuts if cut <= step], default=0)
        past = [c * rows[step - lag] for lag, c in enumerate(COEFFICIENTS) if step - lag >= begun]
        found.append(torch.stack(past).sum(0))
    return found


@pytest.mark.parametrize("at", range(1, STEPS))
def test_a_resume_begins_the_noise_anew(tmp_path, at):
    """No fresh noise is used twice, and rows after the resume know none before it."""
    rows = []
    for steps in (at, STEPS - at):
        s = on_disk(tmp_path, nothing(), noise_multiplier=1.0)
        rows += [s.release() for _ in range(steps)]
        s.run.close()
    undone = fresh(rows, {at})
    for later in range(STEPS):
        for earlier in range(later):
            assert abs(score(undone[later], undone[earlier])) < SIX_SIGMA
    assert len(torch.cat(rows).unique()) > (1 - 1e-3) * STEPS * WIDE
    assert abs(score(rows[at], rows[at - 1])) < SIX_SIGMA
    if at > 1:  # without a resume, neighbours are far from independent
        assert score(rows[1], rows[0]) < -3 * SIX_SIGMA


def test_a_step_that_fails_after_it_was_paid_for_forgets(started):
    s = started(nothing(), dimension=WIDE, plan=planned(1.0))
    rows = [s.release() for _ in range(3)]

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        s.release(interrupt)
    released = s.run.release(s.loss, next(iter(s.run)))
    row = released.gradients["weight"]
    assert max(abs(score(row, each)) for each in rows) < SIX_SIGMA
    assert float(row.std()) == pytest.approx(released.stddevs["weight"], rel=0.1)
    assert score(s.release(), row) < -3 * SIX_SIGMA  # and remembers from there on


def test_noise_that_fails_forgets(started, monkeypatch):
    s = started(nothing(), dimension=WIDE, plan=planned(1.0))
    rows = [s.release() for _ in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(LatticeGaussian, "_add_to", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            s.release()
    row = s.release()
    assert max(abs(score(row, each)) for each in rows) < SIX_SIGMA


@pytest.mark.parametrize(
    "options",
    [{}, {"strategy": "blt"}, {"strategy": "tree"}, {"strategy": "independent"}],
    ids=["toeplitz", "blt", "tree", "independent"],
)
def test_stddevs_are_those_of_the_row(started, options):
    """DP-AdamBC takes the noise of this row out of its second moment, and not that of fresh noise.

    The scale of a row of 4000 values is known to 1 %; two thirds and three halves are far off.
    """
    s = started(nothing(), dimension=WIDE, plan=planned(2.0, **options))
    said = []
    for _ in range(6):
        released = s.run.release(s.loss, next(iter(s.run)))
        said.append(released.stddevs["weight"])
        assert float(released.gradients["weight"].std()) == pytest.approx(said[-1], rel=0.08)
    assert (len(set(said)) == 1) == (options == {"strategy": "independent"})
    assert said[0] == pytest.approx(2.0, rel=1e-4)


def test_adam_bc_is_told(started):
    plan = planned(1.0)
    model = Dot(WIDE)
    opt = AdamBC(model.parameters(), lr=0.1)
    with dpfy.privatize(
        model, opt, TensorDataset(nothing()), plan, dpfy.Ledger.in_memory(), insecure_test_key=1
    ) as run:
        told = []
        opt.expect_noise = lambda noise: told.append([*noise.values()])
        for batch in run:
            opt.zero_grad()
            run.backward(model, batch)
            if len(told) == 3:
                break
    inverse = np.linalg.inv(sum(c * np.eye(3, k=-k) for k, c in enumerate(COEFFICIENTS)))
    spreads = np.linalg.norm(inverse, axis=1)
    assert [each[0] for each in told] == pytest.approx(spreads, rel=1e-3)


def test_the_noise_is_scaled_for_the_rounding_of_its_history(started, monkeypatch):
    seen, add = [], CorrelatedGaussian.release
    monkeypatch.setattr(
        CorrelatedGaussian,
        "release",
        lambda self, *given, **named: (seen.append(named), add(self, *given, **named)),
    )
    s = started(nothing(), dimension=WIDE, plan=planned(1.0))
    s.release()
    grid = lattice_step(1.0)
    slack = (1 + s.run.context.noise.roundings) * WIDE**0.5 * grid
    assert s.run.context.noise.roundings > 30
    assert seen[0]["grid"] == grid and seen[0]["stddev"] >= 1 + slack


def test_nothing_of_the_noise_is_in_a_checkpoint(tmp_path):
    s = on_disk(tmp_path, nothing(), noise_multiplier=1.0, key=None)
    for _ in range(4):
        s.release()
    kept = s.run.context.noise._history._ring
    assert all(row.any() for row in kept)
    content = s.run.save(tmp_path / "saved").read_bytes()
    assert not any(row[:4].tobytes() in content for row in kept)
    assert b"history" not in content and b"noise_state" not in content
    assert "sensitive" in repr(s.run.context.noise)
    s.run.close()
    assert s.run.context.noise._history._ring is None


def test_two_runs_do_not_write_rows_of_one_stream():
    """Both would begin with row 1, and the ledger would charge for one stream."""
    ledger = dpfy.Ledger.in_memory()
    first, second = (
        Started(TensorDataset(EYE), dimension=RECORDS, plan=planned(1.0), key=None, ledger=ledger)
        for _ in range(2)
    )
    first.release()
    with pytest.raises(LedgerMismatch, match="Row 1 of the stream is next"):
        second.release()
    first.release()
    assert ledger.count == 2


# What goes with it, and what does not


def grouped(model):
    return {"clip": dpfy.clip_groups(model, clip=0.5)}


@pytest.mark.parametrize(
    "options",
    [
        grouped,
        lambda model: {"clip": dpfy.clip_jointly(model, {"0.*": 1.0, "2.*": 2.0})},
        lambda model: {"clip": dpfy.clip_automatically(1.0)},
        lambda model: {"statistics": [dpfy.SampleSize()]},
        lambda model: {"relation": "replace_one"},
        lambda model: {"sampling": "one_epoch", "steps": 4, "batch_size": 10},
    ],
    ids=["groups", "jointly", "automatic", "statistics", "replace one", "one epoch"],
)
def test_what_goes_with_it(options):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = dpfy.dpftrl(
        **{"records": 40, "batch_size": 8, "steps": 9, "noise_multiplier": 1.0, **options(model)}
    )
    assert dpfy.Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    with dpfy.privatize(
        model, opt, TensorDataset(torch.randn(40, 3)), plan, dpfy.Ledger.in_memory()
    ) as run:
        for batch in run:
            opt.zero_grad()
            run.backward(lambda x: model(x).square().flatten(), batch)
            opt.step()
        assert run.ledger.count == plan.steps


def test_users_take_part_once_in_an_epoch(started):
    """Six users of two rows: a step of two users has rows of theirs alone."""
    rows = torch.eye(6).repeat_interleave(2, 0)
    s = started(
        rows,
        dimension=6,
        plan=planned(records=6, unit="user"),
        unit_of=[place // 2 for place in range(12)],
    )
    found = torch.stack([s.release() for _ in range(6)])
    assert ((found > 0).sum(1) == 2).all() and ((found[:3] > 0).sum(0) == 1).all()
    assert torch.equal(found[:3], found[3:])


def test_adadp_is_refused_before_anything_is_read():
    model = Dot()
    with pytest.raises(InvalidArgument, match="ADADP"):
        dpfy.privatize(model, ADADP(model.parameters()), object(), planned())


class Unread(torch.utils.data.Dataset):
    """Records that nobody may look at."""

    def __init__(self, records=RECORDS):
        self.records = records

    def __len__(self):
        return self.records

    def __getitem__(self, index):
        raise AssertionError("a record was read")


def declared(**options):
    return lambda: planned(1.0, **options)


@pytest.mark.parametrize(
    "make, message",
    [
        (declared(strategy="banded", bands=STEPS + 1), "at most 12"),
        (declared(strategy="banded", bands=4, sampling="cyclic_poisson"), "twice within a band"),
        (
            declared(strategy=Toeplitz((1.0, 0.5)), bands=1, sampling="cyclic_poisson"),
            "at least the band",
        ),
        (declared(strategy=Toeplitz((0.0, 1.0))), "positive diagonal"),
        (declared(strategy=Toeplitz((-1.0, 0.5))), "positive diagonal"),
        (declared(strategy=Toeplitz((1.0, 2.0)), steps=30), "no bound"),
        (declared(records=None), "records"),
        (declared(records=RECORDS + 1), "8"),
        (declared(sampling="one_epoch"), "no record comes twice"),
    ],
)
def test_bad_input_is_refused_before_a_record_is_read_and_a_ledger_begun(make, message, tmp_path):
    model = Dot(RECORDS)
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(dpfy.DpfyError, match=message):
        dpfy.privatize(model, opt, Unread(), make(), tmp_path / "run.dpl", example_input=(EYE[:1],))
    assert not [*tmp_path.iterdir()]


def test_a_step_beyond_the_plan_reads_nothing(tmp_path):
    """Neither in the run that made the last step, nor in another one on its ledger."""
    first = on_disk(tmp_path)
    batches = iter(first.run)
    for _ in range(STEPS):
        last = next(batches)
        first.run.release(first.loss, last)
    assert next(batches, None) is None
    content = (tmp_path / "run.dpl").read_bytes()
    with pytest.raises(dpfy.DpfyError):
        first.run.release(lambda *_: pytest.fail("a record was read"), last)
    first.run.close()
    model = Dot(RECORDS)
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(dpfy.LedgerFinished, match="All 12 steps"):
        dpfy.privatize(
            model, opt, Unread(), planned(), tmp_path / "run.dpl", example_input=(EYE[:1],)
        )
    assert (tmp_path / "run.dpl").read_bytes() == content
