"""The self-test flags every planted mistake, and never the correct pipeline."""

import itertools
import json

import pytest

from dpfy.auditing import self_test
from dpfy.cli.app import main


@pytest.mark.slow
def test_the_correct_pipeline_is_never_flagged():
    (verdict,) = [
        found
        for found in self_test(repeats=100, keys=itertools.count(10_000))
        if found.mutant == "none"
    ]
    assert not verdict.flagged


@pytest.mark.apart
def test_the_command_flags_every_planted_mistake_and_nothing_else(capfd):
    with pytest.raises(SystemExit) as caught:
        main(["audit", "--self-test", "--quick", "--json"])
    verdicts = {verdict["mutant"]: verdict for verdict in json.loads(capfd.readouterr().out)}
    assert caught.value.code in (0, None) and len(verdicts) >= 13
    assert not verdicts.pop("none")["flagged"]
    assert all(verdict["flagged"] and verdict["evidence"] for verdict in verdicts.values())
