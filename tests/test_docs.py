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


def how_tos() -> dict[str, list[str]]:
    """Return the how-to pages that each group of the documentation's index lists."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    found = re.findall(r'^:caption: "How to: (.+)"\n\n((?:how-to/.+\n)+)', index, re.MULTILINE)
    return {title: pages.split() for title, pages in found}


def test_every_how_to_is_in_one_group() -> None:
    listed = [page for pages in how_tos().values() for page in pages]
    written = [f"how-to/{page.stem}" for page in (ROOT / "docs" / "how-to").glob("*.md")]
    assert sorted(listed) == sorted(written), "list the page in a group of docs/index.md"
    assert all(len(pages) < 10 for pages in how_tos().values())


# What somebody new to the library would search for, and the page that should be found.
SEARCHED = {
    "your own data": "your-own-data",
    "one GPU": "devices",
    "several GPUs": "distributed",
    "Parquet": "large-data",
    "Hugging Face": "huggingface",
    "Lightning": "lightning",
    "Accelerate": "accelerate",
    "checkpoint": "resume",
    "BatchNorm": "batchnorm",
    "adaptive clipping": "adaptive",
    "per-layer clipping": "queries",
    "per-example gradients": "engines",
    "user-level": "user-level",
    "hyperparameter tuning": "tune",
    "training loop": "own-loop",
    "TensorBoard": "callbacks",
    "MLflow": "callbacks",
    "Weights & Biases": "callbacks",
    "Slurm": "jobs",
    "scikit-learn": "estimators",
    "DP-FTRL": "correlated-noise",
    "importance sampling": "dpis",
}


@pytest.mark.parametrize("words", SEARCHED)
def test_the_title_of_a_how_to_has_the_words_that_are_searched(words: str) -> None:
    page = ROOT / "docs" / "how-to" / f"{SEARCHED[words]}.md"
    title = page.read_text(encoding="utf-8").partition("\n")[0]
    assert words.lower() in title.lower()


def test_own_data_and_frameworks_are_linked_from_the_start() -> None:
    opening = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").partition("```")[0]
    for page in ("your-own-data", "own-loop", "huggingface", "lightning", "accelerate"):
        assert f"(how-to/{page}.md)" in opening
    assert "(from-opacus.md)" in opening


def test_the_page_about_own_data_has_what_people_have() -> None:
    page = (ROOT / "docs" / "how-to" / "your-own-data.md").read_text(encoding="utf-8")
    titles = " ".join(re.findall("^## (.+)$", page, re.MULTILINE))
    for words in (
        "Dicts",
        "pandas",
        "ImageFolder",
        "Hugging Face",
        "Parquet",
        "pad to a constant",
        "Workers",
        "example_input",
    ):
        assert words in titles, words


def test_the_page_about_opacus_knows_what_exists() -> None:
    page = (ROOT / "docs" / "from-opacus.md").read_text(encoding="utf-8")
    assert "## Per-layer, adaptive and ghost clipping\n\nAll of them exist" in page
    code = "".join(re.findall("^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    for words in ('clip_groups(model, by="layer"', "QuantileClipping", 'engine = "ghost"'):
        assert words in code  # which another test runs
