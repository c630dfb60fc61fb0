"""Cost of exact lattice noise from a cipher, as a multiple of ``torch.randn`` in float32 plus the
addition.

Both fill the same number of coordinates in place, in turns, with the same number of threads; the
fastest turn of each counts, since everything else that a machine does can only slow a turn down.
Then what is left of that cost when the noise is drawn ahead, while matrices are multiplied for
about as long as a step takes. Where torch uses every core nothing is drawn ahead, and nothing is
hidden."""

import argparse
import json
import time
from collections.abc import Callable

import torch

from dpfy.noise import LatticeGaussian, SecureStream, lattice_step

STDDEV = 1.7


def seconds(action: Callable[[], object]) -> float:
    """Return how long ``action`` takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(count: int, turns: int, threads: int) -> dict[str, float]:
    """Return the fastest turns in milliseconds, their ratio, and the share of the noise that is
    hidden.
    """
    torch.set_num_threads(threads)
    noise, grid = LatticeGaussian(SecureStream()), lattice_step(STDDEV)
    single, double, matrix = (
        torch.zeros(count),
        torch.zeros(count, dtype=torch.float64),
        torch.randn(1024, 1024),
    )

    def add() -> torch.Tensor:
        return noise.add_noise(double, STDDEV, grid)

    def work() -> None:
        for _ in range(
            1 + count // 500_000
        ):  # about 50 ns for each number, as in a step of a wide network
            torch.mm(matrix, matrix)

    def rest() -> float:
        noise.prefetch(count, STDDEV, grid)
        work()
        return seconds(add)

    actions: dict[str, Callable[[], float]] = {
        "randn": lambda: seconds(lambda: single.add_(torch.randn(count))),
        "lattice": lambda: seconds(add),
        "work": lambda: seconds(work),
        "rest": rest,
    }
    fastest = dict.fromkeys(actions, float("inf"))
    for _ in range(turns):
        for name, action in actions.items():
            fastest[name] = min(fastest[name], action())
    noise.close()
    return {
        "count": count,
        "threads": threads,
        **{f"{name}_ms": 1e3 * value for name, value in fastest.items()},
        "ratio": fastest["lattice"] / fastest["randn"],
        "hidden": 1 - fastest["rest"] / fastest["lattice"],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_860_000)
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for threads in options.threads:
        result = measure(options.count, options.turns, threads)
        if options.json:
            print(json.dumps(result))
        else:
            print(
                "{count:,} numbers, {threads} threads: torch.randn + add {randn_ms:.1f} ms, "
                "lattice noise {lattice_ms:.1f} ms, ratio {ratio:.2f} (target 1.3); drawn ahead "
                "during {work_ms:.0f} ms of work, {rest_ms:.1f} ms are left, {hidden:.0%} are "
                "hidden".format(**result)
            )


if __name__ == "__main__":
    main()
