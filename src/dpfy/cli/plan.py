"""``dpfy plan``: choose what to run, before any privacy is spent."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfy._extras import require
from dpfy.cli._options import JsonOption, Method, MethodOption, RelationOption
from dpfy.cli.advise import advise
from dpfy.cli.correlated import correlated
from dpfy.cli.resources import resources
from dpfy.cli.strategy import strategy
from dpfy.errors import InvalidArgument
from dpfy.types import Relation

if TYPE_CHECKING:
    from dpfy.planning import BatchCurve, Contour, Sketch

plan_app = typer.Typer(no_args_is_help=True)
plan_app.command()(advise)
plan_app.command()(strategy)
plan_app.command()(resources)
plan_app.command()(correlated)

_POINTS = 13  # of a curve: four to a decade of rates from 0.001 to 1
_SOLVED = (
    ("epsilon",),
    ("delta",),
    ("noise_multiplier",),
    ("rate", "batch_size"),
    ("steps", "epochs"),
)
_EXAMPLES = {
    "epsilon": "3",
    "delta": "1e-5",
    "noise_multiplier": "4",
    "rate": "0.1",
    "steps": "600",
    "epochs": "60",
    "records": "60000",
}


def _number(name: str, help: str) -> Any:
    return typer.Option(f"--{name}", help=help, show_default=False)


@plan_app.callback(invoke_without_command=True)
def plan(
    context: typer.Context,
    records: Annotated[
        int | None, _number("records", "Declared public number of records, such as 60000.")
    ] = None,
    epsilon: Annotated[
        list[float] | None,
        _number("epsilon", "Budget ε not to exceed, such as 3; several give several curves."),
    ] = None,
    delta: Annotated[
        float | None,
        _number("delta", "Failure probability δ of the guarantee, in (0, 1), such as 1e-5."),
    ] = None,
    noise_multiplier: Annotated[
        float | None,
        _number("noise-multiplier", "Noise multiplier σ: the noise in clip bounds, such as 4."),
    ] = None,
    rate: Annotated[
        float | None, _number("rate", "Sampling rate q, in (0, 1], such as 0.1.")
    ] = None,
    batch_size: Annotated[
        float | None,
        _number("batch-size", "Expected batch size, in records, instead of --rate."),
    ] = None,
    steps: Annotated[int | None, _number("steps", "Number of steps, such as 600.")] = None,
    epochs: Annotated[
        float | None,
        _number("epochs", "Expected number of passes over the data, instead of --steps."),
    ] = None,
    clip: Annotated[
        float, typer.Option("--clip", help="Clip bound C: noise grows with it, ε does not.")
    ] = 1.0,
    rates: Annotated[
        str | None,
        _number("rates", "Range of rates, such as 0.001:1, over which to print σ."),
    ] = None,
    batch_sizes: Annotated[
        str | None,
        _number(
            "batch-sizes", "Range of batch sizes, such as 100:60000, over which to print σC/B."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        _number("plot", "File to draw: .png, .svg or .pdf, or .html for a page with sliders."),
    ] = None,
    method: MethodOption = Method.PLD,
    relation: RelationOption = Relation.ADD_OR_REMOVE_ONE,
    as_json: JsonOption = False,
) -> None:
    """Solve for one of ε, δ, noise, rate and steps; or draw noise over rates or batch sizes.

    Examples:
    dpfy plan --records 60000 --batch-size 6000 --epochs 60 --epsilon 3 --delta 1e-5

    dpfy plan --records 60000 --noise-multiplier 4 --epochs 60 --epsilon 3 --delta 1e-5

    dpfy plan --records 60000 --epsilon 3 --delta 1e-5 --epochs 60 --rates 0.001:1 --plot
    contours.png

    dpfy plan --records 60000 --epsilon 3 --delta 1e-5 --steps 600 --batch-sizes 60:60000 --plot
    batches.svg

    dpfy plan --records 60000 --plot plan.html
    """
    if context.invoked_subcommand is not None:
        return
    page = plot is not None and plot.suffix in (".html", ".htm")
    if rates is not None and batch_sizes is not None:
        raise InvalidArgument("Expected --rates or --batch-sizes, not both. Leave one of them out.")
    if plot is not None and not page:
        _check_drawing(plot)
        if rates is None and batch_sizes is None:
            raise InvalidArgument(
                f"Drawing {plot} needs --rates or --batch-sizes. Add, for example, --rates 0.001:1."
            )
    if page:
        assert plot is not None
        _write_page(
            plot,
            {
                "epsilon": _single(epsilon),
                "delta": delta,
                "epochs": epochs,
                "records": records,
                "batch_size": batch_size,
            },
        )
    elif rates is not None:
        _contours(
            _needed("epsilon", epsilon or None),
            _needed("delta", delta),
            _needed("epochs", epochs),
            records,
            _range("rates", rates),
            plot,
            str(method),
            as_json,
        )
    elif batch_sizes is not None:
        _batches(
            _needed("epsilon", epsilon or None),
            _needed("delta", delta),
            _needed("records", records),
            _needed("steps", steps),
            clip,
            _range("batch-sizes", batch_sizes),
            plot,
            str(method),
            as_json,
        )
    else:
        from dpfy.planning import solve

        quantities = {
            "epsilon": _single(epsilon),
            "delta": delta,
            "noise_multiplier": noise_multiplier,
            "rate": rate,
            "batch_size": batch_size,
            "steps": steps,
            "epochs": epochs,
        }
        _check_open(records, quantities)
        found = solve(records=records, relation=relation, method=str(method), **quantities)  # type: ignore[arg-type]
        _tell(found, clip, as_json)


def _check_drawing(plot: Path) -> None:
    """Refuse a file that cannot be drawn before anything is computed."""
    from dpfy.planning.plots import ENDINGS

    if plot.suffix not in ENDINGS:
        raise InvalidArgument(
            f"Expected --plot {plot} to end in {', '.join(ENDINGS)} or .html, such as --plot "
            "contours.png."
        )
    require("matplotlib", "report")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _example(name: str) -> str:
    """A flag with a value, for people to copy."""
    return f"{_flag(name)} {_EXAMPLES[name]}"


def _needed(name: str, value: Any) -> Any:
    if value is None:
        raise InvalidArgument(
            f"Such a curve needs {_flag(name)}. Add, for example, {_example(name)}."
        )
    return value


def _single(epsilon: list[float] | None) -> float | None:
    if epsilon and len(epsilon) > 1:
        raise InvalidArgument(
            f"Expected one --epsilon, got {len(epsilon)}; several are for --rates and "
            "--batch-sizes. Leave all but one out, or add, for example, --rates 0.001:1."
        )
    return epsilon[0] if epsilon else None


def _check_open(records: int | None, given: dict[str, Any]) -> None:
    """Refuse flags of which not exactly one quantity is left open, and say which to add."""
    for one, other in (("rate", "batch_size"), ("steps", "epochs")):
        if given[one] is not None and given[other] is not None:
            raise InvalidArgument(
                f"Expected {_flag(one)} or {_flag(other)}, not both. Leave one of them out."
            )
    if given["batch_size"] is not None and records is None:
        raise InvalidArgument(
            f"Expected --records with --batch-size. Add, for example, {_example('records')}, or "
            f"give {_example('rate')} instead."
        )
    chosen = [next((each for each in names if given[each] is not None), None) for names in _SOLVED]
    missing = [names[0] for names, each in zip(_SOLVED, chosen, strict=True) if each is None]
    if not missing:
        raise InvalidArgument(
            "Expected one quantity to be left open, and all are given. Leave one of "
            f"{', '.join(_flag(str(each)) for each in chosen)} out: it is what is computed."
        )
    if len(missing) > 1:
        raise InvalidArgument(
            f"Expected one quantity to be left open, and {len(missing)} are: "
            f"{', '.join(map(_flag, missing))}. Give all but one of them: add, for example, "
            f"{' '.join(_example(each) for each in missing if each != _computed(missing))}. "
            "--batch-size with --records stands for --rate, and --epochs for --steps."
        )


def _computed(missing: list[str]) -> str:
    """The quantity that an example leaves open: noise, if it is open."""
    return "noise_multiplier" if "noise_multiplier" in missing else missing[-1]


def _range(name: str, text: str) -> list[float]:
    """Parse ``0.001:1`` into points at equal ratios."""
    import numpy as np

    try:
        low, high = map(float, text.split(":"))
    except ValueError:
        low = high = 0.0
    if not 0 < low < high:
        raise InvalidArgument(
            f"Expected --{name} {text!r} to be a range LOW:HIGH above zero, such as 0.001:1."
        )
    middle = np.geomspace(low, high, _POINTS)[1:-1].tolist()
    return [low, *middle, high]


def _tell(found: "Sketch", clip: float, as_json: bool) -> None:
    from dpfy.cli._output import print_json, round_up
    from dpfy.planning import diminishing_batch

    mean = found.noise_in_mean(clip)
    turn = (
        None
        if found.records is None
        else diminishing_batch(found.records, found.epsilon, found.steps)
    )
    if as_json:
        print_json(
            {
                "solved": found.solved,
                "epsilon": found.epsilon,
                "delta": found.delta,
                "noise_multiplier": found.noise_multiplier,
                "rate": found.rate,
                "steps": found.steps,
                "epochs": found.epochs,
                "records": found.records,
                "batch_size": found.batch_size,
                "clip": clip,
                "noise_in_mean": mean,
                "diminishing_batch": turn,
                "relation": str(found.relation),
                "method": found.method,
            }
        )
        return
    batch = (
        ""
        if found.batch_size is None
        else f", batches of {found.batch_size:,.6g} of {found.records:,} records"
    )
    typer.echo(
        f"{found.solved.replace('_', ' ')}: {getattr(found, found.solved)!r}\n"
        f"{found.steps:,} steps at rate {found.rate:.6g} ({found.epochs:.4g} epochs{batch}), noise "
        "multiplier "
        f"{found.noise_multiplier:.6g}: ({round_up(found.epsilon):.4f}, "
        f"{found.delta:.3g})-differential "
        "privacy."
    )
    if mean is not None and turn is not None:
        typer.echo(
            f"Noise in each coordinate of the mean gradient: {mean:.4g} for clip {clip:g}. Batches "
            f"beyond {turn:,.0f} bring less and less at this number of steps."
        )


def _contours(
    epsilons: list[float],
    delta: float,
    epochs: float,
    records: int | None,
    rates: list[float],
    plot: Path | None,
    method: str,
    as_json: bool,
) -> None:
    from dpfy.planning import noise_over_rate
    from dpfy.planning.plots import draw_contours
    from dpfy.planning.solve import steps_of

    lines = [
        noise_over_rate(epsilon, delta=delta, epochs=epochs, rates=rates, method=method)
        for epsilon in epsilons
    ]
    columns = [
        "rate",
        *(["batch"] if records else []),
        "steps",
        *(f"noise at ε = {line.epsilon:g}" for line in lines),
    ]
    rows = [
        [
            f"{rate:.4g}",
            *([f"{rate * records:,.6g}"] if records else []),
            f"{steps_of(epochs, rate):,}",
            *(f"{line.noise[place]:.4f}" for line in lines),
        ]
        for place, rate in enumerate(rates)
    ]
    _show(
        as_json,
        {
            "epochs": epochs,
            "delta": delta,
            "method": method,
            "contours": [_contour_json(line) for line in lines],
        },
        columns,
        rows,
        [
            f"ε = {line.epsilon:g}: σ ≈ {line.root_law:.4g}·√q over these rates; σ/√q itself goes "
            f"from {line.root_laws[0]:.3g} to {line.root_laws[-1]:.3g}."
            for line in lines
        ],
    )
    if plot is not None:
        _wrote(draw_contours(plot, lines, delta=delta, epochs=epochs), as_json)


def _contour_json(line: "Contour") -> dict[str, Any]:
    return {
        "epsilon": line.epsilon,
        "rates": line.rates,
        "noise_multipliers": line.noise,
        "c": line.root_law,
    }


def _batches(
    epsilons: list[float],
    delta: float,
    records: int,
    steps: int,
    clip: float,
    sizes: list[float],
    plot: Path | None,
    method: str,
    as_json: bool,
) -> None:
    from dpfy.planning import noise_over_batch
    from dpfy.planning.plots import draw_batch_curves

    curves = [
        noise_over_batch(
            epsilon,
            delta=delta,
            records=records,
            steps=steps,
            batch_sizes=sizes,
            clip=clip,
            method=method,
        )
        for epsilon in epsilons
    ]
    rows = [
        [
            f"{size:,.6g}",
            f"{size * steps / records:,.4g}",
            *(f"{curve.noise_in_mean[place]:.4g}" for curve in curves),
        ]
        for place, size in enumerate(sizes)
    ]
    _show(
        as_json,
        {
            "records": records,
            "steps": steps,
            "delta": delta,
            "clip": clip,
            "method": method,
            "curves": [_curve_json(curve) for curve in curves],
        },
        ["batch", "epochs", *(f"σC/B at ε = {curve.epsilon:g}" for curve in curves)],
        rows,
        [
            f"ε = {curve.epsilon:g}: beyond batches of {curve.diminishing:,.0f} returns diminish."
            for curve in curves
        ],
    )
    if plot is not None:
        _wrote(draw_batch_curves(plot, curves, delta=delta, records=records, steps=steps), as_json)


def _curve_json(curve: "BatchCurve") -> dict[str, Any]:
    return {
        "epsilon": curve.epsilon,
        "batch_sizes": curve.batch_sizes,
        "noise_in_mean": curve.noise_in_mean,
        "diminishing_batch": curve.diminishing,
    }


def _show(
    as_json: bool,
    values: dict[str, Any],
    columns: list[str],
    rows: list[list[str]],
    notes: list[str],
) -> None:
    from dpfy.cli._output import print_json

    if as_json:
        print_json(values)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*(f"[bold]{name}[/bold]" for name in columns))
    for column in table.columns:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False)
    console.print(table)
    for note in notes:
        console.print(note, soft_wrap=True)


def _write_page(path: Path, values: dict[str, Any]) -> None:
    from dpfy.planning.page import interactive

    page = interactive(**{name: value for name, value in values.items() if value is not None})
    path.write_text(page, encoding="utf-8")
    _wrote(path, as_json=False)


def _wrote(path: Path, as_json: bool) -> None:
    typer.echo(f"Wrote {path}.", err=as_json)  # with --json, standard output is one object
