"""PATE on MNIST and Adult: teachers of separate parts of the records label public inputs, on which
a student is trained.

``python -m experiments.pate run`` trains what has no result yet, ``table`` writes the table of
docs/how-to/pate.md. Public inputs are test records without their labels, as in the papers: the
student is evaluated on the others. Teachers, ledgers and labels are kept in ``state/pate``, from
where an interrupted run goes on."""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress

import dpfy
from dpfy import Ledger, Teachers, account
from dpfy.accounting import GroupGuarantee
from dpfy.data import load as load_source
from dpfy.ensembles import Pate, semi_supervised, train_linear
from experiments.features import computed, in_front

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "pate.json"
STATE = HERE / "state" / "pate"
PAGE = HERE.parent / "docs" / "how-to" / "pate.md"
_BEGIN, _END = "<!-- results: begin -->", "<!-- results: end -->"
_GROUPS = {"strict": (1.0, 0.34), "usual": (2.0, 0.43), "open": (3.0, 0.23)}
_KINDS, _FRONT = "upright-scattering", "stroke-linear"  # public features of a digit

Entry = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What decides a result; ``epsilon`` is None where groups have their own."""

    name: str
    data: str
    epsilon: float | None
    mechanism: str = "confident"
    parts: int = 250
    threshold: float | None = None
    check_noise: float | None = None
    answer_noise: float = 40.0
    method: str = ""  # of groups
    public: int = 9000  # test records that are inputs; the rest evaluates
    decay: float = 1e-3  # of teachers
    student: str = "semi-supervised"
    student_decay: float = 1e-4
    delta: float = 1e-5
    seeds: tuple[int, ...] = (0,)

    @property
    def plan(self) -> Pate:
        """The plan, from public constants alone."""
        return dpfy.pate(
            classes=10 if self.data == "mnist" else 2,
            parts=self.parts,
            mechanism=self.mechanism,
            threshold=self.threshold,
            check_noise=self.check_noise,
            answer_noise=self.answer_noise,
            epsilon=self.epsilon,
            delta=self.delta,
            groups=_GROUPS if self.method else None,
            method=self.method or "weight",
        )


# Threshold and noise of MNIST are those of Papernot et al. 2018 (200/150/40), whatever votes there
# are; upsampling has 1.89 times as many teachers, for as many records each, and as much more noise.
_UNIFORM = Setting("mnist-strictest", "mnist", 1.0, threshold=200, check_noise=150)
SETTINGS = (
    Setting("mnist", "mnist", 2.6, threshold=200, check_noise=150, seeds=(0, 1, 2)),
    _UNIFORM,
    replace(_UNIFORM, name="mnist-weight", epsilon=None, method="weight"),
    replace(
        _UNIFORM,
        name="mnist-upsample",
        epsilon=None,
        method="upsample",
        parts=472,
        threshold=378,
        check_noise=283.5,
        answer_noise=75.6,
    ),
    Setting(
        "adult",
        "adult",
        3.6,
        mechanism="gnmax",
        answer_noise=80,
        public=8141,
        student="linear",
        student_decay=1e-3,
        seeds=(0, 1, 2),
    ),
)
Records = tuple[np.ndarray, np.ndarray]


def load(data: str, data_dir: Path | None) -> tuple[Records, Records]:
    """Return the features and labels of training and of test records."""
    source = load_source(data, data_dir)
    halves = []
    for name, half in (("train", source.train), ("test", source.test)):
        x, y = half.tensors  # type: ignore[attr-defined]
        if data == "mnist":
            file = HERE / "state" / "features" / f"mnist-{_KINDS}-{name}.safetensors"
            x = in_front(_FRONT, computed(_KINDS, x, file, data_dir), data_dir)
        halves.append((x.flatten(1).numpy().astype(np.float32), y.numpy().astype(np.int64)))
    return halves[0], halves[1]


def run(setting: Setting, seed: int, train: Records, test: Records, progress: Progress) -> Entry:
    """Train teachers, label public inputs, train the student and measure it."""
    began, plan, folder = time.process_time(), setting.plan, STATE / f"{setting.name}-{seed}"
    bars = [progress.add_task(name, total=None) for name in ("teachers", "labels")]
    groups = None
    if setting.method:  # who is in which group is public here, and decided by a seed
        shares = [share for _, share in _GROUPS.values()]
        names = list(_GROUPS)
        groups = np.random.default_rng(seed).choice(names, len(train[1]), p=shares).tolist()
    teachers = Teachers.fit(
        train_linear(plan.classes, decay=setting.decay),
        train,
        plan.partition,
        group_of=groups,
        folder=folder / "teachers",
        progress=lambda done, all: progress.update(bars[0], completed=done, total=all),
    )
    public, held_out = test[0][: setting.public], test[0][setting.public :]
    order = np.random.default_rng(seed).permutation(len(public))
    labels = np.full(len(public), -1)
    labels[order] = plan.ask(
        teachers,
        public[order],
        folder / "votes.dpl",
        progress=lambda done, all: progress.update(bars[1], completed=done, total=all),
    )
    student = _student(setting, plan, public, labels)
    right = student.predict(held_out).numpy() == test[1][setting.public :]
    known = labels >= 0
    ledger = Ledger.read(folder / "votes.dpl")
    guarantee = account(ledger)
    for bar in bars:
        progress.remove_task(bar)
    return {
        "seed": seed,
        "accuracy": round(100 * float(right.mean()), 3),
        "labels": int(known.sum()),
        "right_labels": round(100 * float((labels == test[1][: setting.public])[known].mean()), 3),
        "asked": int(sum(run.times for run in ledger.uses)),
        "epsilon": guarantee.claim(setting.delta),
        "groups": {
            name: each.claim(setting.delta)
            for name, each in (
                guarantee.groups if isinstance(guarantee, GroupGuarantee) else {}
            ).items()
        },
        "seconds": round(time.process_time() - began, 1),
        "ledger_head": ledger.hash_at(ledger.lines),
    }


def _student(setting: Setting, plan: Pate, public: np.ndarray, labels: np.ndarray) -> Any:
    if setting.student == "semi-supervised":
        return semi_supervised(public, labels, plan.classes, decay=setting.student_decay)
    train_one = train_linear(plan.classes, decay=setting.student_decay, iterations=100)
    return train_one((public, labels), 0)


def read() -> list[Entry]:
    """Return all results."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []


def missing(settings: tuple[Setting, ...] = SETTINGS) -> Iterator[tuple[Setting, int]]:
    """Yield what has no result with these settings."""
    known = {(entry["name"], json.dumps(entry["setting"])): entry for entry in read()}
    for setting in settings:
        entry = known.get((setting.name, json.dumps(asdict(setting))), {"runs": []})
        done = {each["seed"] for each in entry["runs"]}
        yield from ((setting, seed) for seed in setting.seeds if seed not in done)


def keep(setting: Setting, result: Entry) -> None:
    """Add a run to the results; other settings of the same name give way."""
    entries = {entry["name"]: entry for entry in read()}
    own = json.loads(json.dumps(asdict(setting)))
    entry = entries.get(setting.name)
    if entry is None or entry["setting"] != own:
        entry = {"name": setting.name, "setting": own, "runs": []}
    entry["runs"] = [each for each in entry["runs"] if each["seed"] != result["seed"]] + [result]
    entries[setting.name] = entry
    order = [each.name for each in SETTINGS]
    kept = [entries[name] for name in order if name in entries]
    staged = RESULTS.with_suffix(".new")
    staged.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    staged.replace(RESULTS)


def table(entries: list[Entry]) -> str:
    """Return the results as a table in Markdown."""
    rows = [
        "| run | ε at δ = 1e-5 | labels | right labels | student | core-seconds |",
        "|---|---|---|---|---|---|",
    ]
    for entry in entries:
        runs = entry["runs"]
        groups = runs[0]["groups"]
        epsilon = ", ".join(f"{name} {_up(value)}" for name, value in groups.items()) or _up(
            max(each["epsilon"] for each in runs)
        )
        cells = [entry["name"], epsilon]
        for name, unit in (("labels", ""), ("right_labels", " %"), ("accuracy", " %")):
            digits = 0 if not unit else 2 if name == "accuracy" else 1
            cells.append(_spread([each[name] for each in runs], digits) + unit)
        cells.append(f"{max(each['seconds'] for each in runs):.0f}")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _up(epsilon: float) -> str:
    return f"{np.ceil(epsilon * 1000) / 1000:g}"


def _spread(values: list[float], digits: int) -> str:
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{np.mean(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


app = typer.Typer(name="experiments.pate", no_args_is_help=True, add_completion=False)


@app.command("run")
def run_(
    name: Annotated[str, typer.Argument(help="A setting; default: all of them.")] = "",
    data_dir: Annotated[Path | None, typer.Option(help="Default: DPFY_DATA.")] = None,
) -> None:
    """Run what has no result yet, or go on where it was stopped."""
    loaded: tuple[str, tuple[Records, Records]] | None = None
    for setting, seed in missing():
        if name in ("", setting.name):
            if loaded is None or loaded[0] != setting.data:
                loaded = setting.data, load(setting.data, data_dir)
            with Progress(console=Console(stderr=True)) as progress:
                result = run(setting, seed, *loaded[1], progress)
            keep(setting, result)
            print(setting.name, result)
    write_table()


@app.command("table")
def write_table() -> None:
    """Write the table of docs/how-to/pate.md from the results."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(_BEGIN)
    _, after = rest.split(_END)
    PAGE.write_text(f"{before}{_BEGIN}\n{table(read())}\n{_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    app()
