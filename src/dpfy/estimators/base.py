"""The base of all private estimators: declarations, budget, ledger, guarantee and report."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.estimators.declarations import Features, Floats, check_table, in_columns
from dpfy.estimators.fitting import Declared, Fit, Plan, default_delta, resolve_relation
from dpfy.estimators.reports import SUMS, count_ground, write_report
from dpfy.ledger import Ledger
from dpfy.ledger.basis import Ground
from dpfy.ledger.grant import Booking
from dpfy.reporting.notebook import TEST_KEY, card, framed
from dpfy.reporting.numbers import delta_text, epsilon_text, plain

_NOT_PUBLISHED = ("ledger", "insecure_test_key")


class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of estimators whose fit is one private computation on a ledger.

    A subclass declares its parameters in ``__init__`` and does nothing else there. Its ``fit``
    checks declarations, calls :meth:`_begin` with the releases that it plans, and computes all of
    its attributes from what :meth:`~dpfy.estimators.fitting.Fit.release` returns.

    After a fit, ``guarantee_`` is the :class:`~dpfy.accounting.Guarantee` of that fit alone,
    ``delta_`` its δ, and ``n_records_`` the number of rows that is public.
    """

    epsilon: float
    delta: float | str
    ledger: Ledger | str | os.PathLike[str] | Booking | None
    relation: str
    records: int | None
    insecure_test_key: int | bytes | None

    def _features(self) -> Features:
        """Return the map that schema, bounds or data norm declare."""
        return Features(*(getattr(self, name, None) for name in ("schema", "bounds", "data_norm")))

    def _begin(
        self,
        rows: int,
        plan: Plan,
        grounds: Sequence[Ground] = (),
        proved: Sequence[Ground] = SUMS,
    ) -> Fit:
        """Plan a private fit; enter it to register it on the ledger.

        Args:
            rows: The number of rows, which is used only where it is public.
            plan: What will be released at a given noise multiplier.
            grounds: What the guarantee rests on besides, such as declared classes.
            proved: What is proved about the releases; by default, that they are sums over rows.

        Returns:
            The fit, a context manager.

        Raises:
            InvalidArgument: If a declaration is out of its range.
        """
        relation, records = resolve_relation(self.relation, self.records, rows)
        delta = default_delta(records) if self.delta == "auto" else _validate.delta(self.delta)
        declared = Declared(
            type(self).__name__,
            self._published(),
            records,
            _validate.epsilon(self.epsilon),
            delta,
            relation,
            (*proved, count_ground(relation, records), *grounds),
        )
        return Fit(declared, plan, self.ledger, self.insecure_test_key)

    def _public_records(self, rows: int) -> int:
        """Return the number of rows that is public."""
        return resolve_relation(self.relation, self.records, rows)[1]

    def _conclude(self, fit: Fit) -> Self:
        """Keep what is public about a fit that has ended."""
        self.guarantee_ = fit.guarantee
        self.delta_ = fit.declared.delta
        self.n_records_ = fit.declared.records
        self._own_ledger = fit.ledger if self.ledger is None else None
        return self

    def report(self, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write the privacy report of the estimator's ledger into a folder.

        Args:
            folder: The folder; it is created if it does not exist.

        Returns:
            The paths of the report in Markdown, JSON and HTML.

        Raises:
            InvalidArgument: If the estimator has no ledger: it is not fitted, or was pickled.
        """
        ledger = self.ledger if self.ledger is not None else getattr(self, "_own_ledger", None)
        if ledger is None or not hasattr(self, "guarantee_"):
            raise InvalidArgument(
                "This estimator has no ledger to report on: it is not fitted, or was read back "
                "from a pickle. Fit it with ledger='model.dpl' to keep one."
            )
        return write_report(
            folder,
            ledger,
            self.delta_,
            type(self).__name__,
            self._published(),
            "the fitted parameters and every noisy vector that they were computed from",
        )

    def _repr_html_(self) -> str:
        """Return the card for a notebook: public parameters, and the guarantee after a fit."""
        declared = self._published().items()
        facts = [(name, plain(value)) for name, value in declared if value is not None]
        fitted = getattr(self, "guarantee_", None)
        if fitted is None:
            return framed(card(type(self).__name__, sentence="Not fitted yet.", facts=facts))
        claim = f"ε = {epsilon_text(fitted.claim(self.delta_))} at δ = {delta_text(self.delta_)}"
        return framed(
            card(
                type(self).__name__,
                claim if fitted.private else "",
                cautions=() if fitted.private else (TEST_KEY,),
                sentence="The guarantee of this fit alone; what else its ledger holds adds up.",
                facts=facts,
            ),
            self._drawn_in_place(),
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Return what a notebook shows, in place of scikit-learn's page with a script."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _drawn_in_place(self) -> str:
        """Return the plot that a notebook shows below the card of a fitted model, if any."""
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return the fitted model as plain JSON values: all that may be released.

        Returns:
            The name of the estimator, its public parameters, and its fitted attributes.
        """
        check_is_fitted(self)
        fitted = {
            name: _plain(value)
            for name, value in vars(self).items()
            if name.endswith("_") and name != "guarantee_"
        }
        return {
            "estimator": type(self).__name__,
            "parameters": self._published(),
            "fitted": fitted,
            "guarantee": {
                "epsilon": self.guarantee_.claim(self.delta_),
                "delta": self.delta_,
                "private": self.guarantee_.source.private,
            },
        }

    def _published(self) -> dict[str, Any]:
        """Return the public parameters as plain JSON values."""
        return {
            name: _plain(value)
            for name, value in self.get_params(deep=False).items()
            if name not in _NOT_PUBLISHED
        }

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy on the same ledger: a ledger is one thing, and has no copies."""
        parameters = {
            name: value if name == "ledger" else clone(value, safe=False)
            for name, value in self.get_params(deep=False).items()
        }
        return type(self)(**parameters)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without any ledger; an open one is named by its path."""
        state: dict[str, Any] = {**super().__getstate__()}
        state.pop("_own_ledger", None)
        if isinstance(state.get("ledger"), Ledger):
            path = state["ledger"].path
            if path is None:
                raise InvalidArgument(
                    "An estimator on a ledger in memory cannot be pickled: the copy would spend "
                    "what that ledger does not see. Use a ledger file, or set_params(ledger=None) "
                    "to save a fitted model."
                )
            state["ledger"] = str(path)
        if isinstance(state.get("ledger"), Booking):
            state["ledger"] = str(state["ledger"].path)
        return state

    def __sklearn_tags__(self) -> Any:
        """Return the tags of scikit-learn: noise is fresh, and no cell of a row is refused."""
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.input_tags.allow_nan = tags.input_tags.string = True
        return tags


class PrivateLinearModel(PrivateEstimator):
    """Base of estimators that predict by ``coef_`` and ``intercept_``."""

    coef_: Any
    intercept_: Any
    coef_noise_: Any

    def _keep_linear(self, features: Features, weights: Floats, noise: float | None) -> None:
        """Keep released weights in units of the columns, their noise, and the map of rows."""
        self._public_map = features
        self.coef_, self.intercept_ = in_columns(weights, features)
        self.coef_noise_ = (
            None if noise is None else in_columns(np.full_like(weights, noise), features)[0]
        )

    def report(self, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write the privacy report of the estimator's ledger and a plot of the coefficients.

        Args:
            folder: The folder; it is created if it does not exist.

        Returns:
            The paths of the report in Markdown, JSON and HTML, and of ``coefficients.svg``.

        Raises:
            InvalidArgument: If the estimator has no ledger: it is not fitted, or was pickled.
        """
        from dpfy.estimators.plots import plot_coefficients

        written = super().report(folder)
        return (*written, plot_coefficients(self, Path(folder) / "coefficients.svg"))

    def _drawn_in_place(self) -> str:
        from dpfy.estimators.plots import drawn_in_place, plot_coefficients

        return drawn_in_place(partial(plot_coefficients, self))

    def _linear_scores(self, X: Any) -> Floats:
        """Return the linear functions of rows, one column for each."""
        check_is_fitted(self)
        table = check_table(self, self._public_map, X, "no_validation", reset=False)
        scores: Floats = self._public_map.clamped(table) @ self.coef_.T + self.intercept_
        return scores


def _plain(value: Any) -> Any:
    """Return a parameter as plain JSON values."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
