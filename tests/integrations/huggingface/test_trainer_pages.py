"""The pages about the trainer run, and train what they say."""

import re
from pathlib import Path

import torch

import dpfy

DOCS = Path(__file__).parents[3] / "docs"


def run(page, folder, monkeypatch):
    """Run the blocks of a page in a folder; return what they named."""
    monkeypatch.chdir(folder)
    torch.manual_seed(0)
    text = (DOCS / page).read_text(encoding="utf-8")
    names = {"__name__": "__main__"}
    for block in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], page, "exec"), names)
    return names


def test_the_tutorial_fine_tunes_a_language_model_in_thirty_lines(tmp_path, monkeypatch):
    page = "tutorials/fine-tune.md"
    names = run(page, tmp_path, monkeypatch)
    assert names["trainer"].run.engine == "bookkeeping"
    ledger = dpfy.Ledger.read(tmp_path / "letters" / "ledger.dpl")
    assert ledger.count == 15
    assert 7.9 < dpfy.account(ledger).claim(1e-3) <= 8.0
    assert len(names["letters"]) == 200
    moved = [p for name, p in names["trainer"].model.named_parameters() if "lora_B" in name]
    assert moved and all(each.any() for each in moved)
    assert (tmp_path / "letters" / "report" / "report.html").exists()
    first = re.search(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S)[1]
    code = [line for line in first.splitlines() if line and not re.match(r"(from|import) ", line)]
    assert len(code) <= 30


def test_the_how_to_runs(tmp_path, monkeypatch, capsys):
    run("how-to/huggingface-trainer.md", tmp_path, monkeypatch)
    assert {path.name for path in tmp_path.glob("**/*.dpl")} == {"ledger.dpl", "metrics.dpl"}
