"""Describe which mechanism runs and how it is configured: sampling, clipping, queries, releases.

Tests: tests/test_imports.py.
"""

from dpfy._lazy import exports

__getattr__, __all__ = exports(
    __name__,
    {
        "gaussian_sum": ("GaussianSum",),
        "groups": ("clip_automatically", "clip_groups", "clip_jointly", "composed_multiplier"),
        "one_shot": (
            "DiscreteGaussian",
            "ExponentialMechanism",
            "Gaussian",
            "Laplace",
            "LaplaceVector",
            "PermuteAndFlip",
            "RandomizedResponse",
            "ReportNoisyMax",
            "SparseVector",
            "release",
        ),
        "query": (
            "ClippedSum",
            "Contributing",
            "NormOfSum",
            "NormalisedSum",
            "Query",
            "RecordNormsBelow",
            "SampleSize",
            "Statistic",
            "SumOfRecordNorms",
        ),
        "statistics": ("soft_accuracy",),
    },
)
