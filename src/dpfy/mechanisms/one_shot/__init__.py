"""Mechanisms that answer once: noisy numbers, private choices and searches, randomized responses.

Each is a frozen declaration that names the event it costs and draws its noise exactly;
:func:`release` records the event before the data is touched. The proofs are in
``docs/proofs/one-shot.md``.

:mod:`dpfy.mechanisms.one_shot.personalised` has counts, means and medians of records whose groups
have budgets of their own.

Tests: tests/mechanisms/one_shot/test_one_shot.py.
"""

from dpfy.mechanisms.one_shot.base import Mechanism, release
from dpfy.mechanisms.one_shot.budgets import Budgets, best_bins, best_threshold
from dpfy.mechanisms.one_shot.choices import ExponentialMechanism, PermuteAndFlip, ReportNoisyMax
from dpfy.mechanisms.one_shot.grouped import (
    PersonalisedChoice,
    PersonalisedParts,
    PersonalisedSample,
    release_personalised,
)
from dpfy.mechanisms.one_shot.noisy_answers import (
    DiscreteGaussian,
    Gaussian,
    Laplace,
    LaplaceVector,
    RandomizedResponse,
)
from dpfy.mechanisms.one_shot.searches import Search, SparseVector

__all__ = [
    "Budgets",
    "DiscreteGaussian",
    "ExponentialMechanism",
    "Gaussian",
    "Laplace",
    "LaplaceVector",
    "Mechanism",
    "PermuteAndFlip",
    "PersonalisedChoice",
    "PersonalisedParts",
    "PersonalisedSample",
    "RandomizedResponse",
    "ReportNoisyMax",
    "Search",
    "SparseVector",
    "best_bins",
    "best_threshold",
    "release",
    "release_personalised",
]
