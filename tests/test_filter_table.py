"""The filter above the support matrix shows the rows that were asked for, and needs no mouse."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "docs" / "_static" / "filter-table.js"
NODE = shutil.which("node")
HEADS = ["sampler", "noise", "PLD"]
ROWS = [
    ["poisson", "gaussian", "rule 71"],
    ["poisson", "laplace", "rule 5, a bound"],
    ["shuffled", "gaussian", "—"],
]
# As much of a browser's document as the script uses.
DOCUMENT = """
class Element {
  constructor(tag) {
    Object.assign(this, { tag, children: [], on: {}, value: "", textContent: "" });
  }
  append(...parts) { this.children.push(...parts); }
  addEventListener(kind, call) { this.on[kind] = call; }
  before(other) { this.filter = other; }
  querySelectorAll(path) { return path === "thead th" ? this.heads : this.lines; }
}
const withText = (text) => Object.assign(new Element("td"), { textContent: text });
globalThis.document = { createElement: (tag) => new Element(tag) };
const table = new Element("table");
table.heads = HEADS.map(withText);
table.lines = ROWS.map((row) => Object.assign(new Element("tr"), { children: row.map(withText) }));
"""


def node(program):
    """Run a program beside the script, and return what it prints as JSON."""
    text = f"""
        const HEADS = {json.dumps(HEADS)}, ROWS = {json.dumps(ROWS)};
        const script = require({json.dumps(str(SCRIPT))});
        {DOCUMENT}
        {program}
    """
    done = subprocess.run([NODE, "-e", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_page_of_the_matrix_has_the_filter_and_the_script_needs_nothing_else():
    page = (ROOT / "docs" / "reference" / "support-matrix.md").read_text(encoding="utf-8")
    assert re.search(r"^:::\{container\} filterable\n\| sampler \|", page, re.MULTILINE)
    settings = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    assert '"filter-table.js"' in settings and '"filter-table.css"' in settings
    code = SCRIPT.read_text(encoding="utf-8")
    assert not re.search(r"https?:|\bimport\b|innerHTML|onclick|mouse", code)


@pytest.mark.skipif(NODE is None, reason="what the script does is tested where node is installed")
class TestScript:
    def test_what_differs_in_numbers_only_is_one_choice(self):
        found = node(
            "console.log(JSON.stringify([0, 1, 2].map((c) => script.choicesOf(ROWS, c))));"
        )
        assert found == [
            ["poisson", "shuffled"],
            ["gaussian", "laplace"],
            ["rule", "rule, a bound", "—"],
        ]

    @pytest.mark.parametrize(
        ("chosen", "words", "shown"),
        [
            (["", "", ""], "", [0, 1, 2]),
            (["poisson", "", ""], "", [0, 1]),
            (["poisson", "gaussian", ""], "", [0]),
            (["", "", "rule"], "", [0]),
            (["", "", ""], "Bound LAPLACE", [1]),
            (["shuffled", "laplace", ""], "", []),
        ],
    )
    def test_choices_and_words_decide_together(self, chosen, words, shown):
        found = node(
            f"""
            script.addFilter(table);
            const controls = table.filter.children.map((each) => (each.children ?? [])[1]);
            {json.dumps(chosen)}.forEach((value, place) => {{ controls[place].value = value; }});
            controls[3].value = {json.dumps(words)};
            table.filter.on.input();
            const count = table.filter.children.at(-1).textContent;
            console.log(JSON.stringify([table.lines.map((line) => !line.hidden), count]));
            """
        )
        assert found == [[place in shown for place in range(3)], f"{len(shown)} of 3 rows"]

    def test_it_is_made_of_controls_that_the_keyboard_reaches(self):
        found = node(
            """
            script.addFilter(table);
            let kept = false;
            table.filter.on.submit({ preventDefault: () => { kept = true; } });
            const parts = table.filter.children.map((each) =>
              each.tag === "label" ? [each.children[0].trim(), each.children[1].tag] : each.tag);
            console.log(JSON.stringify([table.filter.tag, parts, kept]));
            """
        )
        assert found == [
            "form",
            [*([head, "select"] for head in HEADS), ["words", "input"], "button", "output"],
            True,
        ]
