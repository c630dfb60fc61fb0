"""How many reservations a book grants in a second, and how long a client waits for one.

    python -m benchmarks.budgets                # SQLite, and PostgreSQL where it is installed
    python -m benchmarks.budgets --clients 8 --reservations 50

Both databases sync to the disk at every commit. Bars, on an idle machine with 8 clients: at least
150 reservations a second, and 99 % of them within 150 ms.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUPPORT = ROOT / "tests" / "support"


def measured(url: str, clients: int, reservations: int) -> dict[str, float]:
    """Let clients reserve at the same time, after all of them have opened the book."""
    from books import new_book

    with new_book(url):
        command = [sys.executable, str(SUPPORT / "book_clients.py"), "race", url]
        command += [str(2 * clients * reservations), str(reservations)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        running = [subprocess.Popen(command, **pipes) for _ in range(clients)]
        for each in running:
            each.stdout.readline()
        began = time.perf_counter()
        for each in running:
            each.stdin.write("go\n")
            each.stdin.flush()
        answers = [json.loads(each.communicate()[0]) for each in running]
        took = time.perf_counter() - began
    times = sorted(value for answer in answers for value in answer["times"])
    assert sum(answer["granted"] for answer in answers) == clients * reservations
    return {
        "per second": len(times) / took,
        "median ms": 1e3 * times[len(times) // 2],
        "p99 ms": 1e3 * times[int(0.99 * len(times))],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--reservations", type=int, default=100, help="of each client")
    arguments = parser.parse_args()
    sys.path.insert(0, str(SUPPORT))
    from databases import PostgreSQL

    with tempfile.TemporaryDirectory(dir=".") as folder, contextlib.ExitStack() as stack:
        urls = {"SQLite": f"sqlite:///{Path(folder).resolve()}/team.db"}
        try:
            server = stack.enter_context(contextlib.closing(PostgreSQL()))
            urls["PostgreSQL"] = server.new_database()
        except (OSError, AssertionError) as error:
            print(f"PostgreSQL is left out: {error}")
        for name, url in urls.items():
            found = measured(url, arguments.clients, arguments.reservations)
            print(f"{name:12}", *(f"{value:9.1f} {unit}" for unit, value in found.items()))


if __name__ == "__main__":
    main()
