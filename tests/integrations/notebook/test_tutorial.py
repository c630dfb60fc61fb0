"""The tutorial notebook, run through a real kernel, and what its cells show."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "tutorials" / "notebook.md"
SCRIPT = Path(__file__).with_name("run_notebook.py")


def cells(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def executed(sources: list[str], folder: Path):
    """Run cells in a kernel of this Python, in a folder, and return the notebook."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    nbformat.write(notebook, folder / "given.ipynb")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "given.ipynb", "executed.ipynb"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return nbformat.read(folder / "executed.ipynb", as_version=4)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    return executed(cells(PAGE.read_text(encoding="utf-8")), tmp_path_factory.mktemp("notebook"))


def shown_by(notebook, source: str) -> str:
    """The HTML that the cell with this last line shows."""
    (cell,) = (c for c in notebook.cells if c.source.rstrip().endswith(source))
    (found,) = (o for o in cell.outputs if o.output_type == "execute_result")
    assert found.data["text/plain"]  # for whoever reads without HTML
    return found.data["text/html"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("\nplan", "ε ≤ 3 at δ = 1e-5"),
        ("run", "Run: notebook.dpl"),
        ("run.spent(delta=1e-5)", "Interval"),
        ("dpfy.account(run.ledger)", "Guarantee"),
        ('report("notebook.dpl", delta=1e-5, facts=facts)', "Privacy report: digits"),
        ('dpfy.Ledger.read("notebook.dpl")', "Ledger: notebook.dpl"),
    ],
)
def test_cells_show_cards(notebook, source, words):
    text = shown_by(notebook, source)
    assert text.startswith('<div class="dpfy"><style>') and words in text
    assert "<script" not in text


def test_the_bar_is_one_output_that_ends_with_the_last_step(notebook):
    """Without widgets a bar of ``rich`` shows nothing there but a warning."""
    (cell,) = (c for c in notebook.cells if "ProgressBar" in c.source)
    shown = [o for o in cell.outputs if o.output_type == "display_data"]
    assert len(shown) == 1
    assert re.search(r"training (\d+)/\1  ε \d\.\d\d  accuracy", shown[0].data["text/plain"])
    assert "<progress" in shown[0].data["text/html"]


def test_nothing_is_said_on_standard_error(notebook):
    streams = [o for c in notebook.cells for o in c.outputs if o.output_type == "stream"]
    assert not [o.text for o in streams if o.name == "stderr"]


def test_a_trainer_shows_its_bar_by_itself(tmp_path):
    sources = [
        "import dpfy\n"
        "config = dpfy.TrainConfig(epochs=1, batch_size=480, name='a', num_workers=1)\n"
        "dpfy.Trainer(config).fit().claim"
    ]
    (cell,) = executed(sources, tmp_path).cells
    bars = [o for o in cell.outputs if o.output_type == "display_data"]
    assert len(bars) == 1 and "accuracy" in bars[0].data["text/plain"]
