"""What a report says about attackers and about other neighbours."""

import pytest
from scipy.special import ndtr, ndtri

from dpfy.accounting import account
from dpfy.ledger.events import NonPrivate, Poisson, Sampled, SumQuery
from dpfy.reporting import report
from dpfy.reporting.attacks import Attacks

DELTA = 1e-5


def reachable(mu, fpr):
    """The true positive rate of the best test of a Gaussian mechanism."""
    return float(ndtr(ndtri(fpr) + mu))


def test_bounds_are_those_of_the_gaussian_and_no_attack_beats_them():
    mu = 0.8
    found = Attacks.of(account(Sampled(Poisson(1.0), (SumQuery(1.0, 1 / mu),))))
    assert found.mu == pytest.approx(mu, rel=1e-3)
    assert found.advantage == pytest.approx(2 * ndtr(mu / 2) - 1, rel=1e-4)
    assert reachable(mu, 0.01) <= found.true_positives < 1.02 * reachable(mu, 0.01)
    for each in found.reconstruction:
        assert reachable(mu, each.baseline) <= each.success < 1.02 * reachable(mu, each.baseline)
    for belief in found.beliefs:
        rates = [k / 2000 for k in range(2001)]
        errors = [
            belief.prior * (1 - reachable(mu, fpr)) + (1 - belief.prior) * fpr for fpr in rates
        ]
        assert 1 - min(errors) <= belief.right + 1e-9
        assert belief.right < 1 - min(errors) + 1e-3
        assert belief.prior < belief.accused_rightly < 1


def test_nothing_is_said_about_attackers_without_a_guarantee(make):
    ledger = make(extra=(NonPrivate("shown to a friend"),))
    found = report(ledger, DELTA)
    assert found.costs.attacks is None
    assert "What is left to an attacker" not in found.to_markdown()


def test_other_relations_are_beside_the_claim(good):
    found = {str(each.relation): each.epsilon for each in good.costs.adjacency}
    assert set(found) == {"replace_one", "zero_out"}
    assert found["replace_one"] > 1.5 * good.costs.headline.interval.upper
    assert found["zero_out"] == pytest.approx(good.costs.headline.interval.upper)


def test_the_model_card_has_the_claim_and_the_hash(good):
    card = good.to_model_card()
    assert card.startswith("## Privacy") and good.record.head_hash in card and "ε = " in card
