"""Memory of a private step with and without activation checkpointing.

A transformer of 12 layers; each kind has a process of its own, whose high-water mark is set back
before the step, after the engine has learnt the model on a few synthetic records. At most 0.7 of
the memory without checkpointing is wanted for the engines that keep nothing, with the same sums to
the last bit."""

import argparse
import ctypes
import gc
import hashlib
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.engines.worker import high_water
from dpfy.gradients import BookkeepingEngine, GhostEngine
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.clipping import ClipEach, Clipping

LAYERS, WIDTH, HEADS, TIME, WORDS = 12, 128, 4, 128, 1000
RECORDS = 16
MOST = 0.7
KINDS = {"ghost": (GhostEngine, False), "bookkeeping by group": (BookkeepingEngine, True)}
"""The engine, and whether every parameter has a bound of its own."""


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.checkpointed = checkpointed

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, and go through the perceptron."""
        parts = self.project(self.before(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the layer, and again on the way back if it is checkpointed."""
        return (
            checkpoint(self.inner, x, use_reentrant=False) if self.checkpointed else self.inner(x)
        )


def measured(kind: str, checkpointed: bool) -> str:
    """Return the megabytes that a step adds at its peak, and a hash of the sums."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    blocks = (Block(checkpointed) for _ in range(LAYERS))
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks, nn.Flatten(), nn.LazyLinear(2))
    model(torch.zeros(1, TIME, dtype=torch.long))
    parameters = dict(model.named_parameters())
    engine, grouped = KINDS[kind][0](model, parameters), KINDS[kind][1]

    def examples(size: int, seed: int) -> Chunk:
        made = torch.Generator().manual_seed(seed)
        return Chunk((torch.randint(WORDS, (size, TIME), generator=made),), size)

    def loss_fn(tokens: torch.Tensor) -> torch.Tensor:
        return model(tokens).square().sum(1)

    engine.prepare(loss_fn, examples)
    groups = tuple(range(len(parameters))) if grouped else (0,) * len(parameters)
    clipping = Clipping(ClipEach((0.1,) * (max(groups) + 1)), 2.0**-40, groups)
    totals = [torch.zeros_like(p, dtype=torch.float64) for p in parameters.values()]
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what learning the model took is given back
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # and the mark begins anew
    before = high_water()
    engine.bounded_sums(loss_fn, examples(RECORDS, 7), clipping).add_to(totals)
    digest = hashlib.sha256(b"".join(total.numpy().tobytes() for total in totals))
    return f"{high_water() - before:.1f} {digest.hexdigest()}"


def main() -> int:
    """Print the memory of each kind; the exit code counts those beyond the limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--checkpointed", action="store_true")
    options = parser.parse_args()
    if options.kind:
        print(measured(options.kind, options.checkpointed))
        return 0
    failed = 0
    for kind in KINDS:
        command = [sys.executable, "-m", "benchmarks.checkpointing", "--kind", kind]
        runs = (
            subprocess.run([*command, *more], capture_output=True, text=True, check=True)
            for more in ([], ["--checkpointed"])
        )
        (plain, sums), (saved, same) = (run.stdout.split() for run in runs)
        ratio = float(saved) / float(plain)
        failed += ratio > MOST or sums != same
        print(
            f"{kind}: {plain} MB, checkpointed {saved} MB, "
            f"{ratio:.2f} (limit {MOST}); sums {'equal' if sums == same else 'differ'}"
        )
    return failed


if __name__ == "__main__":
    sys.exit(main())
