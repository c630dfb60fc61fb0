"""Events as if the samples were known, which costs at least as much.

Which records are drawn depends on no record's value.

Tests: tests/accounting/pld/test_mixtures.py.
"""

from dataclasses import replace

from dpfy.ledger.composite_events import Composed, Parallel
from dpfy.ledger.events import Event, Poisson, Sampled, TruncatedPoisson
from dpfy.ledger.selection import Selected


def as_if_known(event: Event) -> Event:
    """Return the event on all records instead of on samples that may be cut to a capacity.

    *Formal guarantee*: it costs at least what the event does, for neighbours with equally many
    records, and has no chance of a failure: given the samples, a record is in one or is not,
    whatever was cut (``docs/proofs/accounting-policies.md``, section 2).

    >>> from dpfy.ledger.events import SumQuery
    >>> as_if_known(Sampled(TruncatedPoisson(0.1, 20, 100), (SumQuery(1.0, 2.0),))).policy
    Poisson(rate=1.0)
    """
    if isinstance(event, Sampled):
        return (
            replace(event, policy=Poisson(1.0))
            if isinstance(event.policy, TruncatedPoisson)
            else event
        )
    if isinstance(event, Composed):
        return replace(event, events=tuple(map(as_if_known, event.events)))
    if isinstance(event, Parallel):
        return replace(event, parts=tuple(map(as_if_known, event.parts)))
    return replace(event, run=as_if_known(event.run)) if isinstance(event, Selected) else event
