"""Sentences about a search for settings that a ledger records."""

from dataclasses import dataclass
from typing import Any, Self

from dpfy.ledger.composite_events import Composed
from dpfy.ledger.events import Envelope, Event, NonPrivate
from dpfy.ledger.selection import NegativeBinomialTrials, PoissonTrials, Selected, Trials
from dpfy.reporting.numbers import plain

RULE = (
    "Private selection: docs/proofs/private-selection.md, Theorem 1 (PLD), Theorems 2 and 3 (RDP); "
    "Papernot & Steinke 2022."
)
_SECRET = (
    "how many there were, and what the others released, is in no line of the ledger and has to "
    "stay secret"
)


@dataclass(frozen=True)
class Search:
    """One or several searches on record.

    Args:
        run: one trial, if all trials are alike, else None.
        laws: the laws of secret numbers of trials; empty for a composition, whose trials are
            counted one by one.
        alone: whether nothing else is on record.
        charged: whether an interruption was paid for.
        void: why an interruption was not paid for, if it was not.
    """

    run: Event | None
    laws: tuple[Trials, ...]
    alone: bool
    charged: bool = False
    void: str = ""

    @classmethod
    def of(
        cls,
        registered: Envelope,
        reserved: Envelope,
        interruptions: Envelope,
        plan: dict[str, Any] | None,
    ) -> Self | None:
        """Return the search of a ledger; None if there is none."""
        charges = [run.event for run in interruptions]
        events = dict.fromkeys(
            run.event for run in (*registered, *reserved) if run.event not in charges
        )
        searches = [event for event in events if isinstance(event, Selected)]
        if searches:
            lost = [event.reason for event in charges if isinstance(event, NonPrivate)]
            runs = {event.run for event in searches}
            return cls(
                runs.pop() if len(runs) == 1 else None,
                tuple(event.trials for event in searches),
                len(events) == len(searches),
                bool(charges) and not lost,
                _void(lost[0]) if lost else "",
            )
        if isinstance(plan, dict) and isinstance(plan.get("tuning"), dict) and len(events) == 1:
            return cls(next(iter(events)), (), alone=True)
        return None

    @property
    def _laws(self) -> str:
        return "; ".join(law_words(law) for law in self.laws)

    @property
    def output(self) -> str:
        """The covered output of the mechanism."""
        if not self.laws:
            return (
                "the sequence of noisy sums of all trials and hence every model computed from them"
            )
        trials = (
            "everything that any trial of the interrupted search released"
            if self.charged
            else "what the best of a secret number of trials released (its settings, its noisy "
            "sums and hence its model)"
        )
        return trials if self.alone else f"{trials} and the noisy sums of all other recorded steps"

    @property
    def reads(self) -> str:
        """The covered reads of private records."""
        return "all trials of the search, whichever was chosen" + (
            "" if self.alone else ", and by all other steps that this ledger reserved"
        )

    @property
    def summary(self) -> str:
        """The search in a few words."""
        if not self.laws:
            return "included: all trials are counted"
        return (
            "did not end: no model was chosen"
            if self.charged or self.void
            else f"included: the best of a secret number of trials ({self._laws})"
        )

    def statement(self, claim: str | None, one_trial: str | None) -> str:
        """Return what holds for the choice, given the claims as texts.

        A claim is None where there is no guarantee.
        """
        beside = (
            ""
            if one_trial is None
            else (
                " One trial alone, had its settings been fixed in advance, would be "
                f"{one_trial}-differentially private; that is no guarantee for a model that was "
                "chosen."
            )
        )
        if self.void:
            return self.void + beside
        if claim is None:
            return (
                "There is no guarantee for the choice, as there is none for anything here." + beside
            )
        if not self.laws:
            return (
                "The choice is covered: all trials are counted, so whichever was chosen, and "
                f"however, the search with its model is {claim}-differentially private.{beside}"
            )
        if self.charged:
            return (
                "The search was interrupted, so that any of its trials may have been seen. Each "
                "is charged as if it had been released, beside the search itself: everything that "
                f"they showed is together {claim}-differentially private, given the number of "
                "trials that was drawn, which has nothing to do with the data; that may be more "
                "than the budget of the search. No model was chosen, and the search cannot go "
                f"on.{beside}"
            )
        return (
            "The choice is covered: the model that the search chose, with its settings, is "
            f"{claim}-differentially private, which counts the trials that lost, the choice and "
            f"the model. It was chosen among a secret number of independent trials ({self._laws}); "
            f"{_SECRET}.{beside}"
        )

    @property
    def secrecy(self) -> str | None:
        """The assumptions about the people who ran a selection; None if all trials are paid for."""
        if not self.laws or self.charged or self.void:
            return None
        return (
            "The number of trials, the other trials and all scores stay with whoever ran the "
            "search, and trials are independent and alike. 'dpfy tune' says and writes nothing for "
            "each trial, drops what code inside says and dates all files alike; how long the "
            "search took it cannot hide."
        )


def law_words(law: Trials) -> str:
    """Return the law of the number of trials in words.

    >>> law_words(NegativeBinomialTrials.with_mean(10.0)), law_words(PoissonTrials(3.0))
    ('geometric law of mean 10', 'Poisson law of mean 3')
    """
    name = "Poisson" if isinstance(law, PoissonTrials) else law.tag
    if isinstance(law, NegativeBinomialTrials):
        name = {1.0: "geometric", 0.0: "logarithmic"}.get(
            law.shape, f"negative binomial ({plain(law.shape)})"
        )
    return f"{name} law of mean {plain(law.mean)}"


def leaves(event: Event) -> tuple[Event, ...]:
    """Return the distinct events that an event is made of."""
    inner = (
        (event.run,)
        if isinstance(event, Selected)
        else event.events
        if isinstance(event, Composed)
        else ()
    )
    return (
        tuple(dict.fromkeys(leaf for each in inner for leaf in leaves(each))) if inner else (event,)
    )


def _void(reason: str) -> str:
    return (
        f"Nothing holds for the search: the ledger has {reason}. While it runs nothing may be "
        "claimed. If its process was lost, 'dpfy tune --resume' charges each of its trials as if "
        "it had been released, and a report says what holds then; if their number is lost as "
        "well, there is no guarantee."
    )
