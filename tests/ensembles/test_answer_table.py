"""Past answers are durable, shared, and never more than was paid for."""

import json

import pytest

from dpfy.ensembles.answer_table import AnswerTable, Entry
from dpfy.errors import LedgerDamaged, LedgerMismatch, LedgerWriteFailed
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import Poisson, Sampled, SumQuery

STEP = Sampled(Poisson(1.0), (SumQuery(1.0, 4.0),))


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "a.dpl", header=Header(plan={"of": "this test"})) as opened:
        for _ in range(3):
            opened.reserve(STEP)
        yield opened


@pytest.fixture
def file(tmp_path):
    return tmp_path / "a.dpl.answers"


def written(ledger, file, *entries):
    table = AnswerTable(file)
    table.catch_up(ledger)
    table.add(entries)
    return table


def test_another_process_knows_what_was_added(ledger, file):
    first, second = written(ledger, file, Entry("a", 3, 1)), AnswerTable(file)
    second.catch_up(ledger)
    assert second.get("a") == 3 and second.get("b") is None
    first.add([Entry("b", 0.25, 2)])
    assert second.get("b") is None
    second.catch_up(ledger)
    assert second.get("b") == 0.25
    second.add([Entry("c", -1, 3)])
    first.catch_up(ledger)
    assert first.get("c") == -1


@pytest.mark.parametrize("cut", range(1, 30, 7))
def test_torn_line_was_never_handed_out_and_is_cut_off(ledger, file, cut):
    written(ledger, file, Entry("a", 3, 1))
    whole = file.read_bytes()
    written(ledger, file, Entry("b", 4, 2))
    file.write_bytes(file.read_bytes()[:-cut])
    table = AnswerTable(file)
    table.catch_up(ledger)
    assert (table.get("a"), table.get("b")) == (3, None) and file.read_bytes() == whole
    table.add([Entry("b", 5, 3)])
    again = AnswerTable(file)
    again.catch_up(ledger)
    assert again.get("b") == 5


def test_torn_first_line_begins_anew(ledger, file):
    file.write_bytes(b'{"led')
    assert written(ledger, file, Entry("a", 3, 1)).get("a") == 3


def test_answers_of_another_ledger_are_refused(tmp_path, ledger, file):
    written(ledger, file, Entry("a", 3, 1))
    with (
        Ledger.open(tmp_path / "b.dpl", header=Header(plan={"of": "this test"})) as other,
        pytest.raises(LedgerMismatch, match="another ledger"),
    ):
        AnswerTable(file).catch_up(other)


@pytest.mark.parametrize("paid", [0, 1, 4])
def test_answer_that_the_ledger_has_not_paid_for_is_refused(ledger, file, paid):
    # A ledger that was rolled back beside its head, or a line that somebody wrote.
    written(ledger, file, Entry("a", 3, 1))
    with file.open("a") as stream:
        stream.write(json.dumps({"question": "b", "answer": 4, "paid": paid}) + "\n")
    with pytest.raises(LedgerMismatch, match="not paid"):
        AnswerTable(file).catch_up(ledger)


@pytest.mark.parametrize("line", ["", "17", "{", '{"question": "a"}', '{"other": 1}'])
def test_damage_is_noticed(ledger, file, line):
    written(ledger, file)
    with file.open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(LedgerDamaged, match="no answer"):
        AnswerTable(file).catch_up(ledger)


def test_table_that_is_cut_in_use_is_noticed(ledger, file):
    table = written(ledger, file, Entry("a", 3, 1))
    file.write_bytes(b"")
    with pytest.raises(LedgerDamaged, match="was cut"):
        table.catch_up(ledger)


def test_answer_that_cannot_be_written_is_not_known(ledger, file, monkeypatch):
    table = written(ledger, file, Entry("a", 3, 1))
    monkeypatch.setattr("os.write", lambda descriptor, data: 1)
    with pytest.raises(LedgerWriteFailed, match="cannot be read and written"):
        table.add([Entry("b", 4, 2)])
    assert table.get("b") is None


def test_memory_keeps_answers_too(ledger):
    assert written(ledger, None, Entry("a", 3, 1)).get("a") == 3
