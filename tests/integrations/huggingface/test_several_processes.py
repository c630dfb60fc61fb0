"""Started by torchrun, two processes train one model: that of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hf_trainers import arguments, small_plan, trainer
from safetensors.torch import load_file

import dpfy

SCRIPT = Path(__file__).with_name("torchrun_training.py")
ARGS = {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.5, "save_steps": 2}


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The folder of a training that two processes did."""
    folder = tmp_path_factory.mktemp("together")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*command, str(SCRIPT), str(folder), json.dumps(ARGS)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_two_processes_train_the_model_of_one(together, tmp_path):
    made = trainer(tmp_path, plan=small_plan(4), args=ARGS)
    made.train()
    assert arguments(tmp_path).world_size == 1
    for step in (2, 4):
        one, two = (
            load_file(folder / f"checkpoint-{step}" / "model.safetensors")
            for folder in (tmp_path, together)
        )
        for name in one:
            torch.testing.assert_close(two[name], one[name], rtol=1e-5, atol=1e-6)


def test_each_step_is_paid_for_once(together):
    assert dpfy.Ledger.read(together / "ledger.dpl").count == 4
    assert [path.name for path in together.glob("*.dpl")] == ["ledger.dpl"]


def test_the_ranks_know_the_same(together):
    found = [json.loads((together / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    assert found[0]["epsilon"] == found[1]["epsilon"]
    assert found[0]["wrapped"] is found[1]["wrapped"] is False
    assert found[0]["lost"] == found[1]["lost"] == 2
    assert (together / "report" / "report.json").exists()
