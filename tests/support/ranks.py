"""Starts functions of a test module in several processes that form a group, and collects what they
return.

A test module marks functions as :func:`scenario`; each gets a rank, the number of ranks and a
folder that the ranks share, and returns JSON. All scenarios of a module run one after the other in
the same processes, which take far longer to start than to run."""

import gc
import importlib.util
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).parent
_PATIENCE = 200  # seconds that one rank waits for another, so that a scenario that hangs fails
SCENARIOS: dict[str, Callable[[int, int, Path], Any]] = {}


def scenario(function: Callable[[int, int, Path], Any]) -> Callable[[int, int, Path], Any]:
    """Make a function known to the processes by its name."""
    SCENARIOS[function.__name__] = function
    return function


def start(module: str, names: Iterable[str], size: int, folder: Path) -> list[subprocess.Popen]:
    """Start ``size`` processes that run the named scenarios of the module file ``module``."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join(
            [str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    code = "import ranks; ranks.main()"
    return [
        subprocess.Popen(
            [sys.executable, "-c", code, module, str(rank), str(size), str(folder), *names],
            env=environment,
            cwd=SUPPORT.parents[1],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(size)
    ]


def finish(processes: list[subprocess.Popen]) -> list[tuple[int, str]]:
    """Wait for all processes; return the exit code and the whole output of each."""
    try:
        texts = ["".join(process.communicate(timeout=2 * _PATIENCE)) for process in processes]
    finally:
        for process in processes:
            process.kill()  # only does something after a failure
    return [(process.returncode, text) for process, text in zip(processes, texts, strict=True)]


def result(folder: Path, rank: int) -> dict[str, Any]:
    """Return what the scenarios of one rank returned, by name."""
    return json.loads((folder / f"{rank}.json").read_text(encoding="utf-8"))


def finish_once(folder: Path, begin: Callable[[], list[subprocess.Popen]]) -> list[tuple[int, str]]:
    """Let one of several workers of the test run begin and finish the processes; give all of them
    the outcome.
    """
    outcome = folder / "outcome.json"
    try:
        folder.mkdir()
    except FileExistsError:
        for _ in range(2 * _PATIENCE):
            if outcome.exists():
                return [tuple(each) for each in json.loads(outcome.read_text(encoding="utf-8"))]
            time.sleep(1)
        raise
    ended = finish(begin())
    (folder / "unfinished").write_text(json.dumps(ended), encoding="utf-8")
    (folder / "unfinished").rename(outcome)
    return ended


class Group:
    """What every scenario returned on every rank, and all that the processes printed."""

    def __init__(self, module: str, size: int, folder: Path) -> None:
        self.size, self.folder = size, folder
        names = [name for name in SCENARIOS if not name.startswith("killed")]
        ended = finish_once(folder, lambda: start(module, names, size, folder))
        self.output = "".join(text for _, text in ended)
        assert [code for code, _ in ended] == [0] * size, self.output
        self._found = [result(folder, rank) for rank in range(size)]

    def __getitem__(self, function: Callable[..., Any]) -> list[Any]:
        """The results of a scenario, a list with one item for each rank."""
        each = [found[function.__name__] for found in self._found]
        failures = [one["failed"] for one in each if isinstance(one, dict) and "failed" in one]
        assert not failures, "\n".join(failures)
        return each


def main() -> None:
    """Be one of the processes."""
    module, rank, size, folder, *names = sys.argv[1:]
    import torch.distributed as dist

    spec = importlib.util.spec_from_file_location("scenarios", module)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    place = Path(folder)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{place / 'meeting'}",
        rank=int(rank),
        world_size=int(size),
        timeout=timedelta(seconds=_PATIENCE),
    )
    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = SCENARIOS[name](int(rank), int(size), place)
        except Exception:
            found[name] = {"failed": traceback.format_exc()}
    (place / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    if any(name.startswith("killed") for name in names):
        os._exit(0)  # gloo's threads may abort the end of a process whose group lost a rank
    gc.collect()  # sharded models refer to groups
    dist.destroy_process_group()  # they may outlive the interpreter, and abort, otherwise
