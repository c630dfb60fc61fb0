"""``dpfy plan strategy``: tune on public data by a procedure that gives its reasons.

Tests: tests/cli/test_plan.py.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dpfy.cli._options import DataDirOption
from dpfy.errors import InvalidArgument

if TYPE_CHECKING:
    from dpfy.planning.strategies import Choice, Evaluate, Step


_EXAMPLES = {"--records": 60000, "--batch-size": 6000}


def _given(help: str) -> Any:
    return typer.Option(help=help, show_default=False)


def strategy(
    name: Annotated[
        str,
        typer.Argument(
            help="Procedure: clip-search, grid, compute, small-batch or accuracy.",
            show_default=False,
        ),
    ],
    public: Annotated[
        str | None,
        _given(
            "PUBLIC or proxy data to carry it out on: digits, mnist, … or module:loader, which "
            "returns two data sets. Default: the steps are only printed."
        ),
    ] = None,
    model: Annotated[
        str | None, _given("Your model as module:factory. Default: a network for the data set.")
    ] = None,
    data_dir: DataDirOption = None,
    records: Annotated[
        int | None, _given("Declared number of private records, such as 60000.")
    ] = None,
    epsilon: Annotated[
        float, typer.Option(help="Privacy budget ε of the run on private data.")
    ] = 3.0,
    delta: Annotated[
        float | None,
        _given(
            "Failure probability δ of that run, in (0, 1). Default: 1e-5, and 1/records^1.1 from "
            "100,000 records on."
        ),
    ] = None,
    batch_size: Annotated[
        float | None,
        _given("Largest expected batch size that compute allows, in records, such as 6000."),
    ] = None,
    small_batch: Annotated[
        float, typer.Option(help="Expected batch size of the search, in records.")
    ] = 128,
    epochs: Annotated[
        float, typer.Option(help="Largest number of epochs that compute allows; for compute.")
    ] = 30,
    steps: Annotated[int, typer.Option(help="Number of steps; for all but compute.")] = 300,
    learning_rate: Annotated[
        float, typer.Option(help="Learning rate that works without privacy.")
    ] = 0.1,
    noise_multiplier: Annotated[
        float, typer.Option(help="Noise multiplier of the grid, in clip bounds.")
    ] = 1.0,
    utility: Annotated[
        float, typer.Option(help="Accuracy to reach, in [0, 1]; for accuracy.")
    ] = 0.9,
) -> None:
    """Print the steps of a tuning procedure and their reasons; --public carries them out.

    No step may see private records: a search on them is a release of its own.

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
                f"Expected {' and '.join(missing)} for {name}, to describe the private run. Add, "
                f"for example, {' '.join(f'{each} {_EXAMPLES[each]}' for each in missing)}."
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
    """A procedure, and the function that collects its options before anything is loaded."""

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
