"""Privacy loss distributions: the tightest bounds, from above and from below, by one computation.

Closed forms go first (full batches, one step), then the tilted Fourier sum of
:mod:`dpfy.accounting.pld.fourier` over certified atoms, refined until the bracket is as narrow as
asked. Where float64 does not carry that far, bounds that need no composition take over, and the
note says so.
"""

import math
from functools import lru_cache

from dpfy.accounting import rdp
from dpfy.accounting.dominating_pairs import Bound, Pair, Pairs, coarsened, of_law, unsampled
from dpfy.accounting.loss_distributions import LossDistribution, Range
from dpfy.accounting.pld import closed_forms, one_step
from dpfy.accounting.pld.bounded_range import Ranges, countable
from dpfy.accounting.pld.compose import composed, curve
from dpfy.accounting.pld.target import Bracket, DeltaAt, EpsilonAt, Location

ACCURACY = 1e-3  # relative, in ε
_FIRST_RUNG, _RUNG = (
    0.5,
    1.5,
)  # values of ε, in standard deviations of the loss, from which others are answered
# bounds on δ that are no further apart are not compared with those that need no composition
_CLOSE = 1.002
_FEW = 8  # kinds of steps that are looked at one by one
_LEAST_LOG_DELTA = -600.0  # float64 has no masses below


def epsilon_upper(pairs: Pairs, delta: float, accuracy: float = ACCURACY) -> Bound:
    """Return an upper bound on ε(δ)."""
    bracket = epsilon_bracket(pairs, delta, accuracy)
    return Bound(bracket.upper, bracket.note)


def epsilon_lower(pairs: Pairs, delta: float, accuracy: float = ACCURACY) -> float:
    """Return a certified lower bound on ε(δ)."""
    return epsilon_bracket(pairs, delta, accuracy).lower


def delta_upper(pairs: Pairs, epsilon: float, accuracy: float = ACCURACY) -> Bound:
    """Return an upper bound on δ(ε)."""
    bracket = delta_bracket(pairs, epsilon, accuracy)
    return Bound(bracket.upper, bracket.note)


def delta_lower(pairs: Pairs, epsilon: float, accuracy: float = ACCURACY) -> float:
    """Return a certified lower bound on δ(ε)."""
    return delta_bracket(pairs, epsilon, accuracy).lower


@lru_cache(maxsize=64)
def epsilon_bracket(pairs: Pairs, delta: float, accuracy: float) -> Bracket:
    """Bound ε(δ) from both sides."""
    attained, in_a_row = _attained(pairs), _choices_in_a_row(pairs)
    found = _epsilon_bracket(in_a_row, delta, accuracy)
    if attained is None:
        return found
    whole = unsampled(pairs)
    others = [(rdp.epsilon_upper(whole, delta).value, "by Rényi divergences")]
    if whole != pairs:
        others.append((_epsilon_bracket(whole, delta, accuracy).upper, "as if batches were known"))
    known = _epsilon_bracket(attained, delta, accuracy).lower
    only = in_a_row[0][0].law if len(in_a_row) == 1 else None
    return _of_class(
        found, others, max(known, only.epsilon_below(delta)) if isinstance(only, Ranges) else known
    )


def _epsilon_bracket(pairs: Pairs, delta: float, accuracy: float) -> Bracket:
    rest, gauss = split(pairs)
    if _ever_drawn(pairs) <= delta:
        return Bracket(0.0, 0.0, "closed form")
    if not rest:
        return Bracket(*closed_forms.epsilon(math.sqrt(gauss), delta), "closed form")
    if gauss == 0 and len(rest) == 1 and rest[0][1] == 1:
        found: Bracket | None = Bracket(*one_step.epsilon(rest[0][0], delta), "closed form")
    else:
        found = (
            composed(rest, gauss, EpsilonAt(delta), accuracy)
            if math.log(delta) > _LEAST_LOG_DELTA
            else None
        )
    bounds = [Bracket(0.0, _pure_epsilon(pairs), "by adding up ε"), *([found] if found else [])]
    if found is None or found.upper > (1 + accuracy) * found.lower:
        bounds.append(_uncomposed_epsilon(pairs, delta))
    return _best(bounds)


@lru_cache(maxsize=64)
def delta_bracket(pairs: Pairs, epsilon: float, accuracy: float) -> Bracket:
    """Bound δ(ε) from both sides."""
    attained, in_a_row = _attained(pairs), _choices_in_a_row(pairs)
    found = _delta_bracket(in_a_row, epsilon, accuracy)
    if attained is None:
        return found
    whole = unsampled(pairs)
    others = [(rdp.delta_upper(whole, epsilon).value, "by Rényi divergences")]
    if whole != pairs:
        others.append((_delta_bracket(whole, epsilon, accuracy).upper, "as if batches were known"))
    known = _delta_bracket(attained, epsilon, accuracy).lower
    only = in_a_row[0][0].law if len(in_a_row) == 1 else None
    return _of_class(
        found, others, max(known, only.delta_below(epsilon)) if isinstance(only, Ranges) else known
    )


def _delta_bracket(pairs: Pairs, epsilon: float, accuracy: float) -> Bracket:
    rest, gauss = split(pairs)
    if not rest:
        return Bracket(*closed_forms.delta_interval(math.sqrt(gauss), epsilon), "closed form")
    if gauss == 0 and len(rest) == 1 and rest[0][1] == 1:
        found: Bracket | None = Bracket(*one_step.delta(rest[0][0], epsilon), "closed form")
    else:
        found = _on_a_curve(rest, gauss, epsilon, accuracy) or composed(
            rest, gauss, DeltaAt(epsilon), accuracy
        )
    bounds = [found] if found else []
    if found is None or found.upper > _CLOSE * found.lower:
        bounds.append(_uncomposed_delta(pairs, epsilon))
    return _best(bounds)


def _on_a_curve(pairs: Pairs, gauss: float, epsilon: float, accuracy: float) -> Bracket | None:
    """The answer of a law that was composed for the next larger of a few values of ε, if it is as
    narrow as asked.

    Which law is asked depends on ε alone, so that an answer does not depend on earlier questions.
    """
    spread = math.sqrt(
        gauss
        + math.fsum(
            times * min(pair.rate**2 * math.expm1(min(pair.mu**2, 50.0)), 1.0)
            for pair, times in pairs
        )
    )
    rung = (
        max(0, math.ceil(math.log(epsilon / (_FIRST_RUNG * spread)) / math.log(_RUNG)))
        if epsilon > 0
        else 0
    )
    law = _curve(pairs, gauss, _FIRST_RUNG * spread * _RUNG**rung, accuracy)
    if law is None:
        return None
    found = law.delta(epsilon)
    place = Location(law.bounds.above.line.tilt, epsilon, 0.0, epsilon)
    return found if DeltaAt(epsilon).excess(found, place, accuracy) <= 1 else None


_curve = lru_cache(maxsize=32)(curve)


def split(pairs: Pairs) -> tuple[Pairs, float]:
    """The sampled pairs, and μ² of the full-batch Gaussian ones, which compose to one (Dong, Roth &
    Su 2022).
    """
    rest = tuple(
        (pair, times) for pair, times in pairs if pair.rate < 1 or pair.noise != "gaussian"
    )
    return rest, math.fsum(
        times * pair.mu**2 for pair, times in pairs if pair.rate == 1 and pair.noise == "gaussian"
    )


def _best(bounds: list[Bracket]) -> Bracket:
    upper = min(bounds, key=lambda bracket: bracket.upper)
    return Bracket(
        min(max(bracket.lower for bracket in bounds), upper.upper), upper.upper, upper.note
    )


def _attained(pairs: Pairs) -> Pairs | None:
    """The run with laws that mechanisms have in place of laws that only dominate all of a class;
    None if it is the run.
    """
    if all(pair.law is None or pair.law.attained is None for pair, _ in pairs):
        return None
    if sum(times for _, times in pairs) == 1 and isinstance(pairs[0][0].law, Range):
        return None  # at every ε some mechanism has the δ of the class
    found = ((_of_mechanism(pair), times) for pair, times in pairs)
    return tuple(sorted((pair, times) for pair, times in found if pair.noise_multiplier < math.inf))


def _of_mechanism(pair: Pair) -> Pair:
    attained = pair.law.attained if pair.law is not None else None
    if attained is None:
        return pair
    return (
        of_law(attained, pair.rate)
        if isinstance(attained, LossDistribution)
        else Pair(pair.rate, attained)
    )


def _choices_in_a_row(pairs: Pairs) -> Pairs:
    """The run with one law for all exponential mechanisms of the same range: the most that an
    adaptive choice of them costs, also if others come between them (``docs/proofs/one-shot.md``,
    Lemma 8).
    """

    def merged(pair: Pair, times: int) -> tuple[Pair, int]:
        law = pair.law
        if isinstance(law, Range) and pair.rate == 1 and countable(law.epsilon, times):
            return of_law(Ranges(law.epsilon, times)), 1
        return pair, times

    return tuple(sorted(merged(pair, times) for pair, times in pairs))


def _of_class(found: Bracket, others: list[tuple[float, str]], lower: float) -> Bracket:
    """The best of several upper bounds: a law is of all mechanisms of a class at once, which is not
    always best.
    """
    upper, note = min((found.upper, found.note), *others)
    return Bracket(min(lower, upper), upper, note)


def _uncomposed_epsilon(pairs: Pairs, delta: float) -> Bracket:
    """Bounds that need no composition: participations counted, Rényi divergences; the costliest
    single step.
    """
    lower = max(
        one_step.epsilon(pair, delta).lower for pair, _ in coarsened(pairs, _FEW, pessimistic=False)
    )
    uppers = [
        (_pure_epsilon(pairs), "by adding up ε"),
        (rdp.epsilon_upper(pairs, delta).value, "by Rényi divergences"),
    ]
    if all(pair.noise == "gaussian" for pair, _ in pairs):
        uppers.append(
            (
                closed_forms.participation_epsilon(*_worst(pairs), delta),
                "by counting participations",
            )
        )
        uppers.append(
            (
                closed_forms.epsilon(_full_batch_mu(pairs), delta).upper,
                "as if all took part in every step",
            )
        )
    upper, note = min(uppers)
    return Bracket(min(lower, upper), upper, note)


def _uncomposed_delta(pairs: Pairs, epsilon: float) -> Bracket:
    lower = max(
        one_step.delta(pair, epsilon).lower for pair, _ in coarsened(pairs, _FEW, pessimistic=False)
    )
    uppers = [
        (0.0 if _pure_epsilon(pairs) <= epsilon else 1.0, "by adding up ε"),
        (rdp.delta_upper(pairs, epsilon).value, "by Rényi divergences"),
        (_ever_drawn(pairs) * (1 + 1e-12), "by counting participations"),
    ]
    if all(pair.noise == "gaussian" for pair, _ in pairs):
        uppers.append(
            (
                closed_forms.participation_delta(*_worst(pairs), epsilon),
                "by counting participations",
            )
        )
        uppers.append(
            (
                closed_forms.delta(_full_batch_mu(pairs), epsilon),
                "as if all took part in every step",
            )
        )
    upper, note = min(uppers)
    return Bracket(min(lower, upper), upper, note)


def _pure_epsilon(pairs: Pairs) -> float:
    """The sum of the steps' largest losses, for steps that have one."""
    return math.fsum(times * one_step.pure_epsilon(pair) for pair, times in pairs)


def _ever_drawn(pairs: Pairs) -> float:
    """The probability that one record takes part in any step: (0, that)-DP holds whatever the steps
    do.
    """
    return -math.expm1(
        sum(times * math.log1p(-pair.rate) if pair.rate < 1 else -math.inf for pair, times in pairs)
    )


def _worst(pairs: Pairs) -> tuple[float, float, int]:
    return (
        max(pair.rate for pair, _ in pairs),
        max(pair.mu for pair, _ in pairs),
        sum(times for _, times in pairs),
    )


def _full_batch_mu(pairs: Pairs) -> float:
    """μ of the run at rate 1, which dominates it: a smaller rate is post-processing."""
    return math.sqrt(math.fsum(times * pair.mu**2 for pair, times in pairs)) * (1 + 1e-12)
