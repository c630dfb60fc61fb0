"""Exports: all that a book knows in one archive, which can be read without the library.

Tests: tests/budgets/test_verify.py.
"""

import json
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from dpfy.budgets.values import Entry, State


def write_export(
    path: Path, entries: Iterable[Entry], ledger_of: Callable[[str], bytes | None]
) -> Path:
    """Write entries, one JSON object a line, and the ledger of each settled grant."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        settled = []
        with archive.open("entries.jsonl", "w") as file:
            for entry in entries:
                file.write(json.dumps(entry.to_json(), ensure_ascii=False).encode() + b"\n")
                if entry.body.get("grant", {}).get("state") == State.SETTLED:
                    settled.append(entry.grant)
        for grant in settled:
            data = ledger_of(grant)
            if data is not None:
                archive.writestr(f"ledgers/{grant}.dpl", data)
    return path
