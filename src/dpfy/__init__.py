"""Train with differential privacy, and know exactly what was spent.

Names are imported on first use, so that reading a ledger or computing an ε never loads torch.
"""

from typing import TYPE_CHECKING, Any

from dpfy import _renamed
from dpfy._lazy import exports
from dpfy._version import __version__ as __version__

if TYPE_CHECKING:  # the lazy names, for type checkers and editors
    from dpfy.accounting import (
        Guarantee as Guarantee,
        account as account,
        calibrate_noise as calibrate_noise,
    )
    from dpfy.budgets.book import BudgetBook as BudgetBook
    from dpfy.checks.explain import Explanation as Explanation, explain as explain
    from dpfy.checks.fix import batchnorm_statistics as batchnorm_statistics, fix as fix
    from dpfy.checks.mixing import check_data_set as check_data_set
    from dpfy.ensembles.pate import pate as pate
    from dpfy.ensembles.predictor import PrivatePredictor as PrivatePredictor
    from dpfy.ensembles.student import semi_supervised as semi_supervised
    from dpfy.ensembles.teachers import Teachers as Teachers
    from dpfy.errors import (
        BatchAlreadyReleased as BatchAlreadyReleased,
        BookDamaged as BookDamaged,
        BookError as BookError,
        BookUnavailable as BookUnavailable,
        BudgetExhausted as BudgetExhausted,
        CheckpointError as CheckpointError,
        DataError as DataError,
        DivergenceError as DivergenceError,
        DpfyError as DpfyError,
        GrantRefused as GrantRefused,
        InvalidArgument as InvalidArgument,
        IsolationError as IsolationError,
        LedgerDamaged as LedgerDamaged,
        LedgerError as LedgerError,
        LedgerFinished as LedgerFinished,
        LedgerLocked as LedgerLocked,
        LedgerMismatch as LedgerMismatch,
        LedgerWriteFailed as LedgerWriteFailed,
        LossError as LossError,
        RankFailed as RankFailed,
        TrainingInterrupted as TrainingInterrupted,
        UnreleasedGradient as UnreleasedGradient,
        UnsafeStorage as UnsafeStorage,
        UnsupportedEvent as UnsupportedEvent,
    )
    from dpfy.federated.federate import federate as federate
    from dpfy.gradients.losses import Losses as Losses
    from dpfy.ledger import Ledger as Ledger
    from dpfy.mechanisms.controllers import (
        AdaClip as AdaClip,
        GradientNormNoise as GradientNormNoise,
        MeanNormClipping as MeanNormClipping,
        QuantileClipping as QuantileClipping,
        ValidationDecay as ValidationDecay,
    )
    from dpfy.mechanisms.groups import (
        clip_automatically as clip_automatically,
        clip_groups as clip_groups,
        clip_jointly as clip_jointly,
    )
    from dpfy.mechanisms.query import (
        Contributing as Contributing,
        RecordNormsBelow as RecordNormsBelow,
        SampleSize as SampleSize,
        Statistic as Statistic,
    )
    from dpfy.mechanisms.statistics import soft_accuracy as soft_accuracy
    from dpfy.plans.dpftrl import dpftrl as dpftrl
    from dpfy.plans.dpis import dpis as dpis
    from dpfy.plans.dpsgd import dpsgd as dpsgd
    from dpfy.plans.idpsgd import idpsgd as idpsgd
    from dpfy.plans.plan import Plan as Plan
    from dpfy.records.users import Users as Users
    from dpfy.run.callbacks import (
        Callback as Callback,
        CsvLog as CsvLog,
        TensorBoardLog as TensorBoardLog,
    )
    from dpfy.run.checkpoint import resume as resume
    from dpfy.run.contributing import ContributingShare as ContributingShare
    from dpfy.run.export import export as export
    from dpfy.run.loggers import MlflowLog as MlflowLog, WandbLog as WandbLog
    from dpfy.run.privatize import privatize as privatize
    from dpfy.run.progress import ProgressBar as ProgressBar
    from dpfy.run.released import Released as Released
    from dpfy.run.run import Run as Run
    from dpfy.run.step_log import StepLog as StepLog
    from dpfy.synthesis.synthesizer import Synthesizer as Synthesizer
    from dpfy.trainer.config import TrainConfig as TrainConfig
    from dpfy.trainer.result import TrainingResult as TrainingResult
    from dpfy.trainer.saved import load_model as load_model
    from dpfy.trainer.trainer import Trainer as Trainer
    from dpfy.types import (
        Budget as Budget,
        Interval as Interval,
        Relation as Relation,
        Unit as Unit,
    )

_HOMES = {
    "accounting": ("Guarantee", "account", "calibrate_noise"),
    "budgets.book": ("BudgetBook",),
    "ensembles.pate": ("pate",),
    "ensembles.predictor": ("PrivatePredictor",),
    "ensembles.student": ("semi_supervised",),
    "ensembles.teachers": ("Teachers",),
    "errors": (
        "BatchAlreadyReleased",
        "BookDamaged",
        "BookError",
        "BookUnavailable",
        "BudgetExhausted",
        "CheckpointError",
        "DataError",
        "DivergenceError",
        "DpfyError",
        "GrantRefused",
        "InvalidArgument",
        "IsolationError",
        "LedgerDamaged",
        "LedgerError",
        "LedgerFinished",
        "LedgerLocked",
        "LedgerMismatch",
        "LedgerWriteFailed",
        "LossError",
        "RankFailed",
        "TrainingInterrupted",
        "UnreleasedGradient",
        "UnsafeStorage",
        "UnsupportedEvent",
    ),
    "federated.federate": ("federate",),
    "ledger": ("Ledger",),
    "mechanisms.controllers": (
        "AdaClip",
        "MeanNormClipping",
        "GradientNormNoise",
        "QuantileClipping",
        "ValidationDecay",
    ),
    "mechanisms.groups": ("clip_automatically", "clip_groups", "clip_jointly"),
    "mechanisms.query": ("Contributing", "RecordNormsBelow", "SampleSize", "Statistic"),
    "mechanisms.statistics": ("soft_accuracy",),
    "plans": ("Plan", "dpftrl", "dpis", "dpsgd", "idpsgd"),
    "records.users": ("Users",),
    "run.checkpoint": ("resume",),
    "run.export": ("export",),
    "run.contributing": ("ContributingShare",),
    "checks.explain": ("Explanation", "explain"),
    "checks.fix": ("batchnorm_statistics", "fix"),
    "gradients.losses": ("Losses",),
    "checks.mixing": ("check_data_set",),
    "synthesis.synthesizer": ("Synthesizer",),
    "trainer.config": ("TrainConfig",),
    "run.callbacks": ("Callback", "CsvLog", "TensorBoardLog"),
    "run.progress": ("ProgressBar",),
    "trainer.result": ("TrainingResult",),
    "trainer.saved": ("load_model",),
    "trainer.trainer": ("Trainer",),
    "run.loggers": ("MlflowLog", "WandbLog"),
    "run.privatize": ("privatize",),
    "run.released": ("Released",),
    "run.run": ("Run",),
    "run.step_log": ("StepLog",),
    "types": ("Budget", "Interval", "Relation", "Unit"),
}
_get, __all__ = exports(__name__, _HOMES)

_renamed.install()


def __getattr__(name: str) -> Any:
    if name in _renamed.NAMES:
        _renamed.warn_renamed(f"dpfy.{name}", f"dpfy.{_renamed.NAMES[name]}")
        name = _renamed.NAMES[name]
    return _get(name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
