"""Folders of runs as a trainer leaves them, made of ledgers alone: no model is trained."""

import json
from pathlib import Path

from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.plans import Plan, dpsgd
from dpfy.run.callbacks import Evaluation, Step
from dpfy.run.step_log import StepLog


def plan_of(steps: int = 20, epsilon: float = 3.0) -> Plan:
    """Return a calibrated plan of ``steps`` steps."""
    plan = dpsgd(records=1000, batch_size=100, epochs=steps / 10, clip=1.0)
    return plan.calibrate(epsilon=epsilon, delta=1e-5)


def open_ledger(path: Path, plan: Plan, key_source: str = "operating system") -> Ledger:
    """Open a ledger for a plan, as a run does."""
    header = Header(plan=plan.to_json(), envelope=plan.envelope, key_source=key_source)
    path.parent.mkdir(parents=True, exist_ok=True)
    return Ledger.open(path, plan.guard(), header)


def take(ledger: Ledger, plan: Plan, steps: int) -> None:
    """Reserve the next steps of the plan."""
    event = plan.envelope[0].event
    for _ in range(steps):
        ledger.reserve(event)


def begun(root: Path, name: str, steps: int = 20, taken: int = 20, epsilon: float = 3.0) -> Path:
    """Make the folder of a run that took some of its steps; return its ledger."""
    path, plan = root / name / "ledger.dpl", plan_of(steps, epsilon)
    with open_ledger(path, plan) as ledger:
        take(ledger, plan, taken)
    return path


def progress(
    folder: Path, steps: int, taken: int, metric: str = "accuracy", *, ended: bool = False
) -> None:
    """Write what a run says of its progress, with numbers that nothing was measured for."""
    log = StepLog(folder / "progress.jsonl")
    log.on_start(steps, 0)
    for step in range(1, taken + 1):
        epsilon = 3.0 * (step / steps) ** 0.5
        log.on_step(Step(step, steps, 0.1, epsilon, {"loss": 2.0 / step}))
        log.on_evaluation(Evaluation(step, step / 10, epsilon, 0.9 - 0.7 / step, metric=metric))
    if ended:
        log.on_end()


def checkpoint(folder: Path, steps: int) -> None:
    """Write the head of a checkpoint that was made after some steps."""
    place = {"dict": [["lines", steps + 2], ["steps", steps], ["taken", steps]]}
    state = {"dict": [["schema", 2], ["ledger", place]]}
    head = json.dumps({"__metadata__": {"dpfy": json.dumps(state)}}).encode()
    data = len(head).to_bytes(8, "little") + head
    (folder / "checkpoint.safetensors").write_bytes(data)


def large(path: Path, steps: int) -> None:
    """Write a ledger of many steps quickly: they are paid for in one write, line by line."""
    from dpfy.ledger.events import canonical_json
    from dpfy.ledger.journal import Head, seal
    from dpfy.ledger.store import FileStore

    event = Sampled(Poisson(0.001), (SumQuery(1.0, 1.0),))
    header = Header(envelope=(Repeated(event, steps),), plan={"steps": steps, "records": 60_000})
    bodies = [{"header": header.to_json()}, {"define": event.to_json()}]
    use = canonical_json({"use": {"event": event.address, "times": 1}})
    digest, lines = Head().hash, []
    for body in (*map(canonical_json, bodies), *[use] * steps):
        line, digest = seal(digest, body)
        lines.append(line)
    path.parent.mkdir(parents=True, exist_ok=True)
    store = FileStore(path)
    store.acquire()
    store.append(b"".join(lines), Head(len(lines), digest))
    store.close()
