"""The card of a report: what stands above everything else, each fact with its meaning."""

from typing import TYPE_CHECKING, NamedTuple

from dpfy.reporting import label_words
from dpfy.reporting.basis import strict_line
from dpfy.reporting.groups import listed
from dpfy.reporting.numbers import delta_text, epsilon_text, plain
from dpfy.reporting.verdict import TIERS_MEAN, delta_caution
from dpfy.types import Unit

if TYPE_CHECKING:
    from dpfy.reporting.document import Report
    from dpfy.reporting.facts import RunFacts


class KeyFact(NamedTuple):
    """One fact on the card: its name, its value, and what it means."""

    name: str
    value: str
    meaning: str = ""

    @property
    def line(self) -> str:
        """The value and its meaning as one text."""
        return f"{self.value}. {self.meaning}" if self.meaning else self.value


def heading(facts: "RunFacts") -> str:
    """Return the title with the name of the run, once.

    >>> from dpfy.reporting import RunFacts
    >>> heading(RunFacts(name="ward 3")), heading(RunFacts(name="a", title="Privacy report: a"))
    ('Privacy report: ward 3', 'Privacy report: a')
    """
    named = facts.title == facts.name or facts.title.endswith(f": {facts.name}")
    return facts.title if named else f"{facts.title}: {facts.name}"


def headline(report: "Report") -> str:
    """Return the headline: the claim, or NOT PRIVATE."""
    interval = report.costs.headline.interval
    if not report.verdict.private or interval is None:
        return "NOT PRIVATE"
    costs = report.costs
    epsilon = listed(costs.groups) if costs.groups else epsilon_text(interval.upper)
    alone = ", for labels alone" if report.record.unit is Unit.LABEL else ""
    claim = f"ε = {epsilon} at δ = {delta_text(costs.delta)}{alone}"
    return claim if report.record.mode is None else f"{report.record.mode.budget}. {claim}"


def cautions(report: "Report") -> tuple[str, ...]:
    """Return the warnings that come before any number."""
    found = (
        *report.verdict.reasons,
        delta_caution(report.costs.delta, report.record.plan),
        ""
        if report.record.durable
        else "NOT DURABLE: the ledger was kept in memory only, so nobody can check this report "
        "later.",
        "The last line of the ledger is torn, as after a crash; it is counted as one more step "
        "spent."
        if report.record.torn_bytes
        else "",
    )
    return tuple(filter(None, found))


def key_facts(report: "Report") -> tuple[KeyFact, ...]:
    """Return the few facts that give the number its meaning."""
    record = report.record
    planned = (
        f"of {record.steps_registered or 'not registered'}"
        if report.costs.filter is None
        else f"under a {report.costs.filter.title}"
    )
    strict = strict_line(record)
    return (
        *((KeyFact("strict", strict),) if strict else ()),
        KeyFact("Unit of privacy", f"one {record.unit}"),
        KeyFact("Neighbours", str(record.relation).replace("_", " ")),
        *((KeyFact("Groups", _group_line(report)),) if report.costs.groups else ()),
        _tier(report),
        _protected(report),
        KeyFact("Steps", f"{record.steps_reserved} {planned}")
        if record.search is None
        else KeyFact("Tuning", record.search.summary),
        _key(report),
        KeyFact("Date", record.created[:10], "The day, in UTC, on which the ledger was begun."),
        *_metric(report),
    )


def _tier(report: "Report") -> KeyFact:
    number, text = report.tier.number, report.tier.text
    value = "not applicable" if number is None else f"Tier {number}"
    reason = text[len(value) + 2 :]  # what follows "Tier 2, " or "Not applicable: "
    return KeyFact("Tier", value, f"{reason[0].upper()}{reason[1:]} {TIERS_MEAN}")


def _protected(report: "Report") -> KeyFact:
    if not report.verdict.private:
        return KeyFact("Protected from", "nobody")
    if report.record.unit is Unit.LABEL:
        return KeyFact("Protected from", label_words.PROTECTED_FROM)
    if report.record.mode is not None:
        return KeyFact("Protected from", report.record.mode.protected_from)
    return KeyFact(
        "Protected from",
        "anybody who sees models (B4–B6)",
        "B4 is somebody who sees every intermediate model and noisy sum, B5 the final weights, "
        "B6 predictions. Not from those who see the data or single gradients (B1–B3).",
    )


def _key(report: "Report") -> KeyFact:
    mode = report.record.mode
    where = f"Where the random key of noise{' and samples' if mode is None else ''} came from"
    meaning = (
        f"{where}: a new one in every process, never saved. Nobody who does not have it can "
        f"subtract the noise.{f' {mode.key}' if mode is not None and mode.key else ''}"
        if report.costs.secret_key
        else f"{where}: this one is not secret, and anybody who knows it can subtract the noise."
    )
    return KeyFact("Key", report.record.key_source, meaning)


def _metric(report: "Report") -> tuple[KeyFact, ...]:
    """Return the last measurement on public data, with the step; nothing if there is none."""
    facts = report.facts
    if not facts.history:
        return ()
    step, value = max(reversed(facts.history), key=lambda each: each[0])
    share = "accuracy" in facts.metric.lower() and 0 <= value <= 1
    return (
        KeyFact(
            f"{facts.metric[:1].upper()}{facts.metric[1:]}",
            f"{100 * value:.1f} %" if share else plain(value),
            f"Measured after step {step} and declared; the ledger does not know it.",
        ),
    )


def _group_line(report: "Report") -> str:
    count, interval = len(report.costs.groups), report.costs.headline.interval
    weakest = (
        f"; one number for all is the weakest, {epsilon_text(interval.upper)}"
        if report.verdict.private and interval is not None
        else ""
    )
    return f"{count}, each with an ε of its own{weakest}"
