"""The arrows between the rooms: the contracts of pyproject.toml hold, and they can be broken."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def generator() -> ModuleType:
    spec = spec_from_file_location("rooms", ROOT / "docs" / "figures" / "rooms.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def storeys() -> list[tuple[str, ...]]:
    return generator().storeys(generator().contracts(ROOT))


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache"],
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": "src"},
    )


def copy_of_the_sources(target: Path) -> Path:
    """Copy what lint-imports reads, and return the folder of the package."""
    shutil.copy(ROOT / "pyproject.toml", target)
    shutil.copytree(ROOT / "src", target / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return target / "src" / "dpfy"


def file_of(package: Path, room: str) -> Path:
    folder = package / room / "__init__.py"
    return folder if folder.exists() else package / f"{room}.py"


def append(file: Path, statement: str) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.write(f"\n{statement}\n")


def test_contracts_are_kept() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_package_has_a_storey() -> None:
    # A room that no contract names could import anything.
    packages = {file.parent.name for file in (ROOT / "src" / "dpfy").glob("*/__init__.py")}
    assert packages <= {room for floor in storeys() for room in floor}


def test_table_of_rooms_is_up_to_date() -> None:
    written = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert generator().page(written) == written, "run docs/figures/rooms.py"


def test_every_storey_refuses_the_one_above_and_its_neighbours(tmp_path: Path) -> None:
    # A layer that is misspelt, missing or in the wrong place would let an arrow through. Every room
    # imports each room of the storey above it here, and the other rooms of its own.
    package = copy_of_the_sources(tmp_path)
    floors = storeys()
    arrows = [
        (room, other)
        for floor, above in zip(floors, [*floors[1:], ()], strict=True)
        for room in floor
        for other in (*above, *floor)
        if other != room
    ]
    for room, other in arrows:
        append(file_of(package, room), f"import dpfy.{other}")
    result = lint_imports(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    refused = set(re.findall(r"dpfy\.(\w+) is not allowed to import dpfy\.(\w+):", result.stdout))
    assert set(arrows) - refused == set()


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("ledger/events.py", "import torch"),
        ("accounting/__init__.py", "def later():\n    import torch"),  # a lazy import is an import
        ("plans/plan.py", "import torch"),
        ("planning/__init__.py", "import torch"),
        ("cli/app.py", "import torch"),
        ("cli/report.py", "def later():\n    import dpfy.trainer.trainer"),
        ("cli/train.py", "import dpfy.run.callbacks"),  # which may load torch for TensorBoard
        ("trainer/config.py", "import dpfy.data"),
        ("reporting/record.py", "import dpfy.models"),
        ("data/source.py", "import dpfy.plans"),
        ("tabular/schema.py", "import torch"),
        ("tabular/tables.py", "import dpfy.ledger"),
        ("models/defaults.py", "import dpfy.types"),
        ("optim/adam_bc.py", "import dpfy.ledger"),
    ],
)
def test_contracts_notice_a_forbidden_arrow(module: str, statement: str, tmp_path: Path) -> None:
    # A contract over a misspelt or missing module would be kept for ever; each of these must break
    # one.
    append(copy_of_the_sources(tmp_path) / module, statement)
    result = lint_imports(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "BROKEN" in result.stdout
