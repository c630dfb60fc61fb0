"""Measures contenders side by side and puts them in relation to plain torch.

Time: one process in which all contenders take turns. Memory: a fresh process for each, since a peak
is never undone."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results.json"
_STEPS_TO_PEAK = 3
_FIRST_STEPS, _FIRST_ROUNDS = 3, 5  # processes, and later steps in each
LOGICAL_BATCH = 10_000


@dataclass(frozen=True)
class Settings:
    """How carefully to measure."""

    rounds: int = 15
    most_rounds: int = 61  # of short steps
    memory_limit_mb: int = 8 * 1024


@dataclass(frozen=True)
class Figure:
    """One contender on one workload; ratios are to plain torch in the same run, times are
    medians.
    """

    workload: str
    engine: str
    threads: int
    step_ms: float
    time_ratio: float
    peak_mb: float
    memory_ratio: float
    # from privatize to the end of the first step, in plain steps
    first_step: float | None = None


@dataclass(frozen=True)
class Comparison:
    """All contenders on one workload with one number of threads."""

    figures: list[Figure]
    fastest_ratios: dict[str, float]
    chosen: str | None  # the engine that dpfy took
    noise_share: float | None  # of dpfy's step, if its noise were drawn by itself
    missing: dict[str, str]  # contenders that could not be measured, and why


def ask(task: str, workload: str, threads: int, **options: Any) -> Iterator[dict[str, Any]]:
    """Yield the answers of a worker in a process of its own, the last of which tells of its death
    if it died.
    """
    request = json.dumps({"task": task, "workload": workload, "threads": threads, **options})
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryFile("w+") as errors:
        worker = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.engines.worker", request],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert worker.stdout is not None
        with worker.stdout as answers:
            yield from map(json.loads, answers)
        if code := worker.wait():
            errors.seek(0)
            last = (errors.read().strip().splitlines() or [""])[-1]
            yield {"failed": f"the process died with code {code} {last}".strip()}


def compare(
    workload: str,
    names: list[str],
    threads: int,
    settings: Settings,
    advance: Callable[[], object] = lambda: None,
    expect: Callable[[int], object] = lambda answers: None,
) -> Comparison:
    """Measure contenders, ``torch`` among them.

    ``advance`` is called for every answer, and ``expect`` with how many there will be.
    """
    peaks: dict[str, float] = {}
    missing: dict[str, str] = {}
    chosen = None
    for name in names:
        if name == f"dpfy:{chosen}":  # has been measured as dpfy's own choice
            continue
        *_, found = ask(
            "peak",
            workload,
            threads,
            contender=name,
            steps=_STEPS_TO_PEAK,
            limit_mb=settings.memory_limit_mb,
        )
        advance()
        if "failed" in found:
            missing[name] = _explain(found["failed"], settings.memory_limit_mb)
            continue
        peaks[name] = found["peak_mb"]
        chosen = found["engine"] if name == "dpfy" else chosen
    times = _times(workload, peaks, threads, settings, missing, advance, expect)
    return _related(workload, threads, peaks, times, chosen, missing)


def _times(
    workload: str,
    peaks: dict[str, float],
    threads: int,
    settings: Settings,
    missing: dict[str, str],
    advance: Callable[[], object],
    expect: Callable[[int], object],
) -> dict[str, list[float]]:
    """The times of every step by contender; those that fail are added to ``missing``."""
    names = [*peaks, *(["noise"] if "dpfy" in peaks else [])]
    times: dict[str, list[float]] = {}
    for found in ask(
        "clock",
        workload,
        threads,
        contenders=names,
        rounds=settings.rounds,
        most=settings.most_rounds,
    ):
        if "failed" in found:
            missing[found.get("contender", "all")] = found["failed"]
        elif "rounds" in found:
            expect(len(peaks) + found["rounds"] * len(names))
        else:
            times.setdefault(found["contender"], []).append(found["ms"])
            advance()
    return times


def _related(
    workload: str,
    threads: int,
    peaks: dict[str, float],
    times: dict[str, list[float]],
    chosen: str | None,
    missing: dict[str, str],
) -> Comparison:
    if "torch" not in times:
        return Comparison([], {}, chosen, None, missing)
    medians = {name: statistics.median(values) for name, values in times.items()}
    noise = medians.pop("noise", None)
    figures = [
        Figure(
            workload,
            name,
            threads,
            round(ms, 2),
            round(ms / medians["torch"], 3),
            round(peaks[name], 1),
            round(peaks[name] / peaks["torch"], 3),
        )
        for name, ms in medians.items()
    ]
    fastest = {name: min(times[name]) / min(times["torch"]) for name in medians}
    share = noise / medians["dpfy"] if noise is not None and "dpfy" in medians else None
    return Comparison(figures, fastest, chosen, share, missing)


def _explain(failed: str, limit_mb: int) -> str:
    out_of_memory = "allocate memory" in failed or "MemoryError" in failed or "bad_alloc" in failed
    return f"needs more than {limit_mb / 1024:g} GB" if out_of_memory else failed


@dataclass(frozen=True)
class SetUp:
    """What a run needs before its second step, in plain steps: medians of fresh processes."""

    first_step: float  # from privatize to the end of the first step
    beyond: float  # of that, what later steps do not need


def set_up(workload: str, threads: int) -> SetUp:
    """Measure the way from ``privatize`` to the end of the first step."""
    runs = []
    for _ in range(_FIRST_STEPS):
        *_, found = ask("first", workload, threads, rounds=_FIRST_ROUNDS)
        if "failed" in found:
            raise RuntimeError(f"the first step of {workload}: {found['failed']}")
        runs.append(found)
    return SetUp(
        statistics.median(run["first_ms"] / run["plain_ms"] for run in runs),
        statistics.median((run["first_ms"] - run["step_ms"]) / run["plain_ms"] for run in runs),
    )


def logical_batch(workload: str, threads: int, records: int = LOGICAL_BATCH) -> tuple[float, int]:
    """Return the peak of a step on many records over that of a step on a single chunk, and the size
    of a chunk.
    """

    def step(size: int) -> dict[str, Any]:
        *_, found = ask("logical", workload, threads, records=size)
        if "failed" in found:
            raise RuntimeError(
                f"a logical batch of {size} records of {workload}: {found['failed']}"
            )
        return found

    many = step(records)
    return many["peak_mb"] / step(many["chunk"])["peak_mb"], many["chunk"]


def speed_up(workload: str, records: int, rounds: int, processes: int = 2) -> float:
    """Return how many times faster a step is when processes of one thread each divide it among
    themselves.
    """
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(processes) as pool:

        def answers(rank: int) -> list[dict[str, Any]]:
            return list(
                ask(
                    "divided",
                    workload,
                    threads=1,
                    records=records,
                    rounds=rounds,
                    rank=rank,
                    size=processes,
                    meeting=str(Path(folder, "meeting")),
                )
            )

        found, *others = pool.map(answers, range(processes))
    for each in (*found, *(answer for answers in others for answer in answers)):
        if "failed" in each:
            raise RuntimeError(f"{processes} processes on {workload}: {each['failed']}")
    alone, together = (
        statistics.median(each["ms"] for each in found if each["contender"] == name)
        for name in ("alone", "divided")
    )
    return alone / together


def profile(workload: str, contender: str, threads: int, rows: int = 15) -> str:
    """Return the operations that one step spends its time in, as a table."""
    *_, found = ask("operations", workload, threads, contender=contender, rows=rows)
    return found.get("table") or f"no profile: {found['failed']}"


def read(path: Path = RESULTS) -> list[Figure]:
    """Return the figures of a file; none if there is no file."""
    return (
        [Figure(**values) for values in json.loads(path.read_text(encoding="utf-8"))]
        if path.exists()
        else []
    )


def write(figures: list[Figure], path: Path = RESULTS) -> None:
    """Put figures into a file, in the place of all that it has for the same workload and number of
    threads.
    """
    measured = {(figure.workload, figure.threads) for figure in figures}
    kept = [figure for figure in read(path) if (figure.workload, figure.threads) not in measured]
    ordered = sorted(kept + figures, key=lambda figure: (figure.threads, figure.workload))
    rows = [
        {key: value for key, value in asdict(figure).items() if value is not None}
        for figure in ordered
    ]
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
