"""Keep teachers in a folder, which is as sensitive as the records; nothing is pickled.

Tests: tests/ensembles/test_teachers.py.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfy.ensembles.predictors import Format
from dpfy.errors import CheckpointError
from dpfy.run.state_file import packed_state, read_state, write_packed

_FILE = "teachers.json"
_TEACHER = "teacher-{}.safetensors"


class Folder:
    """The files of teachers: one that says how records were divided, and one for each part."""

    def __init__(self, folder: str | os.PathLike[str], format: Format) -> None:
        self._folder, self.format = Path(folder), format

    def begin(self, declared: Mapping[str, Any], key: bytes) -> bytes:
        """Declare what the folder holds, or compare with what it declares; return its key."""
        if not self._declared:
            self._declare(declared, key)
        facts = self.facts()  # those of another process, if that was first
        if json.loads(json.dumps(declared)) != {name: facts.get(name) for name in declared}:
            raise CheckpointError(
                f"{self._folder} holds teachers of other parts or seeds, or of another number of "
                "records. Use another folder, or the same arguments as before."
            )
        return bytes.fromhex(facts["key"])

    def begin_new(self, declared: Mapping[str, Any]) -> None:
        """Declare what the folder holds, if it holds no teachers yet."""
        if self._declared or not self._declare(declared, b""):
            raise CheckpointError(f"{self._folder} holds teachers already. Use another folder.")

    @property
    def _declared(self) -> bool:
        return (self._folder / _FILE).exists()

    def _declare(self, declared: Mapping[str, Any], key: bytes) -> bool:
        """Write what the folder holds at once and for good; return False if it is there."""
        if any(self._folder.glob(_TEACHER.format("*"))) and not self._declared:
            raise CheckpointError(
                f"{self._folder} holds teachers, but not {_FILE}, which says how records were "
                "divided among them. Use another folder."
            )
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._folder.chmod(0o700)
            handle, temporary = tempfile.mkstemp(dir=self._folder, prefix=_FILE)  # mode 0600
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(json.dumps({**declared, "key": key.hex()}))
                    file.flush()
                    os.fsync(file.fileno())
                os.link(temporary, self._folder / _FILE)  # which replaces nothing
            finally:
                os.unlink(temporary)
        except FileExistsError:
            return False
        except OSError as error:
            raise CheckpointError(
                f"{self._folder} could not be written: {error.strerror}."
            ) from error
        return True

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

    def packed(self, predictor: Any) -> bytes:
        """Return what the file of a predictor holds; this runs the code of the format."""
        return packed_state({"predictor": self.format.state(predictor)})

    def write(self, part: int, packed: bytes | None) -> None:
        """Keep a part's packed predictor, or that it has no teacher."""
        data = packed_state({"predictor": None}) if packed is None else packed
        write_packed(self._path(part), data, mode=0o600)

    def read(self, part: int) -> dict[str, Any] | None:
        """Return the state of a part's predictor, or None."""
        state: dict[str, Any] | None = read_state(self._path(part))["predictor"]
        return state

    def _path(self, part: int) -> Path:
        return self._folder / _TEACHER.format(f"{part:05d}")
