"""Cost of exact lattice noise from a cipher, as a multiple of ``torch.randn`` in float32 plus the addition.

Both fill the same number of coordinates in place, in turns, with the same number of threads; the fastest turn of each
counts, since everything else that a machine does can only slow a turn down.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch

from dpfy.mechanisms.noise import LatticeGaussian, SecureStream, lattice_step


def seconds(action: Callable[[], object]) -> float:
    """Return how long ``action`` takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(count: int, turns: int, threads: int) -> dict[str, float]:
    """Return the fastest turns in milliseconds and their ratio."""
    torch.set_num_threads(threads)
    noise, stddev = LatticeGaussian(SecureStream()), 1.7
    single, double = torch.zeros(count), torch.zeros(count, dtype=torch.float64)
    plain, exact = [], []
    for _ in range(turns):
        plain.append(seconds(lambda: single.add_(torch.randn(count))))
        exact.append(seconds(lambda: noise.add_noise(double, stddev=stddev, grid=lattice_step(stddev))))
    return {"count": count, "threads": threads, "randn_ms": 1e3 * min(plain), "lattice_ms": 1e3 * min(exact),
            "ratio": min(exact) / min(plain)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options.count, options.turns, options.threads)
    if options.json:
        print(json.dumps(result))
    else:
        print("{count:,} numbers, {threads} threads: torch.randn + add {randn_ms:.1f} ms, "
              "lattice noise {lattice_ms:.1f} ms, ratio {ratio:.2f} (limit 2.5)".format(**result))


if __name__ == "__main__":
    main()
