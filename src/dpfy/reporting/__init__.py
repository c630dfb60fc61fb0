"""The privacy report of a run, from the ledger's facts and declared ones, without torch."""

from dpfy.reporting.document import Report, report
from dpfy.reporting.facts import RunFacts

__all__ = ["Report", "RunFacts", "report"]
