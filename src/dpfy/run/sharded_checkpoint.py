"""Save a sharded run: a file of rows from every owner, and an index that is written last.

A checkpoint is what its index names, by names that no other save has: whenever a save ends, the one
before it is whole. The rows of a file are consecutive, so that any other number of processes finds
its own. Nothing is pickled.

Tests: tests/run/test_sharded_checkpoint.py.
"""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as packed
from torch import nn

from dpfy.errors import CheckpointError
from dpfy.gradients.sharded.rows import Shards, is_divided, like, local
from dpfy.run.position import ledger_at
from dpfy.run.ranks import Ranks
from dpfy.run.sharding import Division
from dpfy.run.state_file import read_state, write_packed, write_state

INDEX = "checkpoint.json"
_ROWS = "rows of a sharded tensor"
_FORMAT = 1


def save_shards(
    ranks: Ranks, division: Division, folder: Path, state: Callable[[], dict[str, Any]]
) -> Path:
    """Write a checkpoint; every process calls it.

    Args:
        ranks: The processes of the run.
        division: The division of the model.
        folder: The folder of the checkpoint.
        state: Returns the public state of the run; what is only known to rank 0 is there alone.

    Returns:
        The index.
    """
    token = ranks.from_first(lambda: secrets.token_hex(4).encode()).decode()
    shards = division.shards
    rows: dict[str, torch.Tensor] = {}
    own = f"rows-{token}-{_place(shards):05d}-of-{shards.owners:05d}.safetensors"
    with ranks.together():
        found = state()
        whole = _without_rows(found, "", rows)
        folder.mkdir(parents=True, exist_ok=True)
        if shards.releases:
            write_packed(folder / own, packed({name: each for name, each in rows.items()}))
        if ranks.first:
            write_state(folder / f"whole-{token}.safetensors", whole)
    with ranks.together():  # all files are there
        if ranks.first:
            index = {"format": _FORMAT, "token": token, "owners": shards.owners}
            write_packed(folder / INDEX, json.dumps(index).encode())
            _remove_others(folder, token)
    return folder / INDEX


def read_shards(folder: Path, model: nn.Module, ledger: str | Path | None = None) -> dict[str, Any]:
    """Return the state of a checkpoint, with this process's rows of what is sharded now.

    Args:
        folder: The folder of the checkpoint, which every process can read.
        model: The model that the state is for: sharded over any number of processes, or whole.
        ledger: Where the ledger is now; None for where the checkpoint says.

    Raises:
        CheckpointError: If there is no whole checkpoint, or it does not fit the ledger.
    """
    ranks = Ranks.present()

    def check() -> bytes:
        index = _index(folder)
        ledger_at(read_state(folder / f"whole-{index['token']}.safetensors"), folder, ledger)
        return json.dumps(index).encode()

    index = json.loads(ranks.from_first(check))
    with ranks.together():
        state = read_state(folder / f"whole-{index['token']}.safetensors")
        return dict(_with_rows(state, _Reader(folder, index, model)))


def remove_shards(folder: Path) -> None:
    """Remove a sharded checkpoint, the index first, once another kind has taken its place."""
    if (folder / INDEX).exists():
        (folder / INDEX).unlink()
        for file in _files(folder):
            file.unlink(missing_ok=True)


def _index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise CheckpointError(
            f"There is no whole checkpoint in {folder}. Check the path."
        ) from None
    if not isinstance(index, dict) or index.get("format") != _FORMAT:
        raise CheckpointError(
            f"Expected a sharded checkpoint of format {_FORMAT} in {folder}. Read it with the "
            "version of dpfy that wrote it."
        )
    return index


def _place(shards: Shards) -> int:
    return next(iter(shards.owned.values())).place


def _remove_others(folder: Path, token: str) -> None:
    """Remove the files of saves before, which no index names any more."""
    for file in _files(folder):
        if f"-{token}" not in file.name:
            file.unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    """Return the files of all saves in a folder, but the index."""
    patterns = ("rows-*.safetensors*", "whole-*.safetensors*")
    return [file for pattern in patterns for file in folder.glob(pattern)]


def _without_rows(value: Any, name: str, rows: dict[str, torch.Tensor]) -> Any:
    """Return a state with marks in the places of sharded tensors, whose rows go to ``rows``."""
    if is_divided(value):
        own = local(value.detach()).cpu().contiguous()
        same = (
            known
            for known, each in rows.items()  # a tied parameter has several names
            if each.numel() and each.data_ptr() == own.data_ptr() and each.shape == own.shape
        )
        key = next(same, name)
        rows[key] = own
        return {_ROWS: key, "shape": list(value.shape)}
    if isinstance(value, Mapping):
        return {k: _without_rows(v, f"{name}.{k}", rows) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_without_rows(item, f"{name}.{k}", rows) for k, item in enumerate(value))
    return value


def _with_rows(value: Any, reader: "_Reader") -> Any:
    """Return a state with sharded tensors in the places of marks."""
    if isinstance(value, dict):
        if _ROWS in value:
            return reader.tensor(value[_ROWS], value["shape"])
        return {k: _with_rows(v, reader) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_with_rows(item, reader) for item in value)
    return value


class _Reader:
    """Reads the rows that this process owns now, wherever they were written.

    Args:
        folder: The folder of the checkpoint.
        index: Its index.
        model: The model, which says how tensors are divided now.
    """

    def __init__(self, folder: Path, index: dict[str, Any], model: nn.Module) -> None:
        self._folder, self._token, self._owners = folder, index["token"], index["owners"]
        shards = Shards.of(model)
        self._now = None if shards is None else next(iter(shards.owned.values()))

    def tensor(self, key: str, shape: list[int]) -> torch.Tensor:
        """Return a tensor as it is divided now."""
        if self._now is None:
            return self._rows(key, shape[0], 0, shape[0])
        height = -(-shape[0] // self._now.owners)
        first = min(self._now.place * height, shape[0])
        rows = self._rows(key, shape[0], first, min(first + height, shape[0]))
        return like(self._now.parameter, rows.to(self._now.local.device), torch.Size(shape))

    def _rows(self, key: str, rows: int, first: int, last: int) -> torch.Tensor:
        """Return rows from ``first`` to before ``last`` of all."""
        return torch.cat([*self._parts(key, rows, first, last)])

    def _parts(self, key: str, rows: int, first: int, last: int) -> Iterator[torch.Tensor]:
        height = -(-rows // self._owners)
        for place in range(self._owners):
            begin, end = min(place * height, rows), min((place + 1) * height, rows)
            low, high = max(first, begin), min(last, end)
            if low < high or (place == 0 and first == last):  # an empty one has a type, too
                name = f"rows-{self._token}-{place:05d}-of-{self._owners:05d}.safetensors"
                try:
                    with safe_open(self._folder / name, framework="pt") as file:
                        yield file.get_slice(key)[max(0, low - begin) : max(0, high - begin)]
                except (SafetensorError, OSError) as error:
                    raise CheckpointError(
                        f"{self._folder / name} is missing or not whole ({type(error).__name__}). "
                        "Every process reads the files of all; use a folder that all can read."
                    ) from None
