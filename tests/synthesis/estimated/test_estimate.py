"""Estimates by mbi: near what was measured, alike in every process, and silent."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from dpfy.synthesis.estimate import Estimator, Observation, megabytes

SIZES = (3, 2, 4)
RNG = np.random.default_rng(0)
TABLE = RNG.random(SIZES) * 100


def observed(*columns, stddev=0.5, noise=0.0):
    others = tuple(k for k in range(3) if k not in columns)
    exact = TABLE.sum(axis=others)
    return Observation(columns, exact + noise * RNG.normal(size=exact.shape), stddev)


ONES = [observed(0), observed(1), observed(2)]


def test_columns_alone_are_independent():
    model = Estimator(SIZES, TABLE.sum()).estimate(ONES, 500)
    for k, each in enumerate(ONES):
        assert model.expected((k,)) * TABLE.sum() == pytest.approx(each.noisy, rel=1e-3)
    wanted = np.multiply.outer(model.expected((0,)), model.expected((2,)))
    assert model.pairs[0, 2] == pytest.approx(wanted, abs=1e-9)


def test_pairs_are_met_and_go_through_others():
    estimator = Estimator(SIZES, TABLE.sum())
    estimator.estimate(ONES, 500)
    links = [observed(0, 1), observed(1, 2)]
    model = estimator.estimate([*ONES, *links], 1500)
    for each in links:
        assert model.pairs[each.columns] * TABLE.sum() == pytest.approx(each.noisy, abs=0.5)
    first, second = (each.noisy / TABLE.sum() for each in links)
    through = (first / first.sum(axis=0)) @ second  # given column 1, the others are independent
    assert model.pairs[0, 2] == pytest.approx(through, abs=2e-3)


def test_sums_of_cells_have_more_noise_and_count_for_less():
    """A merged count of 100 cells of noise 1 pulls less than an exact one of the same noise."""
    plain = Observation((0,), np.array([60.0, 60.0]), 1.0)
    merged = Observation((0,), np.array([60.0, 60.0]), 1.0, np.array([1.0, 100.0]))
    shares = []
    for each in (plain, merged):
        model = Estimator((2,), 100.0).estimate([each], 2000)
        shares.append(model.expected((0,)))
    assert shares[0] == pytest.approx([0.5, 0.5], abs=1e-6)
    # least squares under a sum of 100: each is off in proportion to its variance
    assert shares[1] * 100 == pytest.approx([60 - 20 / 101, 60 - 2000 / 101], abs=0.05)


def test_two_observations_of_one_marginal_say_the_same_as_their_mean():
    once, again = observed(0, noise=3.0), Observation((0,), observed(0).noisy + 2.0, 0.7)
    found = [
        Estimator(SIZES, TABLE.sum()).estimate([*given, *ONES[1:]], 1000).ones[0]
        for given in ([once, again], [once.averaged(again)])
    ]
    assert found[0] == pytest.approx(found[1], abs=1e-6)


def test_columns_that_hang_together_in_a_circle_are_one_clique():
    links = [observed(0, 1), observed(1, 2), observed(0, 2)]
    model = Estimator(SIZES, TABLE.sum()).estimate([*ONES, *links], 1500)
    assert max(len(each.columns) for each in model.cliques) == 3
    for each in links:
        assert model.pairs[each.columns] * TABLE.sum() == pytest.approx(each.noisy, abs=0.5)


def test_sizes_are_those_of_the_cells():
    assert megabytes((4, 4, 4), [(0,), (1,), (2,)]) == pytest.approx(12 * 8 / 2**20)
    assert megabytes((4, 4, 4), [(0, 1), (1, 2), (0, 2)]) == pytest.approx(64 * 8 / 2**20)


def test_the_precision_of_jax_stays_what_it_was():
    import jax

    before = jax.numpy.ones(1).dtype
    Estimator((2,), 10.0).estimate([Observation((0,), np.array([4.0, 6.0]), 1.0)], 50)
    assert jax.numpy.ones(1).dtype == before


def test_an_estimate_in_a_thread_is_the_same():
    found = []

    def run():
        model = Estimator(SIZES, TABLE.sum()).estimate([*ONES, observed(0, 1)], 200)
        found.append(model.pairs[0, 1])

    threads = [threading.Thread(target=run) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 2 and found[0] == pytest.approx(found[1], abs=1e-9)


def test_importing_synthesis_loads_neither_mbi_nor_torch():
    code = (
        "import sys, dpfy.synthesis.synthesizer, dpfy.synthesis.quality, dpfy.cli.synth; "
        "assert not {'mbi', 'jax', 'torch'} & set(sys.modules), 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_estimate_says_nothing_on_any_stream():
    """In a process of its own, where jax is loaded for the first time."""
    code = (
        "import numpy as np; from dpfy.synthesis.estimate import Estimator, Observation; "
        "Estimator((2,), 9.0).estimate([Observation((0,), np.ones(2), 1.0)], 50)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code], check=True, capture_output=True, text=True
    )
    assert done.stdout == "" and "mbi" not in done.stderr
