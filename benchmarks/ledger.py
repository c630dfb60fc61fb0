"""What a durable reservation costs, beside a bare append and fsync on the same disk.

Usage: python benchmarks/ledger.py [--steps 500] [--json]
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from dpfy.ledger import Ledger
from dpfy.ledger.events import Poisson, Sampled, SumQuery


def _median_ms(action: object, times: int) -> float:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        action()  # type: ignore[operator]
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds)


def measure(steps: int) -> dict[str, float]:
    """Return medians in milliseconds, taken in turns so that both see the same machine."""
    event = Sampled(Poisson(0.01), (SumQuery(1.0, 1.0),))
    with tempfile.TemporaryDirectory(dir=".") as folder:
        file = os.open(Path(folder) / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def bare() -> None:
            os.write(file, b"x" * 150)
            os.fsync(file)

        with (
            Ledger.open(Path(folder) / "run.dpl") as ledger,
            Ledger.open(Path(folder) / "b.dpl", block=100) as blocks,
        ):
            rounds = [
                (
                    _median_ms(bare, 50),
                    _median_ms(lambda: ledger.reserve(event), 50),
                    _median_ms(lambda: blocks.reserve(event), 50),
                )
                for _ in range(max(1, steps // 50))
            ]
        os.close(file)
    bare_ms, reserve_ms, block_ms = (
        statistics.median(column) for column in zip(*rounds, strict=True)
    )
    return {
        "append_fsync_ms": bare_ms,
        "reserve_ms": reserve_ms,
        "reserve_in_blocks_of_100_ms": block_ms,
        "ratio": reserve_ms / bare_ms,
    }


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options.steps)
    print(
        json.dumps(result)
        if options.json
        else "reserve {reserve_ms:.3f} ms, in blocks of 100 {reserve_in_blocks_of_100_ms:.4f} ms, "
        "bare append + fsync {append_fsync_ms:.3f} ms, ratio {ratio:.2f}".format(**result)
    )


if __name__ == "__main__":
    main()
