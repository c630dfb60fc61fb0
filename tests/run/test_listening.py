"""What is heard of a run in one's own loop, and its report."""

import csv
import io
import json

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.reporting import RunFacts
from dpfy.run.callbacks import Evaluation

ROWS = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.3, 0.4]])
PLAN = dpfy.dpsgd(rate=1.0, divisor=1, steps=80, statistics=[dpfy.Statistic("sum", bound=1.0)])
PLAN = PLAN.calibrate(epsilon=8.0, delta=1e-3)


class Heard(dpfy.Callback):
    """Keeps what it is told."""

    def __init__(self):
        self.told = []

    def on_start(self, steps, step):
        self.told.append(("start", steps, step))

    def on_step(self, step):
        self.told.append(step)

    def on_evaluation(self, evaluation):
        self.told.append(evaluation)

    def on_notice(self, text):
        self.told.append(text)

    def on_end(self):
        self.told.append("end")


def loss(model):
    def losses(x):
        found = model(x).squeeze(1)
        return dpfy.Losses(found, {"sum": found.detach().clamp(-1, 1)})

    return losses


@pytest.fixture
def begun(tmp_path):
    model = nn.Linear(3, 1, bias=False)
    opt = torch.optim.SGD(model.parameters(), lr=0.25)
    with dpfy.privatize(
        model, opt, TensorDataset(ROWS), PLAN, tmp_path / "run.dpl", insecure_test_key=1
    ) as run:
        yield run


def take(run, steps):
    for _, batch in zip(range(steps), run, strict=False):
        run.optimizers[0].zero_grad()
        run.backward(loss(run.model), batch)
        run.optimizers[0].step()


def test_listeners_hear_of_steps_measurements_and_the_end(begun):
    heard = Heard()
    assert begun.listen(heard) is begun
    take(begun, 5)
    begun.measured(0.75)
    begun.measured(2.5, "loss")
    begun.close()
    begun.close()
    start, *steps, accuracy, other, end = heard.told
    assert (start, end) == (("start", 80, 0), "end")
    assert [(each.step, each.steps, each.learning_rate) for each in steps] == [
        (number, 80, 0.25) for number in range(1, 6)
    ]
    assert [*steps[0].metrics] == ["sum"]  # what the step released, and the gradient is not told
    # one of forty steps is read: the ε of an odd step is that of the one before
    assert steps[0].epsilon == 0 < steps[1].epsilon == steps[2].epsilon < steps[3].epsilon
    assert accuracy == Evaluation(5, 5.0, begun.spent(1e-3).upper, 0.75)
    assert (other.value, other.metric, str(other)) == (2.5, "loss", "loss 2.5")
    with pytest.raises(AttributeError, match=r"\.value"):
        _ = other.accuracy


def test_listeners_hear_why_steps_are_slow_once(started):
    s, heard = started(ROWS), Heard()
    s.run.listen(heard, delta=1e-3)
    for batch in s.run:
        s.run.backward(lambda x: s.model(x) * (1 if x.sum() > 9 else 2), batch)
    assert [each for each in heard.told if isinstance(each, str)] == [s.run.engine_notice]


def test_a_plan_without_a_budget_needs_a_delta(started, tmp_path):
    run = started(ROWS).run
    with pytest.raises(dpfy.InvalidArgument, match="Give delta="):
        run.listen(Heard())
    with pytest.raises(dpfy.InvalidArgument, match="Give delta="):
        run.report(tmp_path)


def test_loggers_and_the_bar_work_in_an_own_loop(begun, tmp_path):
    screen = io.StringIO()
    bar = dpfy.ProgressBar(Console(file=screen, force_terminal=True, width=120))
    begun.listen(dpfy.CsvLog(tmp_path / "log.csv", metric="loss"), bar)
    take(begun, 4)
    begun.measured(0.5, "loss")
    begun.close()
    (row,) = csv.DictReader((tmp_path / "log.csv").read_text().splitlines())
    assert [*row] == ["step", "epoch", "epsilon", "loss"]
    assert (row["step"], row["loss"]) == ("4", "0.5")
    assert "4/80" in screen.getvalue() and "loss 0.5" in screen.getvalue()


def test_a_run_writes_its_report_also_when_it_is_closed(begun, tmp_path):
    take(begun, 3)
    begun.measured(9.0, "loss")
    begun.measured(0.75)
    begun.close()
    facts = RunFacts(name="rows", dataset="three numbers", model="one vector")
    assert begun.report(tmp_path / "report", facts=facts) == tmp_path / "report"
    written = json.loads((tmp_path / "report" / "report.json").read_text())
    declared = written["facts"]
    assert (declared["dataset"], declared["model"]) == ("three numbers", "one vector")
    assert (declared["engine"], declared["metric"]) == (begun.engine, "accuracy on public data")
    assert declared["history"] == [[3, 0.75]]
    assert (tmp_path / "report" / "report.html").exists()


def test_reprs_fit_into_a_line_of_a_notebook(begun, tmp_path):
    take(begun, 2)
    shown = [repr(each) for each in (begun, begun.plan, dpfy.account(begun.ledger))]
    assert all(len(each) < 160 and "\n" not in each for each in shown), shown
    run, plan, guarantee = shown
    assert "2 of 80 steps" in run and "run.dpl" in run and "bookkeeping" in run
    assert "80 steps in 80 epochs" in plan and "ε ≤ 8 at δ = 0.001" in plan
    assert "2 steps by pld" in guarantee and "not private" in guarantee  # it has a test key
    begun.close()
    assert "closed" in repr(begun)
    assert "not calibrated" in repr(dpfy.dpsgd(records=10, batch_size=2, epochs=1))
