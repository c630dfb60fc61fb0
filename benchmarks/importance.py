"""What an epoch of importance sampling costs beside one of DP-SGD with the same batch size.

The kinds take turns step by step in one process; ratios are of medians of epochs and, in brackets,
of the fastest. At most 1.15·(slack + 1) times the time of DP-SGD is wanted, and 1.15 times the
memory, for which each kind has a process of its own. Clip bounds are twice and four times the mean
norm: records with smaller norms are proposed more often in vain, and with the latter nearly all are
proposed slack times as often as they are accepted."""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from benchmarks.engines.worker import high_water
from benchmarks.engines.workloads import WORKLOADS, Workload

SLACK, MOST = 3.0, 1.15
KINDS = {"DP-SGD": None, "DPIS, norms of 1/2": 0.5, "DPIS, norms of 1/4": 0.25}
"""The mean norm in clip bounds, by which records are drawn."""
_BATCHES = 8  # of an epoch
_EPOCHS = 10**4


def planned(share: float | None, norms: torch.Tensor, batch_size: int) -> dpfy.Plan:
    """Return a plan of DP-SGD, or of DPIS with a ratio that suits the norms."""
    records, clip = _BATCHES * batch_size, float(norms.mean()) / (share or 1.0)
    if share is None:
        return dpfy.dpsgd(
            records=records, batch_size=batch_size, epochs=_EPOCHS, clip=clip, noise_multiplier=1.0
        )
    return dpfy.dpis(
        records=records,
        batch_size=batch_size,
        epochs=_EPOCHS,
        clip=clip,
        noise_multiplier=1.0,
        ratio=float((norms / clip).clamp(max=1.0).mean()),
        slack=SLACK,
    )


def norms_of(model: nn.Module, data: TensorDataset) -> torch.Tensor:
    """The norms of some gradients; the data is made up."""
    norms = []
    for x, y in islice(data, 64):
        loss = F.cross_entropy(model(x.unsqueeze(0)), y.unsqueeze(0))
        norms.append(nn.utils.get_total_norm(torch.autograd.grad(loss, list(model.parameters()))))
    return torch.stack(norms)


def prepared(workload: Workload, kind: str, folder: Path) -> Callable[[], object]:
    """Return what trains for one step."""
    model, data = workload.model(), replace(workload, batch=_BATCHES * workload.batch).data()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)  # norms stay about what they are
    plan = planned(KINDS[kind], norms_of(model, data), workload.batch)
    run = dpfy.privatize(model, optimizer, data, plan, folder / f"{list(KINDS).index(kind)}.dpl")
    batches = iter(run)

    def loss_fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    def step() -> None:
        optimizer.zero_grad()
        run.backward(loss_fn, next(batches))
        optimizer.step()

    return step


def measure(workload: Workload, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every epoch by kind."""
    with tempfile.TemporaryDirectory(dir="runs") as folder:
        steps = {kind: prepared(workload, kind, Path(folder)) for kind in KINDS}
        times: dict[str, list[float]] = {kind: [0.0] * (rounds + 1) for kind in steps}
        for turn, number in product(
            range(rounds + 1), range(_BATCHES)
        ):  # the first epoch to warm up
            for kind in list(steps)[:: -1 if number % 2 else 1]:
                start = time.perf_counter()
                steps[kind]()
                times[kind][turn] += time.perf_counter() - start
    return {kind: values[1:] for kind, values in times.items()}


def peak(workload: Workload, kind: str) -> float:
    """Return the megabytes that an epoch of a kind takes, in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.importance",
        "--workload",
        workload.name,
        "--peak",
        kind,
    ]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=WORKLOADS, default="cnn-mnist")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--peak",
        choices=KINDS,
        help="print the megabytes of an epoch of this kind, and nothing else",
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    workload = WORKLOADS[options.workload]
    Path("runs").mkdir(exist_ok=True)
    if options.peak:
        with tempfile.TemporaryDirectory(dir="runs") as folder:
            step = prepared(workload, options.peak, Path(folder))
            for _ in range(_BATCHES):
                step()
        print(high_water())
        return
    times, peaks = measure(workload, options.rounds), {kind: peak(workload, kind) for kind in KINDS}
    for kind, values in times.items():
        ratio = statistics.median(values) / statistics.median(times["DP-SGD"])
        fastest, memory = min(values) / min(times["DP-SGD"]), peaks[kind] / peaks["DP-SGD"]
        missed = ", missed" if max(ratio, fastest) > MOST * (SLACK + 1) or memory > MOST else ""
        print(
            f"{workload.name}, {kind}: {statistics.median(values):.2f} s an epoch, {ratio:.2f} "
            f"({fastest:.2f}) times DP-SGD; {peaks[kind]:.0f} MB, {memory:.2f} times{missed}"
        )


if __name__ == "__main__":
    main()
