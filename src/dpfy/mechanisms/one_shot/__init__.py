"""Mechanisms that answer once: noisy numbers, private choices and searches, randomized responses.

Each is a frozen declaration that names the event it costs and draws its noise exactly;
:func:`release` records the event before the data is touched. The proofs are in
``docs/proofs/one-shot.md``.

Tests: tests/mechanisms/one_shot/test_one_shot.py.
"""

from dpfy.mechanisms.one_shot.base import Mechanism, release
from dpfy.mechanisms.one_shot.choices import ExponentialMechanism, PermuteAndFlip, ReportNoisyMax
from dpfy.mechanisms.one_shot.noisy_answers import (
    DiscreteGaussian,
    Gaussian,
    Laplace,
    LaplaceVector,
    RandomizedResponse,
)
from dpfy.mechanisms.one_shot.searches import Search, SparseVector

__all__ = [
    "DiscreteGaussian",
    "ExponentialMechanism",
    "Gaussian",
    "Laplace",
    "LaplaceVector",
    "Mechanism",
    "PermuteAndFlip",
    "RandomizedResponse",
    "ReportNoisyMax",
    "Search",
    "SparseVector",
    "release",
]
