"""The tables of a report in words, shared by all formats so that no two can disagree.

Tests: tests/reporting/test_formats.py.
"""

from typing import TYPE_CHECKING

from dpfy.ledger.events import canonical_json
from dpfy.reporting.attacks import FALSE_ALARM
from dpfy.reporting.basis import NOT_RECORDED, environment_rows
from dpfy.reporting.costs import METHODS, Claim, Scope, thinned
from dpfy.reporting.groups import group_table
from dpfy.reporting.numbers import (
    bracket_text,
    delta_text,
    epsilon_text,
    most_text,
    percent_text,
    plain,
    share_text,
)
from dpfy.reporting.plan_words import plan_rows
from dpfy.reporting.statement import METHOD_NAMES, Item, scope_name
from dpfy.reporting.table import Table
from dpfy.types import Unit

if TYPE_CHECKING:
    from dpfy.reporting.document import Report

_CURVE_ROWS = 6


def tables(report: "Report") -> tuple[Table, ...]:
    """Return all tables in reading order."""
    facts = report.facts
    declared = tuple(
        (name, value)
        for name, value in (
            ("Data set", facts.dataset),
            ("One record", facts.record),
            ("Model", facts.model),
            ("Released", facts.released),
            ("Public data", facts.public_data),
            ("Hyper-parameters chosen", facts.hyperparameter_selection),
            *(
                (f"Hyper-parameter {name}", plain(value))
                for name, value in facts.hyperparameters.items()
            ),
        )
    )
    return (
        group_table(
            report.costs.groups, report.costs.delta, report.record.unit, report.verdict.private
        ),
        _epsilons(report),
        *((_other_relations(report),) if report.costs.adjacency else ()),
        *_attack_tables(report),
        Table(
            "Statement",
            ("Item", "Guide §5.3.3", "Answer"),
            tuple((item.title, item.guide, item.text) for item in report.statement),
        ),
        Table(
            "Assumptions",
            ("Assumption", "Status", "How that is known"),
            _with_status(report.assumptions),
            "The guarantee is as good as what it rests on.",
        ),
        *_basis(report),
        Table(
            "Whom it protects from",
            ("Question", "Guide", "Answer"),
            (
                *((item.title, item.guide, item.text) for item in report.protection),
                ("Tier", "§5.2.1", report.tier.text),
            ),
        ),
        Table(
            "What is not covered",
            ("What", "Why"),
            tuple((item.title, item.text) for item in report.exclusions),
        ),
        Table(
            "The plan",
            ("Public constant", "Value"),
            plan_rows(report.record.plan),
            "From the ledger's header.",
        ),
        Table(
            "Declared facts",
            ("Fact", "Value"),
            declared,
            "Stated by the people who made the run; a ledger cannot know them.",
        ),
        Table("The ledger", ("Fact", "Value"), _ledger_rows(report)),
        _odometer(report),
        _curve(report),
        _history(report),
    )


def _basis(report: "Report") -> tuple[Table, ...]:
    """Return the grounds of the guarantee, and where it was computed."""
    rows = tuple(
        (str(ground.kind), ground.title, ground.status, ground.text) for ground in report.basis
    )
    missing = "" if report.record.basis else f" {NOT_RECORDED}"
    return (
        Table(
            "What it rests on",
            ("Kind", "What", "Status", "How that is known"),
            rows,
            "What the run recorded in the ledger, beside what is true of the library. Only a "
            "theorem holds; a check was made on synthetic input, and an allowance is in the noise "
            f"without a proof that it suffices.{missing}",
        ),
        Table(
            "Where it was computed",
            ("Fact", "Value"),
            environment_rows(report.record),
            "From the ledger.",
        ),
    )


def _with_status(items: tuple[Item, ...]) -> tuple[tuple[str, ...], ...]:
    return tuple((item.title, item.status, item.text) for item in items)


def _epsilons(report: "Report") -> Table:
    costs = report.costs
    methods = tuple(dict.fromkeys(claim.method for claim in costs.claims))
    scopes = [
        scope
        for scope in (Scope.REGISTERED, Scope.RESERVED, Scope.FILTER, Scope.ONE_TRIAL)
        if any(claim.scope is scope for claim in costs.claims)
    ]
    rows = []
    for scope in scopes:
        by_method = {claim.method: claim for claim in costs.claims if claim.scope is scope}
        steps = (
            "any"
            if scope is Scope.FILTER
            else str(max(claim.steps for claim in by_method.values()))
        )
        rows.append(
            (scope_name(scope), steps, *(_cell(by_method.get(method)) for method in methods))
        )
    without = costs.without_sampling
    rows.append(
        (
            scope_name(without.scope),
            str(without.steps) if costs.filter is None else "any",
            _cell(without),
            *("–" for _ in methods[1:]),
        )
    )
    void = "" if report.verdict.private else "NOT PRIVATE: the numbers below are no guarantee. "
    entitled = (
        "If a run stops early after looking at outputs, only the ε of all registered steps holds."
        if costs.filter is None
        else "It is the filter's limit, fixed before the first step: how much of it a run uses "
        "changes nothing."
    )
    return Table(
        f"ε at δ = {delta_text(costs.delta)}",
        ("Scope", "Steps", *(METHOD_NAMES[m] for m in methods)),
        tuple(rows),
        f"{void}Each ε is rounded up; the bracket shows the certified interval. {entitled}",
    )


def _other_relations(report: "Report") -> Table:
    rows = tuple(
        (
            str(each.relation).replace("_", " "),
            each.note if each.epsilon is None else epsilon_text(each.epsilon),
        )
        for each in report.costs.adjacency
    )
    return Table(
        "The same steps for other neighbours",
        ("Neighbours", "ε, or why there is none"),
        rows,
        f"At the same δ, by PLD. The claim is for {str(report.record.relation).replace('_', ' ')}.",
    )


def _attack_tables(report: "Report") -> tuple[Table, ...]:
    """Return the bounds on attacks in words; nothing where there is no guarantee."""
    attacks = report.costs.attacks
    if attacks is None or not report.verdict.private:
        return ()
    unit = f"one {report.record.unit}"
    question = "has a certain value" if report.record.unit is Unit.LABEL else "took part"
    tests = (
        (
            f"Most that telling whether {unit} {question} gains over blind guessing (advantage)",
            most_text(attacks.advantage),
        ),
        (
            f"True positive rate at a false positive rate of {share_text(FALSE_ALARM)}",
            most_text(attacks.true_positives),
        ),
        (
            "μ of the least Gaussian mechanism that is no better",
            f"{epsilon_text(attacks.mu)} (down to δ = {delta_text(attacks.mu_floor)})",
        ),
    )
    beliefs = tuple(
        (share_text(each.prior), most_text(each.right), most_text(each.accused_rightly))
        for each in attacks.beliefs
    )
    hits = tuple(
        (share_text(each.baseline), most_text(each.success)) for each in attacks.reconstruction
    )
    return (
        Table(
            "What is left to an attacker",
            ("Bound", "Value"),
            tests,
            "For an attacker who sees all that was released and knows all the other data; from "
            "the certified trade-off curve.",
        ),
        Table(
            "What an attacker's belief can become",
            ("Believed before", "Right at best", "Of those accused, rightly"),
            beliefs,
            f"The belief that {unit} {question}. Right at best: share of right decisions. Accused: "
            f"at a false positive rate of {share_text(FALSE_ALARM)}.",
        ),
        Table(
            "Reconstruction",
            ("Lucky guess without the release", "Success with it, at most"),
            hits,
            f"For every definition of having reconstructed {unit} that a guess without the release "
            "meets with the probability in the first column.",
        ),
    )


def _odometer(report: "Report") -> Table:
    """Return how far a run under a filter has come, in words that are no guarantee."""
    reading = report.costs.reading
    rows = (
        ()
        if reading is None
        else (
            ("Steps reserved", str(reading.steps)),
            ("Share of the filter that is spent", percent_text(reading.used)),
            (
                "What these steps would cost, had they been fixed in advance (they were not)",
                epsilon_text(reading.if_fixed_in_advance),
            ),
        )
    )
    return Table(
        "Odometer: readings, not guarantees",
        ("Reading", "Value"),
        rows,
        "How far the run has come. Nothing here may be claimed: steps that are chosen from outputs "
        "can be chosen such that every list of them costs less than the choice does.",
    )


def _cell(claim: Claim | None) -> str:
    if claim is None or claim.interval is None:
        return "no rule"
    return bracket_text(claim.interval)


def _ledger_rows(report: "Report") -> tuple[tuple[str, str], ...]:
    record = report.record
    return (
        ("File", record.file or "none (in memory)"),
        ("Head hash (SHA-256)", record.head_hash),
        ("Lines", str(record.lines)),
        ("Durable", plain(record.durable) if record.durable else "no: NOT DURABLE"),
        (
            "Torn last line",
            f"{record.torn_bytes} bytes, counted as one step" if record.torn_bytes else "none",
        ),
        ("Steps registered", str(record.steps_registered or "none")),
        ("Steps reserved", str(record.steps_reserved)),
        ("Begun", record.created),
        ("Written by", f"dpfy {record.written_by}"),
        ("Accounted by", f"dpfy {record.read_by}"),
        ("Key source", record.key_source),
        ("Guard", canonical_json(record.guard).decode()),
        ("Numerical δ", delta_text(report.costs.numerical_delta)),
    )


def _curve(report: "Report") -> Table:
    """Return a few rows of the curve, including the last one."""
    curve = report.costs.curve
    last = len(curve.steps) - 1
    chosen = (
        sorted({round(last * row / _CURVE_ROWS) for row in range(1, _CURVE_ROWS + 1)})
        if last > 0
        else []
    )
    methods = [method for method in METHODS if method in curve.epsilons]
    return Table(
        "ε over steps",
        ("Steps", *(METHOD_NAMES[method] for method in methods)),
        tuple(
            (
                str(curve.steps[index]),
                *(epsilon_text(curve.epsilons[method][index]) for method in methods),
            )
            for index in chosen
        ),
    )


def _history(report: "Report") -> Table:
    """Return the declared metric with the ε spent when it was measured; a filter has no such ε."""
    costs, values = report.costs, dict(report.facts.history)
    title, steps = f"Metric on public data: {report.facts.metric}", thinned(sorted(values))
    if costs.filter is not None:
        return Table(
            title, ("Steps", "Value"), tuple((str(step), plain(values[step])) for step in steps)
        )
    return Table(
        title,
        ("Steps", "ε spent", "Value"),
        tuple(
            (
                str(step),
                epsilon_text(costs.curve.at(step, costs.headline.method)),
                plain(values[step]),
            )
            for step in steps
        ),
    )
