"""``dpfy plan strategy``: tune on public data by a procedure that gives its reasons."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dpfy.errors import InvalidArgument

if TYPE_CHECKING:
    from dpfy.planning.strategies import Choice, Evaluate, Step


def _given(help: str) -> Any:
    return typer.Option(help=help, show_default=False)


def strategy(
    name: Annotated[
        str,
        typer.Argument(
            help="clip-search, grid, compute, small-batch or accuracy.", show_default=False
        ),
    ],
    public: Annotated[
        str | None,
        _given(
            "PUBLIC or proxy data to try it on: digits, mnist, … or module:loader, which returns "
            "two data sets."
        ),
    ] = None,
    model: Annotated[
        str | None, _given("Your model as module:factory; default: a network for the data set.")
    ] = None,
    data_dir: Annotated[str | None, _given("Where reference data sets are.")] = None,
    records: Annotated[int | None, _given("The declared number of private records.")] = None,
    epsilon: Annotated[float, typer.Option(help="The budget of the run on private data.")] = 3.0,
    delta: Annotated[
        float | None, _given("Its δ; if left out, 1e-5, and 1/records^1.1 from 100,000 records on.")
    ] = None,
    batch_size: Annotated[float | None, _given("The largest batch that compute allows.")] = None,
    small_batch: Annotated[float, typer.Option(help="The batch of the search.")] = 128,
    epochs: Annotated[
        float, typer.Option(help="The most epochs that compute allows; for compute.")
    ] = 30,
    steps: Annotated[int, typer.Option(help="How many steps; for all others.")] = 300,
    learning_rate: Annotated[float, typer.Option(help="A rate that works without privacy.")] = 0.1,
    noise_multiplier: Annotated[float, typer.Option(help="The noise of the grid.")] = 1.0,
    utility: Annotated[float, typer.Option(help="The accuracy wanted; for accuracy.")] = 0.9,
) -> None:
    """Print the steps of a tuning procedure and their reasons; with --public, carry them out on
    public data.

    Nothing here may see private records: a search is a release of its own.

    Examples:
    dpfy plan strategy compute

    dpfy plan strategy clip-search --public digits --small-batch 256 --steps 60

    dpfy plan strategy compute --public digits --records 50000 --batch-size 5000 --epochs 10
    """
    from dpfy.planning.defaults import default_delta
    from dpfy.planning.strategies import STRATEGIES

    if name not in STRATEGIES:
        raise InvalidArgument(f"Expected {name!r} to be one of {', '.join(STRATEGIES)}.")
    numbers = iter(range(1, 100))

    def tell(step: "Step") -> None:
        typer.echo(f"{next(numbers)}. {step}\n")

    if public is None:
        for step in STRATEGIES[name]:
            tell(step)
        typer.echo(
            "Give --public to carry it out on public or proxy data. On private data, "
            "QuantileClipping (--clipping quantile, or dpfy.planning.private_clip_plan before a "
            "run) follows the norms, and is charged."
        )
        return

    needed = {"records": records, "batch_size": batch_size}

    def private_run(*names: str) -> dict[str, Any]:
        missing = [f"--{each.replace('_', '-')}" for each in names if needed[each] is None]
        if missing:
            raise InvalidArgument(
                f"Expected {' and '.join(missing)} for {name}: they describe the private run."
            )
        budget = {"epsilon": epsilon, "delta": default_delta(records) if delta is None else delta}
        return budget | {each: needed[each] for each in names}

    search = _searches(
        tell,
        private_run,
        {"small_batch": small_batch, "steps": steps, "learning_rate": learning_rate},
        epochs,
        noise_multiplier,
        utility,
    )[name]
    options = search.options()

    from dpfy.trainer.public_trials import Rehearsal  # torch is loaded only when it is needed

    _conclude(search.run(Rehearsal.named(public, model, data_dir), options))


class _Search(NamedTuple):
    """A procedure, and how its options are collected before anything is loaded."""

    options: Callable[[], dict[str, Any]]
    run: "Callable[[Evaluate, dict[str, Any]], Choice | None]"


def _searches(
    tell: "Callable[[Step], None]",
    private_run: Callable[..., dict[str, Any]],
    small: dict[str, Any],
    epochs: float,
    noise_multiplier: float,
    utility: float,
) -> dict[str, _Search]:
    from dpfy.planning import strategies

    base = strategies.Trial(small["small_batch"], small["steps"], small["learning_rate"])
    noisy = strategies.Trial(
        small["small_batch"],
        small["steps"],
        small["learning_rate"],
        noise_multiplier=noise_multiplier,
    )
    common: dict[str, Any] = {"data": "public", "tell": tell}

    def grid(evaluate: "Evaluate", options: dict[str, Any]) -> None:
        strategies.clip_and_rate_grid(evaluate, noisy, **common)

    return {
        "clip-search": _Search(
            dict, lambda evaluate, _: strategies.clip_search(evaluate, base, **common)
        ),
        "grid": _Search(dict, grid),
        "compute": _Search(
            lambda: (
                private_run("records", "batch_size")
                | {"epochs": epochs, "learning_rate": small["learning_rate"]}
            ),
            lambda evaluate, options: strategies.given_compute(evaluate, **options, **common),
        ),
        "small-batch": _Search(
            lambda: private_run("records", "batch_size") | small,
            lambda evaluate, options: strategies.small_then_large(evaluate, **options, **common),
        ),
        "accuracy": _Search(
            lambda: private_run("records") | small | {"utility": utility},
            lambda evaluate, options: strategies.given_accuracy(evaluate, **options, **common),
        ),
    }


def _conclude(choice: "Choice | None") -> None:
    if choice is None or choice.sketch is None:
        return
    trial, sketch = choice.trial, choice.sketch
    typer.echo(
        f"Accuracy on public data: {choice.utility:.3f}. On private data:\n"
        f"dpfy train --records {sketch.records} --batch-size {round(trial.batch_size)} "
        f"--epochs {sketch.epochs:.6g} --clip {trial.clip:g} --learning-rate "
        f"{trial.learning_rate:g} "
        f"--epsilon {sketch.epsilon:.4g} --delta {sketch.delta:g} --data … --model …"
    )
