"""Audits of real runs: honest ones are between their bounds, and leaks are refuted."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.auditing import audit_run
from dpfy.auditing.mutants import MUTANTS
from dpfy.cli.app import main
from dpfy.errors import InvalidArgument


def audited(key, mutant="none", **options):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start = [p.detach().clone() for p in model.parameters()]
    data = TensorDataset(torch.randn(100, 4), torch.arange(100) % 2)
    plan = dpfy.dpsgd(rate=0.5, records=100, steps=30, clip=2.0, noise_multiplier=2.0)

    def loss(x, y):
        return nn.functional.cross_entropy(model(x), y, reduction="none")

    with MUTANTS[mutant]():
        found = audit_run(
            model, optimizer, data, plan, loss, 1e-5, key=key, **{"canaries": 600, **options}
        )
    assert [name for name, _ in model.named_parameters()] == ["weight", "bias"]
    assert all(
        bool((p == old).all()) and p.grad is None
        for p, old in zip(model.parameters(), start, strict=True)
    )
    return found


def test_an_honest_run_is_between_its_bounds():
    found = audited(key=1)
    assert not found.refuted
    assert 0.3 < found.epsilon_lower < found.epsilon_claimed
    assert found.epsilon_lower <= found.gaussian_lower + 0.5 < found.epsilon_claimed
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize("mutant", ["half noise", "noise missing on one tensor"])
def test_a_run_that_leaks_far_more_is_refuted(mutant):
    assert audited(2, mutant).refuted


def test_too_few_canaries_and_other_relations_are_refused():
    with pytest.raises(InvalidArgument, match="at least 50 canaries"):
        audited(1, canaries=20)
    with pytest.raises(InvalidArgument, match="as many guesses as canaries"):
        audited(1, canaries=60, guesses=80)


def run_command(capfd, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(["audit", *arguments])
    return caught.value.code, capfd.readouterr()


def test_the_command_writes_a_page_and_says_what_came_out(tmp_path, capfd):
    code, output = run_command(
        capfd, "--epochs", "2", "--canaries", "100", "--json", "--out", str(tmp_path / "a")
    )
    found = json.loads(output.out)
    assert code in (0, None) and not found["refuted"]
    page = (tmp_path / "a" / "audit.html").read_text()
    assert page.count("<svg") == 2 and "http" not in page
    assert {"theorem", "citation", "check", "allowance"} <= {
        each["kind"] for each in found["basis"]
    }
    assert "95% confidence</text>" in page and "The band holds the attack's true errors" in page
    assert "What the claim rests on" in page and "allowed for, not proved" in page
    assert json.loads((tmp_path / "a" / "audit.json").read_text())["delta"] == found["delta"]


def test_misuse_of_the_command_is_explained(capfd):
    code, output = run_command(capfd, "--quick")
    assert code == 2 and "--self-test" in output.err
    code, output = run_command(capfd, "--canaries", "3")
    assert code == 2 and "at least 50" in output.err
