"""Train from a configuration, and write the model, the ledger and the report."""

from dpfy._lazy import exports

__getattr__, __all__ = exports(
    __name__,
    {
        "config": ("TrainConfig", "template"),
        "importance_settings": ("ImportanceConfig",),
        "result": ("TrainingResult",),
        "saved": ("load_model",),
        "trainer": ("Trainer",),
    },
)
