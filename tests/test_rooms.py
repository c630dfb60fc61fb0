"""The arrows between the packages: the contracts of pyproject.toml hold, and they can be broken."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache"],
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": "src"},
    )


def test_contracts_are_kept() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("ledger/events.py", "import torch"),
        ("accounting/__init__.py", "def later():\n    import torch"),  # a lazy import is an import
        ("plans/plan.py", "import dpfy.run.run"),
        ("ledger/events.py", "import dpfy.accounting"),
        ("accounting/__init__.py", "import dpfy.mechanisms.query"),
        ("mechanisms/query.py", "import dpfy.run.run"),
        ("cli/app.py", "import torch"),
        ("cli/report.py", "def later():\n    import dpfy.trainer.trainer"),
        ("cli/train.py", "import dpfy.trainer.callbacks"),  # which may load torch for TensorBoard
        ("trainer/config.py", "import dpfy.data"),
        ("reporting/record.py", "import dpfy.models"),
        ("data/source.py", "import dpfy.plans"),
        ("data/source.py", "import dpfy.models"),
        ("models/defaults.py", "import dpfy.run.run"),
        ("optim/adam_bc.py", "import dpfy.ledger"),
        ("run/run.py", "import dpfy.recipes"),
    ],
)
def test_contracts_notice_a_forbidden_arrow(module: str, statement: str, tmp_path: Path) -> None:
    # A contract over a misspelt or missing module would be kept for ever; each of these must break
    # one.
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "src" / "dpfy" / module).open("a") as file:
        file.write(f"\n{statement}\n")
    result = lint_imports(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "BROKEN" in result.stdout
