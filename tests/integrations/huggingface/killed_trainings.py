"""Train in child processes that are killed at random instants, and count what was released.

``killed_trainings.py FOLDER KILLS SEED`` prints what it found as JSON in its last line.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from hf_trainers import DPTrainer, small_plan, trainer

import dpfy
from dpfy.errors import CheckpointError
from dpfy.ledger.events import Repeated


def train(folder, plan, releases):
    """Go on with the training, and write down each release once its result is there."""
    step = DPTrainer.training_step

    def counted(self, *given):
        result = step(self, *given)
        os.write(releases, b"released\n")
        return result

    DPTrainer.training_step = counted
    args = {"save_steps": 2, "save_total_limit": 2, "logging_steps": 1000}
    made = trainer(folder, plan=plan, args=args)
    try:
        made.train(resume_from_checkpoint=True)
    except CheckpointError:
        made.train()


def begin(*given):
    """Start a training in a child process."""
    if child := os.fork():
        return child
    try:
        train(*given)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)
    os._exit(0)


def main(folder, kills, seed):
    """Kill as many trainings as asked for."""
    plan, chance = small_plan(10_000 * kills), random.Random(seed)  # no training sees its end
    notes = folder / "releases"
    releases = os.open(notes, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    killed, resumed = 0, 0
    while killed < kills:
        before = notes.read_text().count("released")
        child, aim = begin(folder, plan, releases), chance.randrange(8)
        while notes.read_text().count("released") < before + aim:
            time.sleep(0.002)
            if os.waitpid(child, os.WNOHANG) != (0, 0):
                raise SystemExit("a training ended by itself")
        time.sleep(chance.random() * 0.2)
        os.kill(child, signal.SIGKILL)
        killed += os.waitpid(child, 0)[1] == signal.SIGKILL
        resumed += any(folder.glob("checkpoint-*"))
    released = notes.read_text().count("released")
    ledger = dpfy.Ledger.read(folder / "ledger.dpl")
    at_least = dpfy.account(Repeated(plan.event, released)).epsilon(1e-3)
    found = {
        "killed": killed,
        "resumed": resumed,
        "released": released,
        "ledger": ledger.count,
        "epsilon": dpfy.account(ledger).epsilon(1e-3).upper,
        "epsilon of releases": at_least.lower,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
