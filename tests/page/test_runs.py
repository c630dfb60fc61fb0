"""What the page says of a run is what its ledger says, whatever else is in the folder."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from run_folders import begun, checkpoint, open_ledger, plan_of, progress, take

from dpfy.accounting import RenyiFilter, account
from dpfy.ledger import Header, Ledger
from dpfy.page.runs import MOST, RunReader, State, find
from dpfy.page.writers import Writers
from dpfy.reporting import report

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists its locks")


def state_of(root: Path, path: Path):
    reader = RunReader(root, path)
    reader.look(Writers.now())
    reader.account()
    return reader.state


def test_a_run_that_holds_its_ledger_is_running(tmp_path):
    plan = plan_of()
    with open_ledger(tmp_path / "a" / "ledger.dpl", plan) as ledger:
        take(ledger, plan, 3)
        found = state_of(tmp_path, ledger.path)
    assert (found.state, found.steps, found.total, found.name) == (State.RUNNING, 3, 20, "a")


def test_spent_is_what_the_accountant_claims(tmp_path):
    path = begun(tmp_path, "a", taken=7)
    found = state_of(tmp_path, path)
    assert found.spent.epsilon == account(Ledger.read(path)).claim(1e-5)
    assert (found.budget, found.delta, found.declared) == (3.0, 1e-5, True)


def test_every_step_paid_is_complete_and_fewer_are_not(tmp_path):
    assert state_of(tmp_path, begun(tmp_path, "a")).state is State.COMPLETE
    ended = begun(tmp_path, "b", taken=7)
    progress(ended.parent, 20, 7, ended=True)
    assert state_of(tmp_path, ended).state is State.ENDED
    killed = begun(tmp_path, "c", taken=7)
    progress(killed.parent, 20, 7)
    assert state_of(tmp_path, killed).state is State.STOPPED


def test_a_report_does_not_make_a_killed_run_finished(tmp_path):
    path = begun(tmp_path, "a", taken=7)
    report(path, 1e-5).write(path.parent)
    assert state_of(tmp_path, path).state is State.STOPPED


def test_a_run_that_went_on_after_its_end_and_was_killed_is_not_ended(tmp_path):
    path = begun(tmp_path, "a", taken=7)
    progress(path.parent, 20, 3, ended=True)
    progress(path.parent, 20, 7)
    assert state_of(tmp_path, path).state is State.STOPPED


def test_steps_that_a_checkpoint_does_not_have_are_lost(tmp_path):
    path = begun(tmp_path, "a", taken=7)
    checkpoint(path.parent, 4)
    assert state_of(tmp_path, path).lost == 3
    complete = begun(tmp_path, "b")
    checkpoint(complete.parent, 4)  # of a run in a loop of one's own, which has its model elsewhere
    assert state_of(tmp_path, complete).lost == 0


def test_without_the_kernels_list_nothing_is_said_of_the_process(tmp_path):
    reader = RunReader(tmp_path, begun(tmp_path, "a", taken=7))
    reader.look(Writers(None))
    assert reader.state.state is State.UNKNOWN


@pytest.mark.parametrize("harm", ["flip", "cut", "delete", "head"])
def test_a_damaged_ledger_is_shown_with_its_refusal_and_no_number(tmp_path, harm):
    path = begun(tmp_path, "a")
    content = bytearray(path.read_bytes())
    if harm == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif harm == "cut":
        path.write_bytes(content[:-200])
    elif harm == "delete":
        path.unlink()
    else:
        path.with_name("ledger.dpl.head").unlink()
    assert list(find(tmp_path)) == [path]
    found = state_of(tmp_path, path)
    with pytest.raises(Exception) as refusal:
        Ledger.read(path)
    assert found.state is State.REFUSED and found.spent.epsilon is None
    assert found.refusal == str(refusal.value)


def test_an_edit_of_lines_that_were_read_before_is_refused(tmp_path):
    path = begun(tmp_path, "a", taken=7)
    reader = RunReader(tmp_path, path)
    assert reader.look(Writers.now())
    assert not reader.look(Writers.now())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))  # clocks of some file systems are coarse
    assert reader.look(Writers.now())
    assert reader.state.state is State.REFUSED


def test_a_growing_ledger_is_followed(tmp_path):
    plan = plan_of()
    with open_ledger(tmp_path / "ledger.dpl", plan) as ledger:
        reader = RunReader(tmp_path, ledger.path)
        for taken in (1, 2, 3):
            take(ledger, plan, 1)
            assert reader.look(Writers.now())
            assert reader.due
            reader.account()
            assert not reader.due
            assert reader.state.steps == taken and reader.state.head == ledger.head_hash
            assert reader.state.spent.epsilon == account(ledger).claim(1e-5)


def test_a_key_that_is_not_secret_voids_the_number(tmp_path):
    plan = plan_of()
    with open_ledger(tmp_path / "ledger.dpl", plan, key_source="test key") as ledger:
        take(ledger, plan, 3)
    assert not state_of(tmp_path, ledger.path).spent.private


def test_a_step_beside_the_plan_voids_the_number(tmp_path):
    plan, other = plan_of(), plan_of(epsilon=1.0)
    header = Header(plan=plan.to_json(), envelope=plan.envelope)
    with Ledger.open(tmp_path / "ledger.dpl", header=header) as ledger:
        take(ledger, other, 1)
    assert not state_of(tmp_path, ledger.path).spent.private


def test_under_a_filter_the_share_is_shown_and_no_curve(tmp_path):
    rule = RenyiFilter.tuned(epsilon=3.0, delta=1e-5, to=plan_of().envelope)
    plan = plan_of().under(rule)
    header = Header(plan=plan.to_json(), guard=plan.guard().describe(), filter=rule.to_json())
    with Ledger.open(tmp_path / "ledger.dpl", plan.guard(), header) as ledger:
        take(ledger, plan, 3)
    found = state_of(tmp_path, ledger.path)
    assert found.filtered and 0 < found.spent.used < 1 and found.delta == 1e-5


@pytest.mark.parametrize(
    "plan",
    [
        {"budget": "much", "steps": "many", "records": [], "sampling": 3},
        {"budget": {"epsilon": "3", "delta": 7}, "steps": -1, "sampling": {"rate": None}},
        {"budget": {"epsilons": [1, "two"], "delta": True}, "records": 10**400},
    ],
)
def test_odd_plans_are_shown(tmp_path, plan):
    with Ledger.open(tmp_path / "ledger.dpl", header=Header(plan=plan)):
        pass
    found = state_of(tmp_path, tmp_path / "ledger.dpl")
    assert found.state is not State.REFUSED and found.rate is None and not found.declared


def test_a_metric_of_an_older_report_is_shown(tmp_path):
    path = begun(tmp_path, "a")
    facts = {"metric": "accuracy on public data", "history": [[5, 0.25], [10, 0.5], "odd"]}
    (path.parent / "report.json").write_text(json.dumps({"facts": facts}))
    assert state_of(tmp_path, path).progress.metric == ("accuracy", 0.5)


def test_ledgers_are_found_below_the_folder_and_not_in_hidden_or_deep_ones(tmp_path):
    wanted = [begun(tmp_path, name) for name in ("a", "a/b", "c/d/e")]
    for name in (".hidden", "a/b/c/d", "c/.trash"):
        target = tmp_path / name
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(wanted[0], target)
    assert sorted(find(tmp_path)) == sorted(wanted)
    assert MOST >= 1000


def test_a_folder_whose_name_is_no_text_is_shown(tmp_path):
    name = os.fsdecode(b"caf\xe9")
    found = state_of(tmp_path, begun(tmp_path, name))
    assert found.state is State.COMPLETE and found.key.isalnum()
