"""The wheel is complete, and the source archive is small and builds the same wheel."""

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import dpfy

ROOT = Path(__file__).parents[1]
HARD = {"torch", "numpy", "scipy", "cryptography", "safetensors"}
EXTRAS = {  # what a part of dpfy needs that one can do without
    "arrow": {"pyarrow"},
    "budget": {"sqlalchemy"},
    "cli": {"typer", "rich"},
    "demo": {"scikit-learn"},
    "estimators": {"scikit-learn"},
    "page": {"starlette", "uvicorn"},
    "postgresql": {"psycopg"},
    "report": {"matplotlib"},
    "service": {"starlette", "uvicorn"},
    "tune": {"optuna"},
    "yaml": {"pyyaml"},
}
FRAMEWORKS = {  # what frameworks and trackers need; no part of dpfy[all]
    "flower": {"flwr"},
    "huggingface": {"accelerate", "transformers"},
    "lightning": {"lightning"},
    "mlflow": {"alembic", "mlflow-skinny", "sqlalchemy"},
    "synth": {"jax", "mbi"},
    "tensorboard": {"tensorboard"},
    "wandb": {"wandb"},
}
_LARGEST_SDIST = 1_500_000
_LARGEST_FILE = 60_000  # of source: data or a figure that was swept in is larger


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build in this process: no isolated environment, so nothing can be fetched."""
    target = tmp_path_factory.mktemp("wheel")
    return Path(next(WheelBuilder(str(ROOT)).build(directory=str(target), versions=["standard"])))


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def test_wheel_holds_every_module_and_the_typing_marker(unpacked: Path) -> None:
    # A package left out of the build, or a private file swept into it, shows as a difference.
    source = {
        p.relative_to(ROOT / "src")
        for p in (ROOT / "src" / "dpfy").rglob("*")
        if p.suffix in {".c", ".h", ".js", ".json", ".md", ".py"}
    }
    shipped = {
        p.relative_to(unpacked)
        for p in unpacked.rglob("*")
        if p.is_file() and ".dist-info" not in str(p)
    }
    assert shipped == source | {Path("dpfy/py.typed")}


def test_every_package_is_a_regular_one() -> None:
    # Import contracts, type checks and doctests pass by a folder without __init__.py, or load it
    # under a second name.
    folders = {path.parent for path in (ROOT / "src" / "dpfy").rglob("*.py")}
    assert not {
        str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()
    }


def test_wheel_imports_away_from_the_repository(unpacked: Path, tmp_path: Path) -> None:
    code = (
        "import dpfy, dpfy.cli.app, pathlib; [getattr(dpfy, name) for name in dpfy.__all__]; "
        "print(pathlib.Path(dpfy.__file__).parent); print(dpfy.__version__)"
    )
    environment = {**os.environ, "PYTHONPATH": str(unpacked), "PYTHONSAFEPATH": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    home, version = run.stdout.split("\n")[:2]
    assert Path(home) == unpacked / "dpfy"  # not the editable installation
    assert version == dpfy.__version__


@pytest.fixture(scope="module")
def source_files(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all files in the source archive, without the folder of the version."""
    target = tmp_path_factory.mktemp("sdist")
    archive = Path(next(SdistBuilder(str(ROOT)).build(directory=str(target))))
    assert archive.stat().st_size < _LARGEST_SDIST
    with tarfile.open(archive) as opened:
        large = {each.name for each in opened.getmembers() if each.size > _LARGEST_FILE}
        assert {name.partition("/")[2] for name in large} <= {"CHANGELOG.md"}
        return {name.partition("/")[2] for name in opened.getnames()}


def test_the_source_archive_holds_what_builds_the_wheel(source_files: set[str]) -> None:
    source = {
        str(p.relative_to(ROOT))
        for p in (ROOT / "src" / "dpfy").rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    assert source <= source_files
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"} <= source_files


def test_the_source_archive_holds_no_results_of_runs(source_files: set[str]) -> None:
    # Ledgers and drawn figures were more than half of the archive once.
    unwanted = ("experiments/", "runs/", "docs/_build/", ".venv/")
    assert not {name for name in source_files if name.startswith(unwanted) or ".dpl" in name}
    assert not {name for name in source_files if name.endswith(".svg")}


def test_the_source_archive_holds_the_proofs_that_docstrings_cite(source_files: set[str]) -> None:
    proofs = {str(p.relative_to(ROOT)) for p in (ROOT / "docs" / "proofs").glob("*.md")}
    assert proofs and proofs <= source_files


def imported_distributions() -> set[str]:
    """The distributions whose modules the source imports, at the top or later."""
    nodes = [
        node
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
    ]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {
        node.module
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
    }
    modules = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"dpfy"}
    homes = packages_distributions()
    return {homes[module][0].lower().replace("_", "-") for module in modules if module in homes}


def test_metadata_states_the_licence_and_what_it_needs(unpacked: Path) -> None:
    metadata = next(unpacked.glob("dpfy-*.dist-info/METADATA")).read_text()
    required = {
        re.match(r"[\w-]+", line.split(": ")[1])[0]
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist") and "extra ==" not in line
    }
    assert "License-Expression: Apache-2.0" in metadata
    assert required == HARD  # a new one is a decision: docs/decisions/dependencies.md
    # One that is imported and not installed breaks elsewhere; one that is installed and not
    # imported is a burden. Each of the others is behind an error that names the extra or package.
    # Every notebook has IPython, and nothing else asks for it.
    optional = {"pillow", "dp-accounting", "ipython"}.union(*EXTRAS.values(), *FRAMEWORKS.values())
    assert imported_distributions() - optional <= required <= imported_distributions()


def test_extras_bring_what_their_parts_import() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for name, packages in (EXTRAS | FRAMEWORKS).items():
        assert {re.match(r"[\w-]+", line)[0] for line in extras[name]} == packages
    assert extras["all"] == [f"dpfy[{','.join(sorted(EXTRAS))}]"]
    assert "dpfy[all]" in extras["test"] and "dpfy[all]" in extras["docs"]


def test_nothing_names_a_package_index() -> None:
    # An address in these files would send other people's installations to a place of ours.
    for name in (
        "pyproject.toml",
        "constraints.txt",
        "Makefile",
        ".ci/run",
        ".pre-commit-config.yaml",
    ):
        text = (ROOT / name).read_text()
        assert "://" not in text and "--index" not in text and "--find-links" not in text, name
