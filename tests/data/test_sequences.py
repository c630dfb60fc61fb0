"""Documents are cut into sequences of a public length, and each row belongs to its unit alone."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import dpfy
from dpfy.checks.mixing import check_data_set
from dpfy.data import TokenSequences, Vocabulary
from dpfy.errors import InvalidArgument
from dpfy.reporting import RunFacts, report

PUBLIC = Vocabulary("public")


def cut(documents, length=4, **options) -> TokenSequences:
    return TokenSequences(documents, length, vocabulary=PUBLIC, **options)


def rows(texts: TokenSequences) -> list[list[int]]:
    return [texts[index][0].tolist() for index in range(len(texts))]


@given(
    st.lists(st.lists(st.integers(1, 99), max_size=13), min_size=1, max_size=6),
    st.integers(1, 5),
    st.none() | st.integers(1, 3),
)
def test_each_token_up_to_the_limit_is_in_one_row_of_its_own_document(
    documents, length, most
) -> None:
    if not any(documents):
        documents[0] = [1]
    texts = cut(documents, length, most=most)
    owners = range(len(documents)) if texts.unit_of is None else texts.unit_of
    owners = texts._document.tolist() if texts.unit_of is None else owners.tolist()
    limit = None if most is None else most * length
    for number, document in enumerate(documents):
        own = [row for row, owner in zip(rows(texts), owners, strict=True) if owner == number]
        kept = document[:limit]
        assert [token for row in own for token in row][: len(kept)] == kept
        assert all(len(row) == length for row in own)
        assert sum(token != 0 for row in own for token in row) == len(kept)


def test_users_keep_their_first_sequences_over_all_documents() -> None:
    documents = [[1] * 6, [2] * 9, [3] * 4, [4] * 4]
    texts = cut(documents, by="user", authors=["ann", "bob", "ann", None], most=2)
    assert rows(texts) == [[1, 1, 1, 1], [1, 1, 0, 0], [2, 2, 2, 2], [2, 2, 2, 2]]
    assert texts.unit_of.tolist() == [0, 0, 1, 1]
    assert texts.plan_unit == "user"


@pytest.mark.parametrize(
    "authors", [[7, 7, 9], np.array([7, 7, 9]), torch.tensor([7, 7, 9]), ["a", "a", "b"]], ids=str
)
def test_authors_are_ids_of_any_kind(authors) -> None:
    texts = cut([[1], [2], [3]], by="user", authors=authors)
    assert texts.unit_of.tolist() == [0, 0, 1]


@given(st.integers(0, 3), st.lists(st.integers(1, 99), max_size=9))
def test_rows_of_other_units_do_not_change_with_a_document(place, other) -> None:
    documents = [[1] * 5, [2] * 3, [3] * 8, [4] * 2]
    changed = [other if number == place else each for number, each in enumerate(documents)]

    def others(texts):
        found = zip(rows(texts), texts.unit_of.tolist(), strict=True)
        return [row for row, owner in found if owner != place]

    assert others(cut(documents, most=2)) == others(cut(changed, most=2))


@pytest.mark.parametrize(
    "document", [[5, 6, 7], (5, 6, 7), np.array([5, 6, 7]), torch.tensor([5, 6, 7]), b"\5\6\7"]
)
def test_documents_are_tokens_of_any_kind(document) -> None:
    texts = cut([document])
    assert rows(texts) == [[5, 6, 7, 0]]
    assert texts[0][0].dtype == torch.int64


def test_document_that_is_none_has_no_row() -> None:
    texts = cut([[1, 2], "text", None, np.zeros((2, 2)), 7, [3]])
    assert rows(texts) == [[1, 2, 0, 0], [3, 0, 0, 0]]
    assert texts.unit_of.tolist() == [0, 5]


@pytest.mark.parametrize("documents", [[[]], [[], None, "text"], [[], []]], ids=repr)
def test_documents_without_tokens_raise_nothing(documents) -> None:
    assert rows(cut(documents)) == []


def test_texts_that_nobody_tokenized_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"tokenize texts first.*text\.encode"):
        cut(["one", "two"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "user"}, "one user id for each document, if and only if by='user'"),
        ({"authors": [1]}, "if and only if by='user'"),
        ({"by": "user", "authors": [1, 2]}, "as many authors as documents"),
        ({"by": "paragraph"}, "'sequence', 'document', 'user'"),
        ({"most": 0}, "most"),
        ({"length": 0}, "length"),
        ({"padding": -1}, "padding"),
    ],
    ids=str,
)
def test_arguments_are_checked(options, message) -> None:
    with pytest.raises(InvalidArgument, match=message):
        cut([[1, 2]], **options)


@pytest.mark.parametrize(
    ("options", "unit", "plan_unit"),
    [
        ({"by": "sequence"}, "one sequence of 4 tokens; a longer document is several", "record"),
        ({"by": "sequence", "most": 3}, "several of them, at most 3", "record"),
        ({"most": 1}, "one document: the first 4 tokens", "record"),
        ({"most": 3}, "one document: the first 12 tokens at most, in sequences of 4", "user"),
        ({}, "one document: all of it, in sequences of 4 tokens", "user"),
        ({"by": "user", "authors": [1]}, "one user: all documents with the same id: all", "user"),
    ],
    ids=str,
)
def test_unit_is_said_in_words(options, unit, plan_unit) -> None:
    texts = cut([[1] * 9], **options)
    assert unit in texts.unit
    assert texts.plan_unit == plan_unit
    assert (texts.unit_of is None) == (plan_unit == "record")


def test_rows_together_are_the_rows_alone() -> None:
    texts = cut([[1] * 9, [2] * 3, b"abc"])
    (together,) = texts.take_columns([3, 0, 4])
    assert together.tolist() == [rows(texts)[index] for index in (3, 0, 4)]
    check_data_set(texts)


class NextToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 6)
        self.head = nn.Linear(6, 10)

    def loss(self, tokens):
        scores = self.head(self.embedding(tokens[:, :-1]))
        losses = cross_entropy(
            scores.transpose(1, 2), tokens[:, 1:], reduction="none", ignore_index=0
        )
        return losses.mean(1)


@pytest.mark.parametrize("by", ["sequence", "document"])
def test_run_and_report_take_the_unit(by, tmp_path) -> None:
    documents = [[1 + (number + place) % 9 for place in range(10)] for number in range(40)]
    texts = cut(documents, 5, by=by)
    assert Counter(len(row) for row in rows(texts)) == {5: 80}
    plan = dpfy.dpsgd(
        records=40, batch_size=10, steps=2, noise_multiplier=1.0, unit=texts.plan_unit
    )
    model = NextToken()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with dpfy.privatize(
        model, opt, texts, plan, tmp_path / "run.dpl", unit_of=texts.unit_of
    ) as run:
        for batch in run:
            opt.zero_grad()
            run.backward(model.loss, batch)
            opt.step()
    written = report(tmp_path / "run.dpl", 1e-5, RunFacts(record=texts.unit)).to_markdown()
    assert texts.unit in written
    assert ("all rows with the same id" in written) == (by == "document")
