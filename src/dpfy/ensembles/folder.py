"""Keep teachers in a folder, which is as sensitive as the records; nothing is pickled.

Tests: tests/ensembles/test_teachers.py.
"""

import json
import os
from pathlib import Path
from typing import Any

from dpfy.ensembles.parts import Partition
from dpfy.ensembles.predictors import Format
from dpfy.errors import CheckpointError
from dpfy.run.state_file import read_state, write_state
from dpfy.types import Unit

_FILE = "teachers.json"


class Folder:
    """The files of teachers: one that says how records were divided, and one for each part."""

    def __init__(self, folder: str | os.PathLike[str], format: Format) -> None:
        self._folder, self.format = Path(folder), format

    def begin(
        self,
        partition: Partition,
        seeds: tuple[int, ...],
        key: bytes,
        key_source: str,
        unit: Unit,
    ) -> bytes:
        """Declare what the folder holds, or compare with what it declares; return its key."""
        declared = {
            "partition": partition.to_json(),
            "seeds": list(seeds),
            "key_source": key_source,
            "unit": str(unit),
        }
        if (self._folder / _FILE).exists():
            facts = self.facts()
            known = {name: facts[name] for name in declared}
            if json.loads(json.dumps(declared)) != known:
                raise CheckpointError(
                    f"{self._folder} holds teachers of other parts or seeds. Use another folder, "
                    "or the same arguments as before."
                )
            return bytes.fromhex(facts["key"])
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps({**declared, "key": key.hex()})
        temporary = self._folder / (_FILE + ".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._folder / _FILE)
        return key

    def facts(self) -> dict[str, Any]:
        """Return what the folder declares."""
        try:
            return dict(json.loads((self._folder / _FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            raise CheckpointError(
                f"There are no teachers in {self._folder}. Check the path."
            ) from None

    def has(self, part: int) -> bool:
        """Return whether a part is done."""
        return self._path(part).exists()

    def restored(self, state: dict[str, Any] | None) -> Any:
        """Return the predictor of a state; none that cannot be restored."""
        if state is None:
            return None
        try:
            return self.format.restore(state)
        except Exception:  # a part's own failure: it has no teacher
            return None

    def write(self, part: int, state: dict[str, Any] | None) -> None:
        """Keep a part's state, or that it has no teacher."""
        write_state(self._path(part), {"predictor": state})

    def read(self, part: int) -> Any:
        """Return the predictor of a part, or None."""
        return self.restored(read_state(self._path(part))["predictor"])

    def _path(self, part: int) -> Path:
        return self._folder / f"teacher-{part:05d}.safetensors"
