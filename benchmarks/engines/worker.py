"""One task in a process of its own: ``python -m benchmarks.engines.worker '{"task": "peak", …}'``.

Answers are lines of JSON on standard output; whatever else a contender prints goes to standard
error."""

import gc
import json
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import Dataset, TensorDataset

from benchmarks.engines.contenders import Ready, prepare, private
from benchmarks.engines.workloads import ALL, Workload

_WARM_UP = 2  # steps: the first one of dpfy probes the model
_LONG_ENOUGH = (
    60e3  # ms of turns after which more of them than were asked for are not worth their while
)
_SLOW, _SLOW_ROUNDS = (
    10.0,
    3,
)  # who takes so many times plain torch's time sits out the rounds after these
_ANSWERS = sys.stdout


def answer(**values: Any) -> None:
    """Send one line to the process that asked."""
    _ANSWERS.write(json.dumps(values) + "\n")
    _ANSWERS.flush()


def peak(workload: Workload, folder: Path, contender: str, steps: int, limit_mb: int) -> None:
    """Answer with the most memory that this process ever held, after some steps of one
    contender.
    """
    limit = limit_mb * 2**20
    resource.setrlimit(
        resource.RLIMIT_DATA, (limit, limit)
    )  # what is private and writable: no code, no reservations
    ready = prepare(contender, workload, folder)
    for _ in range(steps):
        ready.step()
    answer(peak_mb=high_water(), engine=ready.engine())


def logical(workload: Workload, folder: Path, records: int) -> None:
    """Answer with the peak of one step on ``records`` records in chunks of the workload's batch,
    and with the chunk.
    """
    ready = private(
        workload,
        Cycled(workload.data(), records),
        records,
        folder / "run.dpl",
        max_physical_batch=workload.batch,
    )
    ready.step()
    answer(peak_mb=high_water(), chunk=ready.chunk())


def clock(workload: Workload, folder: Path, contenders: list[str], rounds: int, most: int) -> None:
    """Answer with one time for each step; the contenders take turns, in alternating order.

    Short steps have up to ``most`` turns: they are what others on the machine disturb most.
    """
    running: dict[str, Ready] = {}
    warm: dict[str, float] = {}
    for name in contenders:
        try:
            running[name] = prepare(name, workload, folder)
            warm[name] = min(milliseconds(running[name]) for _ in range(_WARM_UP))
        except Exception as error:
            running.pop(name, None)
            answer(contender=name, failed=reason(error))
    slow = {name for name, ms in warm.items() if ms > _SLOW * warm["torch"]}
    usual = sum(ms for name, ms in warm.items() if name not in slow)
    rounds = max(rounds, min(most, int(_LONG_ENOUGH / usual)))
    answer(rounds=rounds)
    for turn in range(rounds):
        for name in list(running)[:: -1 if turn % 2 else 1]:
            if turn < _SLOW_ROUNDS or name not in slow:
                answer(contender=name, ms=milliseconds(running[name]))


def first(workload: Workload, folder: Path, rounds: int) -> None:
    """Answer with the time from ``privatize`` to the end of the first step in a fresh process, and
    with those of later steps and of plain ones, which take turns.
    """
    plain = prepare("torch", workload, folder)
    for _ in range(_WARM_UP):
        plain.step()
    gc.collect()
    ready = prepare("dpfy", workload, folder)
    ready.step()
    first_ms = 1e3 * (time.perf_counter() - ready.began)
    turns = [(milliseconds(plain), milliseconds(ready)) for _ in range(rounds)]
    plain_ms, step_ms = map(statistics.median, zip(*turns, strict=True))
    answer(first_ms=first_ms, plain_ms=plain_ms, step_ms=step_ms)


def divided(
    workload: Workload, folder: Path, records: int, rounds: int, rank: int, size: int, meeting: str
) -> None:
    """Answer, on rank 0, with the times of a step alone and of the same step divided among ``size``
    processes.

    The two take turns. A run belongs to the processes that are in a group when it begins, so the
    first one is alone."""
    batch = replace(workload, batch=records)
    running = (
        {"alone": private(batch, batch.data(), records, folder / "alone.dpl")} if rank == 0 else {}
    )
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=size
    )
    running["divided"] = private(batch, batch.data(), records, folder / "divided.dpl")
    for turn in range(_WARM_UP + rounds):
        for name in list(running)[:: -1 if turn % 2 else 1]:
            ms = milliseconds(running[name])
            if turn >= _WARM_UP and rank == 0:
                answer(contender=name, ms=ms)


def operations(workload: Workload, folder: Path, contender: str, rows: int) -> None:
    """Answer with the table of the operations that one step spends its time in."""
    ready = prepare(contender, workload, folder)
    for _ in range(_WARM_UP):
        ready.step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        ready.step()
    answer(
        table=profiler.key_averages().table(
            sort_by="self_cpu_time_total", row_limit=rows, max_name_column_width=48
        )
    )


class Cycled(Dataset[tuple[torch.Tensor, ...]]):
    """A few records over and over, so that a large data set takes no memory of its own."""

    def __init__(self, data: TensorDataset, records: int) -> None:
        self.data, self.records = data, records
        self.example_input = tuple(torch.zeros_like(tensor[:1]) for tensor in data.tensors)

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return self.data[index % len(self.data)]


def milliseconds(ready: Ready) -> float:
    """Return how long one step takes; garbage of the previous contender is not counted."""
    gc.collect()
    start = time.perf_counter()
    ready.step()
    return 1e3 * (time.perf_counter() - start)


def high_water() -> float:
    """Return VmHWM, the peak of this process's resident memory, in megabytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return (
        int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
        / 1024
    )


def reason(error: BaseException) -> str:
    """Return one line about a contender that failed."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


TASKS: dict[str, Callable[..., None]] = {
    "peak": peak,
    "logical": logical,
    "clock": clock,
    "first": first,
    "divided": divided,
    "operations": operations,
}


def main(request: dict[str, Any]) -> None:
    """Carry out one request."""
    sys.stdout = sys.stderr
    warnings.simplefilter("ignore")  # peers warn about their own deprecations and generators
    torch.set_num_threads(request.pop("threads"))
    task, workload = TASKS[request.pop("task")], ALL[request.pop("workload")]
    Path("runs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir="runs"
    ) as folder:  # on a disk, not in memory: ledgers wait for it
        try:
            task(workload, Path(folder), **request)
        except Exception as error:
            answer(failed=reason(error))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
