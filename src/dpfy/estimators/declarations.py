"""What a user declares about columns and classes, and the public maps that follow from it.

Values of rows are read by the methods of :class:`Features` and by :func:`label_positions` alone;
everything else looks at declarations, names, shapes and dtypes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.basis import Ground, Kind
from dpfy.tabular.encoder import Encoder, require_schema
from dpfy.tabular.schema import Schema
from dpfy.tabular.tables import as_floats, as_objects, row_count, text_of
from dpfy.types import Relation

OBSERVED = "observed"
_FAR = 1e150  # whose square is finite; the direction of longer rows does not matter

Floats = NDArray[np.float64]


class Features:
    """A public map from rows of a table to vectors of an ℓ2 norm of at most 1.

    Exactly one of the three declarations is given.

    *Formal guarantee*: each row is mapped by itself, to a vector of norm at most 1 in exact
    arithmetic (docs/proofs/estimators.md, Lemma 2). A row with a cell that is no finite number is
    zero, except under a schema, which says what stands for it.

    Args:
        schema: The declared columns of a table with names.
        bounds: The least and the largest value, each one number or one for each column: rows are
            clamped, and their box is mapped to one inside the unit ball.
        data_norm: The largest ℓ2 norm of a row: rows are divided by it, and longer ones scaled
            down.

    Raises:
        InvalidArgument: If none or several are declared, or if one is not valid.
    """

    def __init__(
        self, schema: object = None, bounds: object = None, data_norm: object = None
    ) -> None:
        given = [each for each in (schema, bounds, data_norm) if each is not None]
        if len(given) != 1:
            raise InvalidArgument(
                f"Expected one of schema=, bounds= and data_norm=, got {len(given)} of them. "
                "Declare the columns with schema=Schema.read('data.toml'), the range of plain "
                "numbers with bounds=(low, high), or the largest norm of a row with data_norm=."
            )
        self.schema: Schema | None = None if schema is None else require_schema(schema)
        self.data_norm = (
            None if data_norm is None else _validate.real("data_norm", data_norm, 1 / _FAR, _FAR)
        )
        self.bounds = None if bounds is None else _bounds(bounds)
        self._observed = isinstance(self.bounds, str)  # which observe() replaces by numbers

    @property
    def ground(self) -> Ground:
        """The declaration, as the ledger keeps it."""
        if self.schema is not None:
            text = "Bounds and categories are those of a declared schema."
        elif self.data_norm is not None:
            text = f"The largest norm of a row is declared as {self.data_norm:g}."
        elif self._observed:
            text = (
                "Bounds were read off the rows and declared public: bounds='observed'. What they "
                "tell about the rows is outside of the guarantee."
            )
        else:
            text = "Bounds of the columns are declared."
        return Ground(Kind.DECLARATION, "features", "What columns may hold", text)

    def observe(self, table: Any) -> None:
        """Take bounds that are declared public from the rows themselves."""
        if isinstance(self.bounds, str):
            x = as_floats(np.asarray(table))
            known = np.where(np.isfinite(x), np.clip(x, -_FAR, _FAR), np.nan)
            low = np.nan_to_num(np.fmin.reduce(known, axis=0, initial=np.nan))
            high = np.fmax.reduce(known, axis=0, initial=np.nan)
            self.bounds = (low, np.where(high - low > 1 / _FAR, high, low + 1 + np.abs(low)))

    def rows(self, table: Any) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the vectors of a table's rows, each of norm at most 1, and which rows count.

        A row with a cell that is no finite number does not count, and its vector is zero.
        """
        if self.schema is not None:
            vectors = Encoder(self.schema).transform(table)
            return vectors, np.ones(len(vectors), dtype=bool)
        known = np.asarray(np.isfinite(as_floats(np.asarray(table))).all(axis=1))
        x = np.where(known[:, None], self.clamped(table), 0.0)
        scale, shift = self.affine(x.shape[1])
        with np.errstate(over="ignore"):
            x = np.clip(x * scale, -_FAR, _FAR) + shift
        x *= known[:, None]
        norms = np.sqrt(np.einsum("ij,ij->i", x, x))
        return x / np.maximum(norms, 1.0)[:, None], known

    def clamped(self, table: Any) -> Floats:
        """Return rows as a model sees them to predict: encoded, clamped to bounds, or as is."""
        if self.schema is not None:
            return Encoder(self.schema).transform(table)
        x = as_floats(np.asarray(table))
        return x if self.bounds is None else np.clip(x, *self.ends(x.shape[1]))

    def affine(self, width: int) -> tuple[Floats, Floats]:
        """Return a and b of the map x ↦ a·x + b of what :meth:`clamped` returns, to vectors."""
        if self.schema is not None:
            return np.ones(width), np.zeros(width)
        if self.data_norm is not None:
            return np.full(width, 1 / self.data_norm), np.zeros(width)
        low, high = self.ends(width)
        scale = 2 / (high - low) / np.sqrt(width)
        return scale, -(low + high) / 2 * scale

    def count(self, table: Any) -> int:
        """Return the number of rows."""
        return len(table) if self.schema is None else row_count(table, self.schema.names)

    def width(self, table: Any) -> int:
        """Return the number of coordinates of a row's vector."""
        if self.schema is not None:
            return len(Encoder(self.schema).get_feature_names_out())
        return int(table.shape[1])

    def ends(self, width: int) -> tuple[Floats, Floats]:
        """Return the least and the largest value of each column of plain numbers."""
        assert isinstance(self.bounds, tuple)
        low, high = (np.broadcast_to(each, (width,)) for each in self.bounds)
        return low, high


def with_intercept(vectors: Floats, known: NDArray[np.bool_], features: Features) -> Floats:
    """Return vectors of norm at most 1 that have a constant coordinate.

    Encoded columns have one already, since their numbers add up to a constant.

    Args:
        vectors: One vector of norm at most 1 for each row.
        known: Which rows count; the vectors of the others are zero.
        features: The declared map.

    Returns:
        The vectors.
    """
    counted = np.asarray(known, dtype=np.float64)[:, None]
    if features.schema is not None:
        return vectors * counted
    return np.concatenate([vectors * counted, counted], axis=1) / np.sqrt(2)


def in_columns(weights: Floats, features: Features) -> tuple[Floats, Floats]:
    """Return coefficients and intercepts in units of the columns.

    Under a schema the columns are those of the encoded table.

    Args:
        weights: One row of weights for each output, as :func:`with_intercept` has coordinates.
        features: The declared map.

    Returns:
        The coefficients, one row for each output, and the intercepts.
    """
    if features.schema is not None:
        return weights, np.zeros(len(weights))
    scale, shift = features.affine(weights.shape[1] - 1)
    inner = weights[:, :-1] / np.sqrt(2)
    return inner * scale, inner @ shift + weights[:, -1] / np.sqrt(2)


def check_table(estimator: Any, features: Features | None, X: Any, y: Any, reset: bool) -> Any:
    """Check names, shapes and dtypes of the input as scikit-learn does; no value is looked at.

    Args:
        estimator: The estimator, which keeps the names and the number of columns.
        features: The declared map; None for a plain table without one.
        X: The table.
        y: The target; "no_validation" if there is none.
        reset: Whether the names are to be kept, as by a fit, or compared.

    Returns:
        The table, and the target if there is one.
    """
    if features is not None and features.schema is not None:
        count, found = features.count(X), X
        if reset:
            estimator.n_features_in_ = len(features.schema)
            estimator.feature_names_in_ = np.array(features.schema.names, dtype=object)
    else:
        private_count = estimator.relation == Relation.ADD_OR_REMOVE_ONE
        found = validate_data(
            estimator,
            _unquoted(X, 2),
            dtype=None,
            ensure_all_finite=False,
            ensure_min_samples=0 if private_count and reset else 1,
            reset=reset,
        )
        count = len(found)
    if isinstance(y, str):
        return found
    target = _one_dimensional(y)
    if len(target) != count:
        raise InvalidArgument("Expected as many targets as rows: X and y are inconsistent.")
    return found, target


def resolve_classes(classes: object, y: NDArray[Any]) -> NDArray[Any]:
    """Return the declared classes, sorted as scikit-learn sorts them.

    Args:
        classes: Two or more labels, or "observed": those of ``y``, which are thereby public.
        y: The labels.

    Returns:
        The classes.

    Raises:
        InvalidArgument: If no classes are declared, or some twice.
    """
    if isinstance(classes, str) and classes == OBSERVED:
        labels = np.asarray(y.tolist()) if y.dtype.kind == "O" else y
        check_classification_targets(labels)
        return np.unique(labels)
    if (
        classes is None
        or isinstance(classes, str)
        or not isinstance(classes, Sequence | np.ndarray)
    ):
        raise InvalidArgument(
            f"Expected classes={classes!r} to list the labels, as classes=[0, 1]. Labels read off "
            "the rows would tell whether somebody has a rare one; if they are public anyway, say "
            "so with classes='observed'."
        )
    found = np.unique(np.asarray(classes))
    if len(found) < len(classes):
        raise InvalidArgument("Expected the labels of classes= to differ from each other.")
    return found


def classes_ground(classes: object) -> Ground:
    """Return how the classes are known, as the ledger keeps it."""
    observed = isinstance(classes, str)
    text = (
        "Classes were read off the labels and declared public: classes='observed'. That a label "
        "occurs is outside of the guarantee."
        if observed
        else "Classes are declared; a row with another label contributes nothing."
    )
    return Ground(Kind.DECLARATION, "classes", "Which labels there are", text)


def label_positions(y: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """Return the position of each label among the classes, and −1 for any other label.

    Labels are read one by one: that one of them is a text does not change what the others are.
    """
    if classes.dtype.kind in "biuf":
        numbers = as_floats(y)
        if y.dtype.kind not in "biuf":
            named = {"True": 1.0, "False": 0.0}
            texts = np.array([named.get(text_of(each) or "", np.nan) for each in y.tolist()])
            numbers = np.where(np.isnan(numbers), texts, numbers)
        place = np.searchsorted(classes, numbers).clip(max=len(classes) - 1)
        return np.where(classes[place] == numbers, place, -1)
    known = {text_of(each): number for number, each in enumerate(classes.tolist())}
    return np.array([known.get(text_of(each), -1) for each in y.tolist()], dtype=np.int64)


def _one_dimensional(y: Any) -> NDArray[Any]:
    if y is None:
        raise ValueError("This estimator requires y to be passed, but the target y is None.")
    column = getattr(y, "ndim", 1) == 2 and y.shape[1] == 1  # of which scikit-learn warns
    return np.asarray(column_or_1d(_unquoted(y, 2 if column else 1), dtype=None, warn=True))


def _unquoted(values: Any, dimensions: int) -> Any:
    """Return an array or list unless scikit-learn would refuse it with a text that quotes cells.

    Cells of a list become objects, so that none of them decides how all others are read.
    """
    if isinstance(values, list | tuple):
        values = np.array(values, dtype=object) if dimensions == 2 else as_objects(values)
    values = values if hasattr(values, "shape") else np.asarray(values)
    if len(values.shape) != dimensions:
        raise InvalidArgument(
            f"Expected {dimensions} dimensions, got {len(values.shape)}. Reshape your data: rows "
            "and columns for X, one target for each row for y."
        )
    if getattr(getattr(values, "dtype", None), "kind", "") == "c":
        raise InvalidArgument("Complex data not supported. Give real and imaginary parts.")
    return values


def _bounds(bounds: object) -> str | tuple[Floats, Floats]:
    if isinstance(bounds, str) and bounds == OBSERVED:
        return OBSERVED
    try:
        low, high = (np.asarray(each, dtype=np.float64) for each in bounds)  # type: ignore[attr-defined]
        within = np.all(np.abs(low) <= _FAR) and np.all(np.abs(high) <= _FAR)
        valid = bool(within and np.all(high - low > 1 / _FAR))
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise InvalidArgument(
            f"Expected bounds={bounds!r} to be (low, high) with low < high, each one number or one "
            "for each column; or 'observed', which declares that the bounds of these rows are "
            "public."
        )
    return low, high
