"""Cost of a Poisson sample by skips, as a share of what a coin for every record costs.

Both draw from the same number of records at the same rate, on one thread; the fastest turn of each
counts, in processor time. At a fixed expected size a sample by skips costs the same for any number
of records; the coins of more than ``--coins`` records are left out."""

import argparse
import json
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from dpfy.mechanisms.sampling import PoissonSampler
from dpfy.mechanisms.sampling.poisson import Coins
from dpfy.noise import SecureStream

MOST_MS, MOST_MB = 0.5, 1.0  # of 4096 expected records of 10⁸ and more


def with_coins(coins: Coins, n: int) -> np.ndarray:
    """Return a sample for which every record flips its coin."""
    starts = range(0, n, coins.stretch)
    return np.concatenate([k + coins.heads(min(coins.stretch, n - k)) for k in starts])


def seconds(action: Callable[[], object], turns: int) -> float:
    """Return how long the fastest of several turns takes."""
    fastest = float("inf")
    for _ in range(turns):
        start = time.process_time()
        action()
        fastest = min(fastest, time.process_time() - start)
    return fastest


def measure(n: int, rate: float, turns: int, coins: bool) -> dict[str, float | None]:
    """Return the times in milliseconds, their ratio, and the megabytes of a sample by skips."""
    stream = SecureStream(purpose="sampling")
    sampler, every = PoissonSampler(rate, stream), Coins(rate, stream)
    skips_ms = 1e3 * seconds(lambda: sampler.draw(n), turns)
    coins_ms = 1e3 * seconds(lambda: with_coins(every, n), max(1, turns // 5)) if coins else None
    tracemalloc.start()
    sampler.draw(n)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "records": n,
        "rate": rate,
        "skips_ms": skips_ms,
        "coins_ms": coins_ms,
        "ratio": skips_ms / coins_ms if coins_ms else None,
        "peak_mb": peak / 1e6,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, nargs="+", default=[10**k for k in (6, 7, 8, 10)])
    parser.add_argument("--expected", type=int, default=4096)
    parser.add_argument("--coins", type=int, default=10**8, help="at most, for all coins")
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    settings = [(n, options.expected / n) for n in options.records]
    for n, rate in [*settings, (10**6, 0.05), (10**6, 0.125)]:
        found = measure(n, rate, options.turns, n <= options.coins)
        if options.json:
            print(json.dumps(found))
            continue
        line = "{records:,} records at rate {rate:.2g}: {skips_ms:.2f} ms, {peak_mb:.2f} MB"
        if found["ratio"] is not None:
            line += "; by coins {coins_ms:.2f} ms, ratio {ratio:.4f}"
        print(line.format(**found) + (f" (target {MOST_MS} ms, {MOST_MB} MB)" * (n > 10**7)))


if __name__ == "__main__":
    main()
