"""The titles under which the help of commands with many options groups them.

Tests: tests/cli/test_commands.py.
"""

from collections.abc import Iterator
from typing import Any

_SETTINGS = ("config_file", "data", "data_dir", "epochs", "batch_size")
_VOTES = ("answer_noise", "check_noise", "threshold")
_QUESTIONS = ("classes", "bounds", "noise", "threshold", "check_noise")
_PANELS: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {
    ("train",): {
        "Files and output": ("config_file", "resume", "resume_if_exists", "as_json"),
    },
    ("tune",): {
        "What is searched": ("search", *_SETTINGS),
        "Budget and accounting": ("epsilon", "delta", "trials", "accounting", "law"),
        "Trials": ("score", "proposals", "storage"),
        "Interrupted and shared searches": ("resume", "share", "work", "finish"),
        "Files and output": ("name", "out", "as_json"),
    },
    ("audit",): {
        "What is audited": (*_SETTINGS, "epsilon", "public", "budget"),
        "Attack": ("canaries", "kind", "attack", "guesses", "confidence"),
        "Self-test": ("self_test", "quick"),
        "Files and output": ("out", "as_json"),
    },
    ("plan",): {
        "Quantities: leave one open": (
            "epsilon",
            "delta",
            "noise_multiplier",
            "rate",
            "batch_size",
            "steps",
            "epochs",
            "records",
        ),
        "Curves": ("rates", "batch_sizes", "clip", "plot"),
        "Accounting and output": ("method", "relation", "as_json"),
    },
    ("synth",): {
        "Budget": ("epsilon", "delta"),
        "Method": ("method", "target"),
        "Columns": ("schema", "bins", "whole"),
        "Files and output": ("out", "rows"),
    },
    ("plan", "strategy"): {
        "Public trials": ("public", "model", "data_dir", "small_batch", "steps", "learning_rate"),
        "Private run": ("records", "epsilon", "delta", "batch_size", "epochs"),
        "Search": ("noise_multiplier", "utility"),
    },
    ("plan", "pate"): {
        "Budget and accounting": ("epsilon", "delta", "budgets", "relation"),
        "Teachers and votes": ("classes", "parts", "mechanism", "method", *_VOTES),
        "Files and output": ("as_json",),
    },
    ("plan", "predictions"): {
        "Budget": ("epsilon", "delta", "answers", "trained_epsilon"),
        "Teachers and votes": ("parts", *_QUESTIONS),
        "Files and output": ("as_json",),
    },
    ("pate",): {
        "Data and teachers": ("data", "data_dir", "parts", "workers"),
        "Budget": ("epsilon", "delta"),
        "Votes": ("mechanism", *_VOTES),
        "Files and output": ("out",),
    },
    ("predict",): {
        "Budget": ("epsilon", "delta", "ledger", "partial"),
        "Teachers and votes": ("format", *_QUESTIONS),
        "Files and output": ("out",),
    },
    ("serve",): {
        "Budget": ("epsilon", "delta", "ledger"),
        "Teachers and votes": ("format", "shape", *_QUESTIONS),
        "Server": ("token", "host", "port", "workers"),
        "Limits": ("body", "rows", "rate"),
    },
    ("budget", "create"): {
        "Budget": ("epsilon", "delta", "unit", "relation", "tranche", "part", "reference"),
        "Book and output": ("book", "description", "as_json"),
    },
    ("budget", "serve"): {
        "Server": ("book", "host", "port"),
        "Encryption": ("certfile", "keyfile", "behind_proxy"),
        "Limits": ("body", "rate"),
    },
    ("plan", "correlated"): {
        "Private run": ("records", "batch_size", "epochs", "epsilon", "delta", "relation"),
        "Optimizer": ("momentum", "decay"),
        "Comparison and output": ("objective", "buffers", "as_json"),
    },
}


def group_options(commands: Iterator[tuple[tuple[str, ...], Any]]) -> None:
    """Put the options of commands under their titles; what has one already keeps it."""
    for path, command in commands:
        titles = {name: title for title, names in _PANELS.get(path, {}).items() for name in names}
        for parameter in command.params:
            if parameter.name in titles:
                parameter.rich_help_panel = titles[parameter.name]
