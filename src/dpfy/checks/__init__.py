"""Check on synthetic input whether a model, a loss and a data set are fit for private training."""

from dpfy._lazy import exports

__getattr__, __all__ = exports(
    __name__,
    {
        "check": ("Checked",),
        "compare_engines": ("Parity", "parity"),
        "explain": ("Explanation",),
        "fix": ("batchnorm_statistics",),
        "mixing": ("check_data_set",),
        "probe": ("Probe",),
    },
)
