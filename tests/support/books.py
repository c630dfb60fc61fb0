"""Books, and runs under their grants that reserve steps and release nothing."""

from pathlib import Path

from dpfy.budgets import BudgetBook
from dpfy.ledger import Header, Ledger
from dpfy.plans import dpsgd

DATASET = "admissions-2026"
STEPS = 20


def plan_of(steps=STEPS, noise=2.0, **options):
    return dpsgd(rate=0.1, divisor=60, steps=steps, noise_multiplier=noise, **options)


def new_book(url, epsilon=8.0, delta=1e-6, **options):
    book = BudgetBook.open(url, actor="steward")
    book.create(DATASET, unit="record", epsilon=epsilon, delta=delta, **options)
    return book


def opened(grant, path, plan=None):
    """Open the ledger of a run under a grant, as dpfy.privatize does."""
    plan = plan or plan_of()
    header = Header(plan=plan.to_json(), envelope=plan.envelope, relation=plan.relation)
    return Ledger.open(path, plan.guard(), header, grant=grant)


def take(ledger, steps, plan=None):
    for _ in range(steps):
        ledger.reserve((plan or plan_of()).event)


def cut_short(grant, path, steps, plan=None):
    """Take steps and end like a killed process: no end is on record, nobody is told."""
    ledger = opened(grant, path, plan)
    take(ledger, steps, plan)
    kill(ledger)


def kill(ledger):
    """Close the file without an end on record, and without a word to the book."""
    if ledger._grant._anchors is not None:  # a settled ledger lets no run begin
        ledger._grant._anchors.close()
    ledger._store.close()


def copied(folder: Path, name: str) -> Path:
    """Return a copy of the ledger in a folder, with its head."""
    target = folder / name
    target.mkdir()
    for file in folder.glob("run.dpl*"):
        (target / file.name).write_bytes(file.read_bytes())
    return target
