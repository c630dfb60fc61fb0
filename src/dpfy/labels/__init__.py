"""Release noisy labels once, for training where features are public and labels alone are private.

The unit of privacy is one label, and the relation replaces it; features and the number of records
are public. Everything that is computed from the noisy labels afterwards is post-processing.
Proofs: ``docs/proofs/labels.md``.

Tests: tests/test_imports.py.
"""

from dpfy._lazy import exports

__getattr__, __all__ = exports(
    __name__,
    {
        "alibi": ("Alibi", "NoisyOneHot"),
        "clusters": ("ClusteredLabels", "by_clusters", "nearest_centres"),
        "noisy": ("NoisyLabels", "likelihood_loss"),
        "release": ("LabelRelease",),
        "response": ("PriorResponse", "randomized_response"),
        "stages": ("Staged", "multi_stage", "staged_labels"),
        "teachers": ("label_teacher",),
    },
)
