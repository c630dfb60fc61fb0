"""Names and paths in the documentation are those of the code."""

import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from dpfy import _renamed

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts),
]
TESTS = set(
    re.findall(
        r"^\s*def (test_\w+)",
        "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py")),
        re.MULTILINE,
    )
)


FRAMEWORKS = {"flower": "flwr", "huggingface": "transformers", "lightning": "lightning"}


def needs_missing_framework(name: str) -> bool:
    """Whether a name is in a room whose framework is not installed, so that it cannot be loaded."""
    room = re.match(r"dpfy\.integrations\.(\w+)", name)
    return room is not None and find_spec(FRAMEWORKS[room.group(1)]) is None


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_on_a_page_are_those_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in sorted(set(re.findall(r"(?:`~?|:: )(dpfy(?:\.\w+)+)(?:\([^`]*`|`|\n)", text))):
        if not needs_missing_framework(name):
            assert resolves(name), f"{page.name} speaks of {name}"
    for path in sorted(set(re.findall(r"\b(?:tests|src|docs|examples)/[\w/.-]+\.py\b", text))):
        assert (ROOT / path).exists(), f"{page.name} speaks of {path}"
    for test in sorted(set(re.findall(r"`(test_\w+)`", text))):
        assert test in TESTS, f"{page.name} speaks of {test}"


def test_a_name_that_is_gone_is_noticed() -> None:
    assert all(map(resolves, ("dpfy.run.gate", "dpfy.Plan.calibrate", "dpfy.Plan.steps")))
    assert not any(map(resolves, ("dpfy.nothing.here", "dpfy.noise.Desk", "dpfy.training.config")))
