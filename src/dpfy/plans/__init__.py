"""Say what will run before any record is read: frozen, serialisable plans.

Tests: tests/plans/test_plan.py.
"""

from dpfy.plans.dpftrl import dpftrl
from dpfy.plans.dpis import dpis
from dpfy.plans.dpsgd import dpsgd
from dpfy.plans.idpsgd import idpsgd
from dpfy.plans.plan import Plan

__all__ = ["Plan", "dpftrl", "dpis", "dpsgd", "idpsgd"]
