"""Scripts as people have them for Opacus, and as the page about Opacus turns them into ours."""

import ast
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "from-opacus.md"
NAMES = tuple(sorted(path.name.partition(".")[0] for path in (FOLDER / "before").iterdir()))


def script(when: str, name: str) -> str:
    """Return one of the scripts, ``before`` or ``after``."""
    return (FOLDER / when / f"{name}.py.txt").read_text(encoding="utf-8")


def statements(source: str) -> list[str]:
    """Return the lines of a script: whole statements, however they are wrapped and indented."""
    return [text for node in ast.parse(source).body[1:] for text in _lines(node)]


def _lines(node: ast.stmt) -> Iterator[str]:
    blocks = [getattr(node, name) for name in ("body", "orelse") if getattr(node, name, None)]
    if not blocks:
        yield ast.unparse(node)
        return
    yield ast.unparse(node).splitlines()[0]
    for each in (statement for block in blocks for statement in block):
        yield from _lines(each)


def changes(name: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield what was removed and what was added, place by place."""
    old, new = statements(script("before", name)), statements(script("after", name))
    for kind, *(a, b, c, d) in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            yield old[a:b], new[c:d]


def rows() -> list[tuple[list[re.Pattern[str]], list[re.Pattern[str]]]]:
    """Return what each row of the page's table is about, and what it says to write instead."""
    section = PAGE.read_text(encoding="utf-8").partition("## Line by line")[2].partition("\n## ")[0]
    cells = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [(_codes(old), _codes(new)) for old, new, _ in cells[1:]]


def _codes(cell: str) -> list[re.Pattern[str]]:
    """Return the code in a cell as patterns: … stands for anything."""
    found = re.findall("`([^`]+)`", cell)
    # ast.unparse writes single quotes
    return [re.compile(re.escape(code.replace('"', "'")).replace("…", ".*")) for code in found]
