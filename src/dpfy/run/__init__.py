"""Take private steps: reserve the event, draw the sample, bound, add noise, release."""

from dpfy._lazy import exports

__getattr__, __all__ = exports(
    __name__,
    {
        "callbacks": ("Callback", "CsvLog", "TensorBoardLog"),
        "checkpoint": ("resume",),
        "contributing": ("ContributingShare",),
        "individual_readings": ("budget_histogram", "own_reading"),
        "loggers": ("MlflowLog", "WandbLog"),
        "loss_queries": ("FirstBelow", "PrivateArgmin"),
        "progress": ("ProgressBar",),
        "released": ("Batch", "Released"),
        "resources": ("Resources", "estimate_resources"),
        "run": ("Run",),
        "step_log": ("StepLog",),
    },
)
