"""A bar, a function of one's own, or nothing."""

import pytest

from dpfy.ensembles.bars import telling


@pytest.mark.parametrize("seen", [False, True])
def test_a_bar_is_shown_where_somebody_sees_it(monkeypatch, capsys, seen):
    monkeypatch.setattr("dpfy.run.progress.ProgressBar.is_seen", lambda: seen)
    for asked, shown in ((None, seen), (True, True), (False, False)):
        with telling(asked, "teachers") as tell:
            tell(1, 2)
        assert ("teachers" in capsys.readouterr().out) == shown


def test_a_function_is_told():
    told = []
    with telling(lambda *given: told.append(given), "teachers") as tell:
        tell(1, 2)
    assert told == [(1, 2)]
