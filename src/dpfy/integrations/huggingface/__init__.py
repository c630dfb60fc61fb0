"""Train models of Hugging Face privately: losses per record, collation to a public length.

Needs the extra ``huggingface``. What is exported here imports neither transformers nor torch before
it is used.

Tests: tests/integrations/huggingface/test_losses.py.
"""

from dpfy._lazy import exports

__getattr__, __all__ = exports(
    __name__,
    {
        "collation": ("collate_to",),
        "losses": ("private_loss",),
        "participation": ("require_gradients",),
        "trainer": ("DPTrainer",),
    },
)
