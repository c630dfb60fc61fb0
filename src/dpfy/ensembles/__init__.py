"""Ask teachers that learnt from a part of the records each, and answer by their noisy votes.

Tests: tests/test_imports.py.
"""

from dpfy._lazy import exports

__getattr__, __all__ = exports(
    __name__,
    {
        "linear": ("LinearPredictor", "train_linear"),
        "parts": ("Partition",),
        "pate": ("Pate", "pate"),
        "prediction_folder": ("open_predictor",),
        "predictor": ("PrivatePredictor",),
        "predictors": ("FittedAttributes", "ModulePredictor", "ModuleState", "Predictor"),
        "student": ("semi_supervised", "spread_labels"),
        "teachers": ("Teachers",),
        "votes": ("count_votes",),
    },
)
