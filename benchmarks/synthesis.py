"""Synthetic tables of Adult beside those of the published algorithms, in one run.

``python -m benchmarks.synthesis --data-dir DATA`` measures what ``synthesis.json`` does not hold
yet at ε = 1 and δ = 1e-9, and writes the table of docs/how-to/synthetic-tables.md; ``--again``
begins anew, and ``--only WORD`` takes the cells whose name has that word.

The package mbi has no mechanisms of its own. "Published" are MST and AIM as their papers and the
authors' public scripts describe them, written here on mbi with numpy's noise, on the same cells of
the same rows. Both are scored alike: the mean total variation of all pairs of columns between the
synthetic and the private table, and the accuracy on the real test part of a logistic model that was
trained on the synthetic table. These scores are not private. Seconds are those of the processor."""

import argparse
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.estimators import CLASSES, SCHEMA, table
from dpfy.accounting import ZcdpFilter
from dpfy.synthesis import Synthesizer
from dpfy.synthesis.cells import Codes, Domain, counts
from dpfy.synthesis.estimate import Estimator, Observation, megabytes
from dpfy.synthesis.tree_model import TreeModel, all_pairs
from dpfy.tabular import Encoder, Schema

HERE = Path(__file__).parent
RESULTS = HERE / "synthesis.json"
PAGE = HERE.parent / "docs" / "how-to" / "synthetic-tables.md"
BEGIN, END = "<!-- synthesis: begin -->\n", "<!-- synthesis: end -->\n"
EPSILON, DELTA, SEEDS = 1.0, 1e-9, (1, 2, 3)
WHOLE = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
TARGET = "income"

Columns = tuple[Codes, ...]


class Published:
    """What both published algorithms share: exact counts, and noise of numpy."""

    def __init__(self, codes: Columns, sizes: tuple[int, ...], seed: int) -> None:
        self.codes, self.sizes = codes, sizes
        self.rng = np.random.default_rng(seed)
        self.rho = ZcdpFilter.within(EPSILON, DELTA).rho

    def measured(self, columns: tuple[int, ...], stddev: float) -> Observation:
        """Return a noisy marginal."""
        exact = counts(self.codes, self.sizes, columns)
        return Observation(columns, exact + self.rng.normal(0, stddev, exact.shape), stddev)

    def chosen(self, scores: list[float], epsilon: float, sensitivity: float) -> int:
        """Return a choice by the exponential mechanism."""
        logits = 0.5 * epsilon / sensitivity * np.array(scores)
        odds = np.exp(logits - logits.max())
        return int(self.rng.choice(len(scores), p=odds / odds.sum()))

    def distance(self, columns: tuple[int, ...], model: TreeModel, total: float) -> float:
        """Return the ℓ1 distance of exact counts from a model."""
        exact = counts(self.codes, self.sizes, columns)
        return float(np.abs(exact - total * model.expected(columns)).sum())


def published_mst(codes: Columns, sizes: tuple[int, ...], seed: int) -> Columns:
    """MST: thirds of ρ for columns, choices and pairs; rare cells are merged."""
    run = Published(codes, sizes, seed)
    columns = len(sizes)
    stddev = math.sqrt(3 * columns / (2 * run.rho))  # of each of so many marginals
    ones = [run.measured((k,), stddev) for k in range(columns)]
    groups, kept = [], []
    for each in ones:
        apart = each.noisy >= 3 * stddev
        if apart.all():
            groups.append(np.arange(apart.size))
            kept.append(each)
            continue
        group = np.where(apart, np.cumsum(apart) - 1, apart.sum())
        groups.append(group)
        size = int(group.max()) + 1
        kept.append(
            Observation(
                each.columns,
                np.bincount(group, each.noisy, size),
                stddev,
                np.bincount(group, minlength=size).astype(float),
            )
        )
    run.codes = tuple(g[c] for g, c in zip(groups, codes, strict=True))
    run.sizes = tuple(int(each.max()) + 1 for each in groups)
    total = _total(ones)
    alone = Estimator(run.sizes, total).estimate(kept, 1000)
    weights = {pair: run.distance(pair, alone, total) for pair in all_pairs(columns)}
    epsilon = math.sqrt(8 * run.rho / 3 / (columns - 1))
    part, edges = list(range(columns)), []
    for _ in range(columns - 1):
        left = [(a, b) for a, b in weights if part[a] != part[b]]
        a, b = left[run.chosen([weights[each] for each in left], epsilon, 1.0)]
        edges.append((a, b))
        part = [part[a] if each == part[b] else each for each in part]
    stddev = math.sqrt(3 * len(edges) / (2 * run.rho))
    observed = [*kept, *(run.measured(each, stddev) for each in edges)]
    model = Estimator(run.sizes, total).estimate(observed, 5000)
    found = model.draw(round(total), run.rng)
    return tuple(_spread(g, c, run.rng) for g, c in zip(groups, found, strict=True))


def published_aim(codes: Columns, sizes: tuple[int, ...], seed: int) -> Columns:
    """AIM with all pairs as its workload, and a model of at most a megabyte."""
    run = Published(codes, sizes, seed)
    columns, rho = len(sizes), run.rho
    pairs = all_pairs(columns)
    wanted = [*((k,) for k in range(columns)), *pairs]
    weights = {c: sum(len(set(c) & set(pair)) for pair in pairs) for c in wanted}
    rounds = 16 * columns
    stddev, epsilon = math.sqrt(rounds / (1.8 * rho)), math.sqrt(0.8 * rho / rounds)
    observed = [run.measured((k,), stddev) for k in range(columns)]
    used, last = columns * 0.5 / stddev**2, False
    total = _total(observed)
    estimator = Estimator(sizes, total)
    model = estimator.estimate(observed, 1000)
    while not last:
        if rho - used < 2 * (0.5 / stddev**2 + epsilon**2 / 8):
            left, last = rho - used, True
            stddev, epsilon = math.sqrt(1 / (1.8 * left)), math.sqrt(0.8 * left)
        used += 0.5 / stddev**2 + epsilon**2 / 8
        known = [each.columns for each in observed]
        small = [
            c
            for c in wanted
            if any(set(c) <= set(k) for k in known)
            or megabytes(sizes, [*known, c]) <= min(used / rho, 1.0)
        ]
        bias = {c: math.sqrt(2 / math.pi) * stddev * math.prod(sizes[k] for k in c) for c in small}
        scores = [weights[c] * (run.distance(c, model, total) - bias[c]) for c in small]
        best = small[run.chosen(scores, epsilon, max(weights[c] for c in small))]
        observed.append(run.measured(best, stddev))
        before, model = model, estimator.estimate(observed, 2500 if last else 1000)
        moved = total * np.abs(model.expected(best) - before.expected(best)).sum()
        if moved <= bias[best]:
            stddev, epsilon = stddev / 2, epsilon * 2
    return model.draw(round(total), run.rng)


def _total(ones: list[Observation]) -> float:
    weights = [1 / each.noisy.size for each in ones]
    return float(np.average([each.noisy.sum() for each in ones], weights=weights))


def _spread(groups: Codes, found: Codes, rng: np.random.Generator) -> Codes:
    """Return a cell for each group, any of its cells alike."""
    spread = np.empty_like(found)
    for group in range(int(groups.max()) + 1):
        rows = found == group
        spread[rows] = rng.choice(np.flatnonzero(groups == group), int(rows.sum()))
    return spread


def ours(method: str, target: str | None) -> Callable[..., Any]:
    """Return a function that draws one of our synthetic tables."""

    def draw(data: dict[str, Any], seed: int) -> dict[str, Any]:
        synthesizer = Synthesizer(
            method,
            data["schema"],
            EPSILON,
            DELTA,
            target=target,
            whole=WHOLE,
            insecure_test_key=seed,
        )
        return synthesizer.fit(data["train"]).sample(seed=seed)

    return draw


def published(algorithm: Callable[..., Columns]) -> Callable[..., Any]:
    """Return a function that draws one of the published synthetic tables."""

    def draw(data: dict[str, Any], seed: int) -> dict[str, Any]:
        domain: Domain = data["domain"]
        found = algorithm(data["codes"], domain.sizes, seed)
        rng = np.random.default_rng(seed)
        return {
            cells.column.name: cells.draw(each, rng)
            for cells, each in zip(domain.cells, found, strict=True)
        }

    return draw


CELLS: dict[str, Callable[..., Any]] = {
    "the private table itself": lambda data, seed: data["train"],
    "dpfy, mst": ours("mst", None),
    "dpfy, mst with target": ours("mst", TARGET),
    "dpfy, aim": ours("aim", None),
    "published, mst": published(published_mst),
    "published, aim": published(published_aim),
}


@cache
def adult(data_dir: str | None) -> dict[str, Any]:
    """Return Adult with its schema and cells."""
    schema = Schema.read(SCHEMA)
    train = table("adult.data", data_dir)
    domain = Domain.of(schema, 32, WHOLE)
    return {
        "schema": schema,
        "train": train,
        "test": table("adult.test", data_dir),
        "domain": domain,
        "codes": domain.codes(train),
    }


def variation(data: dict[str, Any], synthetic: dict[str, Any]) -> float:
    """Return the mean total variation of all pairs of columns."""
    domain: Domain = data["domain"]
    codes = domain.codes(dict(synthetic))
    return mean(
        0.5
        * float(
            np.abs(
                counts(data["codes"], domain.sizes, pair) / len(data["codes"][0])
                - counts(codes, domain.sizes, pair) / len(codes[0])
            ).sum()
        )
        for pair in itertools.combinations(range(len(domain.cells)), 2)
    )


def accuracy(data: dict[str, Any], synthetic: dict[str, Any]) -> float:
    """Return the share of real test rows that a model of synthetic rows has right, in %."""
    from sklearn.linear_model import LogisticRegression

    encoder = Encoder(data["schema"].without(TARGET))
    known = np.array([each in CLASSES for each in synthetic[TARGET]])
    rows = {name: column[known] for name, column in synthetic.items()}
    model = LogisticRegression(C=100, max_iter=1000)
    model.fit(encoder.transform(rows), rows[TARGET].astype(str))
    truth = data["test"][TARGET].astype(str)
    return 100 * float(model.score(encoder.transform(data["test"]), truth))


def measure(name: str, seed: int, data_dir: str | None) -> dict[str, float]:
    """Return the figures of one synthetic table."""
    data = adult(data_dir)
    before = time.process_time()
    synthetic = CELLS[name](data, seed)
    seconds = time.process_time() - before
    return {
        "tv": variation(data, synthetic),
        "accuracy": accuracy(data, synthetic),
        "seconds": seconds,
    }


def read() -> dict[str, list[dict[str, float]]]:
    """Return the measurements so far, by the names of their cells."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def tables(found: dict[str, list[dict[str, float]]]) -> str:
    """Return a table with a row for each cell."""
    lines = [
        "| method | mean total variation of pairs | logistic model, test accuracy | CPU seconds |",
        "|---|---|---|---|",
    ]
    for name in CELLS:
        runs = found.get(name, [])
        if runs:
            shown = [mean(run[key] for run in runs) for key in ("tv", "accuracy", "seconds")]
            library, _, method = name.partition(", ")
            title = f"**{library}**, {method}" if library == "dpfy" else name
            lines.append(f"| {title} | {shown[0]:.4f} | {shown[1]:.1f} % | {shown[2]:.0f} |")
    return "\n".join(lines) + "\n"


def update_page(text: str) -> None:
    """Write the table between the marks of the page."""
    head, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has no marks {BEGIN.strip()} and {END.strip()}")
    PAGE.write_text(f"{head}{BEGIN}{text}{END}{tail}", encoding="utf-8")


def main() -> int:
    """Measure what is missing, with a bar, and write results and the table."""
    from rich.progress import track
    from threadpoolctl import threadpool_limits

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", help="folder that holds the data sets")
    parser.add_argument("--only", default="", help="measure cells with this word in their name")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="number of tables of a cell")
    parser.add_argument("--again", action="store_true", help="measure them anew")
    options = parser.parse_args()
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    found = read()
    wanted = [
        (name, place)
        for place in range(options.seeds)
        for name in CELLS
        if options.only in name and (options.again or len(found.get(name, [])) <= place)
    ]
    if options.again:
        found = {name: runs for name, runs in found.items() if options.only not in name}
    for name, place in track(wanted, "measuring"):
        with threadpool_limits(1):
            found.setdefault(name, []).append(measure(name, SEEDS[place], options.data_dir))
        ordered = {each: found[each] for each in CELLS if each in found}
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    text = tables(found)
    update_page(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
