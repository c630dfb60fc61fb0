"""How soon the page of 50 runs of 100,000 steps answers, and what it costs while nothing happens.

Run it on a machine that does nothing else:

    python benchmarks/live_page.py

Cold is the first request to a page that has just started; warm is one after all ledgers were read;
idle is the share of one core while one browser listens and no run takes a step.
"""

import argparse
import http.client
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from run_folders import large

TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def page(folder: Path):
    """Serve a folder as ``dpfy page`` does; yield the process and its port."""
    started = subprocess.Popen(
        [sys.executable, "-m", "dpfy", "page", str(folder), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield started, int(re.search(r":(\d+)/", started.stdout.readline())[1])
    finally:
        started.kill()
        started.communicate()


def first_byte(port: int, path: str) -> tuple[float, str]:
    """Return the seconds until the first byte of an answer, and the answer."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read(1)
    took = time.perf_counter() - began
    text = answer.read().decode()
    connection.close()
    return took, text


def cpu(process: subprocess.Popen) -> float:
    """Return the seconds of CPU that a process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def idle(process: subprocess.Popen, port: int, seconds: float) -> float:
    """Return the share of one core that the page takes while a browser listens."""
    _, text = first_byte(port, "/")
    version = re.search(r'data-version="([^"]*)"', text)[1]
    stream = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    stream.request("GET", f"/events?topic=runs&since={version}")
    stream.getresponse()
    time.sleep(2)
    before, began = cpu(process), time.perf_counter()
    time.sleep(seconds)
    share = (cpu(process) - before) / (time.perf_counter() - began)
    stream.close()
    return share


def main() -> None:
    """Measure, and print the figures beside their limits."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--idle", type=float, default=30.0, help="seconds to watch an idle page")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for run in range(asked.runs):
            large(Path(folder, f"run-{run:02}", "ledger.dpl"), asked.steps)
        with page(Path(folder)) as (process, port):
            cold, _ = first_byte(port, "/")
            began = time.perf_counter()
            while "being" in (text := first_byte(port, "/")[1]):
                time.sleep(0.5)
            print(f"all ledgers read and accounted after  {time.perf_counter() - began:6.1f} s")
            warm = statistics.median(first_byte(port, "/")[0] for _ in range(20))
            key = re.search(r"/runs/(\w+)", text)[1]
            while "What it rests on" not in first_byte(port, f"/runs/{key}")[1]:
                time.sleep(0.5)
            one = statistics.median(first_byte(port, f"/runs/{key}")[0] for _ in range(20))
            share = idle(process, port, asked.idle)
    print(f"first byte, cold           {1000 * cold:8.0f} ms  (limit 3000)")
    print(f"first byte, warm           {1000 * warm:8.0f} ms  (limit  300)")
    print(f"first byte, run and report {1000 * one:8.0f} ms  (limit  300)")
    print(f"idle, of one core          {100 * share:8.2f} %   (limit    1)")


if __name__ == "__main__":
    main()
