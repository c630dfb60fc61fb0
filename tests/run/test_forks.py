"""A fork has a copy of all that its parent has paid for, and can release nothing of it."""

import os

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import dpfy
from dpfy.ledger import Header, Ledger
from dpfy.ledger.composite_events import Composed
from dpfy.ledger.events import Poisson, Sampled, SumQuery
from dpfy.ledger.scopes import Selection, composition
from dpfy.ledger.selection import NegativeBinomialTrials, Selected
from dpfy.mechanisms.one_shot import Laplace, SparseVector, release
from dpfy.noise import SecureStream
from dpfy.run.loss_queries import FirstBelow

pytestmark = pytest.mark.cpu

ROWS = torch.arange(120.0).reshape(40, 3) / 100
STEP = Sampled(Poisson(0.01), (SumQuery(1.0, 1.1),))


def is_refused_in_a_fork(action) -> bool:
    """Whether a forked child that does ``action`` is told that forks cannot."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
        except dpfy.LedgerError as error:
            code = 0 if "forked process cannot" in str(error) else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


PLANS = {
    name: dpfy.dpsgd(
        records=40, batch_size=8, steps=10, clip=1.0, noise_multiplier=1.0, sampling=name,
        relation="zero_out",
    )
    for name in ("poisson", "fixed_size", "shuffled", "cyclic", "balls_in_bins")
} | {
    "correlated": dpfy.dpftrl(
        records=40, batch_size=8, epochs=2, clip=1.0, noise_multiplier=4.0,
        strategy="banded", bands=2,
    ),
    "importance": dpfy.dpis(records=40, batch_size=8, steps=10, ratio=0.5, noise_multiplier=4.0),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_a_fork_takes_no_step_and_the_run_goes_on(started, tmp_path, name):
    """Of an epoch that is paid for at once, both would take the next step, with other noise."""
    s = started(ROWS, plan=PLANS[name], ledger=tmp_path / "run.dpl", key=None)
    s.release()
    before = s.run.ledger.lines
    assert is_refused_in_a_fork(s.release)
    s.release()
    assert s.run.steps_taken == 2
    s.run.close()
    again = Ledger.read(tmp_path / "run.dpl")
    assert again.lines >= before and again.verify() == again.lines


@pytest.mark.parametrize("name", ["poisson", "shuffled"])
def test_a_fork_does_not_take_the_step_that_is_drawn_ahead(started, name):
    s = started(ROWS, plan=PLANS[name], key=None, num_workers=1, prefetch=1)
    s.release()
    assert is_refused_in_a_fork(s.release)
    s.release()


def test_a_block_of_steps_that_is_paid_for_at_once_stays_with_the_parent(started):
    s = started(ROWS, plan=PLANS["poisson"], ledger=Ledger.in_memory(block=5), key=None)
    s.release()
    assert is_refused_in_a_fork(s.release)


class Forking(Dataset):
    """Records of which one, when it is asked for, makes a fork."""

    example_input = torch.zeros(1, 3)
    armed = False

    def __init__(self):
        self.children = []

    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        if self.armed and not self.children:
            self.children.append(os.fork())
        return (ROWS[index],)


@pytest.mark.parametrize("name", ["poisson", "shuffled"])
def test_records_that_fork_in_a_step_are_not_released_twice(started, name):
    """The parent's reservation is one; a check at the beginning of the step alone lets both end."""
    data = Forking()
    s, children = started(data, plan=PLANS[name], key=None), data.children
    s.release()
    data.armed, code = True, 1
    try:
        s.release()
    except dpfy.LedgerError as error:
        code = 0 if "forked process cannot" in str(error) else 2
    finally:
        if children == [0]:
            os._exit(code)
    assert len(children) == 1
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    assert s.run.steps_taken == 2


def test_a_fork_asks_for_no_losses_and_takes_no_trial_of_a_selection(started, tmp_path):
    s = started(ROWS, plan=PLANS["poisson"], key=None)
    search = FirstBelow(s.run, bound=1.0, epsilon=1.0)
    assert is_refused_in_a_fork(lambda: search.of(s.loss, {"weight": torch.zeros(3)}, []))

    event = Selected(STEP, NegativeBinomialTrials.with_mean(10.0))
    with Ledger.open(tmp_path / "selection.dpl") as ledger:
        with Selection(ledger, event, draw=lambda: 2) as trials:
            assert is_refused_in_a_fork(lambda: next(iter(trials)))
            for trial in trials:
                trial.reserve(STEP)
        assert ledger.count == 1


def test_a_fork_goes_on_with_no_scope_and_no_search(tmp_path):
    with Ledger.open(tmp_path / "run.dpl", header=Header()) as ledger:
        scope = composition(ledger, Composed((STEP,), (2,)))
        scope.reserve(STEP)
        assert is_refused_in_a_fork(lambda: scope.reserve(STEP))
        search = SparseVector.with_epsilon(1.0, threshold=1e9)
        ledger.reserve(search.event)
        begun = search.begin(SecureStream())
        assert not begun.is_above(0.0)
        assert is_refused_in_a_fork(lambda: begun.is_above(0.0))
        assert not begun.is_above(0.0)


def test_an_answer_whose_computation_forks_is_given_once():
    ledger, children = Ledger.in_memory(), []

    def forking() -> float:
        children.append(os.fork())
        return 3.0

    code = 1
    try:
        release(Laplace(1.0, 1.0), ledger, forking)
    except dpfy.LedgerError as error:
        code = 0 if "forked process cannot" in str(error) else 2
    finally:
        if children == [0]:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0


def test_loading_workers_of_a_loader_and_of_a_run_go_on_working(started):
    """They are forks, too, and release nothing."""
    s = started(ROWS, plan=PLANS["shuffled"], key=None, num_workers=1)
    s.release()
    loaded = torch.cat([x for (x,) in DataLoader(TensorDataset(ROWS), 10, num_workers=1)])
    assert torch.equal(loaded, ROWS)
    s.release()
