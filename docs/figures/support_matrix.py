"""Write docs/reference/support-matrix.md from the rule tables: run this file after a rule was
added.
"""

from pathlib import Path

from dpfy.accounting import (
    DominatedBy,
    Filter,
    GaussianFilter,
    IndividualFilter,
    RenyiFilter,
    ZcdpFilter,
    supported,
)
from dpfy.accounting.filters import Additive
from dpfy.accounting.rules import NOISES
from dpfy.ledger.individual import BOUNDS
from dpfy.types import Relation

TARGET = Path(__file__).parents[1] / "reference" / "support-matrix.md"

_OPENING = """# What can be accounted

A cell with a rule is sound for the sampler, the noise, the relation and the method of its place; a cell without one is
refused with {class}`~dpfy.errors.UnsupportedEvent`, never approximated. Rules are exact, in that some neighbouring data
sets have just the cost that PLD brackets, unless they are marked as a bound. [Sampling](../concepts/sampling.md) says
which policy to use when. This page is written from the tables that the accountants themselves look up.

"""

_EVENTS = """
A query that is answered once, such as a choice, is a step on all records: `Sampled(Poisson(1.0), (query,))`.

## Events that are no steps

"""

_GROUPS = """
## Groups of records with rates and bounds of their own

A step with `Individual` sampling has no cell of its own: there is one guarantee for each group, by the cells of
`poisson` at the rate and the bound of the group, and events without groups count for all of them. The bound of a group
multiplies that of the query. Queries other than {queries} have none: there all groups need the bound 1. Filters refuse
such steps.

"""

_FILTERS = """
## Steps that were chosen from outputs

The rules above compose lists that were fixed in advance. Adaptive steps are accounted by a filter, which looks up the
same rules for the cost of one step; [the proofs](../proofs/filters.md) say what each of them rests on.

"""

FILTERS: dict[type[Filter], str] = {
    RenyiFilter: "(ε, δ), and δ(ε) beyond it",
    ZcdpFilter: "ρ-zCDP",
    GaussianFilter: "μ-GDP, exactly",
    DominatedBy: "PLD or RDP of the committed list",
    IndividualFilter: "that of each record's own filter",
}
"""What is guaranteed."""

_REWARDS = {True: "yes", False: "no"}

_COMPARED: dict[type[Filter], tuple[str, str, str]] = {
    DominatedBy: (
        "poisson",
        "gaussian; another if it is the committed step itself",
        "where the method has a rule",
    ),
    IndividualFilter: (
        "filtered_poisson; what is aside pays for others",
        "gaussian",
        "add_or_remove_one, zero_out",
    ),
}
"""What is admitted by filters that do not add up costs of events."""


def page() -> str:
    """Return the page."""
    rows = [row for row in supported() if row.policy]
    methods = sorted({row.method for row in rows})
    references = sorted({row.reference for row in supported()})
    number = {reference: index for index, reference in enumerate(references, start=1)}
    cells = {
        (
            row.policy,
            row.noise,
            row.relation,
            row.method,
        ): f"rule {number[row.reference]}{'' if row.exact else ', a bound'}"
        for row in rows
    }
    places = [
        (policy, noise, str(relation))
        for policy, noise in sorted({(row.policy, row.noise) for row in rows})
        for relation in Relation
    ]
    table = _table(
        ("sampler", "noise", "relation", *(method.upper() for method in methods)),
        [(*place, *(cells.get((*place, method), "—") for method in methods)) for place in places],
    )
    others = _table(
        ("event", "relation", *(method.upper() for method in methods)), _events(methods, number)
    )
    rules = [
        f"{index}. {reference[0].upper()}{reference[1:]}." for reference, index in number.items()
    ]
    filters = _table(
        ("filter", "sampler", "noise", "relation", "rewards sampling", "guarantee"),
        [
            (
                f"`{rule.__name__}`",
                *admitted,
                _REWARDS.get(rule.rewards_sampling, "as its own"),
                words,
            )
            for rule, words in FILTERS.items()
            for admitted in _admitted(rule)
        ],
    )
    return (
        _OPENING
        + table
        + _EVENTS
        + others
        + "\nRules:\n\n"
        + "\n".join(rules)
        + "\n"
        + _GROUPS.format(queries=_scaled_queries())
        + _FILTERS
        + filters
    )


def _scaled_queries() -> str:
    """The noises whose queries have a bound that groups may have multiples of."""
    *most, last = sorted(NOISES[query] for query in BOUNDS)
    return f"{', '.join(most)} and {last}"


def _events(methods: list[str], number: dict[str, int]) -> list[tuple[str, ...]]:
    """Events that are no sampled steps, with the rule of each relation and method."""
    rows = [row for row in supported() if not row.policy]
    cells = {
        (
            row.noise,
            row.relation,
            row.method,
        ): f"rule {number[row.reference]}{'' if row.exact else ', a bound'}"
        for row in rows
    }
    places = [
        (event, str(relation))
        for event in sorted({row.noise for row in rows})
        for relation in Relation
    ]
    return [(*place, *(cells.get((*place, method), "—") for method in methods)) for place in places]


def _admitted(rule: type[Filter]) -> list[tuple[str, str, str]]:
    """The samplers, noises and relations whose steps the filter can admit: those of its table."""
    if not issubclass(rule, Additive):
        return [_COMPARED[rule]]
    relations: dict[tuple[str, str], set[str]] = {}
    for row in supported():
        if (
            row.policy
            and row.method == rule.rules
            and (row.noise == "gaussian" or not rule.gaussian_only)
        ):
            relations.setdefault((row.policy, row.noise), set()).add(row.relation)
    noises: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (policy, noise), found in sorted(relations.items()):
        noises.setdefault((policy, tuple(sorted(found))), []).append(noise)
    samplers: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (policy, found), kinds in sorted(noises.items()):
        samplers.setdefault((", ".join(kinds), found), []).append(policy)
    return [
        (
            ", ".join(policies),
            kinds,
            "all" if found == tuple(sorted(Relation)) else ", ".join(found),
        )
        for (kinds, found), policies in samplers.items()
    ]


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "".join(
        f"| {' | '.join(cells)} |\n" for cells in (columns, ("---",) * len(columns), *rows)
    )


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
