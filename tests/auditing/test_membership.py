"""Membership scores, and what an attack on real members costs."""

import pytest
import torch

import dpfy
from dpfy.auditing import likelihood_ratio_scores, loss_scores, membership, owner_diagnostic
from dpfy.errors import InvalidArgument


def test_membership_scores():
    rng = torch.Generator().manual_seed(1)
    present = torch.rand(16, 50, generator=rng) < 0.5
    present[:4], present[4:8] = True, False
    shadows = torch.randn(16, 50, generator=rng) + 3.0 * present
    inside = torch.arange(50) % 2 == 0
    scores = likelihood_ratio_scores(
        torch.randn(50, generator=rng) + 3.0 * inside, shadows, present
    )
    found = membership(scores, inside)
    assert found.area > 0.9 and found.tpr_at(0.1) > 0.5
    assert membership(loss_scores(torch.tensor([1.0, 2.0])), torch.tensor([True, False])).area == 1
    with pytest.raises(InvalidArgument, match="shadow models"):
        likelihood_ratio_scores(torch.zeros(50), shadows[4:12], present[4:12])
    with pytest.raises(InvalidArgument, match="both kinds"):
        membership(torch.zeros(2), torch.ones(2, dtype=torch.bool))


def test_attacks_on_members_are_recorded_before_they_run():
    ledger = dpfy.Ledger.in_memory()
    seen = owner_diagnostic(ledger, lambda: ledger.count)
    assert seen == 1
    assert dpfy.account(ledger).claim(1e-5) == float("inf")
