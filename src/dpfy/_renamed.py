"""Keep the names of earlier versions valid, with a warning that says what each is called now."""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

NAMES = {
    "NormClipping": "MeanNormClipping",
    "NormNoise": "GradientNormNoise",
    "NormsBelow": "RecordNormsBelow",
}
"""Public names of ``dpfy`` before version 0.2, and what they are called now."""

MODULES = {
    "dpfy.accounting.interop": "dpfy.accounting.extras.interop",
    "dpfy.accounting.outcomes": "dpfy.accounting.loss_distributions",
    "dpfy.accounting.selection": "dpfy.accounting.rules_for.selection",
    "dpfy.accounting.streams": "dpfy.accounting.rules_for.streams",
    "dpfy.accounting.textbook": "dpfy.accounting.extras.textbook",
    "dpfy.accounting.tuning": "dpfy.accounting.extras.tuning",
    "dpfy.algorithms": "dpfy.recipes",
    "dpfy.auditing.promises": "dpfy.auditing.invariants",
    "dpfy.importance": "dpfy.plans.dpis",
    "dpfy.mechanisms.noise": "dpfy.noise",
    "dpfy.mechanisms.noise.randomness": "dpfy.noise.random_stream",
    "dpfy.plan": "dpfy.plans",
    "dpfy.trainer.callbacks": "dpfy.run.callbacks",
    "dpfy.training.callbacks": "dpfy.run.callbacks",
    "dpfy.training.checkpoint": "dpfy.run.checkpoint",
    "dpfy.training.config": "dpfy.trainer.config",
    "dpfy.training.engines": "dpfy.gradients",
    "dpfy.training.explain": "dpfy.checks.explain",
    "dpfy.training.loaders": "dpfy.records.loaders",
    "dpfy.training.rehearsal": "dpfy.trainer.public_trials",
    "dpfy.training.resources": "dpfy.run.resources",
    "dpfy.training.searches": "dpfy.run.loss_queries",
}
"""Documented modules of earlier versions, and where their contents are now."""

_EMPTIED = "dpfy.training"  # a package whose modules are in several rooms now


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn that ``old`` is an alias that a later version removes."""
    warnings.warn(
        f"{old} is now called {new}; the old name goes in version 0.4.",
        DeprecationWarning,
        stacklevel,
    )


class _Alias(Loader):
    """Load a module under the name that it had before, or an empty package that held several."""

    def __init__(self, new: str | None) -> None:
        self._new = new
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return the module itself, so that its classes are the same under both names."""
        if self._new is None:
            return None
        module = import_module(self._new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: it was executed under its own name."""
        if self._spec is not None:
            module.__spec__ = self._spec


class _Finder(MetaPathFinder):
    """Find modules by their former names, before anybody loads them a second time."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec that loads the module that ``fullname`` once named, or None."""
        new = _present_name(fullname)
        if fullname == _EMPTIED:
            return ModuleSpec(fullname, _Alias(None), is_package=True)
        if new is None:
            return None
        warn_renamed(fullname, new)
        return ModuleSpec(fullname, _Alias(new), is_package=True)


def _present_name(old: str) -> str | None:
    """Return the present name of a module, also if a package that holds it was renamed."""
    if old in MODULES:
        return MODULES[old]
    package, _, module = old.rpartition(".")
    present = MODULES.get(package)
    return f"{present}.{module}" if present and find_spec(f"{present}.{module}") else None


def install() -> None:
    """Let imports find modules by their former names."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
