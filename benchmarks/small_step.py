"""What a private step costs beyond a plain one where there is hardly anything to compute: a
perceptron of 0.8 million parameters and 64 records, one thread, the ledger on disk.

Both take turns in one process. At most 2.5 ms are wanted between the medians. ``--stages`` prints
where the time of a private step goes; ``--cpu`` counts the time that the thread of the training
computes, which does not wait for the disk or for other programs."""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from benchmarks.step_stages import Stages, watched

LIMIT = 2.5  # ms
_RECORDS, _BATCH = 6400, 64
_TURN, _WARM = 60, 10  # steps, of which the first find cold caches


def network() -> nn.Module:
    """Return the perceptron, the same every time."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(784, 700), nn.ReLU(), nn.Linear(700, 350), nn.ReLU(), nn.Linear(350, 10))
    )


def plain_steps(x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    """Return what makes a plain step of torch on records that it draws."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        drawn = torch.randint(len(x), (_BATCH,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[drawn]), y[drawn]).backward()
        optimizer.step()

    return step


def private_steps(
    x: torch.Tensor, y: torch.Tensor, steps: int, ledger: Path
) -> tuple[dpfy.Run, Callable[[], object]]:
    """Return a run, and what makes a private step of it."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    plan = dpfy.dpsgd(
        records=len(x), batch_size=_BATCH, steps=steps, clip=1.0, noise_multiplier=1.0
    )
    run = dpfy.privatize(model, optimizer, TensorDataset(x, y), plan, ledger)
    batches = iter(run)

    def step() -> None:
        optimizer.zero_grad()
        run.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), next(batches))
        optimizer.step()

    return run, step


def measure(rounds: int, clock: Callable[[], float] = time.perf_counter) -> dict[str, list[float]]:
    """Return the milliseconds of every plain and every private step."""
    x, y = torch.randn(_RECORDS, 784), torch.randint(10, (_RECORDS,))
    found: dict[str, list[float]] = {"plain": [], "private": []}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        run, private = private_steps(x, y, rounds * _TURN, Path(folder, "run.dpl"))
        with run:
            steps = {"plain": plain_steps(x, y), "private": private}
            for _ in range(rounds):
                for name, step in steps.items():
                    found[name] += [1e3 * _timed(step, clock) for _ in range(_TURN)][_WARM:]
    return found


def stages_of(rounds: int, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Return the milliseconds of each stage of a private step."""
    x, y = torch.randn(_RECORDS, 784), torch.randint(10, (_RECORDS,))
    stages = Stages(clock)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        run, private = private_steps(x, y, _WARM + rounds * _TURN, Path(folder, "run.dpl"))
        with run:
            for _ in range(_WARM):
                private()
            with watched(stages):
                for _ in range(rounds * _TURN):
                    with stages.step():
                        private()
    return stages.milliseconds()


def _timed(step: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    step()
    return clock() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--stages", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    clock = time.thread_time if options.cpu else time.perf_counter
    torch.set_num_threads(1)
    if options.stages:
        for stage, duration in stages_of(options.rounds, clock).items():
            print(f"{duration:7.3f} ms  {stage}")
        return
    found = measure(options.rounds, clock)
    medians = {name: statistics.median(times) for name, times in found.items()}
    fastest = {name: statistics.quantiles(times, n=10)[0] for name, times in found.items()}
    beyond = medians["private"] - medians["plain"]
    print(
        f"a plain step takes {medians['plain']:.2f} ms, a private one {medians['private']:.2f} ms: "
        f"{beyond:.2f} ms more ({fastest['private'] - fastest['plain']:.2f} between the fastest "
        f"tenths){', missed' if beyond > LIMIT else ''}"
    )


if __name__ == "__main__":
    main()
