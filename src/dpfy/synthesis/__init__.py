"""Release synthetic tables from noisy marginals: what is read of a table is chosen and paid for.

Selection, measurement, noise and ledger are here and in the proof, ``docs/proofs/synthesis.md``.
The estimation of a table from noisy marginals is post-processing, by the package mbi.

Tests: tests/test_imports.py.
"""

from dpfy._lazy import exports

__getattr__, __all__ = exports(
    __name__,
    {
        "measurements": ("Measured",),
        "synthesizer": ("Synthesizer",),
        "synthetic_table": ("SyntheticTable",),
    },
)
