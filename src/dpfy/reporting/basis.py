"""The grounds of a guarantee: proved, cited, checked, declared or allowed for."""

import re
from collections.abc import Iterator
from typing import Any

from dpfy.accounting import Filter, supported
from dpfy.accounting.filters import Additive
from dpfy.accounting.individual_filter import IndividualFilter
from dpfy.ledger.basis import Ground, Kind, grounds_in, in_order
from dpfy.ledger.events import Poisson
from dpfy.ledger.individual import Individual
from dpfy.reporting.numbers import plain
from dpfy.reporting.record import LedgerRecord

NO_ALLOWANCE = "no allowance is part of this guarantee"
NOT_RECORDED = (
    "Not recorded: no run has written to this ledger what it rests on. Older versions did not, and "
    "mechanisms outside of a run do not."
)
_NAMES_A_PAPER = re.compile(r"\b(19|20)\d\d\b")
_CIPHER = (
    "That nobody tells the key stream of AES-256 in counter mode (FIPS 197, NIST SP 800-38A), or "
    "of ChaCha20 (RFC 8439), from random numbers is cited, not proved; the guarantee is "
    "computational in this sense (Mironov, Pandey, Reingold & Vadhan 2009)."
)


def grounds(record: LedgerRecord, rule: Filter | None) -> tuple[Ground, ...]:
    """List what the guarantee of a ledger rests on: theorems first, allowances last.

    Sampling, noise, accounting and the ledger are the library's for every run; the rest is what
    runs recorded.
    """
    return in_order(
        [*_of_the_library(record), *_of_the_accounting(record, rule), *grounds_in(record.basis)]
    )


def strict_line(record: LedgerRecord) -> str | None:
    """Return what a report may say about a strict ledger; None for others."""
    if not record.strict:
        return None
    if not record.basis:
        return "declared; no run has recorded yet what it rests on"
    allowed = [ground.title for ground in grounds_in(record.basis) if ground.kind is Kind.ALLOWANCE]
    return (
        f"declared, but the ledger records allowances: {'; '.join(allowed)}"
        if allowed
        else NO_ALLOWANCE
    )


def environment_rows(record: LedgerRecord) -> tuple[tuple[str, str], ...]:
    """Return the machines and software that runs recorded; several values where they differ."""
    values: dict[str, dict[str, None]] = {}
    for facts in record.basis:
        environment = facts.get("environment")
        for name, value in {
            "engine": facts.get("engine"),
            **(environment if isinstance(environment, dict) else {}),
        }.items():
            values.setdefault(str(name), {})[_text(value)] = None
    return tuple((name.replace("_", " "), " / ".join(found)) for name, found in values.items())


def cited(record: LedgerRecord, rule: Filter | None) -> Iterator[tuple[str, str, str, str]]:
    """Yield method, policy, noise and reference of every rule that accounts for a ledger."""
    if isinstance(rule, IndividualFilter):
        rule = rule.each
    kinds = {(_accounted_as(policy), noise) for policy, noise in record.kinds}
    for row in supported():
        if row.relation != record.relation or (
            isinstance(rule, Additive) and row.method != rule.rules
        ):
            continue
        if (row.policy, row.noise) in kinds:
            yield row.method, row.policy, row.noise, row.reference
        for stream, policy in record.streams:
            if (row.policy, row.noise) == ("", stream):
                yield row.method, policy, "correlated gaussian", row.reference


def _accounted_as(policy: str) -> str:
    """Return the policy whose rules account for another: a group is drawn as by Poisson."""
    return Poisson.tag if policy == Individual.tag else policy


def _of_the_library(record: LedgerRecord) -> Iterator[Ground]:
    yield Ground(
        Kind.THEOREM,
        "sampling",
        "Samples have the law that is accounted",
        "Events are named by the sampler that draws: docs/proofs/sampling.md.",
    )
    yield Ground(
        Kind.THEOREM,
        "noise",
        "Noise on a computer is as good as real noise",
        "Sums and noise are on one lattice, and what rounding adds is in the noise scale: "
        "docs/proofs/gaussian-sum.md, docs/proofs/lattice-noise.md.",
    )
    if record.streams:
        yield Ground(
            Kind.THEOREM,
            "rows",
            "Rows of a stream cost what it does, also if its noise was begun anew",
            "What rounding adds is in the noise scale: docs/proofs/streams.md, Lemmas 6 and 7.",
        )
    if record.durable:
        yield Ground(
            Kind.THEOREM,
            "ledger",
            "The ledger counts at least what was released",
            "Given storage that keeps what it acknowledged: docs/proofs/ledger.md.",
        )
    yield Ground(Kind.CITATION, "cipher", "The key stream looks random", _CIPHER)


def _of_the_accounting(record: LedgerRecord, rule: Filter | None) -> Iterator[Ground]:
    yield Ground(
        Kind.THEOREM,
        "composition",
        "Costs are composed with every error against us",
        "Discretisation, truncation and rounding are in the upper bound: "
        "docs/proofs/accounting-pld.md, docs/proofs/accounting-rdp.md.",
    )
    if rule is not None:
        yield _referred(
            "filter", f"The limit of a {rule.title} bounds whatever it admits", rule.reference
        )
    if Individual.tag in record.policies:
        yield _referred(
            "groups",
            "A group costs what it would cost if all records were in it",
            "the other records are held fixed, whatever their rates and bounds are: Boenisch, "
            "Mühl, Dziedzic, Rinberg & Papernot 2023",
        )
    for method, policy, noise, reference in cited(record, rule):
        yield _referred(
            f"{method}_{policy}_{noise}",
            f"{method.upper()} of {noise} noise under {policy} sampling",
            reference,
        )


def _referred(key: str, title: str, reference: str) -> Ground:
    """Return the ground for an accounting rule: a citation if it names a paper, else a theorem."""
    kind = Kind.CITATION if _NAMES_A_PAPER.search(reference) else Kind.THEOREM
    return Ground(kind, key.replace(" ", "_"), title, f"{reference[:1].upper()}{reference[1:]}.")


def _text(value: Any) -> str:
    return (
        "; ".join(map(str, value))
        if isinstance(value, list)
        else plain(value)
        if value is not None
        else "none"
    )
