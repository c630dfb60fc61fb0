"""The grounds of a guarantee, as a run records them.

Each ground says whether a part of the guarantee is proved, cited, checked, declared, or only
allowed for.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """The kind of evidence behind a ground of the guarantee."""

    THEOREM = "theorem"
    CITATION = "citation"
    CHECK = "check"
    DECLARATION = "declaration"
    ALLOWANCE = "allowance"


@dataclass(frozen=True)
class Ground:
    """One ground that a guarantee rests on.

    Args:
        kind: the kind of evidence.
        key: a stable identifier.
        title: a short heading.
        text: an explanation of a sentence or two.

    >>> Ground(Kind.CHECK, "isolation", "Records do not mix", "Seen on synthetic input.").status
    'checked on synthetic input'
    """

    kind: Kind
    key: str
    title: str
    text: str

    @property
    def status(self) -> str:
        """The word that a report uses for this kind; only a theorem "holds"."""
        return {
            Kind.THEOREM: "holds",
            Kind.CITATION: "cited",
            Kind.CHECK: "checked on synthetic input",
            Kind.DECLARATION: "declared",
            Kind.ALLOWANCE: "allowed for, not proved",
        }[self.kind]

    def to_json(self) -> dict[str, str]:
        """Return the ground as plain JSON values."""
        return {**asdict(self), "kind": str(self.kind)}


def grounds_in(basis: Iterable[Mapping[str, Any]]) -> tuple[Ground, ...]:
    """Return the grounds that runs recorded, without duplicates, ordered by kind.

    A kind that this version does not know counts as an allowance, because it may mean something
    weaker than a proof.
    """
    return in_order(
        Ground(
            _kind(each.get("kind")), *(str(each.get(name, "")) for name in ("key", "title", "text"))
        )
        for facts in basis
        for each in _dicts(facts.get("grounds"))
    )


def in_order(grounds: Iterable[Ground]) -> tuple[Ground, ...]:
    """Return the grounds without duplicates, theorems first and allowances last."""
    return tuple(sorted(dict.fromkeys(grounds), key=lambda ground: list(Kind).index(ground.kind)))


def _kind(value: object) -> Kind:
    return Kind(value) if isinstance(value, str) and value in list(Kind) else Kind.ALLOWANCE


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
