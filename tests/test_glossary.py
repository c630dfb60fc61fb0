"""The glossary speaks of the code as it is: every entry names something that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(r"^\* \*\*(?P<term>[^*]+)\*\* \((?P<names>[^)]*)\): (?P<text>.*)$", re.MULTILINE)


def entries(page: str) -> list[tuple[str, list[str]]]:
    """Return each term of a glossary with the identifiers that its entry gives in backticks."""
    return [
        (match["term"], re.findall(r"`([^`]+)`", match["names"])) for match in ENTRY.finditer(page)
    ]


def occurs(name: str, code: str) -> bool:
    """Whether a name is in the code, alone or in the plural, in letters of either case."""
    return re.search(rf"\b{re.escape(name)}s?\b", code, re.IGNORECASE) is not None


PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").partition("\n## ")[0]
ENTRIES = entries(PAGE)
# Storeys are the layers of an import contract, so the contracts are code here.
CODE = "\n".join(
    file.read_text(encoding="utf-8")
    for file in (*sorted((ROOT / "src" / "dpfy").rglob("*.py")), ROOT / "pyproject.toml")
)


def test_every_item_is_an_entry() -> None:
    # An item that the pattern misses would not be checked.
    assert len(ENTRIES) == len(re.findall(r"^\* ", PAGE, re.MULTILINE)) > 50
    assert all(names for _, names in ENTRIES)


def test_terms_are_in_alphabetical_order_and_unique() -> None:
    terms = [term.lower() for term, _ in ENTRIES]
    assert terms == sorted(set(terms))


@pytest.mark.parametrize(("term", "names"), ENTRIES, ids=[term for term, _ in ENTRIES])
def test_term_is_in_the_code(term: str, names: list[str]) -> None:
    missing = [name for name in names if not occurs(name, CODE)]
    assert not missing, f"{term}: {', '.join(missing)} is nowhere in src/dpfy"


def test_a_name_that_is_gone_is_noticed() -> None:
    assert occurs("stepconfig", "class StepConfig:") and occurs("Canary", "canarys")
    assert not occurs("Step", "class StepConfig:") and not occurs("Desk", "class NoisePrefetcher:")
    assert entries("* **a b** (`C`, `d`): text\n  more") == [("a b", ["C", "d"])]
