"""IMDb, GloVe and Shakespeare: fixed public lengths, one record never shapes another, malformed
files are named.
"""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpfy.data import glove, imdb, shakespeare
from dpfy.data.text import ALPHABET, OTHER, PADDING
from dpfy.errors import DataError, InvalidArgument

REVIEWS = [[1, 14, 22], [1, 5, 6, 7, 12_000, 9], []]


def flat(**changes: Any) -> dict[str, np.ndarray]:
    tokens = np.array([token for review in REVIEWS for token in review], np.int32)
    arrays = {}
    for part in ("train", "test"):
        arrays |= {
            f"{part}_tokens": tokens,
            f"{part}_offsets": np.array([0, 3, 9, 9], np.int32),
            f"{part}_labels": np.array([1, 0, 1], np.uint8),
        }
    return arrays | {name: np.asarray(value) for name, value in changes.items()}


def test_reviews_keep_their_last_tokens_with_zeros_in_front(tmp_path: Path) -> None:
    np.savez(tmp_path / "imdb.npz", **flat())
    source = imdb(tmp_path, length=4)
    x, y = source.train.tensors
    assert x.tolist() == [[0, 1, 14, 22], [6, 7, 2, 9], [0, 0, 0, 0]] and x.dtype == torch.int64
    assert y.tolist() == [1, 0, 1] and source.vocabulary == 10_000 and source.input_shape == (4,)


def test_length_is_public_and_not_that_of_the_longest_review(tmp_path: Path) -> None:
    np.savez(tmp_path / "imdb.npz", **flat())
    assert imdb(tmp_path).train.tensors[0].shape == (3, 256)


def test_tokens_outside_the_vocabulary_are_unknown(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "imdb.npz", **flat(train_tokens=np.array([1, 14, 22, 1, -5, 6, 7, 12_000, 9]))
    )
    assert imdb(tmp_path, vocabulary=20, length=6).train.tensors[0][:2].tolist() == [
        [0, 0, 0, 1, 14, 2],
        [1, 2, 6, 7, 2, 9],
    ]


@pytest.mark.parametrize("behind", [False, True])
def test_padded_rows_are_the_same_reviews(behind: bool, tmp_path: Path) -> None:
    rows = np.array(
        [
            review + [0] * (9 - len(review)) if behind else [0] * (9 - len(review)) + review
            for review in REVIEWS
        ]
    )
    np.savez(tmp_path / "imdb.npz", x_train=rows, y_train=[1, 0, 1], x_test=rows, y_test=[1, 0, 1])
    assert imdb(tmp_path, length=4).test.tensors[0].tolist() == [
        [0, 1, 14, 22],
        [6, 7, 2, 9],
        [0, 0, 0, 0],
    ]


def test_pickled_file_is_refused_and_nothing_in_it_runs(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (ran,)

    objects = np.array([Trap(), Trap()], dtype=object)
    np.savez(tmp_path / "imdb.npz", x_train=objects, y_train=[0, 1], x_test=objects, y_test=[0, 1])
    with pytest.raises(
        DataError, match=r"imdb\.npz: found pickled objects, which may run any code"
    ):
        imdb(tmp_path)
    (tmp_path / "imdb.npz").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError, match=r"imdb\.npz: found"):
        imdb(tmp_path)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_offsets": [0, 3, 8]}, "found offsets that do not fit"),
        ({"train_offsets": [1, 3, 9, 9]}, "found offsets that do not fit"),
        ({"train_offsets": [0, 5, 3, 9]}, "found offsets that do not fit"),
        ({"train_offsets": np.array([], np.int64)}, "found offsets that do not fit"),
        ({"train_tokens": np.zeros((3, 3), np.int64)}, "found arrays of another shape or type"),
        ({"train_tokens": np.zeros(9)}, "found arrays of another shape or type"),
        ({"test_labels": [1, 0]}, "found 2 labels, expected 3"),
        ({"test_labels": [1, 0, 2]}, "found a label outside the classes"),
    ],
)
def test_malformed_reviews_are_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "imdb.npz", **flat(**changes))
    with pytest.raises(DataError, match=rf"imdb\.npz: {message}"):
        imdb(tmp_path)


@pytest.mark.parametrize("keep", [0, 3, 200, -30])
def test_truncated_archive_is_named(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "imdb.npz"
    np.savez_compressed(path, **flat())
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"imdb\.npz: found no readable archive"):
        imdb(tmp_path)


def test_archive_of_other_arrays_and_plain_array_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "imdb.npz", tokens=np.zeros(3))
    with pytest.raises(DataError, match="found other arrays, expected the arrays train_tokens, "):
        imdb(tmp_path)
    with (tmp_path / "imdb.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match="found no readable archive"):
        imdb(tmp_path)


def test_options_are_checked() -> None:
    with pytest.raises(InvalidArgument, match="vocabulary=0"):
        imdb(vocabulary=0)
    with pytest.raises(InvalidArgument, match="window=0"):
        shakespeare(window=0)


# GloVe


def write_glove_text(root: Path) -> np.ndarray:
    vectors = np.arange(300, dtype=np.float32).reshape(3, 100) / 7
    (root / "glove").mkdir(exist_ok=True)
    (root / "imdb").mkdir(exist_ok=True)
    lines = [
        " ".join([word, *(f"{value:.6g}" for value in vector)])
        for word, vector in zip(["the", "zebra", "film"], vectors, strict=True)
    ]
    (root / "glove" / "glove.6B.100d.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (root / "imdb" / "imdb_word_index.json").write_text(
        json.dumps({"the": 1, "film": 2, "it's": 3, "zebra": 9})
    )
    return vectors


def test_vectors_are_aligned_with_token_ids(tmp_path: Path) -> None:
    vectors = np.arange(500, dtype=np.float16).reshape(5, 100)
    np.savez(tmp_path / "glove.6B.100d.imdb20k.npz", vectors=vectors, found=np.ones(5, bool))
    table = glove(tmp_path, vocabulary=7)
    assert table.shape == (7, 100) and table.dtype == torch.float32 and not table[:4].any()
    assert torch.equal(table[4:], torch.from_numpy(vectors[:3]).float())
    assert not glove(tmp_path, vocabulary=20)[9:].any()


@pytest.mark.parametrize("where", [".", "glove"])
def test_standard_text_file_gives_the_vectors_of_known_words(where: str, tmp_path: Path) -> None:
    vectors = write_glove_text(tmp_path)
    table = glove(tmp_path / where, vocabulary=8)
    assert np.allclose(table[4], vectors[0], rtol=1e-5) and np.allclose(
        table[5], vectors[2], rtol=1e-5
    )
    assert not table[6:].any()  # a word without a vector; a word beyond the vocabulary


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("glove/glove.6B.100d.txt", "the 1 2 3\n", "found 3 numbers in line 1, expected 100"),
        ("glove/glove.6B.100d.txt", "the " + "x " * 100, "found a line that cannot be read"),
        ("imdb/imdb_word_index.json", "[1, 2]", "found no readable word index"),
        ("imdb/imdb_word_index.json", '{"the": ', "found no readable word index"),
    ],
)
def test_malformed_text_file_is_named(
    file: str, content: str, message: str, tmp_path: Path
) -> None:
    write_glove_text(tmp_path)
    (tmp_path / file).write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        glove(tmp_path, vocabulary=8)


def test_vectors_of_another_shape_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "glove.6B.100d.imdb20k.npz", vectors=np.zeros((5, 50)))
    with pytest.raises(DataError, match=r"found vectors of shape \(5, 50\)"):
        glove(tmp_path)


# Shakespeare


def write_roles(folder: Path, *roles: str, **changes: Any) -> None:
    text = np.frombuffer("".join(roles).encode("latin-1"), np.uint8)
    offsets = np.cumsum([0, *map(len, roles)]).astype(np.int32)
    np.savez(folder / "shakespeare_by_role.npz", **({"text": text, "offsets": offsets} | changes))


def spell(ids: torch.Tensor) -> str:
    return "".join(
        {PADDING: "", OTHER: "#"}.get(i, ALPHABET[i - 2]) for i in ids.flatten().tolist()
    )


def test_roles_are_users_with_their_own_windows(tmp_path: Path) -> None:
    write_roles(tmp_path, "To be, or not", "Who's there?\n", "", "A")
    source = shakespeare(tmp_path, window=4)
    assert len(source.train) == len(source.test) == 4 and source.users == 1341
    x, y = source.train[0].tensors  # the first ten of thirteen characters
    assert spell(x) == "To be, or" and spell(y) == "o be, or " and x.shape == (3, 4)
    assert spell(source.test[0].tensors[1]) == "ot"
    assert [len(user) for user in source.train[2:]] == [0, 0]


def test_every_character_but_the_first_is_predicted_once(tmp_path: Path) -> None:
    for length in range(1, 30):
        role = (ALPHABET[1:] * 2)[: length * 5]
        write_roles(tmp_path, role)
        x, y = shakespeare(tmp_path, window=4).train[0].tensors
        assert spell(y) == role[1 : length * 4] and spell(x) == role[: length * 4 - 1]
        assert ((x == PADDING) == (y == PADDING)).all()


def test_character_outside_the_alphabet_has_one_id(tmp_path: Path) -> None:
    write_roles(tmp_path, "é\x7f\x00abcdefg")
    source = shakespeare(tmp_path, window=80)
    assert (
        spell(source.train[0].tensors[0]) == "###abcd" and source.classes == len(ALPHABET) + 2 == 98
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offsets": np.array([0, 99])}, "found offsets that do not fit"),
        ({"text": np.zeros(3, np.int64)}, "found text of type int64"),
        ({"text": np.zeros(3)}, "found arrays of another shape or type"),
    ],
)
def test_malformed_roles_are_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_roles(tmp_path, "abc", **changes)
    with pytest.raises(DataError, match=rf"shakespeare_by_role\.npz: {message}"):
        shakespeare(tmp_path)
