"""Whole training steps, private and plain: forward, backward, clipping, noise, optimizer.

Every contender trains the same network with the same optimizer on the same batch, whose rows it
takes by index from tensors in memory. With Opacus and the ``torch.func`` recipe the noise is
torch's ordinary generator, as they come; that of dpfy is from a cryptographic one, and its steps
are durable in a ledger besides."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, Dataset

from benchmarks.engines import jax_lstm
from benchmarks.engines.workloads import Workload

CLIP, NOISE_MULTIPLIER = 1.0, 1.0
_STEPS = 10**6  # of the plan: more than anybody measures
OPACUS = {"opacus:hooks": "hooks", "opacus:ghost": "ghost"}
JAX, _IN_JAX = "jax-privacy", ("lstm-imdb",)  # and the workloads that are written in JAX


@dataclass(frozen=True)
class Ready:
    """A contender that can make its next step."""

    step: Callable[[], object]
    model: nn.Module
    engine: Callable[[], str | None] = lambda: None  # what dpfy chose, once a step was made
    chunk: Callable[[], int | None] = lambda: (
        None
    )  # the most records that it then has in memory at once
    began: float = 0.0  # when dpfy was given the model, by time.perf_counter


def contenders() -> list[str]:
    """Return all names: plain torch, dpfy's choice, each of its engines and strict runs, the
    peers.
    """
    from dpfy.gradients import ENGINES

    own = (f"dpfy:{name}" for name in ENGINES)
    return ["torch", "dpfy", *own, "dpfy:strict", *OPACUS, "vmap", JAX]


def unavailable(name: str) -> str | None:
    """Return why a contender cannot run here, if so."""
    needed = {JAX: "jax_privacy", **dict.fromkeys(OPACUS, "opacus")}.get(name)
    if needed is None or find_spec(needed) is not None:
        return None
    return f"{needed} is not installed (extra 'bench')"


def takes_part(name: str, workload: str) -> bool:
    """Return whether a contender has the network of a workload."""
    return name != JAX or workload in _IN_JAX


def prepare(name: str, workload: Workload, folder: Path) -> Ready:
    """Return a contender by its name; ``folder`` is for ledgers."""
    match name.partition(":"):
        case ("torch", _, _):
            return _plain(workload)
        case ("dpfy", _, engine):
            ledger = folder / f"{name.replace(':', '-')}.dpl"
            options = (
                {"strict": True, "anchor": folder / "anchor"}
                if engine == "strict"
                else {"engine": engine or "auto"}
            )
            return private(workload, workload.data(), workload.batch, ledger, **options)
        case ("opacus", _, _):
            return _opacus(workload, OPACUS[name])
        case ("vmap", _, _):
            return _recipe(workload)
        case ("jax-privacy", _, _):
            model = workload.model()
            fields = workload.data().tensors
            return Ready(jax_lstm.stepper(model, fields, CLIP, NOISE_MULTIPLIER), model)
        case ("noise", _, _):
            return _noise(workload)
    raise ValueError(f"no contender is called {name!r}")


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.01, momentum=0.9
    )


def _batches(workload: Workload) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Return what copies the rows of one batch, as a loader does."""
    tensors, rows = workload.data().tensors, torch.arange(workload.batch)
    return lambda: tuple(tensor[rows] for tensor in tensors)


def _plain(workload: Workload) -> Ready:
    model, batch = workload.model(), _batches(workload)
    optimizer = _optimizer(model)

    def step() -> None:
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return Ready(step, model)


def private(
    workload: Workload, data: Dataset[Any], records: int, ledger: Path, **options: Any
) -> Ready:
    """Return dpfy's step on all of ``records``: with sampling rate 1 no step is smaller or larger
    than another.
    """
    import dpfy

    model = workload.model()
    optimizer = _optimizer(model)
    plan = dpfy.dpsgd(
        records=records,
        batch_size=records,
        steps=_STEPS,
        clip=CLIP,
        noise_multiplier=NOISE_MULTIPLIER,
    )
    privatize = dpfy.privatize  # its import is not part of what a run needs
    began = time.perf_counter()
    run = privatize(model, optimizer, data, plan, ledger=ledger, **options)
    batches, sequences = iter(run), bool(workload.labels)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found = F.cross_entropy(model(x), y, reduction="none")
        return found.mean(1) if sequences else found

    def step() -> None:
        optimizer.zero_grad()
        run.backward(loss, next(batches))
        optimizer.step()

    return Ready(step, model, lambda: run.engine, lambda: run.largest_chunk, began)


def _opacus(workload: Workload, mode: str) -> Ready:
    from opacus import PrivacyEngine
    from opacus.validators import ModuleValidator

    batch, criterion = _batches(workload), nn.CrossEntropyLoss()
    model = ModuleValidator.fix(
        workload.model()
    )  # their LSTM and attention in the place of torch's
    model, optimizer, *rest = PrivacyEngine().make_private(
        module=model,
        optimizer=_optimizer(model),
        criterion=criterion,
        poisson_sampling=False,
        grad_sample_mode=mode,
        data_loader=DataLoader(workload.data(), batch_size=workload.batch),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP,
    )
    criterion = rest[0] if mode == "ghost" else criterion

    def step() -> None:
        x, y = batch()
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    return Ready(step, model)


def _recipe(workload: Workload) -> Ready:
    """What one writes by hand with ``torch.func``: all per-example gradients at once, clipped,
    summed, noised.
    """
    model, batch = workload.model(), _batches(workload)
    optimizer = _optimizer(model)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    weights = {
        name: p.detach() for name, p in trained.items()
    }  # they share the storage that the optimizer updates

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(model, weights, (x.unsqueeze(0),)), y.unsqueeze(0))

    def step() -> None:
        x, y = batch()
        optimizer.zero_grad()
        gradients = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(weights, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
        factors = (CLIP / norms).clamp(max=1.0)
        for name, p in trained.items():
            total = torch.einsum("b,b...->...", factors, gradients.pop(name))
            p.grad = (total + NOISE_MULTIPLIER * CLIP * torch.randn_like(total)) / len(x)
        optimizer.step()

    return Ready(step, model)


def _noise(workload: Workload) -> Ready:
    """Nothing but dpfy's noise for all trained parameters, to compare with its whole step."""
    from dpfy.noise import LatticeGaussian, SecureStream, lattice_step

    model, noise, stddev = (
        workload.model(),
        LatticeGaussian(SecureStream()),
        NOISE_MULTIPLIER * CLIP,
    )
    total = torch.zeros(
        sum(p.numel() for p in model.parameters() if p.requires_grad), dtype=torch.float64
    )
    return Ready(lambda: noise.add_noise(total, stddev=stddev, grid=lattice_step(stddev)), model)
