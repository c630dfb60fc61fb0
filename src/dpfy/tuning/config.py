"""Describe a search: its settings, its space, its accounting and the budget of all of it.

Tests: tests/tuning/test_space.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.selection import NegativeBinomialTrials, PoissonTrials, Trials
from dpfy.trainer.config import TrainConfig
from dpfy.trainer.label_settings import require_records
from dpfy.trainer.old_names import current_names
from dpfy.tuning.space import Space

ACCOUNTING = ("select", "compose", "public")
LAWS = ("geometric", "logarithmic", "poisson")
PROPOSALS = ("random", "bayesian")
SCORES = ("public", "private")


@dataclass(frozen=True)
class TuneConfig:
    """The declaration of a search, for ``dpfy tune`` and :func:`tune`; public constants only.

    Args:
        base: The settings that are not searched; its ``delta`` is that of the whole search, and its
            ``epsilon`` is not used.
        space: A distribution for each setting that is searched.
        epsilon: The budget ε of the whole search, the released model included; required. With
            ``accounting="public"`` it is that of the run for which settings are sought.
        trials: The number of trials: the mean with ``accounting="select"``, exact otherwise.
            Default: 10.
        accounting: ``"select"`` (default) runs a secret number of trials and releases the model of
            the best; ``"compose"`` pays for all trials and may show them; ``"public"`` declares all
            data public, so that nothing is charged.
        law: The law of the secret number of trials: ``"geometric"`` (default), ``"logarithmic"`` or
            ``"poisson"``.
        proposals: ``"random"`` (default), or ``"bayesian"``, by Optuna; not with ``"select"``.
        score: ``"public"`` (default) scores a trial by its accuracy on public data, ``"private"``
            by the noisy accuracy on private samples that it releases in its last epoch.
        storage: The address of the database in which Optuna keeps its study. Default: in memory.

    Raises:
        InvalidArgument: A value is outside its domain, or settings contradict each other.

    >>> config = TuneConfig(TrainConfig(), Space.parse(["clip=0.5,1"]), epsilon=3.0)
    >>> TuneConfig.from_json(config.to_json()) == config
    True
    """

    base: TrainConfig
    space: Space
    epsilon: float | None = None
    trials: float = 10
    accounting: str = "select"
    law: str = "geometric"
    proposals: str = "random"
    score: str = "public"
    storage: str | None = None

    def __post_init__(self) -> None:
        if self.epsilon is None:
            raise InvalidArgument(
                "A search needs a budget for all of it, the trials that lose included: give "
                "epsilon. (The one in the settings is that of a single run.)"
            )
        _validate.epsilon(self.epsilon)
        require_records(self.base.protect, "a search")
        _validate.choice("accounting", self.accounting, ACCOUNTING)
        _validate.choice("law", self.law, LAWS)
        _validate.choice("proposals", self.proposals, PROPOSALS)
        _validate.choice("score", self.score, SCORES)
        if self.accounting != "select":
            whole = isinstance(self.trials, float) and self.trials.is_integer()
            _validate.count("trials", int(self.trials) if whole else self.trials)
        else:
            self.trials_law  # noqa: B018 (it checks the mean)
            self._check_selection()
        if self.accounting == "public" and self.score != "public":
            raise InvalidArgument(
                "Expected score='public' with accounting='public': nothing in such a search is "
                "private."
            )
        self._check_base()

    def _check_selection(self) -> None:
        """Refuse what would make trials depend on each other, or show them."""
        if self.proposals != "random":
            raise InvalidArgument(
                f"Expected proposals='random' with accounting='select', got {self.proposals!r}: "
                "its trials must be independent, and proposals that learn from earlier ones make "
                "them depend on each other. Use accounting='compose'."
            )
        if self.storage is not None:
            raise InvalidArgument(
                "A selection stores nothing about its trials: their number and scores are secret. "
                "Leave storage out, or use accounting='compose'."
            )

    def _check_base(self) -> None:
        """Refuse settings with which trials cannot be declared, or that no run takes."""
        if self.base.early_stop:
            raise InvalidArgument(
                "Trials take all of their steps, which are paid for before. Leave early_stop out."
            )
        if self.base.algorithm != "dpsgd":
            raise InvalidArgument(
                f"Expected algorithm='dpsgd' in a search, got {self.base.algorithm!r}: its steps "
                "are chosen from outputs, and those of a trial are declared before it."
            )
        if self.base.budgets is not None:
            raise InvalidArgument(
                f"A search has one budget for all records, got budgets={self.base.budgets!r} for "
                "groups. Leave budgets and groups_of out of its settings."
            )
        if self.base.strict:
            raise InvalidArgument(
                "A search is not strict: nobody may see what its trials rest on. Leave strict out, "
                "or train with settings that were not chosen on private data."
            )
        for name, each in self.space.settings.items():
            for value in each.corners:  # so that a refusal comes before there is a ledger
                self.base.with_flags({name: value})

    @property
    def trials_law(self) -> Trials:
        """The law of the number of trials of a selection."""
        if self.law == "poisson":
            return PoissonTrials(self.trials)
        return NegativeBinomialTrials.with_mean(
            self.trials, shape=1.0 if self.law == "geometric" else 0.0
        )

    def to_json(self) -> dict[str, Any]:
        """Return the search as plain JSON values."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**values, "base": self.base.to_mapping(), "space": self.space.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the search that :meth:`to_json` wrote."""
        return cls(
            **{
                **value,
                "base": TrainConfig.from_mapping(current_names(value["base"])),
                "space": Space.from_json(value["space"]),
            }
        )
