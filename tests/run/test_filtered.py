"""A run under a filter: declared in the plan, written into the header, asked before any record is
read.
"""

import pytest
import torch
from runs import Dot, Started
from torch.utils.data import Dataset, TensorDataset

import dpfy
from dpfy.accounting import DominatedBy, GaussianFilter, RenyiFilter, odometer
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery

ROWS = torch.eye(3)
RULE = GaussianFilter(mu=1.0)


def plan_of(noise=2.0, steps=6, rate=1.0):
    return dpfy.dpsgd(rate=rate, divisor=1, steps=steps, noise_multiplier=noise)


def chosen(noise: float) -> Sampled:
    """A step of the user's own mechanism, its noise chosen from outputs."""
    return Sampled(Poisson(1.0), (SumQuery(1.0, noise),), adaptive=True)


class Counted(Dataset):
    """Counts how often a record is read."""

    reads = 0

    def __len__(self):
        return 3

    def __getitem__(self, index):
        Counted.reads += 1
        return ROWS[index]


def test_the_filter_stops_the_run_before_a_record_is_read():
    started = Started(Counted(), plan=plan_of().under(RULE))
    for _ in range(4):  # four times 1/z² = 1/4 fill a limit of 1
        started.release()
    reads = Counted.reads
    assert reads > 0 and started.run.steps_left == 2
    with pytest.raises(dpfy.BudgetExhausted, match=r"100\.00%"):
        started.release()
    assert Counted.reads == reads and started.ledger.count == 4


def test_the_header_declares_the_filter_and_the_limit_is_what_is_spent():
    started = Started(TensorDataset(ROWS), plan=plan_of().under(RULE))
    started.release()
    header = started.ledger.header
    assert (
        header.filter == RULE.to_json()
        and header.guard["name"] == "filter"
        and header.envelope == ()
    )
    limit = dpfy.account(plan_of().under(RULE)).epsilon(1e-5)
    assert started.run.spent(1e-5) == limit == dpfy.account(started.ledger).epsilon(1e-5)
    assert dpfy.account(plan_of()).claim(1e-5) > limit.upper  # what the plan's own list would cost


def test_steps_of_the_users_own_are_paid_by_the_same_filter():
    started = Started(TensorDataset(ROWS), plan=plan_of().under(RULE))
    started.release()
    started.run.ledger.reserve(chosen(noise=4 / 3))  # 9/16, of which 3/4 are left
    with pytest.raises(dpfy.BudgetExhausted):
        started.release()
    started.run.ledger.reserve(chosen(noise=4.0))
    assert odometer(started.ledger, 1e-5).used == pytest.approx(7 / 8)


def test_without_a_filter_a_chosen_step_is_refused():
    started = Started(TensorDataset(ROWS), plan=plan_of())
    with pytest.raises((dpfy.LedgerMismatch, dpfy.BudgetExhausted)):
        started.run.ledger.reserve(chosen(noise=4.0))
    assert started.ledger.count == 0


def test_another_plan_may_follow_on_the_same_ledger_and_has_all_its_steps(tmp_path):
    first = Started(
        TensorDataset(ROWS), plan=plan_of(steps=2).under(RULE), ledger=tmp_path / "run.dpl"
    )
    first.release()
    first.run.close()
    second = Started(
        TensorDataset(ROWS),
        plan=plan_of(noise=4.0, steps=3).under(RULE),
        ledger=tmp_path / "run.dpl",
    )
    assert second.run.steps_left == 3
    second.release()
    second.run.close()
    again = Started(
        TensorDataset(ROWS),
        plan=plan_of(noise=4.0, steps=3).under(RULE),
        ledger=tmp_path / "run.dpl",
    )
    assert again.run.steps_left == 2
    assert odometer(dpfy.Ledger.read(tmp_path / "run.dpl"), 1e-5).used == pytest.approx(
        1 / 4 + 1 / 16
    )
    again.run.close()
    with pytest.raises(dpfy.LedgerMismatch, match="filter"):
        Started(TensorDataset(ROWS), plan=plan_of(), ledger=tmp_path / "run.dpl")


def test_a_filtered_run_is_saved_and_resumed(tmp_path):
    started = Started(TensorDataset(ROWS), plan=plan_of().under(RULE), ledger=tmp_path / "run.dpl")
    started.release()
    started.run.save(tmp_path)
    started.release()
    started.run.close()
    model = Dot()
    run = dpfy.resume(
        tmp_path,
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        TensorDataset(ROWS),
        insecure_test_key=1,
    )
    assert run.plan.filter == RULE and run.lost_steps == 1 and run.steps_left == 4
    run.close()


@pytest.mark.parametrize(
    ("rule", "relation", "error"),
    [
        (GaussianFilter(0.1), "add_or_remove_one", dpfy.BudgetExhausted),
        (RenyiFilter(8.0, 1e-5), "replace_one", dpfy.UnsupportedEvent),
        (
            DominatedBy((Repeated(plan_of(noise=9.0).event, 3),)),
            "add_or_remove_one",
            dpfy.BudgetExhausted,
        ),
    ],
)
def test_a_plan_that_its_filter_never_admits_leaves_no_ledger(tmp_path, rule, relation, error):
    plan = dpfy.dpsgd(rate=0.5, divisor=1, steps=2, noise_multiplier=2.0, relation=relation).under(
        rule
    )
    with pytest.raises(error):
        Started(TensorDataset(ROWS), plan=plan, ledger=tmp_path / "run.dpl")
    assert not list(tmp_path.iterdir())
