"""The page about Flower runs, and its strategy is documented as all public names are."""

import subprocess
import sys
from pathlib import Path

import pytest

from dpfy.integrations import flower

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "flower.md"


def test_the_page_runs_from_top_to_bottom(tmp_path):
    script = tmp_path / "page.py"
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("```python\n")
    script.write_text(rest.partition("```")[0], encoding="utf-8")
    command = [sys.executable, script.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "at δ = 1e-2" in done.stdout


@pytest.mark.parametrize("name", flower.__all__)
def test_public_name_is_documented(name):
    documented = getattr(flower, name).__doc__
    assert "Args:" in documented and "Raises:" in documented and "*Assumes*" in documented
