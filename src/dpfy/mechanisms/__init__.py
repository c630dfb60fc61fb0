"""Describe which mechanism runs and how it is configured: sampling, clipping, queries, releases.

Tests: tests/test_imports.py.
"""

from dpfy._lazy import exports

__getattr__, __all__ = exports(
    __name__,
    {
        "controllers": (
            "AdaClip",
            "ClipSchedule",
            "Controller",
            "GradientNormNoise",
            "MeanNormClipping",
            "NormSumSampling",
            "QuantileClipping",
            "RecipeControlled",
            "Schedule",
            "ValidationDecay",
            "convex_decay",
            "dynamic_decay",
            "exponential_decay",
            "named_schedule",
            "polynomial_decay",
            "step_decay",
            "strongly_convex_decay",
            "time_decay",
        ),
        "gaussian_sum": ("GaussianSum",),
        "groups": (
            "clip_automatically",
            "clip_groups",
            "clip_jointly",
            "composed_multiplier",
            "stages",
        ),
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
        "sampling": (
            "CyclicPoissonSampler",
            "EpochSampler",
            "FixedOrderSampler",
            "FixedSizeSampler",
            "IndividualSampler",
            "PoissonSampler",
            "Sampler",
            "TruncatedPoissonSampler",
            "sampler_for",
        ),
        "statistics": ("soft_accuracy",),
        "strategies": ("banded", "blt", "independent", "square_root", "tree"),
        "tree_estimates": ("estimate_prefix_sums",),
        "trials": ("draw_trials",),
        "workloads": ("Workload", "rmse"),
    },
)
