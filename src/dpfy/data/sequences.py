"""Sequences of a public length, cut from documents, with the sequence, document or user as unit.

What one unit of privacy is decides what a guarantee means (N. Ponomareva et al., How to DP-fy ML,
2023, section 5.1): a guarantee for 128 tokens is not one for a document, nor for its author.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from dpfy import _validate
from dpfy.data.vocabulary import Vocabulary
from dpfy.errors import InvalidArgument

BY = ("sequence", "document", "user")
_Whole = NDArray[np.int64]


class TokenSequences(Dataset[tuple[torch.Tensor]]):
    """Documents of token ids, as sequences of one public length.

    A document is cut from its beginning, without overlap; its last sequence is padded. A row is a
    tuple of one tensor of ``length`` whole numbers. A document that is no flat sequence of tokens,
    or that has no author where users are the unit, has no row.

    Args:
        documents: The token ids of each document: lists, arrays, tensors or ``bytes``, whose tokens
            are the numbers from 0 to 255.
        length: The number of tokens in a sequence, a public constant.
        vocabulary: Where the tokenizer comes from; one that was trained on the private text is
            refused.
        by: What a unit of privacy is: a ``sequence``, a ``document`` or a ``user``.
        most: The most sequences of a unit, the first ones in order, a public constant; of a
            document if the unit is a sequence. Default: no limit. No guarantee needs one for
            documents or users: see ``rows_per_user`` of :func:`dpfy.privatize`.
        authors: The user id of each document, if the unit is a user: whole numbers or texts.
        padding: The token that fills the last sequence of a document. Default: 0.

    Raises:
        InvalidArgument: An argument is out of its range, all documents are texts, or the
            vocabulary was trained on the private text.

    *Formal guarantee*: a row is a function of its own unit and of the arguments.

    >>> texts = TokenSequences(
    ...     [[5, 6, 7, 8], [9]], length=3, vocabulary=Vocabulary("public"), by="document"
    ... )
    >>> [row.tolist() for (row,) in texts]
    [[5, 6, 7], [8, 0, 0], [9, 0, 0]]
    >>> texts.unit_of.tolist(), texts.plan_unit
    ([0, 0, 1], 'user')
    >>> texts.unit
    'one document: all of it, in sequences of 3 tokens'
    """

    def __init__(
        self,
        documents: Sequence[Any],
        length: int,
        *,
        vocabulary: Vocabulary,
        by: str = "document",
        most: int | None = None,
        authors: Sequence[Hashable] | None = None,
        padding: int = 0,
    ) -> None:
        vocabulary.require_sound()
        self.length = _validate.count("length", length)
        self.by = _validate.choice("by", by, BY)
        self.most = None if most is None else _validate.count("most", most)
        self.padding = _validate.count("padding", padding, minimum=0)
        self.vocabulary = vocabulary
        self._documents = documents
        owners = _owners(by, authors, len(documents))
        # of the type alone: whether documents are empty is for nobody to know
        if len(documents) and all(isinstance(each, str) for each in documents):
            raise InvalidArgument(
                "The documents are texts. Expected lists, arrays or tensors of token ids, or "
                "bytes; tokenize texts first, or encode them: text.encode()."
            )
        rows = np.array([-(-_tokens(each) // length) for each in documents], dtype=np.int64)
        rows[owners < 0] = 0
        self._document, self._place = _places(rows)
        if most is not None:
            kept = _places_in(owners[self._document]) < most
            self._document, self._place = self._document[kept], self._place[kept]
        self._owners = owners

    @property
    def unit_of(self) -> _Whole | None:
        """The unit of each row, for ``unit_of=`` of a run; None where every row is a unit."""
        return None if self.plan_unit == "record" else self._owners[self._document]

    @property
    def plan_unit(self) -> str:
        """The ``unit`` of a plan for these rows: ``user`` if a unit may have several of them."""
        return "record" if self.by == "sequence" or self.most == 1 else "user"

    @property
    def unit(self) -> str:
        """What one unit of privacy is, in words, for a report."""
        size, most = f"{self.length} tokens", self.most
        if self.by == "sequence":
            limit = "" if most is None else f", at most {most}"
            return f"one sequence of {size}; a longer document is several of them{limit}"
        whole = "document" if self.by == "document" else "user: all documents with the same id"
        if most == 1:
            return f"one {whole}: the first {size}"
        used = "all of it" if most is None else f"the first {most * self.length} tokens at most"
        return f"one {whole}: {used}, in sequences of {size}"

    @property
    def example_input(self) -> tuple[torch.Tensor]:
        """One row of zeros, of the shape that all have."""
        return (torch.zeros(1, self.length, dtype=torch.int64),)

    def __len__(self) -> int:
        return len(self._document)

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        document, place = self._document[index], self._place[index] * self.length
        row = torch.full((self.length,), self.padding)
        tokens = _as_tokens(self._documents[int(document)][place : place + self.length])
        row[: len(tokens)] = tokens
        return (row,)

    def take_columns(self, indices: Sequence[int]) -> tuple[torch.Tensor]:
        """Return several rows at once.

        Args:
            indices: The rows, in any order.

        Returns:
            One tensor, with a row for each index.
        """
        return (torch.stack([self[int(index)][0] for index in indices]),)


def _owners(by: str, authors: Sequence[Hashable] | None, documents: int) -> _Whole:
    """Return the number of each document's unit, by first appearance, and -1 without an author."""
    if (by == "user") != (authors is not None):
        raise InvalidArgument(
            "Expected authors, one user id for each document, if and only if by='user'."
        )
    if authors is None:
        return np.arange(documents)
    if len(authors) != documents:
        raise InvalidArgument("Expected as many authors as documents: one user id for each.")
    known: dict[Hashable, int] = {}
    numbers = [
        -1 if author is None else known.setdefault(author, len(known))
        for author in (each.item() if hasattr(each, "item") else each for each in authors)
    ]
    return np.array(numbers, dtype=np.int64)


def _tokens(document: Any) -> int:
    """Return the number of tokens of a document, and 0 for what is none: nobody stops a run."""
    shape = getattr(document, "shape", None)
    if isinstance(document, str) or (shape is not None and len(shape) != 1):
        return 0
    try:
        return len(document)
    except Exception:
        return 0


def _as_tokens(part: Any) -> torch.Tensor:
    if isinstance(part, bytes | bytearray):
        part = np.frombuffer(bytes(part), dtype=np.uint8)
    if isinstance(part, np.ndarray):
        part = part.astype(np.int64)  # a copy: what is mapped or in bytes cannot be written to
    return torch.as_tensor(part, dtype=torch.int64)


def _places(counts: _Whole) -> tuple[_Whole, _Whole]:
    """Return for each row its document, and its place in it.

    >>> [each.tolist() for each in _places(np.array([2, 0, 1]))]
    [[0, 0, 2], [0, 1, 0]]
    """
    document = np.repeat(np.arange(len(counts)), counts)
    return document, np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)


def _places_in(owner: _Whole) -> _Whole:
    """Return the place of each row among those of its owner.

    >>> _places_in(np.array([4, 7, 4, 4])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(owner, kind="stable")
    _, counts = np.unique(owner, return_counts=True)
    places = np.empty(len(owner), dtype=np.int64)
    places[order] = _places(counts)[1]
    return places
