"""Draw what a notebook shows below the cells of docs/tutorials/notebook.md, by running them."""

import ast
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

PAGE = Path(__file__).parents[1] / "tutorials" / "notebook.md"
TARGET = Path(__file__).parents[1] / "_static" / "notebook"
CELL = re.compile(
    r"^```python\n(.*?)^```$(?:\n\n```\{raw\} html\n[^`]*?_static/notebook/(\w+\.html))?",
    re.MULTILINE | re.DOTALL,
)
FRAME = (
    '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>{}</title><body>{}</body></html>'
)


def run_cell(code: str, names: dict[str, object]) -> object:
    """Run a cell, and return the value of its last line if that is an expression."""
    tree, last = ast.parse(code), None
    if isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    exec(compile(tree, str(PAGE), "exec"), names)
    return None if last is None else eval(compile(last, str(PAGE), "eval"), names)


def main() -> None:
    """Write one file for each card that the page shows."""
    page, names, back = PAGE.read_text(encoding="utf-8"), {}, Path.cwd()
    TARGET.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for code, name in CELL.findall(page):
                shown = run_cell(code, names)
                if name:
                    text = FRAME.format(type(shown).__name__, shown._repr_html_())
                    (TARGET / name).write_text(text, encoding="utf-8")
        finally:
            os.chdir(back)


if __name__ == "__main__":
    main()
