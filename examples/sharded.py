"""Train a model that is sharded over two processes, which start from this one.

A ledger belongs to one run: remove sharded.dpl* before you run it again.
"""

import math
import os
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

import dpfy
from dpfy.data import digits
from dpfy.models import digits_mlp


def train():
    """Be one of the processes."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # the initial weights; noise and samples come from generators of their own
    source, model = digits(), digits_mlp()
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer)
    fully_shard(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)

    plan = dpfy.dpsgd(records=1437, batch_size=512, epochs=8).calibrate(epsilon=3.0, delta=1e-5)
    with dpfy.privatize(model, opt, source.train, plan, ledger="sharded.dpl") as run:
        for batch in run:
            opt.zero_grad()
            run.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), batch)
            opt.step()
        run.save("sharded")  # a file from each process
        x, y = source.test.tensors  # public records, which all processes go through together
        with torch.no_grad():
            accuracy = (model(x).argmax(1) == y).float().mean()
        if dist.get_rank() == 0:
            epsilon = math.ceil(run.spent(delta=1e-5).upper * 1000) / 1000
            print(f"{plan.steps} steps, epsilon {epsilon:.3f}, public accuracy {accuracy:.1%}")
    dpfy.export(model, "sharded.safetensors")  # one file, from rank 0
    dist.destroy_process_group()


if "RANK" in os.environ:
    train()
else:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ended = subprocess.run([*launch, __file__], capture_output=True, text=True)
    print(ended.stdout or ended.stderr)
