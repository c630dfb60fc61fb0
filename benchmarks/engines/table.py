"""Writes the tables of the README from results.json: ``python -m benchmarks.engines.table``."""

from pathlib import Path
from statistics import geometric_mean

from benchmarks.engines.measure import ROOT, Figure, read
from benchmarks.engines.workloads import LARGE

README = ROOT / "README.md"
BEGIN, END = "<!-- benchmarks: begin -->\n", "<!-- benchmarks: end -->\n"
_NOT_MEASURED = "`make bench` measures them on your machine.\n"
_PEERS = {
    "opacus:hooks": "Opacus, hooks",
    "opacus:ghost": "Opacus, ghost",
    "vmap": "`torch.func` by hand",
    "jax-privacy": "JAX Privacy",
}
_FIRST = "dpfy, from `privatize` to the end of the first step"
_COLUMNS = ("mlp", "transformer", "cnn-mnist", "cnn-cifar", "wrn16-4", "lstm-imdb")


def tables(figures: list[Figure]) -> str:
    """Return one table for each number of threads."""
    parts = [
        f"{_count(threads)}:\n\n{_table([each for each in figures if each.threads == threads])}"
        for threads in sorted({figure.threads for figure in figures})
    ]
    return "\n".join(parts) or _NOT_MEASURED


def _table(figures: list[Figure]) -> str:
    found = {(figure.engine, figure.workload): figure for figure in figures}
    others = sorted({figure.engine for figure in figures if figure.engine.startswith("dpfy:")})
    labels = {
        "torch": "plain torch",
        "dpfy": "**dpfy**",
        **{engine: f"dpfy, `{engine.removeprefix('dpfy:')}`" for engine in others},
        **_PEERS,
    }
    columns = [*_COLUMNS, *(name for name in LARGE if ("dpfy", name) in found)]
    rows = [
        [
            label,
            *(_cell(found.get((engine, workload))) for workload in columns[: len(_COLUMNS)]),
            _mean(
                [found[engine, workload] for workload in _COLUMNS if (engine, workload) in found]
            ),
            *(_cell(found.get((engine, workload))) for workload in columns[len(_COLUMNS) :]),
        ]
        for engine, label in labels.items()
        if any(figure.engine == engine for figure in figures)
    ]
    header = ["time / memory", *_COLUMNS, "geo-mean", *columns[len(_COLUMNS) :]]
    first = [found.get(("dpfy", workload)) for workload in columns]
    if any(figure is not None and figure.first_step is not None for figure in first):
        shown = [_steps(figure) for figure in first]
        rows.append([_FIRST, *shown[: len(_COLUMNS)], "–", *shown[len(_COLUMNS) :]])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, ["---"] * len(header), *rows))


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return "–"
    if figure.engine == "torch":
        return f"{figure.step_ms:.0f} ms / {figure.peak_mb:.0f} MB"
    return f"{_short(figure.time_ratio)} / {_short(figure.memory_ratio)}"


def _steps(figure: Figure | None) -> str:
    """The way to the end of the first step, in plain steps."""
    return "–" if figure is None or figure.first_step is None else f"{figure.first_step:.1f} steps"


def _mean(figures: list[Figure]) -> str:
    """The geometric means, where there is a figure for every workload."""
    if len(figures) < len(_COLUMNS) or figures[0].engine == "torch":
        return "–"
    time, memory = (
        geometric_mean(ratios)
        for ratios in zip(
            *((figure.time_ratio, figure.memory_ratio) for figure in figures), strict=True
        )
    )
    return f"{_short(time)} / {_short(memory)}"


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def _count(threads: int) -> str:
    return {1: "One thread", 2: "Two threads"}.get(threads, f"{threads} threads")


def between(text: str) -> str:
    """Return what stands between the marks of a page."""
    return text.partition(BEGIN)[2].partition(END)[0]


def update(page: Path = README) -> None:
    """Write the tables of results.json between the marks of the page."""
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise ValueError(f"{page.name} has no marks {BEGIN.strip()} and {END.strip()}")
    page.write_text(f"{head}{BEGIN}{tables(read())}{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    update()
