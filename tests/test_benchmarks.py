"""The benchmark of the engines compares like with like, and the README shows what it found."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks import small_step, step_stages
from benchmarks.engines import contenders as field, measure, table
from benchmarks.engines.measure import Figure, Settings
from benchmarks.engines.workloads import LARGE, WORKLOADS, TextLstm, TextTransformer, Workload
from benchmarks.step_stages import Stages
from torch import nn

import dpfy

TINY = Workload(
    "tiny",
    6,
    lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3)),
    lambda records: torch.rand(records, 1, 5, 5),
    classes=3,
    time_limit=1.0,
)
TEXT = Workload(
    "text",
    4,
    lambda: TextTransformer(vocabulary=7, length=5, width=8, layers=1, classes=2),
    lambda records: torch.randint(7, (records, 5)),
    classes=2,
    time_limit=1.0,
)
LSTM = Workload(
    "lstm",
    4,
    lambda: TextLstm(torch.randn(7, 3), hidden=2, classes=2),
    lambda records: torch.randint(7, (records, 5)),
    classes=2,
    time_limit=1.0,
)
SIZES = {
    "mlp": (1_863_690, 1024),
    "transformer": (8_312_834, 32),
    "cnn-mnist": (26_010, 512),
    "cnn-cifar": (605_226, 256),
    "wrn16-4": (2_748_890, 64),
    "lstm-imdb": (34_434, 256),
}


@pytest.mark.parametrize("name", SIZES)
def test_workloads_have_the_sizes_that_figures_are_published_for(name: str) -> None:
    workload = WORKLOADS[name]
    model = workload.model()
    assert (sum(p.numel() for p in model.parameters() if p.requires_grad), workload.batch) == SIZES[
        name
    ]
    x, y = workload.data()[:2]
    assert len(workload.data()) == workload.batch
    assert F.cross_entropy(model(x), y).isfinite()  # labels and tokens are inside their ranges


def test_the_large_workload_has_100_million_parameters() -> None:
    with torch.device("meta"):
        model = LARGE["mlp-100m"].model()
    assert sum(p.numel() for p in model.parameters()) == 99_801_610


@pytest.mark.filterwarnings("ignore")  # of peers, about themselves
@pytest.mark.parametrize("workload", [TINY, TEXT, LSTM], ids=lambda workload: workload.name)
@pytest.mark.parametrize("name", field.contenders()[1:])
def test_without_clipping_and_noise_every_contender_computes_what_plain_torch_does(
    name: str, workload: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Half a batch, a frozen layer, a sum for a mean, a step left out: each would make somebody
    # faster than they are.
    if reason := field.unavailable(name):
        pytest.skip(reason)
    if name.startswith("opacus") and workload is TEXT:
        pytest.skip(
            "the attention of Opacus 1.6 puts heads in the place of time steps with "
            "batch_first=True"
        )
    monkeypatch.setattr(field, "CLIP", 100.0)
    monkeypatch.setattr(field, "NOISE_MULTIPLIER", 0.0)
    plain, private = (field.prepare(contender, workload, tmp_path) for contender in ("torch", name))
    for _ in range(2):  # the second gradient shows whether the optimizer has made the first step
        plain.step()
        try:
            private.step()
        except dpfy.IsolationError:
            assert name != "dpfy"  # an engine may refuse a layer, and the benchmark says so
            pytest.skip("the engine refuses the workload")
    expected, found = (
        torch.cat([p.grad.flatten() for p in ready.model.parameters() if p.requires_grad])
        for ready in (plain, private)
    )
    if name.startswith("opacus"):  # its LSTM has the same weights in another order
        expected, found = expected.sort().values, found.sort().values
    assert torch.allclose(expected, found, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["dpfy", "vmap"])
def test_contenders_clip_and_add_noise(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With hardly any noise the mean of six clipped gradients is at most the bound; with much, noise
    # is all there is.
    def gradient(clip: float, noise: float) -> torch.Tensor:
        monkeypatch.setattr(field, "CLIP", clip)
        monkeypatch.setattr(field, "NOISE_MULTIPLIER", noise)
        folder = tmp_path / f"{clip}-{noise}"
        folder.mkdir()
        ready = field.prepare(name, TINY, folder)
        ready.step()
        return torch.cat([p.grad.flatten() for p in ready.model.parameters() if p.grad is not None])

    assert gradient(1e-3, 1e-6).norm() <= 1.001e-3
    scale = gradient(1.0, 1000.0).std() * TINY.batch / 1000
    # 77 coordinates: the ratio of the deviations is within [0.67, 1.5] but for 2e-7 of all draws
    # (chi-square).
    assert 0.6 < scale < 1.5


def test_dpfy_reads_the_whole_batch_and_nothing_else(tmp_path: Path) -> None:
    seen: list[int] = []

    class Counted(torch.utils.data.Dataset[Any]):
        example_input = TINY.data()[:2]

        def __len__(self) -> int:
            return TINY.batch

        def __getitem__(self, index: int) -> Any:
            seen.append(index)
            return TINY.data()[index]

    ready = field.private(TINY, Counted(), TINY.batch, tmp_path / "run.dpl", engine="vmap")
    ready.step()
    seen.clear()  # the first step also looks whether records depend on each other
    ready.step()
    assert sorted(seen) == list(range(TINY.batch)) and ready.engine() == "vmap"


class Workers:
    """Answers as worker processes would."""

    def __init__(self, peaks: dict[str, dict[str, Any]], times: list[tuple[str, float]]) -> None:
        self.peaks, self.times = peaks, times

    def __call__(
        self, task: str, workload: str, threads: int, **options: Any
    ) -> Iterator[dict[str, Any]]:
        if task == "peak":
            yield self.peaks[options["contender"]]
            return
        for name, ms in self.times:
            if name in options["contenders"]:
                yield {"contender": name, "ms": ms}


def test_ratios_are_medians_over_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [
        (name, ms)
        for name, all_ms in {
            "torch": (10, 11, 90),
            "dpfy": (15, 22, 23),
            "noise": (2, 2.2, 9),
        }.items()
        for ms in all_ms
    ]
    peaks = {
        "torch": {"peak_mb": 400.0, "engine": None},
        "dpfy": {"peak_mb": 500.0, "engine": "vmap"},
        "vmap": {
            "failed": "RuntimeError: can't allocate memory: you tried to allocate 7633633280 bytes."
        },
        "opacus:ghost": {"failed": "ValueError: no rule"},
    }
    monkeypatch.setattr(measure, "ask", Workers(peaks, times))
    found = measure.compare(
        "mlp", ["torch", "dpfy", "dpfy:vmap", "vmap", "opacus:ghost"], 2, Settings()
    )
    assert found.figures == [
        Figure("mlp", "torch", 2, 11, 1.0, 400.0, 1.0),
        Figure("mlp", "dpfy", 2, 22, 2.0, 500.0, 1.25),
    ]
    assert found.fastest_ratios == {"torch": 1.0, "dpfy": 1.5}
    assert found.noise_share == pytest.approx(0.1)
    # What dpfy chose is not measured a second time; who failed is named and is no zero in the
    # results.
    assert found.missing == {"vmap": "needs more than 8 GB", "opacus:ghost": "ValueError: no rule"}


def test_the_first_step_is_counted_in_plain_steps_of_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = iter(
        [
            {"first_ms": 50.0, "plain_ms": 10.0, "step_ms": 15.0},
            {"first_ms": 90.0, "plain_ms": 20.0, "step_ms": 30.0},
            {"first_ms": 900.0, "plain_ms": 10.0, "step_ms": 10.0},
            {"failed": "died"},
        ]
    )
    monkeypatch.setattr(measure, "ask", lambda *_, **__: iter([next(runs)]))
    assert measure.set_up("mlp", 1) == measure.SetUp(first_step=5.0, beyond=3.5)
    with pytest.raises(RuntimeError, match="died"):
        measure.set_up("mlp", 1)


def test_no_ratio_without_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {"torch": {"failed": "died"}, "dpfy": {"peak_mb": 1.0, "engine": "vmap"}}
    monkeypatch.setattr(measure, "ask", Workers(peaks, [("dpfy", 1.0)]))
    assert measure.compare("mlp", ["torch", "dpfy"], 1, Settings()).figures == []


@pytest.mark.parametrize(("limit", "expected"), [(64, "failed"), (8192, "peak_mb")])
def test_a_worker_reports_its_peak_or_what_stopped_it(limit: int, expected: str) -> None:
    *_, found = measure.ask("peak", "cnn-mnist", 1, contender="torch", steps=1, limit_mb=limit)
    assert expected in found
    if expected == "peak_mb":
        assert 150 < found["peak_mb"] < 4096  # torch alone is above, in megabytes
    else:
        assert measure._explain(found["failed"], limit) == "needs more than 0.0625 GB"


def test_the_worth_of_a_second_process_is_a_ratio_of_medians_of_rank_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = [
        ("alone", 30.0),
        ("divided", 20.0),
        ("alone", 32.0),
        ("divided", 16.0),
        ("alone", 99.0),
        ("divided", 15.0),
    ]

    def ask(*_: object, rank: int, **__: object) -> Iterator[dict[str, Any]]:
        return iter([{"contender": name, "ms": ms} for name, ms in times] if rank == 0 else [])

    monkeypatch.setattr(measure, "ask", ask)
    assert measure.speed_up("mlp", 8, rounds=3) == 2.0
    monkeypatch.setattr(
        measure, "ask", lambda *_, rank, **__: iter([{"failed": "died"}] if rank == 1 else [])
    )
    with pytest.raises(RuntimeError, match="died"):
        measure.speed_up("mlp", 8, rounds=3)


@pytest.mark.slow
def test_workers_divide_a_step_among_themselves() -> None:
    assert measure.speed_up("cnn-mnist", records=8, rounds=1) > 0


def test_a_worker_that_dies_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.sys, "executable", "/bin/false")
    *_, found = measure.ask("peak", "mlp", 1)
    assert "code 1" in found["failed"]


def test_results_of_other_workloads_and_threads_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    old = Figure("mlp", "torch", 1, 10.0, 1.0, 300.0, 1.0)
    measure.write(
        [
            old,
            replace(old, engine="gone"),
            replace(old, threads=2),
            replace(old, workload="wrn16-4"),
        ],
        path,
    )
    measure.write([replace(old, step_ms=11.0)], path)
    assert measure.read(path) == [
        replace(old, step_ms=11.0),
        replace(old, workload="wrn16-4"),
        replace(old, threads=2),
    ]
    keys = {"workload", "engine", "threads", "step_ms", "time_ratio", "peak_mb", "memory_ratio"}
    assert all(set(entry) == keys for entry in json.loads(path.read_text()))


def figures(engine: str, ratio: float, leave_out: str = "") -> list[Figure]:
    return [
        Figure(name, engine, 1, 100.0 * ratio, ratio, 300.0 * ratio, ratio)
        for name in WORKLOADS
        if name != leave_out
    ]


def test_tables_show_ratios_means_and_gaps() -> None:
    shown = table.tables(
        [
            *figures("vmap", 12.34, leave_out="mlp"),
            *figures("torch", 1.0),
            *figures("dpfy", 1.254),
            *figures("dpfy:loop", 3.0),
            Figure("mlp", "torch", 2, 60.0, 1.0, 310.0, 1.0),
        ]
    )
    lines = [line.split(" | ") for line in shown.splitlines()]
    assert lines[0] == ["One thread:"] and ["Two threads:"] in lines
    assert [cells[0] for cells in lines[4:8]] == [
        "| plain torch",
        "| **dpfy**",
        "| dpfy, `loop`",
        "| `torch.func` by hand",
    ]
    assert lines[4][1] == "100 ms / 300 MB"
    assert lines[5][1:] == ["1.25 / 1.25"] * 6 + ["1.25 / 1.25 |"]
    assert lines[7][1:] == ["–"] + ["12 / 12"] * 5 + [
        "– |"
    ]  # no mean over fewer workloads than the others have


def test_tables_show_the_first_step_and_large_workloads_where_they_were_measured() -> None:
    own = [replace(each, first_step=4.26) for each in figures("dpfy", 1.25)]
    large = Figure("mlp-100m", "dpfy", 1, 900.0, 1.5, 900.0, 1.6, first_step=4.9)
    lines = [line.split(" | ") for line in table.tables([*own, large]).splitlines()[2:]]
    assert lines[0][-1] == "mlp-100m |" and lines[2][-2:] == ["1.25 / 1.25", "1.50 / 1.60 |"]
    assert lines[3][1:] == ["4.3 steps"] * 6 + ["–", "4.9 steps |"]
    assert len({len(cells) for cells in lines}) == 1


def test_columns_are_the_workloads() -> None:
    assert set(table._COLUMNS) == set(WORKLOADS)


def test_readme_shows_the_results() -> None:
    readme = (measure.ROOT / "README.md").read_text(encoding="utf-8")
    assert table.between(readme) == table.tables(measure.read()), (
        "run python -m benchmarks.engines.table"
    )


def test_update_replaces_what_stands_between_the_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}old\n{table.END}after\n", encoding="utf-8")
    monkeypatch.setattr(table, "read", lambda: figures("dpfy", 2.0))
    table.update(page)
    assert page.read_text(encoding="utf-8") == (
        f"before\n{table.BEGIN}{table.tables(figures('dpfy', 2.0))}{table.END}after\n"
    )
    page.write_text("no marks", encoding="utf-8")
    with pytest.raises(ValueError, match="no marks"):
        table.update(page)


def test_a_stage_has_the_time_of_its_own_and_not_of_those_inside_of_it():
    ticks = iter([0.0, 1.0, 3.0, 6.0, 10.0, 10.0, 15.0, 24.0])
    stages = Stages(lambda: next(ticks))
    with stages.step():
        stages.enter("outer")
        stages.enter("inner")
        stages.leave()
        stages.leave()
    with stages.step():
        pass
    assert stages.milliseconds() == {"the rest": 5e3, "inner": 1.5e3, "outer": 3e3}


def test_every_stage_of_a_small_step_is_found(tmp_path, monkeypatch):
    """A function that was renamed, or that a step does not call any more, would be missing."""
    monkeypatch.chdir(tmp_path)
    found = small_step.stages_of(1)
    assert {*found} == {"the rest", *(stage for stage, _, _ in step_stages.CALLS)}
    assert all(duration > 0 for duration in found.values())
