"""The benchmark of synthetic tables scores what it says, and the page shows what it found."""

import numpy as np
import pytest
from benchmarks import synthesis as benchmark
from tests.support.synthetic import SCHEMA, people

from dpfy.synthesis.cells import Domain


def test_the_page_shows_the_results_and_nothing_older():
    page = benchmark.PAGE.read_text(encoding="utf-8")
    shown = page.partition(benchmark.BEGIN)[2].partition(benchmark.END)[0]
    assert shown == benchmark.tables(benchmark.read())


def test_total_variation_is_that_of_pairs():
    domain, table = Domain.of(SCHEMA, 8, []), people(400)
    data = {"domain": domain, "codes": domain.codes(table)}
    assert benchmark.variation(data, table) == 0
    apart = {**table, "sex": np.where(table["sex"] == "F", "M", "F")}
    share = abs(2 * np.mean(table["sex"] == "F") - 1)
    assert share / 2 < benchmark.variation(data, apart) < 1
    assert benchmark.variation(data, {k: v[::2] for k, v in table.items()}) < 0.2


def test_published_noise_is_that_of_the_papers():
    """A third of ρ for all columns together: their vector moves by the root of their number."""
    run = benchmark.Published((np.zeros(9, int),) * 4, (50,) * 4, seed=0)
    stddev = np.sqrt(3 * 4 / (2 * run.rho))
    assert 4 * 0.5 / stddev**2 == pytest.approx(run.rho / 3)
    noise = np.concatenate([run.measured((k,), stddev).noisy[1:] for k in range(4)])
    assert 0.6 < np.mean((noise / stddev) ** 2) < 1.5
