"""An audit as one HTML page: the ledger's guarantee and what the attack reached.

Tests: tests/auditing/test_audit.py.
"""

import html
import json
from pathlib import Path

from dpfy.auditing.audit import Audit
from dpfy.auditing.bounds import confidence_band
from dpfy.reporting.drawing import FIRST, INK, SECOND, axes_of, drawing, svg_of
from dpfy.reporting.page import STYLE


def write(audit: Audit, folder: Path) -> Path:
    """Write ``audit.html`` and ``audit.json`` to a folder and return the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "audit.json").write_text(
        json.dumps(audit.to_json(), indent=2) + "\n", encoding="utf-8"
    )
    page = folder / "audit.html"
    page.write_text(render(audit), encoding="utf-8")
    return page


def render(audit: Audit) -> str:
    """Return the page."""
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in facts(audit)
    )
    basis = "".join(
        "<tr>"
        + "".join(
            f"<td>{html.escape(cell)}</td>"
            for cell in (ground.kind, ground.title, ground.status, ground.text)
        )
        + "</tr>"
        for ground in audit.basis
    )
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            "<title>Privacy audit</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body>",
            "<main>",
            f'<header class="{"bad" if audit.refuted else "good"}"><h1>Privacy audit</h1>'
            f'<p class="{"void" if audit.refuted else "number"}">{html.escape(headline(audit))}</p>'
            f"<p>{html.escape(explanation(audit))}</p></header>",
            '<section class="figures">',
            f"<figure>{_bounds(audit)}<figcaption>What may be claimed, and what canaries "
            "betrayed.</figcaption></figure>",
            f"<figure>{_tradeoff(audit)}<figcaption>{_tradeoff_caption(audit)}</figcaption></figure>",
            "</section>",
            f"<table><tbody>{rows}</tbody></table>",
            "<section><h2>What the claim rests "
            f"on</h2><table><tbody>{basis}</tbody></table></section>",
            "</main>",
            "</body>",
            "</html>",
            "",
        )
    )


def headline(audit: Audit) -> str:
    """Return the result in one line."""
    if audit.refuted:
        return "The canaries betray more than the ledger allows"
    return f"{audit.epsilon_lower:.2f} ≤ ε ≤ {audit.epsilon_claimed:.2f} at δ = {audit.delta:g}"


def explanation(audit: Audit) -> str:
    """Return what the numbers mean."""
    if audit.refuted:
        return (
            "A correct pipeline does this with a probability below one in a million: something "
            "between sampling, clipping, noise and ledger is not as it says. `dpfy audit "
            "--self-test` shows which promise is broken."
        )
    return (
        f"The upper bound is proved by the ledger. The lower one holds with {audit.confidence:.0%} "
        "confidence: no better guarantee could be true of this pipeline. The gap is what this "
        "attack could not reach, not slack that could be claimed."
    )


def facts(audit: Audit) -> list[tuple[str, str]]:
    """Return all numbers with names that people understand."""
    guesses, trials = audit.guesses, audit.trials
    by_trials = (
        []
        if trials is None
        else [
            ("ε from trials (Clopper–Pearson)", f"{audit.epsilon_trials:.4f}"),
            ("μ from trials", f"{audit.mu_trials:.4f}"),
            (
                "trials",
                f"{trials.false_positives} of {trials.absent} absent canaries taken for present, "
                f"{trials.false_negatives} of {trials.present} present ones missed",
            ),
        ]
    )
    return [
        ("attack", audit.setting),
        ("claimed ε (ledger)", f"{audit.epsilon_claimed:.4f}"),
        ("ε from one run (Steinke et al. 2023)", f"{audit.epsilon_one_run:.4f}"),
        ("ε if it is a Gaussian mechanism", f"{audit.gaussian_lower:.4f}"),
        ("μ from one run (Mahloujifar et al. 2024)", f"{audit.mu_one_run:.4f}"),
        (
            "guesses",
            f"{guesses.correct} of {guesses.made} right, about {guesses.canaries} canaries",
        ),
        *by_trials,
    ]


def _bounds(audit: Audit) -> str:
    bars = {
        "ledger: at most": audit.epsilon_claimed,
        "attack, if Gaussian": audit.gaussian_lower,
        "attack, one run": audit.epsilon_one_run,
    }
    if audit.trials is not None:
        bars["attack, as trials"] = audit.epsilon_trials
    names, values = list(bars), list(bars.values())
    with drawing():
        figure, axes = axes_of(f"ε at δ = {audit.delta:g}", "")
        axes.barh(names[::-1], values[::-1], color=[SECOND] * (len(bars) - 1) + [FIRST], height=0.6)
        return svg_of(figure, "bounds", "upper bound by the ledger and lower bounds by the attack")


def _tradeoff(audit: Audit) -> str:
    with drawing():
        figure, axes = axes_of("false positive rate", "false negative rate")
        axes.plot(
            audit.claimed.fpr, audit.claimed.fnr, color=FIRST, label="ledger: no attack is below"
        )
        if audit.trials is not None:
            lower, upper = confidence_band(
                audit.attack, audit.trials.absent, audit.trials.present, audit.confidence
            )
            axes.fill_between(
                lower.fpr,
                lower.fnr,
                upper.fnr,
                color=SECOND,
                alpha=0.18,
                linewidth=0,
                label=f"{audit.confidence:.0%} confidence",
            )
        axes.plot(
            audit.attack.fpr, audit.attack.fnr, color=SECOND, linestyle="--", label="this attack"
        )
        axes.plot([0, 1], [1, 0], color=INK, linewidth=1, linestyle=":", label="guessing blindly")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.legend(loc="best")
        return svg_of(figure, "tradeoff", "false negative over false positive rates")


def _tradeoff_caption(audit: Audit) -> str:
    """Say what the figure shows, and why there may be no band."""
    band = (
        "There is no confidence band: these canaries are not independent of each other."
        if audit.trials is None
        else f"The band holds the attack's true errors, at all rates at once, with "
        f"{audit.confidence:.0%} confidence."
    )
    return f"Errors of any attack, as the ledger bounds them, and of this one. {band}"
