"""The documentation builds without a warning, and every public name is in it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import dpfy
import dpfy.errors
from dpfy.trainer.config import all_settings
from dpfy.trainer.settings import Setting

ROOT = Path(__file__).parents[1]
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts]


@pytest.mark.slow  # `make docs` does the same, and .ci/run calls it
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
        "-D",
        "suppress_warnings=image.not_readable",  # `make docs` draws figures first
        str(ROOT / "docs"),
        str(tmp_path / "html"),
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_every_picture_is_drawn_by_hand_or_by_make() -> None:
    scripts = sorted((ROOT / "docs" / "figures").glob("*.py"))
    drawn = "".join(script.read_text(encoding="utf-8") for script in scripts)
    shown = {
        name
        for page in PAGES
        for name in re.findall(r"_static/([\w-]+\.svg)", page.read_text(encoding="utf-8"))
    }
    assert "one-step.svg" in shown and (ROOT / "docs" / "_static" / "one-step.svg").exists()
    assert not {name for name in shown - {"one-step.svg"} if f'"{name}"' not in drawn}
    made = (ROOT / "Makefile").read_text(encoding="utf-8")
    pages = {"rooms", "support_matrix"}  # which draw none, and are run by hand
    assert not {s.stem for s in scripts if s.stem.replace("_", "-") not in made} - pages


@pytest.mark.parametrize("name", dpfy.__all__)
def test_public_name_is_in_the_reference(name: str) -> None:
    if hasattr(dpfy.errors, name):  # that page documents the whole module
        return
    reference = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    assert f":: dpfy.{name}\n" in reference


@pytest.mark.parametrize("setting", list(all_settings()), ids=lambda setting: setting.name)
def test_setting_is_in_the_reference(setting: Setting) -> None:
    # A new setting without a row, or a row that says what is no longer true.
    reference = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `{setting.name}` \| (.*) \| (.*) \|$", reference, re.MULTILINE)
    assert row and row[2] == setting.help
    default = setting.default_text
    assert row[1] == (default if setting.default is None else f"`{default}`")


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.name
)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        drawn = "/_static/" in target  # by `make figures`, which another test looks at
        assert drawn or (page.parent / target).exists(), f"{page.name} links to {target}"
