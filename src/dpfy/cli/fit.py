"""``dpfy fit``: from a table and a schema to a private model, a ledger and a report."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfy.cli._output import note_delta, planned, round_up
from dpfy.errors import InvalidArgument

if TYPE_CHECKING:
    from dpfy.estimators import PrivateEstimator
    from dpfy.tabular import Schema

LEDGER, MODEL, SCHEMA = "ledger.dpl", "model.json", "schema.toml"


@dataclass(frozen=True)
class Model:
    """A model of the command line.

    Args:
        estimator: The name of its class in ``dpfy.estimators``.
        target: What its target declares: "classes", "target_bounds", or "" if it has none.
    """

    estimator: str
    target: str


MODELS = {
    "logistic": Model("LogisticRegression", "classes"),
    "linear": Model("LinearRegression", "target_bounds"),
    "ridge": Model("Ridge", "target_bounds"),
    "gaussian-nb": Model("GaussianNB", "classes"),
    "categorical-nb": Model("CategoricalNB", "classes"),
    "boosting": Model("ExplainableBoosting", "classes"),
    "trees": Model("RandomTrees", "classes"),
    "kmeans": Model("KMeans", ""),
    "pca": Model("PCA", ""),
}


def fit(
    model: Annotated[str, typer.Argument(help=f"Model: {', '.join(MODELS)}.", show_default=False)],
    data: Annotated[
        Path, typer.Argument(help="Private table, .csv or .parquet.", show_default=False)
    ],
    schema: Annotated[
        Path,
        typer.Option(
            help="Schema of the table, .toml or .json; `dpfy schema init` begins one.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(help="New folder for the model, ledger and report.", show_default=False),
    ],
    epsilon: Annotated[float, typer.Option(help="The ε of the fit, above 0.")] = 1.0,
    delta: Annotated[
        str, typer.Option(help="The δ of the fit, or auto: the smaller of 1e-5 and rows^-1.1.")
    ] = "auto",
    target: Annotated[
        str | None,
        typer.Option(
            help="Column to predict; the schema declares its classes or bounds.",
            show_default=False,
        ),
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(
            help="Declared number of rows, if the true one is private. Default: it is public.",
            show_default=False,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="Setting of the model, as name=value, such as solver=adassp; may be repeated.",
            show_default=False,
        ),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(help="Public table on which the model is scored.", show_default=False),
    ] = None,
) -> None:
    """Fit a private model to a table, and write model, ledger and report to a folder.

    Nothing is read off the rows but what is paid for: columns, bounds, categories and classes are
    those of the schema, and what is not in it is clamped or counts as "other".

    Examples:
    dpfy fit logistic adult.csv --schema adult.toml --target income --epsilon 1 --out runs/adult

    dpfy fit linear houses.parquet --schema houses.toml --target value --out runs/houses
    """
    from dpfy.tabular import Schema, read_table

    if model not in MODELS:
        raise InvalidArgument(f"Expected a model among {', '.join(MODELS)}, got {model!r}.")
    declared = Schema.read(schema)
    estimator = _estimator(MODELS[model], declared, target, option or [])
    if test is not None and target is None:
        raise InvalidArgument(f"A model of the kind {model!r} has no score. Leave --test out.")
    estimator.set_params(
        epsilon=epsilon,
        delta=_delta(delta),
        ledger=out / LEDGER,
        **({} if records is None else {"relation": "add_or_remove_one", "records": records}),
    )
    if out.exists():
        raise InvalidArgument(f"{out} exists. Choose another folder, or move it away.")
    table = read_table(data)
    truth = None if target is None else _column(table, target)
    out.mkdir(parents=True)
    try:
        estimator.fit(table, truth)
    finally:
        with suppress(OSError):  # there is a ledger unless the fit was refused, and nothing spent
            out.rmdir()
    _write(estimator, declared, out)
    if test is not None:
        public = read_table(test)
        score = estimator.score(public, _as_labels(estimator, _column(public, str(target))))
        kind = "accuracy" if MODELS[model].target == "classes" else "R²"
        typer.echo(f"{kind} on public data: {score:.4f}")
    claim = estimator.guarantee_.claim(estimator.delta_)
    known = estimator.guarantee_.source.private
    note = "" if known else ". NOT PRIVATE: drawn with a test key."
    typer.echo(f"({round_up(claim):.4f}, {estimator.delta_:g})-differential privacy{note}")
    typer.echo(f"report: {out / 'report.html'}")
    note_delta(estimator.delta_, planned(out / LEDGER))


def _estimator(
    model: Model, schema: "Schema", target: str | None, options: list[str]
) -> "PrivateEstimator":
    """Return the estimator with what the schema and the options declare."""
    from dpfy import estimators

    if bool(model.target) != (target is not None):
        needs = "needs --target, the column to predict" if model.target else "takes no --target"
        raise InvalidArgument(f"{model.estimator} {needs}.")
    given = dict(_setting(each) for each in options)
    if target is not None:
        column = schema[target]
        declared = column.categories if model.target == "classes" else column.bounds
        if declared is None:
            kind = "categories" if model.target == "classes" else "bounds"
            raise InvalidArgument(
                f"The schema declares no {kind} for the target {target!r}, which "
                f"{model.estimator} needs."
            )
        given[model.target] = list(declared)
        schema = schema.without(target)
    found: type[PrivateEstimator] = getattr(estimators, model.estimator)
    known = found().get_params()
    for name in given:
        if name not in known:
            raise InvalidArgument(
                f"{model.estimator} has no setting {name!r}. It has {', '.join(sorted(known))}."
            )
    return found(schema=schema, **given)


def _setting(text: str) -> tuple[str, Any]:
    """Return the name and the value of ``name=value``; a value that is no JSON is text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidArgument(f"Expected --option name=value, got {text!r}.")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _delta(text: str) -> float | str:
    try:
        return text if text == "auto" else float(text)
    except ValueError:
        raise InvalidArgument(f"Expected delta={text!r} to be a number or 'auto'.") from None


def _column(table: dict[str, Any], name: str) -> Any:
    if name not in table:
        raise InvalidArgument(f"The table has no column {name!r}, which --target names.")
    return table[name]


def _as_labels(estimator: Any, truth: Any) -> Any:
    """Return public labels as the classes are written, or numbers."""
    from dpfy.tabular.tables import as_floats, text_of

    if hasattr(estimator, "classes_"):
        return [text_of(each) for each in truth]
    return as_floats(truth)


def _write(estimator: "PrivateEstimator", schema: "Schema", out: Path) -> None:
    """Write what may be released: the fitted model as JSON, the schema and the report."""
    text = json.dumps(estimator.to_json(), indent=2, ensure_ascii=False, allow_nan=False)
    (out / MODEL).write_text(f"{text}\n", encoding="utf-8")
    (out / SCHEMA).write_text(f"{schema.to_toml()}\n", encoding="utf-8")
    estimator.report(out)
