"""Time and memory of private training steps beside plain torch: ``python -m benchmarks.engines``.

A complete run writes benchmarks/results.json and the tables of the README. It may go in parts: with
``--workload mlp --output benchmarks/results.json`` the figures of one workload take the place of
those that are there, and all others stay. Linux only: memory is read from /proc."""

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.engines import table
from benchmarks.engines.contenders import contenders, takes_part, unavailable
from benchmarks.engines.measure import (
    LOGICAL_BATCH,
    RESULTS,
    Comparison,
    Figure,
    Settings,
    compare,
    logical_batch,
    profile,
    set_up,
    speed_up,
    write,
)
from benchmarks.engines.workloads import ALL, LARGE, WORKLOADS

_SLOW = ("dpfy:loop", "dpfy:strict")
_QUICK = ("mlp", "cnn-mnist", "lstm-imdb")
_LOGICAL = ("mlp", "cnn-mnist", "cnn-cifar")  # the others need minutes for so many records
_FOR_LARGE = ("torch", "dpfy")
_SET_UP_LIMIT, _FIRST_STEP_LIMIT = 3.0, 5.0  # plain steps; the second is for large models
_MEMORY_LIMIT_OF_LARGE = 1.6
_DIVIDED, _DIVIDED_RECORDS, _SPEED_UP = "cnn-cifar", 512, 1.6
_TIME_LIMIT_ON_AVERAGE, _MEMORY_LIMIT, _MEMORY_LIMIT_ON_AVERAGE, _LOGICAL_LIMIT = (
    1.15,
    1.15,
    1.15,
    1.1,
)


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workload", action="append", choices=list(ALL), help="may be given several times"
    )
    parser.add_argument(
        "--engine", action="append", choices=contenders()[1:], help="may be given several times"
    )
    parser.add_argument("--threads", action="append", type=int, help="default: 1, then 2")
    parser.add_argument(
        "--rounds", type=int, help="steps of each contender; default: 15, up to 61 of short ones"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="three small workloads, one thread, few rounds, no oracle",
    )
    parser.add_argument(
        "--profile", action="store_true", help="show the operations that a step spends time in"
    )
    parser.add_argument(
        "--memory-limit", type=float, default=8, help="in GB; who needs more is left out"
    )
    parser.add_argument(
        "--output", type=Path, help="where figures go; a complete run: benchmarks/results.json"
    )
    return parser.parse_args()


def main() -> None:
    """Measure, print, and write what a complete run found."""
    options, console = arguments(), Console(soft_wrap=True)
    workloads = options.workload or (_QUICK if options.quick else list(ALL))
    threads = options.threads or ([1] if options.quick else [1, 2])
    asked = options.rounds or (5 if options.quick else None)
    settings = Settings(
        rounds=asked or Settings.rounds,
        most_rounds=asked or Settings.most_rounds,
        memory_limit_mb=int(1024 * options.memory_limit),
    )
    names = chosen(options, console)
    complete = not (options.workload or options.engine or options.threads or options.quick)
    output = options.output or (RESULTS if complete else None)
    figures: list[Figure] = []
    for count in threads:
        for workload in workloads:
            some = [name for name in names if name in _FOR_LARGE or workload not in LARGE]
            some = [name for name in some if takes_part(name, workload)]
            found = measured(workload, some, count, settings, console)
            figures += with_first_step(found.figures, console)
            show(found, workload, count, console)
            if output is not None:
                save(figures, output, console)  # whatever interrupts the rest
            if options.profile:
                for contender in ("torch", "dpfy"):
                    console.print(f"{workload}, threads: {count}, {contender}", style="bold")
                    print(profile(workload, contender, count))
    if output is None:
        console.print("not a complete run: nothing was written (--output says where to)")
    verdicts(figures, console)
    if "dpfy" in names:
        statements(
            [workload for workload in _LOGICAL if workload in workloads], threads[0], console
        )
        if _DIVIDED in workloads:
            divided(settings.rounds, console)


def with_first_step(figures: list[Figure], console: Console) -> list[Figure]:
    """Return the figures, dpfy's with what its first step takes; print that with its limit."""
    return [
        replace(figure, first_step=first_step(figure.workload, figure.threads, console))
        if figure.engine == "dpfy"
        else figure
        for figure in figures
    ]


def first_step(workload: str, threads: int, console: Console) -> float:
    """Measure the way from ``privatize`` to the end of the first step, in plain steps."""
    found = set_up(workload, threads)
    console.print(
        f"{workload}, threads {threads}: the first step is done after {found.first_step:.1f} plain "
        f"steps, {_held(found.beyond, _SET_UP_LIMIT)} more than a later one"
    )
    if workload in LARGE:
        console.print(f"{workload}: of all that {_held(found.first_step, _FIRST_STEP_LIMIT)}")
    return round(found.first_step, 2)


def chosen(options: argparse.Namespace, console: Console) -> list[str]:
    """Return the contenders to measure, plain torch first; say which cannot run."""
    wanted = options.engine or [
        name for name in contenders()[1:] if not (options.quick and name in _SLOW)
    ]
    reasons = {name: unavailable(name) for name in wanted}
    for name, reason in reasons.items():
        if reason:
            console.print(f"{name} is left out: {reason}")
    return ["torch", *(name for name in wanted if not reasons[name])]


def measured(
    workload: str, names: list[str], threads: int, settings: Settings, console: Console
) -> Comparison:
    """Compare under a progress bar."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(
            f"{workload}, threads: {threads}", total=len(names) + settings.rounds * len(names)
        )
        return compare(
            workload,
            names,
            threads,
            settings,
            lambda: progress.advance(bar),
            lambda answers: progress.update(bar, total=answers),
        )


def show(found: Comparison, workload: str, threads: int, console: Console) -> None:
    """Print one comparison."""
    result = Table(
        "engine",
        "ms",
        "time",
        "(fastest)",
        "MB",
        "memory",
        title=f"{workload}, threads: {threads}",
        title_justify="left",
    )
    for figure in found.figures:
        name = f"dpfy ({found.chosen})" if figure.engine == "dpfy" else figure.engine
        result.add_row(
            name,
            f"{figure.step_ms:.1f}",
            f"{figure.time_ratio:.2f}",
            f"({found.fastest_ratios[figure.engine]:.2f})",
            f"{figure.peak_mb:.0f}",
            f"{figure.memory_ratio:.2f}",
        )
    console.print(result)
    for name, reason in found.missing.items():
        console.print(f"{name} has no figures: {reason}", markup=False)
    if found.noise_share is not None:
        console.print(f"noise alone takes {found.noise_share:.1%} of dpfy's step")


def verdicts(figures: list[Figure], console: Console) -> None:
    """Print dpfy's ratios with the limits that it is held to."""
    for threads in sorted({figure.threads for figure in figures}):
        own = [
            figure for figure in figures if figure.engine == "dpfy" and figure.threads == threads
        ]
        compared = [figure for figure in own if figure.workload in WORKLOADS]
        for figure in own:
            console.print(
                f"{figure.workload}, threads {threads}: time "
                f"{_held(figure.time_ratio, ALL[figure.workload].time_limit)}, memory "
                f"{_held(figure.memory_ratio, memory_limit(figure.workload))}"
            )
        if len(compared) == len(WORKLOADS):
            time, memory = (
                geometric_mean(ratios)
                for ratios in zip(
                    *((figure.time_ratio, figure.memory_ratio) for figure in compared), strict=True
                )
            )
            console.print(
                f"on average, threads {threads}: time {_held(time, _TIME_LIMIT_ON_AVERAGE)}, "
                f"memory {_held(memory, _MEMORY_LIMIT_ON_AVERAGE)}"
            )


def memory_limit(workload: str) -> float:
    """Return how many times plain torch's memory a private step may take."""
    return _MEMORY_LIMIT_OF_LARGE if workload in LARGE else _MEMORY_LIMIT


def statements(workloads: list[str], threads: int, console: Console) -> None:
    """Print what no step of one batch in one process shows."""
    for workload in workloads:
        ratio, chunk = logical_batch(workload, threads)
        console.print(
            f"{workload}: a step on {LOGICAL_BATCH} records takes {_held(ratio, _LOGICAL_LIMIT)} "
            f"times the memory of one on a single chunk of {chunk}"
        )


def divided(rounds: int, console: Console) -> None:
    """Print what a second process is worth."""
    found = speed_up(_DIVIDED, _DIVIDED_RECORDS, rounds)
    console.print(
        f"{_DIVIDED}: two processes make a step on {_DIVIDED_RECORDS} records {found:.2f} times as "
        f"fast as one (at least {_SPEED_UP:.2f}{', missed' if found < _SPEED_UP else ''})"
    )


def _held(value: float, limit: float) -> str:
    return f"{value:.2f} (limit {limit:.2f}{', missed' if value > limit else ''})"


def save(figures: list[Figure], path: Path, console: Console) -> None:
    """Write the figures; the README shows those of results.json."""
    write(figures, path)
    console.print(f"wrote {path}")
    if path.resolve() == RESULTS:
        table.update()


if __name__ == "__main__":
    main()
