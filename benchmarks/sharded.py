"""Time and memory of a sharded model: privately, in plain training, and with the model whole.

    python -m benchmarks.sharded                 60 million parameters, two processes
    python -m benchmarks.sharded --simulated     0.9 billion, one of eight processes, pretended

Every figure is of fresh processes of one thread each: the median step after the first two, and the
peak of memory of the largest process. Ratios are what can be compared; gloo through the loopback
device is no network. Run it on a machine that does nothing else.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import dpfy

KINDS = ("plain", "sharded", "whole")


Times = tuple[float, float]
"""Seconds on the clock, and of processors."""


@dataclass(frozen=True)
class Shape:
    """A language model, and how it is trained.

    Args:
        width: the width of a block.
        layers: the number of blocks.
        vocabulary: the number of tokens.
        length: the number of tokens of a record.
        batch: the records of a step, of all processes.
        processes: the number of processes.
        steps: the number of steps, of which the first two are not counted.
    """

    width: int = 768
    layers: int = 8
    vocabulary: int = 4096
    length: int = 64
    batch: int = 32
    processes: int = 2
    steps: int = 7


LARGE = Shape(width=1792, layers=22, vocabulary=8192, length=32, batch=8, processes=8, steps=4)


class Block(nn.Module):
    """A block of a transformer that attends to earlier tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what comes after the block."""
        heads = self.qkv(self.before(x)).unflatten(-1, (3, -1, 64)).movedim(-3, 0).transpose(2, 3)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.after(x))))


class Language(nn.Module):
    """A small language model whose output layer is its embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Block(shape.width) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next tokens."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return one loss for each record."""
    logits = model(tokens[:, :-1]).flatten(0, 1)
    losses = F.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
    return losses.view(len(tokens), -1).mean(1)


def sharded(model: Language) -> Language:
    """Divide the model block by block among the processes."""
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def plain_steps(model: nn.Module, optimizer: torch.optim.Optimizer, shape: Shape) -> list[Times]:
    """Train without privacy, each process on an equal share of the batch."""
    tokens, times = _tokens(shape)[: shape.batch // shape.processes], []
    for _ in range(shape.steps):
        began = _clocks()
        optimizer.zero_grad()
        loss_of(model, tokens).mean().backward()
        optimizer.step()
        times.append(_since(began))
    return times


def private_steps(model: nn.Module, optimizer: torch.optim.Optimizer, shape: Shape) -> list[Times]:
    """Train privately; every step has all records, divided among the processes by chance."""
    tokens, times = _tokens(shape), []
    plan = dpfy.dpsgd(
        records=shape.batch, batch_size=shape.batch, steps=shape.steps, noise_multiplier=1.0
    )
    with dpfy.privatize(
        model,
        optimizer,
        TensorDataset(tokens),
        plan,
        dpfy.Ledger.in_memory(),
        example_input=(tokens[:2],),
        insecure_test_key=1,
        announce=False,
    ) as run:
        for batch in run:
            began = _clocks()
            optimizer.zero_grad()
            run.backward(lambda tokens: loss_of(model, tokens), batch)
            optimizer.step()
            times.append(_since(began))
    return times


def _clocks() -> Times:
    return time.perf_counter(), time.process_time()


def _since(began: Times) -> Times:
    return time.perf_counter() - began[0], time.process_time() - began[1]


def _tokens(shape: Shape) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(shape.vocabulary, (shape.batch, shape.length), generator=generator)


def work(kind: str, rank: int, shape: Shape, folder: Path) -> dict[str, Any]:
    """Be one process: train, and return what it took."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=shape.processes,
    )
    try:
        model = Language(shape)
        numbers = sum(p.numel() for p in model.parameters())
        if kind != "whole":
            model = sharded(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        steps = plain_steps if kind == "plain" else private_steps
        times = steps(model, optimizer, shape)
    finally:
        dist.destroy_process_group()
    return {
        "parameters": numbers,
        "first_seconds": times[0][0],
        "seconds": median(seconds for seconds, _ in times[2:]),
        "processor_seconds": median(seconds for _, seconds in times[2:]),
        "peak_bytes": peak_bytes(),
    }


def peak_bytes() -> int:
    """Return the most memory that this process had."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def measured(kind: str, shape: Shape) -> dict[str, Any]:
    """Return what the largest and slowest of fresh processes took."""
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.sharded", "--kind", kind, "--rank", str(rank)]
                + ["--folder", folder, "--shape", json.dumps(asdict(shape))],
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(shape.processes)
        ]
        texts = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"A process of {kind!r} failed.")
    found = [json.loads(text) for text in texts]
    return {name: max(each[name] for each in found) for name in found[0]}


def main() -> None:
    """Measure, or be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--shape", type=json.loads, default={})
    given = parser.parse_args()
    shape = Shape(**given.shape)
    if given.kind is not None:
        print(json.dumps(work(given.kind, given.rank, shape, given.folder)))
        return
    found = {kind: measured(kind, shape) for kind in given.kinds}
    for kind, each in found.items():
        print(
            f"{kind:8} {each['parameters']:,} parameters  {each['seconds']:.2f} s a step "
            f"({each['processor_seconds']:.2f} of a processor; the first: {each['first_seconds']:.1f} s)  {each['peak_bytes'] / 2**20:,.0f} MB"
        )
    for other, bound in (("plain", 1.35), ("whole", 0.62)):
        if {other, "sharded"} <= found.keys():
            ratio = {
                name: found["sharded"][name] / found[other][name]
                for name in ("seconds", "processor_seconds", "peak_bytes")
            }
            print(
                f"sharded / {other}: time {ratio['seconds']:.2f}, of processors "
                f"{ratio['processor_seconds']:.2f}, memory {ratio['peak_bytes']:.2f} (bar {bound})"
            )


if __name__ == "__main__":
    main()
