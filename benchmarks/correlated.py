"""What correlated noise costs beyond independent noise: whole private steps, and memory.

All kinds take turns in one process; ratios are of medians and, in brackets, of the fastest turns.
At most 1.15 is wanted for 8 bands on cnn-mnist."""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

import dpfy
from benchmarks.engines.workloads import WORKLOADS, Workload
from dpfy.ledger.streams import Buffered, Strategy, Toeplitz, Tree
from dpfy.mechanisms import Workload as Sums, square_root

_STEPS = 10_000
KINDS: dict[str, Strategy | None] = {
    "dpsgd": None,
    "1 band": Toeplitz((1.0,)),
    "8 bands": square_root(Sums(_STEPS), bands=8),
    "32 bands": square_root(Sums(_STEPS), bands=32),
    "4 buffers": Buffered((0.99, 0.9, 0.5, 0.1), (0.1, 0.2, 0.2, 0.2)),
    "tree": Tree(),
}


def prepared(workload: Workload, kind: str, folder: Path) -> Callable[[], object]:
    """Return what makes one private step of a kind."""
    model = workload.model()
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.01, momentum=0.9
    )
    strategy = KINDS[kind]
    preset = dpfy.dpsgd if strategy is None else dpfy.dpftrl
    plan = preset(
        records=workload.batch,
        batch_size=workload.batch,
        steps=_STEPS,
        noise_multiplier=1.0,
        **({} if strategy is None else {"strategy": strategy}),
    )
    run = dpfy.privatize(model, optimizer, workload.data(), plan, ledger=folder / f"{kind}.dpl")
    batches = iter(run)

    def step() -> None:
        optimizer.zero_grad()
        run.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), next(batches))
        optimizer.step()

    return step


def measure(workload: Workload, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every turn by kind."""
    Path("runs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="runs") as folder:
        steps = {kind: prepared(workload, kind, Path(folder)) for kind in KINDS}
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        order = list(steps)
        for turn in range(rounds + 34):  # until every band is in use
            order.append(order.pop(0))
            for kind in order:
                start = time.perf_counter()
                steps[kind]()
                if turn >= 34:
                    times[kind].append(time.perf_counter() - start)
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=WORKLOADS, default="cnn-mnist")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    times = measure(WORKLOADS[options.workload], options.rounds)
    for kind, values in times.items():
        ratio = statistics.median(values) / statistics.median(times["dpsgd"])
        fastest = min(values) / min(times["dpsgd"])
        print(
            f"{options.workload}, {kind}: {1e3 * statistics.median(values):.1f} ms, {ratio:.3f} "
            f"({fastest:.3f}) times dpsgd"
        )


if __name__ == "__main__":
    main()
