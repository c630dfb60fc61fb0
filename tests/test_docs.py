"""The documentation builds without a warning, has every public name, and no name that is gone."""

import pkgutil
import re
import subprocess
import sys
from dataclasses import Field, fields
from pathlib import Path

import pytest

import dpfy
import dpfy.errors
from dpfy import _renamed

ROOT = Path(__file__).parents[1]
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts]
ALL_PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
TESTS = set(
    re.findall(
        r"^\s*def (test_\w+)",
        "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py")),
        re.MULTILINE,
    )
)


def test_documentation_builds_without_warnings(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-d",
        str(tmp_path / "trees"),
        str(ROOT / "docs"),
        str(tmp_path / "html"),
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", dpfy.__all__)
def test_public_name_is_in_the_reference(name: str) -> None:
    if hasattr(dpfy.errors, name):  # that page documents the whole module
        return
    reference = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    assert f":: dpfy.{name}\n" in reference


@pytest.mark.parametrize("setting", fields(dpfy.TrainConfig), ids=lambda setting: setting.name)
def test_setting_is_in_the_reference(setting: Field[object]) -> None:
    # A new setting without a row, or a row that says what is no longer true.
    reference = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `{setting.name}` \| (.*) \| (.*) \|$", reference, re.MULTILINE)
    assert row and row[2] == setting.metadata["help"]
    value = (
        str(setting.default).lower() if isinstance(setting.default, bool) else str(setting.default)
    )
    assert (
        row[1] == f"`{value}`"
        if setting.default is not None
        else row[1] in ("none", "chosen for the data")
    )


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one, under the names of today."""
    if name in _renamed.MODULES:
        return False
    try:
        pkgutil.resolve_name(name)
    except AttributeError:  # a field without a default is no attribute of its class
        owner, _, field = name.rpartition(".")
        return resolves(owner) and field in getattr(
            pkgutil.resolve_name(owner), "__dataclass_fields__", ()
        )
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_on_a_page_are_those_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in sorted(set(re.findall(r"(?:`~?|:: )(dpfy(?:\.\w+)+)(?:\([^`]*`|`|\n)", text))):
        assert resolves(name), f"{page.name} speaks of {name}"
    for path in sorted(set(re.findall(r"\b(?:tests|src|docs|examples)/[\w/.-]+\.py\b", text))):
        assert (ROOT / path).exists(), f"{page.name} speaks of {path}"
    for test in sorted(set(re.findall(r"`(test_\w+)`", text))):
        assert test in TESTS, f"{page.name} speaks of {test}"


def test_a_name_that_is_gone_is_noticed() -> None:
    assert all(map(resolves, ("dpfy.run.gate", "dpfy.Plan.calibrate", "dpfy.Plan.steps")))
    assert not any(map(resolves, ("dpfy.nothing.here", "dpfy.noise.Desk", "dpfy.training.config")))
