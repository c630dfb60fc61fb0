"""``python -m experiments list | run | table``."""

import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dpfy.errors import DataError, DpfyError, InvalidArgument
from experiments import table as tables
from experiments.cell import Cell
from experiments.configs import CELLS, NAMES, cells_of
from experiments.features import FRONTS
from experiments.parts import Task, load_task
from experiments.results import Place
from experiments.training import Deadline, Outcome, Training

HERE = Path(__file__).parent
app = typer.Typer(
    name="experiments",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Run the papers' tables with dpfy.",
)

NameArgument = Annotated[
    str | None, typer.Argument(help="Of `list`; default: all of them.", show_default=False)
]


@app.command("list")
def list_() -> None:
    """Show every cell, and how far it is."""
    place, shown = Place(HERE), Table(box=None)
    for column in ("experiment", "data", "ε", "target %", "steps", "seeds"):
        shown.add_column(column, no_wrap=column == "experiment")
    for cell in CELLS:
        target = "" if cell.target is None else f"{cell.target:g}"
        shown.add_row(
            cell.experiment,
            cell.data,
            f"{cell.epsilon:g}",
            target,
            str(cell.steps),
            _progress(place, cell),
        )
    Console().print(shown)


@app.command()
def run(
    name: NameArgument = None,
    epsilon: Annotated[str, typer.Option(help="Only these cells, such as 0.98,1.95.")] = "",
    seeds: Annotated[
        str, typer.Option(help="Of the initial weights, such as 0,1; default: the cell's own.")
    ] = "",
    data_dir: Annotated[
        Path | None, typer.Option(help="Has one folder per data set; default: DPFY_DATA.")
    ] = None,
    minutes: Annotated[
        float, typer.Option(help="Stop after so long, with everything saved.")
    ] = 140.0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few steps on few records; keeps no results.")
    ] = False,
    validate: Annotated[
        bool,
        typer.Option(
            "--validate",
            help="Hold out training records in the place of the test records; results go to "
            "selection/.",
        ),
    ] = False,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Try another setting, such as clip=0.5; only with --validate."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Discard what these cells have and begin again.")
    ] = False,
) -> None:
    """Train the cells of an experiment, or go on where it was stopped.

    Examples:

    python -m experiments run digits

    python -m experiments run large-rates-mnist --epsilon 2.93 --seeds 0 --data-dir ~/data

    python -m experiments run large-rates-mnist --epsilon 2.93 --validate --set learning_rate=8
    """
    if change and not validate:
        raise InvalidArgument(
            "--set is for selection, with --validate. What is published has its settings in "
            "experiments/configs."
        )
    cells = [cell.changed_by(change or []) for cell in _chosen(name, epsilon)]
    own, deadline = _seeds(seeds), Deadline(minutes)
    if quick:
        with tempfile.TemporaryDirectory() as folder:
            _run_quickly(
                cells, Session(Place(Path(folder), validate), data_dir, deadline), skip=name is None
            )
        return
    session = Session(Place(HERE, validate), data_dir, deadline)
    try:
        ended = all(
            session.train(cell, seed, again) for cell in cells for seed in own or cell.seeds
        )
    except KeyboardInterrupt:
        _fail(f"Interrupted; all but the last step is saved. {_how_to_go_on()}", 130)
    finally:
        if session.recorded and not validate:
            tables.update(session.place)
    if not ended:
        session.say(f"Time is up; everything is saved. {_how_to_go_on()}")


@app.command()
def table() -> None:
    """Write the tables of docs/how-to/accuracy.md from the results; `make docs` draws its plots."""
    tables.update(Place(HERE))


class Session:
    """Runs one after another until time is up, and tells how they go."""

    def __init__(self, place: Place, data_dir: Path | None, deadline: Deadline) -> None:
        self.place, self.data_dir, self.deadline = place, data_dir, deadline
        self.recorded = 0
        self._console = Console()
        self._loaded: tuple[object, Task] | None = None

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def train(self, cell: Cell, seed: int, again: bool = False) -> bool:
        """Bring one run to its end and record it; False if time was up before."""
        title = f"{cell.experiment} ε {cell.epsilon:g} seed {seed}"
        if not again and seed in (found := self.place.finished(cell)):
            self.say(f"{title}: {found[seed]:.2f} %, from before. --again repeats it.")
            return True
        if self.deadline.near():
            return False
        task = self._task(cell)
        if again:
            self.place.discard(cell, seed)
        outcome = self._trained(cell, seed, task, title)
        if outcome is None:
            return False
        self.place.record(cell, outcome)
        self.recorded += 1
        lost = f", {outcome.lost_steps} of {outcome.steps} steps lost" if outcome.lost_steps else ""
        self.say(
            f"{title}: {outcome.accuracy:.2f} %, ε {tables.claim(outcome.epsilon)} by PLD "
            f"({tables.claim(outcome.epsilon_rdp)} by RDP), {outcome.seconds:.0f} s{lost}"
        )
        return True

    def _trained(self, cell: Cell, seed: int, task: Task, title: str) -> Outcome | None:
        training = Training(
            cell, seed, self.place.state(cell, seed), task, measure=self.place.validate
        )
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("ε {task.fields[epsilon]:.2f}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console) as progress:
            bar = progress.add_task(
                title, total=cell.steps, completed=self.place.steps_taken(cell, seed), epsilon=0.0
            )

            def watch(step: int, epsilon: float) -> None:
                progress.update(bar, completed=step, epsilon=epsilon)
                if not self._console.is_terminal:  # where no bar can move, such as in a file
                    self.say(f"{title}: step {step} of {cell.steps}, ε {epsilon:.2f}")

            return training.go_on(self.deadline, watch)

    def _task(self, cell: Cell) -> Task:
        """The data of the cell, kept for the next cell that wants the same."""
        key = (
            cell.data,
            cell.features,
            cell.records,
            cell.network if cell.network in FRONTS else None,
        )
        if self._loaded is None or self._loaded[0] != key:
            try:
                self._loaded = (
                    key,
                    load_task(cell, self.data_dir, self.place.validate, self.place.cache),
                )
            except DataError as error:
                raise DataError(
                    f"{error} Here data_dir is --data-dir, a folder with one folder per data set, "
                    f"such as {cell.data}/; docs/how-to/data.md lists the files."
                ) from None
        return self._loaded[1]


def _run_quickly(cells: Sequence[Cell], session: Session, skip: bool) -> None:
    """Run the first cell of each experiment in its reduced form; ``skip`` what has no data."""
    for name in dict.fromkeys(cell.experiment for cell in cells):
        cell = next(cell for cell in cells if cell.experiment == name).quick()
        try:
            session.train(cell, cell.seeds[0])
        except DataError as error:
            if not skip:
                raise
            session.say(f"{name}: left out. {error}")


def _chosen(name: str | None, epsilon: str) -> list[Cell]:
    if name is not None and name not in NAMES:
        raise InvalidArgument(f"There is no experiment {name!r}. There are {', '.join(NAMES)}.")
    cells = list(cells_of(name) if name is not None else CELLS)
    if not epsilon:
        return cells
    wanted = _numbers("--epsilon", epsilon, float)
    for value in wanted:
        if value not in [cell.epsilon for cell in cells]:
            raise InvalidArgument(
                f"No cell has ε = {value:g}; there are "
                f"{', '.join(f'{c.epsilon:g}' for c in cells)}."
            )
    return [cell for cell in cells if cell.epsilon in wanted]


def _seeds(text: str) -> list[int]:
    return [int(seed) for seed in _numbers("--seeds", text, int)] if text else []


def _numbers(option: str, text: str, kind: type) -> list[float]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InvalidArgument(
            f"Expected {option} to be numbers between commas, got {text!r}."
        ) from None


def _progress(place: Place, cell: Cell) -> str:
    """How far the seeds of a cell are."""
    found = place.finished(cell)
    begun = {seed: place.steps_taken(cell, seed) for seed in cell.seeds if seed not in found}
    parts = [
        f"{len(found)} of {len(cell.seeds)} done" if found else "",
        *(f"seed {seed}: {steps} steps" for seed, steps in begun.items() if steps),
    ]
    return ", ".join(part for part in parts if part) or "not run"


def _how_to_go_on() -> str:
    arguments = shlex.join(each for each in sys.argv[1:] if each != "--again")
    return f"Go on with: python -m experiments {arguments}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit with 2 for what was asked wrongly and with 1 for what failed."""
    try:
        app(arguments)
    except DpfyError as error:
        _fail(str(error), 2 if isinstance(error, InvalidArgument) else 1)


def _fail(sentence: str, code: int) -> NoReturn:
    typer.echo(f"Error: {sentence}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
