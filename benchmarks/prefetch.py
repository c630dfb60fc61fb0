"""How much of the loading a step hides behind its computing, with ``prefetch=1`` and without.

Every record takes 2 ms to load, by two workers, and the loss takes its time as on a device: it
waits. A step that hid everything would take as long as the longer of the two, loading alone or
computing alone; at most 1.15 times that is wanted with ``prefetch=1``."""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import dpfy

LIMIT = 1.15
_SECONDS = 0.002  # to load a record
_WORKERS = 2
_STEPS = 10**6
_TURN = 4


class Slow(Dataset[torch.Tensor]):
    """Records that take their time to load."""

    example_input = torch.zeros(1, 8)

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(_SECONDS)
        return self.rows[index]


def prepared(
    rows: torch.Tensor, seconds: float, prefetch: int | None, chunk: int | None
) -> tuple[dpfy.Run, Callable[[], object]]:
    """Return a run whose loss takes some seconds a record, and what makes one step of it.

    The records of each step are all of them: loading and computing take the same time in each.
    Without a value for ``prefetch``, records are in memory.
    """
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    plan = dpfy.dpsgd(rate=1.0, divisor=len(rows), steps=_STEPS, noise_multiplier=1.0)
    memory, loading = TensorDataset(rows), {"num_workers": _WORKERS, "prefetch": prefetch or 0}
    run = dpfy.privatize(
        model,
        optimizer,
        memory if prefetch is None else Slow(rows),
        plan,
        dpfy.Ledger.in_memory(),
        max_physical_batch=chunk,
        **({} if prefetch is None else loading),
    )
    batches = iter(run)

    def loss_fn(x: torch.Tensor) -> torch.Tensor:
        time.sleep(seconds * len(x))
        return model(x).squeeze(1)

    def step() -> None:
        optimizer.zero_grad()
        run.backward(loss_fn, next(batches))
        optimizer.step()

    return run, step


def measure(records: int, share: float, chunk: int | None, rounds: int) -> dict[str, float]:
    """Return the median seconds of loading alone, of computing alone, and of both kinds of steps.

    ``share`` is the length of computing, in units of that of loading. All take turns of a few
    repetitions, of which the first is not counted: something may be loading ahead until then.
    """
    rows, seconds = torch.randn(records, 8), share * _SECONDS / _WORKERS
    parts = [*torch.arange(records).split(chunk or records)]
    with ExitStack() as runs:

        def started(prefetch: int | None) -> tuple[dpfy.Run, Callable[[], object]]:
            run, step = prepared(rows, seconds, prefetch, chunk)
            return runs.enter_context(run), step

        plain, on_demand = started(0)
        acts = {
            "load": lambda: [*plain.context.records.fresh().chunks(parts)],
            "compute": started(None)[1],
            "on demand": on_demand,
            "ahead": started(1)[1],
        }
        found: dict[str, list[float]] = {name: [] for name in acts}
        for _ in range(rounds):
            for name, act in acts.items():
                found[name] += [_timed(act) for _ in range(_TURN)][1:]
    return {name: statistics.median(times) for name, times in found.items()}


def _timed(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=128, help="of a step")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for chunk in (None, options.records // 4):
        for share in (0.5, 1.0, 2.0):
            found = measure(options.records, share, chunk, options.rounds)
            longer = max(found["load"], found["compute"])
            missed = ", missed" if found["ahead"] > LIMIT * longer else ""
            print(
                f"chunks of {chunk or options.records}, loading {1e3 * found['load']:.0f} ms, "
                f"computing {1e3 * found['compute']:.0f} ms: a step takes "
                f"{found['on demand'] / longer:.3f} times the longer one, and "
                f"{found['ahead'] / longer:.3f} with prefetch=1{missed}",
                flush=True,
            )


if __name__ == "__main__":
    main()
