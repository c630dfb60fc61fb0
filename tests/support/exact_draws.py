"""The exact law of a draw, by following every branch of its coins with its exact probability."""

from collections import defaultdict
from fractions import Fraction

from dpfy.labels import response
from dpfy.mechanisms.one_shot import noisy_answers


class Branch:
    """One way through a tree of choices: some are given, and later ones take the first option."""

    def __init__(self, given):
        self.given, self.taken, self.open = given, [], []
        self.probability = Fraction(1)

    def choose(self, odds):
        place = len(self.taken)
        if place < len(self.given):
            option = self.given[place]
        else:
            option, *others = [each for each in range(len(odds)) if odds[each] > 0]
            self.open += [[*self.taken, other] for other in others]
        self.taken.append(option)
        self.probability *= odds[option]
        return option

    def coin(self, odds, stream):
        return self.choose([1 - odds, odds]) == 1

    def below(self, bound, stream):
        return self.choose([Fraction(1, bound)] * bound)


def law_of(draw, monkeypatch):
    """The probabilities of all values that ``draw()`` can return, as fractions."""
    law, waiting = defaultdict(Fraction), [[]]
    with monkeypatch.context() as patched:
        while waiting:
            branch = Branch(waiting.pop())
            for module in (response, noisy_answers):
                patched.setattr(module, "coin", branch.coin)
                patched.setattr(module, "below", branch.below)
            law[draw()] += branch.probability
            waiting += branch.open
    assert sum(law.values()) == 1
    return dict(law)


def largest_ratio(one, other):
    """The largest ratio of probabilities of a value under two laws."""
    values = {value for law in (one, other) for value in law if law[value] > 0}
    if any(one.get(value, 0) == 0 or other.get(value, 0) == 0 for value in values):
        return float("inf")
    return max(max(one[v] / other[v], other[v] / one[v]) for v in values)
