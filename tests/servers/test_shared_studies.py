"""A search on public data by two processes, through a PostgreSQL."""

import json
import subprocess
import sys

DECLARED = """
--accounting public --data digits --epochs 1 --batch-size 512 --delta 1e-5 --epsilon 3
--search learning_rate=0.1:1 --trials 6 --name wide --share --storage
"""


def tune(*arguments, cwd):
    return subprocess.Popen(
        [sys.executable, "-m", "dpfy", "tune", "--json", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )


def answer(process):
    told, _ = process.communicate()
    assert not process.returncode
    return json.loads(told)


def test_two_processes_take_each_trial_once(shared_postgresql, tmp_path):
    """Fails if processes that ask the database at once take the same trial, or too many."""
    database = shared_postgresql.new_database()
    address = answer(tune(*DECLARED.split(), database, cwd=tmp_path))["folder"]
    assert address == f"{database}#wide"
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    workers = [tune("--work", address, cwd=folder) for folder in folders]
    assert sum(answer(worker)["trials_done"] for worker in workers) == 6
    assert not any(any(folder.iterdir()) for folder in folders)
    found = answer(tune("--finish", address, cwd=tmp_path))
    assert [trial["trial"] for trial in found["trials"]] == [1, 2, 3, 4, 5, 6]
    best = max(found["trials"], key=lambda trial: trial["score"])
    assert found["settings"] == best["settings"]
    assert (tmp_path / "runs" / "wide" / "settings.json").exists()
