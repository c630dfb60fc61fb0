"""Attacks on private runs that bound ε from below, and checks of what every run promises."""

from dpfy.auditing.audit import Audit, audit_run
from dpfy.auditing.bounds import (
    Guesses,
    Trials,
    epsilon_from_trials,
    guesses_refute,
    mu_from_trials,
    one_run_epsilon,
    one_run_mu,
    trials_refute,
)
from dpfy.auditing.inputs import MadeUp, crafted, mislabelled
from dpfy.auditing.membership import (
    Membership,
    likelihood_ratio_scores,
    loss_scores,
    membership,
    owner_diagnostic,
)
from dpfy.auditing.self_test import Verdict, self_test

__all__ = [
    "Audit",
    "Guesses",
    "MadeUp",
    "Membership",
    "Trials",
    "Verdict",
    "audit_run",
    "crafted",
    "epsilon_from_trials",
    "guesses_refute",
    "likelihood_ratio_scores",
    "loss_scores",
    "membership",
    "mislabelled",
    "mu_from_trials",
    "one_run_epsilon",
    "one_run_mu",
    "owner_diagnostic",
    "self_test",
    "trials_refute",
]
