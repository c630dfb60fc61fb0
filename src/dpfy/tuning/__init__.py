"""Search for settings with a privacy cost, the choice included, that one ledger holds."""

from dpfy.tuning.config import TuneConfig
from dpfy.tuning.folder import TuningResult
from dpfy.tuning.search import finish_tuning, resume_tuning, share_tuning, tune, work_on_tuning
from dpfy.tuning.space import Choice, Space, Uniform

__all__ = [
    "Choice",
    "Space",
    "TuneConfig",
    "TuningResult",
    "Uniform",
    "finish_tuning",
    "resume_tuning",
    "share_tuning",
    "tune",
    "work_on_tuning",
]
