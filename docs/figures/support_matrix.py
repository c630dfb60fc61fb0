"""Write docs/reference/support-matrix.md from the rule tables: run this file after a rule was added."""

from pathlib import Path

from dpfy.accounting import supported

TARGET = Path(__file__).parents[1] / "reference" / "support-matrix.md"

_OPENING = """# What can be accounted

A cell with a rule is sound for the sampler, the relation and the method of its place; a cell without one is refused
with {class}`~dpfy.errors.UnsupportedEvent`, never approximated. The noise is Gaussian unless the rule says otherwise.
This page is written from the tables that the accountants themselves look up.

"""

_CLOSING = """
## Steps that were chosen from outputs

The rules above compose lists that were fixed in advance. Adaptive steps are accounted by a filter, which uses the same
rules for the cost of one step; [the proofs](../proofs/filters.md) say what each of them rests on.

| filter | sampling | relation | rewards sampling | guarantee |
|---|---|---|---|---|
| `RenyiFilter` | where there is an RDP rule | where there is an RDP rule | yes | (ε, δ), and δ(ε) beyond it |
| `ZcdpFilter` | poisson | all | no | ρ-zCDP |
| `GaussianFilter` | poisson | all | no | μ-GDP, exactly |
| `DominatedBy` | poisson | where the method has a rule | yes | PLD or RDP of the committed list |
"""


def page() -> str:
    """Return the page."""
    rows = supported()
    methods = sorted({row.method for row in rows})
    places = sorted({(row.policy, row.relation) for row in rows})
    references = sorted({row.reference for row in rows})
    number = {reference: index for index, reference in enumerate(references, start=1)}
    cells = {(row.policy, row.relation, row.method): number[row.reference] for row in rows}
    lines = [f"| sampler | relation | {' | '.join(method.upper() for method in methods)} |",
             f"|---|---|{'---|' * len(methods)}"]
    for policy, relation in places:
        marks = (cells.get((policy, relation, method)) for method in methods)
        lines.append(f"| {policy} | {relation} | {' | '.join(f'rule {mark}' if mark else '—' for mark in marks)} |")
    rules = [f"{index}. {reference[0].upper()}{reference[1:]}." for reference, index in number.items()]
    return _OPENING + "\n".join(lines) + "\n\nRules:\n\n" + "\n".join(rules) + "\n" + _CLOSING


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
