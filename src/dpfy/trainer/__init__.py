"""Train from a configuration: settings in; model, ledger and report out."""

from dpfy._lazy import exports

__getattr__, __all__ = exports(
    __name__,
    {
        "callbacks": ("Callback",),
        "config": ("ImportanceConfig", "TrainConfig", "template"),
        "trainer": ("Trainer", "TrainingResult"),
    },
)
