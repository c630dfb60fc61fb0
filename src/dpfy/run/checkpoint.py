"""Save a run and continue it: the model, the optimizers and what else is public.

States of noise and sampling are never saved. A checkpoint names the last line of its ledger. What
the ledger has after that line was paid for and is lost: the resumed run draws fresh samples and
fresh noise, and stops early rather than exceed the plan. Of several processes rank 0 reads and
writes the files; of a sharded model every process does: :mod:`dpfy.run.sharded_checkpoint`.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from dpfy.errors import CheckpointError
from dpfy.plans import Plan
from dpfy.run.listening import Observed
from dpfy.run.position import go_on, ledger_at, ledger_path, position_of
from dpfy.run.privatize import as_optimizers, privatize
from dpfy.run.ranks import Ranks
from dpfy.run.run import Run
from dpfy.run.sharded_checkpoint import INDEX, read_shards, remove_shards, save_shards
from dpfy.run.state_file import read_state, write_state

FILE = "checkpoint.safetensors"


def save(run: Observed, directory: str | Path, extra: Mapping[str, Any] | None = None) -> Path:
    """Write the run's public state to a folder; see :meth:`dpfy.Run.save`."""
    folder, ranks, division = Path(directory), run.context.ranks, run.context.division
    if division is not None:
        index = save_shards(ranks, division, folder, lambda: _saved(run, folder, extra or {}))
        if ranks.first:
            (folder / FILE).unlink(missing_ok=True)  # of a run before, in which the model was whole
        return index
    if ranks.first:
        folder.mkdir(parents=True, exist_ok=True)
        write_state(folder / FILE, _saved(run, folder, extra or {}))
        remove_shards(folder)
    return folder / FILE


def _saved(run: Observed, folder: Path, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the public state of a run; rank 0 alone knows where in the ledger it is."""
    return {
        **(position_of(run, folder) if run.context.ranks.first else {}),
        "model": run.model.state_dict(),
        "optimizers": [
            {"type": type(each).__name__, "state": each.state_dict()} for each in run.optimizers
        ],
        "controllers": run.context.controllers.state_dict(),
        "extra": {name: _state_of(value) for name, value in extra.items()},
    }


def resume(
    directory: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    data: Any,
    ledger: str | Path | None = None,
    *,
    extra: Mapping[str, Any] | None = None,
    **options: Any,
) -> Run:
    """Continue the run that :meth:`dpfy.Run.save` wrote, with fresh samples and fresh noise.

    The plan is the saved one. The states of the model, of the optimizers and of every object in
    ``extra`` are restored in place.

    Args:
        directory: the folder of the checkpoint.
        model: a model of the same architecture.
        optimizer: the optimizer or optimizers of the run, of the same kinds.
        data: the private data set.
        ledger: where the ledger is now; None for where the checkpoint says.
        extra: objects with ``load_state_dict``, by the names that they were saved under.
        options: further arguments of :func:`dpfy.privatize`, such as ``group_of``: nothing about
            single records is in a checkpoint.

    Returns:
        The run; ``run.restored`` has the plain values of ``extra``, and ``run.lost_steps`` counts
        the steps that were paid for after the checkpoint.

    Raises:
        CheckpointError: if the checkpoint does not fit the model, the optimizers or the ledger.
        LedgerError: if the ledger cannot be continued.
    """
    return resumed(
        directory,
        model,
        as_optimizers(optimizer),
        ledger,
        extra,
        lambda plan, path: privatize(model, optimizer, data, plan, path, announce=False, **options),
    )


Resumed = TypeVar("Resumed", bound=Observed)


def resumed(
    directory: str | Path,
    model: nn.Module,
    optimizers: tuple[torch.optim.Optimizer, ...],
    ledger: str | Path | None,
    extra: Mapping[str, Any] | None,
    begin: Callable[[Plan, Path], Resumed],
) -> Resumed:
    """Restore what :meth:`dpfy.Run.save` wrote, and go on with what ``begin`` makes of the plan."""
    folder, ranks = Path(directory), Ranks.present()
    if ranks.from_first(lambda: b"sharded" if (folder / INDEX).exists() else b""):
        state = read_shards(folder, model, ledger)
    else:
        state = _shared_state(folder / FILE, ledger)
    path = ledger_path(Path(directory), state, ledger)
    _restore(model, optimizers, state, extra or {})
    run = begin(Plan.from_json(state["plan"]), path)
    run.restored = state["extra"]
    go_on(run, state, state.get("controllers", {}))
    return run


def _shared_state(file: Path, ledger: str | Path | None) -> dict[str, Any]:
    """Return the state that rank 0 read and found to fit its ledger, on every rank."""
    ranks, state = Ranks.present(), {}

    def check() -> bytes:
        state.update(read_state(file))
        ledger_at(state, file.parent, ledger)
        return file.read_bytes() if ranks.size > 1 else b""

    content = ranks.from_first(check)
    if ranks.first:
        return state
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / FILE
        copy.write_bytes(content)
        return read_state(copy)


def _restore(
    model: nn.Module,
    optimizers: tuple[torch.optim.Optimizer, ...],
    state: dict[str, Any],
    extra: Mapping[str, Any],
) -> None:
    kinds, given = (
        [saved["type"] for saved in state["optimizers"]],
        [type(each).__name__ for each in optimizers],
    )
    if kinds != given:
        raise CheckpointError(
            f"The checkpoint has the optimizers {', '.join(kinds)}, got {', '.join(given)}."
        )
    plain = sorted(name for name, value in extra.items() if not hasattr(value, "load_state_dict"))
    if plain:
        raise CheckpointError(
            f"Expected objects with load_state_dict in extra, not {', '.join(plain)}; plain values "
            "are in run.restored."
        )
    missing = sorted(set(extra) - set(state["extra"]))
    if missing:
        raise CheckpointError(
            f"The checkpoint has no state for {', '.join(missing)}; it has "
            f"{', '.join(sorted(state['extra'])) or 'none'}."
        )
    try:
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved["state"])
        for name, value in extra.items():
            value.load_state_dict(state["extra"][name])
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"The checkpoint does not fit the model, optimizer or extra state: {error}"
        ) from None


def _state_of(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else value
