"""The pages about other frameworks run, as all pages do."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.test_readme import APART, ROOT, blocks, run_page

import dpfy
from dpfy.errors import InvalidArgument, UnreleasedGradient

SCRIPT = "with_accelerate.py"
LOOKS = """
import hashlib, os, pathlib  # a file for each rank: lines that two processes print may be mixed
whole = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
found = f'{hashlib.sha256(whole).hexdigest()} {opt.optimizer.param_groups[0]["lr"]}'
pathlib.Path(f"rank-{os.environ['RANK']}.txt").write_text(found)
"""
NAMES = [page.name for page in APART]


def test_pages_about_other_frameworks_are_known() -> None:
    assert {"accelerate.md", "lightning.md", "your-own-data.md"} <= set(NAMES)


@pytest.mark.filterwarnings("ignore::UserWarning:lightning")
@pytest.mark.filterwarnings("ignore::FutureWarning:lightning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning")
@pytest.mark.parametrize("page", APART, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page, monkeypatch)


@pytest.fixture
def script(tmp_path, monkeypatch) -> Path:
    """The script of the page about Accelerate, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (page,) = (page for page in APART if page.name == "accelerate.md")
    (block,) = (each for each in blocks(page) if each.text.startswith(f"# {SCRIPT}"))
    Path(SCRIPT).write_text(block.text, encoding="utf-8")
    return Path(SCRIPT)


def steps_of(ledger: str = "accelerate.dpl") -> int:
    read = dpfy.Ledger.read(ledger)
    assert dpfy.account(read).claim(1e-4) <= 4.0
    return read.count


def test_accelerate_runs_in_one_process(script, capsys) -> None:
    names = runpy.run_path(str(script))
    assert re.search(r"20 steps, ε = (3\.99\d|4\.000), \d+ of 100", capsys.readouterr().out)
    assert steps_of() == names["plan"].steps == 20
    assert names["opt"].optimizer.param_groups[0]["lr"] == pytest.approx(0.0)  # one step each


def test_accelerate_runs_in_two_processes(script) -> None:
    script.write_text(script.read_text(encoding="utf-8") + LOOKS, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run([*command, SCRIPT], capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    assert steps_of() == 20  # and not twice as many
    first, second = (Path(f"rank-{rank}.txt").read_text().split() for rank in range(2))
    assert first == second
    assert float(first[1]) == pytest.approx(0.0)


def test_what_the_page_calls_refused_is_refused(script) -> None:
    from accelerate import Accelerator

    text = script.read_text(encoding="utf-8").partition("for batch in run:")[0]
    names: dict[str, object] = {}
    exec(text, names)
    run, opt, model = names["run"], names["opt"], names["model"]
    with run:
        opt.zero_grad()
        loss = names["loss_fn"](*names["train_set"][:10]).mean()
        Accelerator().backward(loss)
        with pytest.raises(UnreleasedGradient):
            opt.step()
        opt.zero_grad()
        run.backward(names["loss_fn"], next(iter(run)))
        Accelerator().clip_grad_norm_(model.parameters(), 1e-3)
        with pytest.raises(UnreleasedGradient):
            opt.step()
    wrapped = torch.nn.DataParallel(model)
    with pytest.raises(InvalidArgument, match="Pass the module inside"):
        dpfy.privatize(wrapped, opt.optimizer, names["train_set"], names["plan"], "wrapped.dpl")
