"""The quality page compares with noisy marginals that were released, and shows what was not."""

import numpy as np
import pytest
from tests.support.synthetic import SCHEMA, people, without_mbi

from dpfy import Synthesizer
from dpfy.synthesis.quality import compare, quality_page, unmeasured
from dpfy.tabular import Column, Schema


@pytest.fixture
def fitted(monkeypatch):
    without_mbi(monkeypatch)

    def fit(method="mst", epsilon=1.0, schema=SCHEMA, rows=2000):
        synthesizer = Synthesizer(method, schema, epsilon, 1e-6, insecure_test_key=3)
        return synthesizer.fit(people(rows))

    return fit


def test_distances_are_those_of_the_noisy_marginals(fitted):
    synthesizer = fitted(epsilon=100.0)
    table = synthesizer.sample(5000, seed=0)
    found = compare(synthesizer.fitted, table)
    assert [each.columns for each in found[:4]] == [("age",), ("job",), ("sex",), ("pay",)]
    noisy = synthesizer.fitted.measured[1].noisy / synthesizer.fitted.total
    shares = [np.mean([job == name for job in table["job"]]) for name in ("cook", "nurse", "pilot")]
    wanted = 0.5 * np.abs(np.array([*shares, 0]) - noisy).sum()
    assert found[1].distance == pytest.approx(wanted, abs=1e-12)
    assert all(each.distance < 0.02 for each in found[:4])  # columns are met
    # the stand-in for the estimation knows no pairs: age and job are far from what was measured
    assert max(each.distance for each in found[4:]) > 0.3


def test_the_noise_that_is_told_is_what_noise_alone_adds(fitted):
    synthesizer = fitted(rows=0)
    noise = [each.noise for each in compare(synthesizer.fitted, synthesizer.sample(10))]
    for each, told in zip(synthesizer.fitted.measured[:4], noise, strict=False):
        alone = 0.5 * np.abs(each.noisy).sum() / synthesizer.fitted.total
        assert 0.3 * told < alone < 3 * told  # of a few dozen numbers


def test_pairs_that_were_not_measured_are_listed(fitted):
    synthesizer = fitted()
    listed = unmeasured(synthesizer.fitted)
    assert len(listed) == 6 - 3
    page = quality_page(synthesizer, synthesizer.sample(100))
    assert "3 pairs of columns were not measured" in page
    assert all(f"{a} × {b}" in page for a, b in listed)
    two = fitted(schema=Schema(SCHEMA.columns[:2]))
    assert "Every pair of columns was measured" in quality_page(two, two.sample(10))


def test_the_page_stands_alone_and_quotes_names_safely(fitted):
    schema = Schema((Column('<b onload="x">', categories=("<i>", "&")), *SCHEMA.columns[2:]))
    synthesizer = Synthesizer("mst", schema, 1.0, 1e-6).fit(
        {'<b onload="x">': ["<i>"] * 50, "sex": ["F"] * 50, "pay": [0] * 50}
    )
    page = quality_page(synthesizer, synthesizer.sample(20))
    assert "<i>" not in page and 'onload="x"' not in page and "<script" not in page
    assert "http" not in page and "src=" not in page
    assert page.count("<svg") == 3 and page.count('role="img"') == 3


def test_nothing_on_the_page_follows_from_the_rows_but_through_noise(fitted, monkeypatch):
    """Two tables with the same noisy marginals have the same page."""
    from tests.support.estimator_neighbours import caught

    from dpfy.mechanisms.one_shot import ExponentialMechanism

    monkeypatch.setattr(ExponentialMechanism, "release", lambda self, values, stream: 0)
    pages = []
    for rows in (100, 2000):
        with caught(lambda number, shape: np.full(shape, 20.0 + number)):
            synthesizer = fitted(rows=rows)
        pages.append(quality_page(synthesizer, synthesizer.sample(50, seed=1)))
    assert pages[0] == pages[1]


def test_a_test_key_is_shown(fitted):
    assert "NOT PRIVATE" in quality_page(fitted(), fitted().sample(10))
