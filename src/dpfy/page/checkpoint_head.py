"""Read from a checkpoint how many steps it knows of, without torch.

Tests: tests/page/test_runs.py.
"""

import json
from pathlib import Path
from typing import Any

FILE = "checkpoint.safetensors"
_LARGEST = 2**24  # bytes of the head of a file


def steps_saved(path: Path) -> int | None:
    """Return the number of reserved steps at which a checkpoint was made.

    Returns:
        The number, or None if there is no checkpoint or if it does not say.
    """
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 0 < size <= _LARGEST:
                return None
            head = json.loads(file.read(size))
        state = json.loads(head["__metadata__"]["dpfy"])
        found = _item(_item(state, "ledger"), "steps")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if type(found) is int else None


def _item(encoded: Any, name: str) -> Any:
    """Return a value of a dict as ``dpfy.run.state_file`` writes it: a list of pairs."""
    return dict(pair for pair in encoded["dict"] if isinstance(pair[0], str))[name]
