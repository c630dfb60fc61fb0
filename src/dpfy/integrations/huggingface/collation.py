"""Turn texts into tensors of one public length, each record by itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.integrations.huggingface.losses import IGNORED, Task

_REPLACED, _OTHER = 0.8, 0.1  # of the tokens to predict: those masked, and those exchanged


def collate_to(
    tokenizer: Any,
    max_length: int,
    *,
    task: Task = "classification",
    text: str = "text",
    pair: str | None = None,
    label: str = "label",
    label_dtype: torch.dtype | None = None,
    label_length: int | None = None,
    masked: float = 0.15,
) -> "Collator":
    """Return a function that turns records into tensors of a fixed, public length.

    A record is a mapping with a text, or one that was tokenised before, with ``input_ids`` and, if
    need be, ``attention_mask``, ``token_type_ids`` and ``labels``. Records are cut and padded to
    ``max_length``, never to the longest neighbour.

    Args:
        tokenizer: A tokenizer of transformers; it pads on its ``padding_side``.
        max_length: The number of tokens of every record: public, so choose it without looking.
        task: What the labels are: one ``classification`` label (a number, or a list for several);
            the tokens themselves (``causal_lm``); some of them, which are masked (``masked_lm``);
            the tokens of another text (``seq2seq``); a label for each word of a list of words, at
            its first token (``token_classification``). Default: ``classification``.
        text: The field of the text. Default: ``text``.
        pair: The field of a second text. Default: None, there is none.
        label: The field of the label, or of the text to predict. Default: ``label``.
        label_dtype: The type of the labels of a ``classification``; ``torch.float32`` for a
            regression whose labels are whole numbers in some records. Default: whole numbers for
            one class, ``torch.float32`` for fractions and for lists.
        label_length: The number of tokens to predict in ``seq2seq``. Default: ``max_length``.
        masked: The share of tokens to predict in ``masked_lm``, at least one. They are drawn by
            torch's generator, which a run sets to a secret state for every record and step.

    Returns:
        A function of a record or a list of records, for ``collate_fn`` of :func:`dpfy.privatize`.

    Raises:
        InvalidArgument: An argument is out of range, or the tokenizer has no token to pad or to
            mask with, or cannot tell which word a token is of.

    *Assumes* that records have the fields and types that are declared here. One that has not
    contributes nothing, silently, as every record that fails: try a public record first.
    """
    _validate.choice("task", task, get_args(Task))
    _validate.count("max_length", max_length)
    if label_length is not None:
        _validate.count("label_length", label_length)
    if not 0 < masked <= 1:
        raise InvalidArgument(f"Expected masked={masked} in (0, 1].")
    if tokenizer.pad_token_id is None:
        raise InvalidArgument(
            "The tokenizer has no token to pad with, and every record is padded to max_length. "
            "Set tokenizer.pad_token = tokenizer.eos_token."
        )
    if task == "masked_lm" and tokenizer.mask_token_id is None:
        raise InvalidArgument(
            "The tokenizer has no mask token. Take that of a model for masked_lm, or another task."
        )
    if task == "token_classification" and not tokenizer.is_fast:
        raise InvalidArgument(
            "The tokenizer cannot tell which word a token is of. Load a fast one (use_fast=True)."
        )
    return Collator(
        tokenizer=tokenizer,
        max_length=max_length,
        task=task,
        text=text,
        pair=pair,
        label=label,
        label_dtype=label_dtype,
        label_length=label_length or max_length,
        masked=masked,
    )


@dataclass(frozen=True)
class Collator:
    """Turn records into tensors of a fixed length; see :func:`collate_to`."""

    tokenizer: Any
    max_length: int
    task: Task
    text: str
    pair: str | None
    label: str
    label_dtype: torch.dtype | None
    label_length: int
    masked: float

    def __call__(
        self, records: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> dict[str, torch.Tensor]:
        """Return the fields of the records, each with one row per record."""
        several = [records] if isinstance(records, Mapping) else records
        rows = [self._row(record) for record in several]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def example(self, labels: Sequence[Any] = (0, 1)) -> dict[str, torch.Tensor]:
        """Return a few synthetic records of different lengths, for ``example_input``.

        Args:
            labels: Labels that records may have, at least two for a classification: numbers of
                floating point for a regression, lists of them for several labels.

        Returns:
            Collated records; their tokens are the first of the vocabulary.
        """
        special = set(self.tokenizer.all_special_ids)
        tokens = [each for each in range(len(self.tokenizer)) if each not in special]
        records = []
        for row, length in enumerate(
            (self.max_length, -(-self.max_length // 2), self.max_length, 1)
        ):
            some = [tokens[(row + i * i) % len(tokens)] for i in range(length)]
            records.append(self._synthetic(some, row, labels))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self(records)

    def _synthetic(self, tokens: list[int], row: int, labels: Sequence[Any]) -> dict[str, Any]:
        """Return a record of these tokens, with labels as its task has them."""
        of_task: dict[Task, dict[str, Any]] = {
            "classification": {self.label: labels[row % len(labels)]},
            "seq2seq": {"labels": tokens},
            "token_classification": {
                "labels": [labels[(row + i) % len(labels)] for i in range(len(tokens))]
            },
        }
        return {"input_ids": tokens} | of_task.get(self.task, {})

    def _row(self, record: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the tensors of one record."""
        encoded = self._encoded(record)
        tokens = _values(encoded["input_ids"])[: self.max_length]
        attended = _values(encoded.get("attention_mask", [1] * len(tokens)))
        tokens, labels = self._labelled(record, encoded, tokens, attended)
        row = {
            "input_ids": self._padded(tokens, self.tokenizer.pad_token_id),
            "attention_mask": self._padded(attended, 0),
            "labels": labels,
        }
        if "token_type_ids" in self.tokenizer.model_input_names:  # whatever this record has
            kinds = _values(encoded.get("token_type_ids", [0] * len(tokens)))
            row["token_type_ids"] = self._padded(kinds, 0)
        return row

    def _encoded(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the tokens of a record, cut to the length."""
        if "input_ids" in record:
            return record
        text = record[self.text]
        return self.tokenizer(  # type: ignore[no-any-return]
            text,
            None if self.pair is None else record[self.pair],
            truncation=True,
            max_length=self.max_length,
            is_split_into_words=not isinstance(text, str),
        )

    def _labelled(
        self,
        record: Mapping[str, Any],
        encoded: Mapping[str, Any],
        tokens: list[int],
        attended: list[int],
    ) -> tuple[list[int], torch.Tensor]:
        """Return the tokens that the model reads, and the labels."""
        if self.task == "classification":
            return tokens, self._label(record[self.label])
        if self.task == "masked_lm":
            return self._masked(tokens)
        if "labels" in record:
            labels = _values(record["labels"])
        elif self.task == "causal_lm":
            labels = [
                token if seen else IGNORED for token, seen in zip(tokens, attended, strict=False)
            ]
        elif self.task == "seq2seq":
            labels = self.tokenizer(
                text_target=record[self.label], truncation=True, max_length=self.label_length
            )["input_ids"]
        else:
            labels = _at_first_tokens(encoded.word_ids(), _values(record[self.label]))  # type: ignore[attr-defined]
        if self.task == "seq2seq":  # always at the end, where the decoder has read all labels
            return tokens, _fitted(labels, self.label_length, IGNORED, "right")
        return tokens, self._padded(labels, IGNORED)

    def _label(self, label: Any) -> torch.Tensor:
        """Return the label of a record, or several, in the declared type."""
        found = torch.as_tensor(label)
        real = found.is_floating_point() or found.ndim > 0
        return found.to(self.label_dtype or (torch.float32 if real else torch.long))

    def _masked(self, tokens: list[int]) -> tuple[list[int], torch.Tensor]:
        """Return tokens of which some are masked or exchanged, and these as labels."""
        special = self.tokenizer.get_special_tokens_mask(tokens, already_has_special_tokens=True)
        scores = torch.rand(len(tokens)).masked_fill(torch.tensor(special).bool(), 2.0)
        chosen = (scores < self.masked) | ((scores == scores.min()) & (scores < 2))
        kind, other = torch.rand(len(tokens)), torch.randint(len(self.tokenizer), (len(tokens),))
        given = torch.tensor(tokens)
        read = given.masked_fill(chosen & (kind < _REPLACED), self.tokenizer.mask_token_id)
        read = torch.where(chosen & (kind >= 1 - _OTHER), other, read)
        labels = given.masked_fill(~chosen, IGNORED)
        return read.tolist(), self._padded(labels.tolist(), IGNORED)

    def _padded(self, values: list[int], filler: int) -> torch.Tensor:
        return _fitted(values, self.max_length, filler, self.tokenizer.padding_side)


def _fitted(values: list[int], length: int, filler: int, side: str) -> torch.Tensor:
    """Return values that are cut at a length, and padded to it on one side."""
    values = values[:length]
    padding = [filler] * (length - len(values))
    return torch.tensor(padding + values if side == "left" else values + padding)


def _values(field: Any) -> list[Any]:
    """Return a list, an array or a tensor as a list of plain numbers."""
    return field.tolist() if hasattr(field, "tolist") else list(field)


def _at_first_tokens(words: Sequence[int | None], labels: Sequence[int]) -> list[int]:
    """Return the labels of words, each at the first token of its word."""
    before = [None, *words[:-1]]
    return [
        labels[word] if word is not None and word != last else IGNORED
        for word, last in zip(words, before, strict=True)
    ]
