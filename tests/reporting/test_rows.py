"""Ledgers of rows: what reports and commands say of streams that are paid for step by step."""

import json

import pytest

from dpfy.accounting import EnvelopeGuard, account
from dpfy.cli.app import main
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import Cyclic, CyclicPoisson, Repeated
from dpfy.ledger.streams import Buffered, Row, SampledStream, Stream, Toeplitz
from dpfy.reporting import report

DELTA = 1e-5
ROWS = {
    "cyclic": Row(Stream(Buffered((0.9,), (0.3,)), 12, 4.0, 3, 4), Cyclic(5, 20)),
    "cyclic_poisson": Row(
        SampledStream(Toeplitz((1.0, 0.5)), 12, 4.0, rate=0.5, parts=4), CyclicPoisson(0.5, 4, 20)
    ),
    "declared": Row(Stream(Toeplitz((1.0, 0.5)), 12, 4.0, 3, 4)),
}


def write(path, row, taken=12):
    envelope = (Repeated(row, 12),)
    header = Header(relation="zero_out", envelope=envelope)
    with Ledger.open(path, EnvelopeGuard(envelope, None, "zero_out"), header=header) as ledger:
        for _ in range(taken):
            ledger.reserve(row)
    return path


@pytest.mark.parametrize("policy", ROWS)
def test_a_report_names_the_stream_and_its_sampling(tmp_path, policy):
    row = ROWS[policy]
    found = report(Ledger.read(write(tmp_path / "run.dpl", row)), DELTA)
    assert found.record.policies == (policy,)
    assert found.record.unregistered == 0
    sampling = next(item for item in found.assumptions if item.key == "sampling")
    assert policy in sampling.text and "Rows of a stream" in sampling.text
    assert "an event is an epoch" not in sampling.text
    accounting = next(item for item in found.statement if item.key == "accounting")
    assert f"{policy} sampling, correlated gaussian noise" in accounting.text
    assert found.costs.headline.interval == account(row.stream, relation="zero_out").epsilon(DELTA)
    assert found.costs.headline.steps == 12
    curve = found.costs.curve.epsilons["pld"]
    assert list(curve) == sorted(curve) and curve[0] == 0.0 < curve[1]


def test_without_belief_in_sampling_every_turn_counts(tmp_path):
    for policy, row in ROWS.items():
        ledger = Ledger.read(write(tmp_path / f"{policy}.dpl", row))
        costs = report(ledger, DELTA).costs
        stream = getattr(row.stream, "unsampled", row.stream)
        expected = account(stream, relation="zero_out").claim(DELTA)
        assert costs.without_sampling.interval.upper == pytest.approx(expected)
        assert (expected > costs.headline.interval.upper) == (policy == "cyclic_poisson")


def test_commands_follow_a_run_step_by_step(tmp_path, capsys):
    row = ROWS["cyclic"]
    path = write(tmp_path / "run.dpl", row, taken=7)

    def output(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([*arguments[:-1], str(path), *arguments[-1]])
        assert not stopped.value.code
        return capsys.readouterr().out

    found = json.loads(output("account", ["--delta", "1e-5", "--json"]))
    claim = account(row.stream.first(7), relation="zero_out").claim(DELTA)
    assert found["epsilon"] == pytest.approx(claim)
    assert (found["steps"], found["counted"], found["noise_multiplier"]) == (7, "steps", 4.0)
    assert found["rate"] is None and found["envelope"]["steps"] == 12
    assert output("account", ["--delta", "1e-5"]).startswith("7 steps: (")
    shown = json.loads(output("ledger", "show", ["--json"]))
    assert shown["uses"] == [Repeated(row, 7).to_json()]
