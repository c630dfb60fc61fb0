"""Train on scikit-learn's digits at ε = 3: the loop of the README with a progress bar and a report.

Run it with ``make demo``. The digits are public, of course; they stand for 1437 private records and 360 public ones.
"""

import math
from datetime import datetime
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import dpfy

EPSILON, DELTA = 3.0, 1e-5
RECORDS = 1437  # declared, not counted: the plan must not depend on the data


def claim(spent: dpfy.Interval) -> str:
    """Round the upper end of the interval up: a claim may be too large and never too small."""
    return f"({math.ceil(spent.upper * 1000) / 1000:.3f}, {DELTA:g})-differential privacy"


def load() -> tuple[TensorDataset, torch.Tensor, torch.Tensor]:
    """Return the private records, and the images and labels of the public ones."""
    x, y = (torch.tensor(values) for values in load_digits(return_X_y=True))
    x = F.normalize(x.float() / 16 - 0.3) * 4  # each record by itself; a mean over records would be a release
    public = torch.arange(len(x)) % 5 == 0
    return TensorDataset(x[~public], y[~public]), x[public], y[public]


def train(run: dpfy.Run, model: nn.Module, opt: torch.optim.Optimizer, console: Console) -> None:
    """Take every step of the plan; the bar shows declared and released values only."""
    columns = ("training", BarColumn(), MofNCompleteColumn(), TextColumn("ε so far {task.fields[spent]}"),
               TimeRemainingColumn())
    steps = run.steps_left
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=steps, spent="0.00")
        for number, batch in enumerate(run, start=1):
            opt.zero_grad()
            run.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), batch)
            opt.step()
            progress.advance(task)
            if number % 10 == 0 or number == steps:
                progress.update(task, spent=f"{run.spent(DELTA).upper:.2f}")


def report(plan: dpfy.Plan, spent: dpfy.Interval, accuracy: float, ledger: Path) -> str:
    """State what was done and what it cost, as Markdown."""
    return f"""# Digits with differential privacy

The released model satisfies **{claim(spent)}**.

| | |
|---|---|
| unit of privacy | one {plan.unit} |
| neighbouring data sets | {plan.relation} |
| mechanism | Poisson-sampled Gaussian sum, {plan.steps} steps |
| sampling rate | {plan.rate:.4f} |
| clip bound | {plan.clip:g} |
| noise multiplier | {plan.noise_multiplier:.4f} |
| budget | ε = {EPSILON:g}, δ = {DELTA:g} |
| accountant | privacy loss distributions, from the ledger `{ledger.name}` |
| accuracy on 360 public records | {accuracy:.1%} |

Covered: every release of this run. Not covered: the choice of the settings. About a hundred were compared by
cross-validation on the same {RECORDS} records, without accounting. Digits are public, so nobody is harmed; on private
records that search would have cost privacy which no single run's ledger contains.

Check it: `dpfy ledger verify {ledger}` and `dpfy account {ledger} --delta {DELTA:g}`
"""


def main() -> None:
    """Plan, train, and say what it cost."""
    console = Console()
    folder = Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    folder.mkdir(parents=True)
    ledger = folder / "run.dpl"

    train_set, public_x, public_y = load()
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    plan = dpfy.dpsgd(records=RECORDS, batch_size=512, epochs=20, clip=1.0).calibrate(epsilon=EPSILON, delta=DELTA)
    console.print(f"{plan.steps} steps at rate {plan.rate:.3f}, noise multiplier {plan.noise_multiplier:.2f}, "
                  f"for ε ≤ {EPSILON:g} at δ = {DELTA:g}")

    run = dpfy.privatize(model, opt, train_set, plan, ledger=ledger)
    train(run, model, opt, console)
    spent = run.spent(DELTA)
    run.close()

    with torch.no_grad():
        accuracy = (model(public_x).argmax(1) == public_y).float().mean().item()
    text = report(plan, spent, accuracy, ledger)
    (folder / "report.md").write_text(text, encoding="utf-8")
    console.print(f"[bold]{claim(spent)}[/bold] per {plan.unit}, {plan.relation}; "
                  f"test accuracy [bold]{accuracy:.1%}[/bold]")
    console.print(f"ledger {ledger}\nreport {folder / 'report.md'}\n"
                  f"check it with: .venv/bin/dpfy account {ledger} --delta {DELTA:g}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
