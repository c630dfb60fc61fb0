"""The how-to runs from top to bottom; its blocks are ``py``, since they need other packages."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "huggingface.md"


def test_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    blocks = [*re.finditer(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    assert len(blocks) >= 2
    names = {"__name__": "__main__"}
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], str(PAGE), "exec"), names)
    assert capsys.readouterr().out.startswith("bookkeeping ")
