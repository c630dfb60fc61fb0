"""Every source file has tests at the mirrored path, or names them in its docstring."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "dpfy"
WITHOUT = {"__init__.py", "__main__.py", "_version.py"}  # names and numbers, and no behaviour
FILES = [file for file in sorted(SOURCES.rglob("*.py")) if file.name not in WITHOUT]


def mirrored(source: str) -> str:
    """Return where the tests of ``src/dpfy/room/x.py`` are: in ``tests/room/test_x.py``.

    >>> mirrored("src/dpfy/accounting/pld/compose.py")
    'tests/accounting/pld/test_compose.py'
    >>> mirrored("src/dpfy/cli/_options.py")
    'tests/cli/test_options.py'
    """
    path = Path(source).relative_to("src/dpfy")
    return str(Path("tests") / path.parent / f"test_{path.name.lstrip('_')}")


def named(text: str) -> list[str]:
    """Return the tests that a module's docstring names in a line ``Tests: path, path``.

    Paths may go on in the lines below, up to the next empty one.
    """
    docstring = ast.get_docstring(ast.parse(text)) or ""
    line = re.search(r"^Tests: *(.+(?:\n.+)*)", docstring, re.MULTILINE)
    if line is None:
        return []
    return [path.strip(" \n`.") for path in line[1].split(",")]


def found(source: str, text: str, root: Path) -> bool:
    """Whether the tests of a source file are where one looks for them."""
    paths = named(text)
    if paths:
        return all((root / path).exists() for path in paths)
    return (root / mirrored(source)).exists()


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCES)))
def test_source_has_tests_where_one_looks_for_them(file: Path) -> None:
    source, text = str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")
    missing = [path for path in named(text) if not (ROOT / path).exists()]
    assert not missing, f"{source} names tests that are not there: {', '.join(missing)}"
    assert found(source, text, ROOT), (
        f"{source} has no {mirrored(source)}. Write it, or name the tests that cover the file in a "
        "line `Tests: <path>` of its docstring."
    )


def test_tests_are_found_at_the_mirrored_path(tmp_path: Path) -> None:
    (tmp_path / "tests" / "room").mkdir(parents=True)
    assert not found("src/dpfy/room/x.py", '"""Do."""', tmp_path)
    (tmp_path / "tests" / "room" / "test_x.py").touch()
    assert found("src/dpfy/room/x.py", '"""Do."""', tmp_path)
    assert found("src/dpfy/room/_x.py", "", tmp_path)
    assert not found("src/dpfy/x.py", '"""Do."""', tmp_path)


def test_tests_are_found_where_a_docstring_names_them(tmp_path: Path) -> None:
    text = '"""Do.\n\nTests: tests/a.py, tests/b.py\n"""\n'
    assert named(text) == ["tests/a.py", "tests/b.py"]
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").touch()
    assert not found("src/dpfy/x.py", text, tmp_path)
    (tmp_path / "tests" / "b.py").touch()
    assert found("src/dpfy/x.py", text, tmp_path)


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ('"""Do.\n\nTests: ``tests/a.py``.\n"""', ["tests/a.py"]),
        (
            '"""Do.\n\nTests: tests/a.py,\n    tests/b.py\n\nMore, text.\n"""',
            ["tests/a.py", "tests/b.py"],
        ),
        ('"""Do.\n\nThe Tests: tests/a.py\n"""', []),
        ("# Tests: tests/a.py", []),
        ('"""Do."""\n"""Tests: tests/a.py"""', []),
    ],
)
def test_only_a_line_of_the_docstring_names_tests(text: str, paths: list[str]) -> None:
    assert named(text) == paths
