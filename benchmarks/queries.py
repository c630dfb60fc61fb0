"""What groups of gradients, statistics of the sample and clip bounds that follow quantiles cost
beyond one flat clipped sum: whole private steps.

All kinds take turns in one process; ratios are of medians and, in brackets, of the fastest turns.
At most 1.05 is wanted."""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import dpfy
from benchmarks.engines.workloads import WORKLOADS, Workload

LIMIT = 1.05
_STEPS = 10**6

KINDS: dict[str, Callable[[torch.nn.Module, int], dict[str, Any]]] = {
    "flat": lambda model, classes: {"clip": 1.0},
    "quantile": lambda model, classes: {"clip": 1.0, "controllers": [dpfy.QuantileClipping()]},
    "layers": lambda model, classes: {"clip": dpfy.clip_groups(model, "layer")},
    "layer quantiles": lambda model, classes: {
        "clip": dpfy.clip_groups(model, "layer"),
        "controllers": [dpfy.QuantileClipping()],
    },
    "joint": lambda model, classes: {"clip": dpfy.clip_jointly(model, {"*.bias": 0.1, "*": 1.0})},
    "statistics": lambda model, classes: {"clip": 1.0, "statistics": _statistics(classes)},
    "layers and statistics": lambda model, classes: {
        "clip": dpfy.clip_groups(model, "layer"),
        "statistics": _statistics(classes),
    },
}


def _statistics(classes: int) -> list[dpfy.Statistic]:
    return [
        dpfy.Statistic("accuracy"),
        dpfy.Statistic("loss", bound=4.0),
        dpfy.Statistic("classes", shape=(classes,)),
        dpfy.RecordNormsBelow(thresholds=(0.5, 1.0, 2.0)),
        dpfy.SampleSize(),
    ]


def prepared(workload: Workload, kind: str, folder: Path) -> Callable[[], object]:
    """Return what makes one private step of a kind."""
    model = workload.model()
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.01, momentum=0.9
    )
    options = KINDS[kind](model, workload.classes)
    plan = dpfy.dpsgd(
        records=workload.batch,
        batch_size=workload.batch,
        steps=_STEPS,
        noise_multiplier=1.0,
        **options,
    )
    run = dpfy.privatize(model, optimizer, workload.data(), plan, ledger=folder / f"{kind}.dpl")
    batches = iter(run)

    def loss_fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor | dpfy.Losses:
        scores = model(x)
        loss = F.cross_entropy(scores, y, reduction="none")
        if "statistics" not in options:
            return loss
        return dpfy.Losses(
            loss,
            {
                "accuracy": dpfy.soft_accuracy(scores, y),
                "loss": loss,
                "classes": F.one_hot(y, workload.classes),
            },
        )

    def step() -> None:
        optimizer.zero_grad()
        run.backward(loss_fn, next(batches))
        optimizer.step()

    return step


def measure(workload: Workload, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every turn by kind."""
    Path("runs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="runs") as folder:
        steps = {kind: prepared(workload, kind, Path(folder)) for kind in KINDS}
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        order = list(steps)
        for _ in range(rounds + 2):  # two to warm up
            order.append(
                order.pop(0)
            )  # each has every place, and none is helped by a turn of its own before
            for kind in order:
                start = time.perf_counter()
                steps[kind]()
                times[kind].append(time.perf_counter() - start)
    return {kind: values[2:] for kind, values in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--workload", action="append", choices=WORKLOADS, help="default: mlp and cnn-mnist"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.workload or ("mlp", "cnn-mnist"):
        times = measure(WORKLOADS[name], options.rounds)
        for kind, values in times.items():
            ratio = statistics.median(values) / statistics.median(times["flat"])
            fastest = min(values) / min(times["flat"])
            missed = ", missed" if max(ratio, fastest) > LIMIT else ""
            print(
                f"{name}, {kind}: {1e3 * statistics.median(values):.1f} ms, {ratio:.3f} "
                f"({fastest:.3f}) times flat{missed}"
            )


if __name__ == "__main__":
    main()
