"""Events that hold others cost what their parts say: in a row, on disjoint parts, the best of
several.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from dpfy.accounting import account
from dpfy.accounting.rules_for.nested import SelectionCurve
from dpfy.accounting.to_pairs import canonical
from dpfy.errors import UnsupportedEvent
from dpfy.ledger.composite_events import Composed, Parallel
from dpfy.ledger.events import (
    FixedSize,
    NonPrivate,
    Poisson,
    Repeated,
    Sampled,
    SumQuery,
    TruncatedPoisson,
)
from dpfy.ledger.one_shot import RandomizedAnswer
from dpfy.ledger.selection import NegativeBinomialTrials, PoissonTrials, Selected
from dpfy.types import Relation

STEP = Sampled(Poisson(0.02), (SumQuery(1.0, 1.5),))
RUN = Composed((STEP,), (50,))
FEW = NegativeBinomialTrials.with_mean(5.0)


def gaussian(noise, **changed):
    return Sampled(Poisson(1.0), (SumQuery(1.0, noise),), **changed)


def answer(truth=0.6):
    return Sampled(Poisson(1.0), (RandomizedAnswer(truth),))


def claim(event, method="pld", relation="add_or_remove_one", delta=1e-6):
    return account(event, method, relation).claim(delta)


@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_a_run_in_a_row_costs_what_its_steps_do(method):
    nested = Composed((Composed((STEP,), (10,)), STEP), (4, 10))
    assert claim(nested, method) == claim(RUN, method) == claim(Repeated(STEP, 50), method)


def test_what_arithmetic_and_cuts_add_to_delta_is_not_lost():
    step = Sampled(TruncatedPoisson(0.02, 60, 1000), (SumQuery(1.0, 1.5),), numerical_delta=1e-9)
    plain = account(Repeated(step, 50), relation="zero_out")
    for event in (Composed((step,), (50,)), Parallel((Composed((step,), (50,)),))):
        wrapped = account(event, relation="zero_out")
        assert wrapped.numerical_delta == pytest.approx(plain.numerical_delta)
        assert wrapped.failure == pytest.approx(plain.failure) != 0
    one = Selected(Composed((step,), (50,)), FEW)
    assert (
        account(one, relation="zero_out").delta(3.0).upper > plain.failure + plain.numerical_delta
    )


def telling(truth, chance):
    """One of two answers, or with a small chance one that gives the data set away; the last two are
    the best.
    """
    return [
        [(1 - chance) * (1 - truth), (1 - chance) * truth, chance, 0.0],
        [(1 - chance) * truth, (1 - chance) * (1 - truth), 0.0, chance],
    ]


def best_of(law, weights):
    """The law of the best of K runs, outputs in rising order of scores: Σ_k Pr[K = k]·(F_j^k −
    F_{j−1}^k).
    """
    total = np.concatenate(([0.0], np.cumsum(law)))
    return np.diff(sum(weight * total**count for count, weight in weights.items()))


def numbers_of(trials, most=400):
    shape = trials.shape
    terms = {
        k: math.exp(math.lgamma(k + shape) - math.lgamma(k + 1) + k * math.log1p(-trials.success))
        for k in range(1, most)
    }
    return {k: term / math.fsum(terms.values()) for k, term in terms.items()}


def test_what_arithmetic_adds_to_delta_is_selected_too():
    """Fails if the chance of a telling answer is counted once, not for the best of all runs, by
    either method.
    """
    chance, truth, trials = 1e-4, 0.6, NegativeBinomialTrials.with_mean(8.0, shape=0.5)
    run = Sampled(Poisson(1.0), (RandomizedAnswer(truth),), numerical_delta=chance)
    laws = [best_of(law, numbers_of(trials)) for law in telling(truth, chance)]
    again = [best_of(law, numbers_of(trials)) for law in laws]
    for method in ("pld", "rdp"):
        for event, (p, q) in (
            (Selected(run, trials), laws),
            (Selected(Selected(run, trials), trials), again),
        ):
            found = account(event, method)
            for epsilon in (0.5, 3.0):
                exact = float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
                assert 3 * chance < exact <= found.delta(epsilon).upper < 1


def test_less_of_it_costs_less():
    """Without any, the rule is that of Theorem 2; a δ that is no more than it leaves nothing to
    claim.
    """
    claims = [
        claim(Selected(gaussian(4.0, numerical_delta=chance), FEW), "rdp")
        for chance in (0.0, 1e-12, 1e-9, 1e-6)
    ]
    assert (
        claims == sorted(claims)
        and claims[0] < claims[2] < 1.01 * claims[0]
        and claims[3] == math.inf
    )
    assert (
        claim(Selected(Sampled(Poisson(0.1), (), numerical_delta=1e-9), PoissonTrials(3.0)), "rdp")
        < math.inf
    )


@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_disjoint_parts_cost_the_costliest(method):
    assert claim(Parallel((gaussian(2.0), gaussian(2.0))), method) == claim(gaussian(2.0), method)
    mixed = claim(Parallel((gaussian(2.0), gaussian(4.0), RUN)), method)
    worst = max(claim(part, method) for part in (gaussian(2.0), RUN))
    assert worst * (1 - 1e-6) <= mixed <= worst * 1.003
    assert mixed < claim([gaussian(2.0), RUN], method)


@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_a_record_that_moves_pays_in_two_parts(method):
    """Fails if parallel composition under replacement charges one part only: randomised response
    tells the two.
    """
    stays, moves = (
        claim(Parallel((answer(), answer()), moves=moves), method, "replace_one")
        for moves in (False, True)
    )
    one, two = (claim(event, method, "replace_one") for event in (answer(), [answer(), answer()]))
    assert stays == pytest.approx(one, rel=1e-3)
    assert moves == pytest.approx(two, rel=2e-3)
    assert claim(Parallel((answer(),)), method, "replace_one") == pytest.approx(one, rel=1e-3)


def test_a_record_that_moves_pays_in_the_two_costliest_parts():
    parts = Parallel((answer(0.6), answer(0.7), answer(0.55)))
    assert claim(parts, relation="replace_one") == pytest.approx(
        claim([answer(0.6), answer(0.7)]), rel=3e-3
    )


def test_moving_by_brute_force():
    """Two answers, one of each part, where the record was in the first and is then in the
    second.
    """
    truth = 0.7
    law = {(a, b): (truth if a else 1 - truth) * 0.5 for a in (0, 1) for b in (0, 1)}
    other = {(a, b): 0.5 * (truth if b else 1 - truth) for a in (0, 1) for b in (0, 1)}
    bound = account(Parallel((answer(truth), answer(truth))), relation="replace_one")
    for epsilon in (0.0, 0.5, 1.0, 1.6):
        exact = sum(max(law[key] - math.exp(epsilon) * other[key], 0.0) for key in law)
        assert exact <= bound.delta(epsilon).upper


def test_parts_of_public_sizes_cannot_gain_a_record():
    part = Sampled(FixedSize(10, 100), (SumQuery(1.0, 2.0),))
    assert claim(Parallel((part, part), moves=False), relation="replace_one") == claim(
        part, relation="replace_one"
    )
    with pytest.raises(UnsupportedEvent, match="add_or_remove_one"):
        claim(Parallel((part, part)), relation="replace_one")


@pytest.mark.parametrize("trials", [FEW, PoissonTrials(3.0)])
def test_the_mass_of_a_selection_moves_places_in_a_selection_of_it(trials):
    """Theorem 4 needs the mass that the inner selection takes away: fails if only that of
    arithmetic is handed on.
    """
    inner = Selected(gaussian(4.0, numerical_delta=1e-3), trials)
    ((pair, _),) = canonical(
        (Repeated(Selected(inner, trials), 1),), "rdp", Relation.ADD_OR_REMOVE_ONE
    ).pairs
    assert isinstance(pair.distribution, SelectionCurve)
    assert pair.distribution.spare == pytest.approx(1e-3 * trials.mean)
    orders = np.array([2.0, 8.0, 32.0])
    assert np.all(
        pair.distribution.divergence(orders, 1.0)
        > replace(pair.distribution, spare=0.0).divergence(orders, 1.0) + 1e-6
    )


@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_selection_obeys_the_laws_of_all_rules(method):
    def cost(noise=2.0, trials=FEW, times=1):
        return claim(Repeated(Selected(gaussian(noise), trials), times), method)

    assert cost(noise=3.0) < cost() < cost(trials=NegativeBinomialTrials.with_mean(50.0))
    assert (
        claim(gaussian(2.0), method)
        < cost()
        < cost(trials=NegativeBinomialTrials.with_mean(5.0, shape=3.0))
    )
    assert cost() < cost(times=2) < 2 * cost() * (1 + 1e-3)
    assert cost(times=2) == claim([Selected(gaussian(2.0), FEW)] * 2, method)
    assert cost(noise=0.0) == claim(Selected(NonPrivate("it was printed"), FEW), method) == math.inf
    assert claim(Selected(Sampled(Poisson(0.1), ()), FEW), method) == 0.0


def test_selection_composes_with_steps():
    alone, steps = claim(Selected(RUN, PoissonTrials(5.0))), claim(RUN)
    both = claim([Selected(RUN, PoissonTrials(5.0)), RUN])
    assert max(alone, steps) < both < alone + steps


def test_a_selection_of_selections_costs_more_than_one():
    inner = Selected(gaussian(4.0), FEW)
    assert claim(inner) < claim(Selected(inner, FEW)) < math.inf
