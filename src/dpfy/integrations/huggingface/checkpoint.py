"""Tie a checkpoint of transformers to the ledger, and find the last one that is whole.

Beside the files of transformers, a checkpoint has ``dpfy.json``: the plan, and the line of the
ledger at which it was made. No state of noise or sampling is in it. What controllers remember of
releases is in ``dpfy.safetensors``, if the plan has any.
"""

import json
import os
from pathlib import Path
from typing import Any

from dpfy._extras import require
from dpfy.errors import CheckpointError
from dpfy.run.position import ledger_at, position_of
from dpfy.run.run import Run
from dpfy.run.state_file import read_state, write_state

require("transformers", "huggingface")
from transformers.trainer_callback import TrainerState  # noqa: E402
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR  # noqa: E402

FILE, CONTROLLERS, THEIRS = "dpfy.json", "dpfy.safetensors", "trainer_state.json"


def write_position(run: Run, directory: Path, step: int) -> None:
    """Write which line of the ledger the checkpoint of a step belongs to; rank 0 calls it.

    It is written before the files of transformers: a checkpoint that is whole always has it.
    """
    folder = directory / f"{PREFIX_CHECKPOINT_DIR}-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / THEIRS).unlink(missing_ok=True)  # of an earlier one here, which is whole no more
    if controllers := run.context.controllers.state_dict():
        write_state(folder / CONTROLLERS, controllers)
    text = json.dumps(position_of(run, folder), indent=2, allow_nan=False) + "\n"
    staged = folder / f"{FILE}.tmp"
    with staged.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    staged.replace(folder / FILE)


def read_position(folder: Path, ledger: Path) -> dict[str, Any]:
    """Return where in the ledger a checkpoint was made, if it belongs to this ledger.

    Raises:
        CheckpointError: The checkpoint is not whole, or belongs to another ledger.
    """
    try:
        position = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise CheckpointError(
            f"{folder} has no readable {FILE}, so nobody knows what its model has spent. Resume "
            "from a checkpoint that DPTrainer wrote."
        ) from None
    ledger_at(position, folder, ledger)
    return dict(position)


def read_controllers(folder: Path) -> dict[str, Any]:
    """Return what the controllers of the plan remembered."""
    return read_state(folder / CONTROLLERS) if (folder / CONTROLLERS).exists() else {}


def last_checkpoint(folder: Path) -> Path:
    """Return the last checkpoint in a folder that is whole.

    A process that is killed while it writes leaves one that is not: ``trainer_state.json`` is the
    last of its files.

    Raises:
        CheckpointError: There is none.
    """
    found = [each for each in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if _is_whole(each)]
    if not found:
        raise CheckpointError(
            f"There is no whole checkpoint in {folder}. Call train() without "
            "resume_from_checkpoint: what the ledger has spent stays spent."
        )
    return max(found, key=lambda each: int(each.name.rpartition("-")[2]))


def _is_whole(folder: Path) -> bool:
    try:
        TrainerState.load_from_json(str(folder / THEIRS))
    except (OSError, ValueError, TypeError):
        return False
    return (folder / FILE).exists()
