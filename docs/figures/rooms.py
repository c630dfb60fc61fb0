"""Write the table of rooms in CONTRIBUTING.md from the import contracts of pyproject.toml.

Run this file after a room was added or moved, or after its first sentence changed.
"""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- rooms: begin -->", "<!-- rooms: end -->"


def contracts(root: Path = ROOT) -> list[dict]:
    """Return the import contracts of the project."""
    config = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return config["tool"]["importlinter"]["contracts"]


def storeys(rules: list[dict]) -> list[tuple[str, ...]]:
    """Return the rooms of each storey without their prefix, lowest storey first."""
    (layers,) = (rule["layers"] for rule in rules if rule["type"] == "layers")
    return [
        tuple(room.strip().removeprefix("dpfy.") for room in layer.split("|"))
        for layer in reversed(layers)
    ]


def purpose(room: str, package: Path) -> str:
    """Return the summary of the room's docstring, as a cell of a table."""
    file = package / room / "__init__.py"
    file = file if file.exists() else package / f"{room}.py"
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    summary = " ".join(docstring.split("\n\n")[0].split()).removesuffix(".")
    return summary.replace("``", "`").replace("|", r"\|")


def allowed(number: int, room: str, floors: list[tuple[str, ...]], rules: list[dict]) -> str:
    """Say which rooms a room of the ``number``-th storey may import."""
    banned = {
        module.removeprefix("dpfy.")
        for rule in rules
        if rule["type"] == "forbidden" and f"dpfy.{room}" in rule["source_modules"]
        for module in rule["forbidden_modules"]
    }
    below = [other for floor in floors[:number] for other in floor]
    if not below:
        return "nothing"
    if not banned.intersection(below):
        return "storey 1" if number == 1 else f"storeys 1 to {number}"
    return ", ".join(f"`{other}`" for other in reversed(below) if other not in banned)


def loads_torch(room: str, rules: list[dict]) -> str:
    """Say whether a contract keeps torch out of a room or out of some of its modules."""
    sources = {
        module
        for rule in rules
        if rule["type"] == "forbidden" and "torch" in rule["forbidden_modules"]
        for module in rule["source_modules"]
    }
    if f"dpfy.{room}" in sources:
        return "never"
    parts = sorted(module for module in sources if module.startswith(f"dpfy.{room}."))
    if not parts:
        return ""
    if len(parts) == 1:
        return f"never in `{parts[0].rpartition('.')[2]}`"
    return "not before a command runs"


def table(root: Path = ROOT) -> str:
    """Return the table, one row for each room, the highest storey first."""
    rules = contracts(root)
    floors = storeys(rules)
    rows = [
        f"| {number + 1} | `{room}` | {purpose(room, root / 'src' / 'dpfy')} "
        f"| {allowed(number, room, floors, rules)} | {loads_torch(room, rules)} |"
        for number, floor in reversed(list(enumerate(floors)))
        for room in floor
    ]
    return "\n".join(
        ["| storey | room | purpose | may import | loads torch |", "|---|---|---|---|---|", *rows]
    )


def page(text: str) -> str:
    """Return the text with the table between its two markers."""
    found = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    assert len(found.findall(text)) == 1, f"expected one {BEGIN} … {END}"
    return found.sub(lambda _: f"{BEGIN}\n{table()}\n{END}", text)


if __name__ == "__main__":
    TARGET.write_text(page(TARGET.read_text(encoding="utf-8")), encoding="utf-8")
