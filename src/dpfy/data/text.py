"""Text benchmarks: IMDb reviews as tokens, GloVe vectors for them, and Shakespeare by role."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from dpfy import _validate
from dpfy.data import files
from dpfy.data.files import malformed
from dpfy.data.source import DataSource, UserSource
from dpfy.errors import DataError

LENGTH = 256
VOCABULARY = 10_000
DIMENSION = 100
_UNKNOWN_TOKEN = 2
# the word of frequency rank r is token r + 3; 0 is padding, 1 the start of a review, 2 unknown
_FIRST_WORD = 3
_GLOVE_ARRAYS, _GLOVE_TEXT = "glove.6B.100d.imdb20k.npz", "glove.6B.100d.txt"
_FLAT = [f"{part}_{kind}" for part in ("train", "test") for kind in ("tokens", "offsets", "labels")]
_PADDED = [f"{kind}_{part}" for part in ("train", "test") for kind in ("x", "y")]
_WORD_INDEX = "imdb_word_index.json"

_Arrays = dict[str, NDArray[Any]]

# Newline and the printable ASCII characters; ids 0 and 1 are padding and any other character.
ALPHABET = "\n" + "".join(map(chr, range(0x20, 0x7F)))
PADDING, OTHER = 0, 1


def imdb(
    data_dir: str | Path | None = None, *, vocabulary: int = VOCABULARY, length: int = LENGTH
) -> DataSource:
    """Load the IMDb reviews as token ids of a fixed public length, with zeros in front.

    A review keeps its last ``length`` tokens, so no record's length depends on other records. Ids
    are those of ``keras.datasets.imdb``. The file ``imdb.npz`` holds flat tokens and offsets
    (``train_tokens``, ``train_offsets``, ``train_labels``, the same for ``test``), or padded rows
    (``x_train``, ``y_train``, ``x_test``, ``y_test``). Keras' own file of that name is a pickle and
    is refused.

    Args:
        data_dir: the folder of ``imdb.npz``, or one that has it in ``imdb``; None takes the
            environment variable ``DPFY_DATA``.
        vocabulary: the number of token ids, at least 4; other tokens become 2, "unknown".
        length: the number of tokens of a review.

    Returns:
        The data set.

    Raises:
        InvalidArgument: if ``vocabulary`` or ``length`` is too small.
        DataError: if the file is missing or malformed.

    Reference: Maas et al. 2011.
    """
    _validate.count("vocabulary", vocabulary, minimum=_FIRST_WORD + 1)
    _validate.count("length", length)
    path = files.locate("imdb", data_dir, ["imdb.npz"]) / "imdb.npz"
    arrays = files.read_arrays(path, _FLAT, _PADDED)
    read = _padded_rows if "x_train" in arrays else _flat_reviews

    def dataset(part: str) -> TensorDataset:
        tokens, offsets, labels = read(path, arrays, part)
        tokens = np.where((tokens < 0) | (tokens >= vocabulary), _UNKNOWN_TOKEN, tokens)
        labels = files.check_labels(path, labels, len(offsets) - 1, classes=2)
        return TensorDataset(
            torch.from_numpy(_last_tokens(tokens, offsets, length)), torch.from_numpy(labels)
        )

    return DataSource(
        name="imdb",
        train=dataset("train"),
        test=dataset("test"),
        records=25_000,
        classes=2,
        input_shape=(length,),
        unit="one review",
        description="Is a film review positive? Words as tokens (Maas et al. 2011).",
        vocabulary=vocabulary,
    )


def glove(data_dir: str | Path | None = None, vocabulary: int = VOCABULARY) -> torch.Tensor:
    """Return the 100-dimensional GloVe vectors of the first ``vocabulary`` IMDb tokens.

    The file is ``glove.6B.100d.imdb20k.npz`` (``vectors``: row r - 1 is the word of rank r), or the
    standard ``glove.6B.100d.txt`` together with ``imdb_word_index.json``.

    Args:
        data_dir: the folder of the files, or one that has them in ``glove``; None takes the
            environment variable ``DPFY_DATA``.
        vocabulary: the number of token ids, at least 4.

    Returns:
        A float32 tensor [vocabulary, 100]; words without a vector have zeros.

    Raises:
        InvalidArgument: if ``vocabulary`` is too small.
        DataError: if a file is missing or malformed.

    Reference: Pennington, Socher, Manning, EMNLP 2014.
    """
    _validate.count("vocabulary", vocabulary, minimum=_FIRST_WORD + 1)
    folder = _glove_folder(data_dir)
    words = vocabulary - _FIRST_WORD - 1  # token ids start at rank 1
    table = np.zeros((vocabulary, DIMENSION), dtype=np.float32)
    if (folder / _GLOVE_ARRAYS).is_file():
        path = folder / _GLOVE_ARRAYS
        vectors = files.read_arrays(path, ["vectors"])["vectors"]
        if vectors.ndim != 2 or vectors.shape[1] != DIMENSION or vectors.dtype.kind != "f":
            raise malformed(
                path,
                f"vectors of shape {vectors.shape} and type {vectors.dtype}",
                f"(words, {DIMENSION})",
            )
        table[_FIRST_WORD + 1 :][: len(vectors)] = vectors[:words]
    else:
        index = files.locate("imdb", data_dir, [_WORD_INDEX], ["../imdb"]) / _WORD_INDEX
        _fill_from_text(table, folder / _GLOVE_TEXT, _tokens_of_words(index, vocabulary))
    return torch.from_numpy(table)


def has_glove(data_dir: str | Path | None = None) -> bool:
    """Return whether a file of GloVe vectors is where :func:`glove` looks for one."""
    try:
        return bool(_glove_folder(data_dir))
    except DataError:
        return False


def _glove_folder(data_dir: str | Path | None) -> Path:
    return files.locate("glove", data_dir, [_GLOVE_ARRAYS, _GLOVE_TEXT], ["../glove"])


def shakespeare(data_dir: str | Path | None = None, window: int = 80) -> UserSource:
    """Load Shakespeare's plays by role, for predicting the next character.

    A user is one role of one play. A user's text is cut into windows without overlap; ``y`` is
    ``x`` one character later, padded with 0, which the loss must ignore. The first 80 % of each
    role's text are for training. ``shakespeare_by_role.npz`` holds ``text`` (bytes) and
    ``offsets``: role i is ``text[offsets[i]:offsets[i + 1]]``.

    Args:
        data_dir: the folder of the file, or one that has it in ``shakespeare``; None takes the
            environment variable ``DPFY_DATA``.
        window: the number of characters in a window.

    Returns:
        The data set, by user.

    Raises:
        InvalidArgument: if ``window`` is no whole number of at least 1.
        DataError: if the file is missing or malformed.

    Reference: the task of Caldas et al. 2018 (LEAF), with another edition of the text.
    """
    _validate.count("window", window)
    file = "shakespeare_by_role.npz"
    path = files.locate("shakespeare", data_dir, [file]) / file
    arrays = files.read_arrays(path, ["text", "offsets"])
    text, offsets = arrays["text"], _check_offsets(path, arrays["offsets"], arrays["text"])
    if text.dtype != np.uint8:
        raise malformed(path, f"text of type {text.dtype}", "bytes (uint8)")
    ids = np.full(256, OTHER, dtype=np.int64)
    ids[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET)) + OTHER + 1
    roles = [ids[text[start:end]] for start, end in pairwise(offsets)]
    cuts = [len(role) * 4 // 5 for role in roles]
    return UserSource(
        name="shakespeare",
        train=tuple(_windows(role[:cut], window) for role, cut in zip(roles, cuts, strict=True)),
        test=tuple(_windows(role[cut:], window) for role, cut in zip(roles, cuts, strict=True)),
        users=1341,
        classes=len(ALPHABET) + OTHER + 1,
        input_shape=(window,),
        description="Lines of Shakespeare's plays by speaking role, for predicting the next "
        "character.",
    )


def _flat_reviews(
    path: Path, arrays: _Arrays, part: str
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]:
    tokens = arrays[f"{part}_tokens"]
    return tokens, _check_offsets(path, arrays[f"{part}_offsets"], tokens), arrays[f"{part}_labels"]


def _padded_rows(
    path: Path, arrays: _Arrays, part: str
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]:
    rows = arrays[f"x_{part}"]
    if rows.ndim != 2 or rows.dtype.kind not in "iu":
        raise malformed(
            path, f"x_{part} of shape {rows.shape} and type {rows.dtype}", "rows of token ids"
        )
    words = rows != 0  # padding may stand in front or behind
    return rows[words], np.concatenate([[0], words.sum(1).cumsum()]), arrays[f"y_{part}"]


def _check_offsets(path: Path, offsets: NDArray[Any], values: NDArray[Any]) -> NDArray[np.int64]:
    """Return offsets that cut ``values`` into one part per record."""
    if any(array.ndim != 1 or array.dtype.kind not in "iu" for array in (offsets, values)):
        raise malformed(path, "arrays of another shape or type", "flat arrays of whole numbers")
    offsets = offsets.astype(np.int64)
    if (
        not len(offsets)
        or offsets[0] != 0
        or offsets[-1] != len(values)
        or (np.diff(offsets) < 0).any()
    ):
        raise malformed(
            path, "offsets that do not fit", f"offsets that rise from 0 to the length {len(values)}"
        )
    return offsets


def _last_tokens(
    tokens: NDArray[Any], offsets: NDArray[np.int64], length: int
) -> NDArray[np.int64]:
    """Return the last ``length`` tokens of each record, zeros in front."""
    place = offsets[1:, None] + np.arange(-length, 0)
    inside = place >= offsets[:-1, None]
    found = np.zeros(place.shape, dtype=np.int64)
    found[inside] = tokens[place[inside]]
    return found


def _windows(ids: NDArray[np.int64], window: int) -> TensorDataset:
    """Return windows of characters and the characters that follow them.

    A text of one character has nothing to predict.
    """
    count = -(-max(0, len(ids) - 1) // window)
    padded = np.full(count * window + 1, PADDING, dtype=np.int64)
    padded[: len(ids)] = ids[: len(padded)]
    x, y = (
        torch.from_numpy(part.reshape(count, window).copy()) for part in (padded[:-1], padded[1:])
    )
    x[y == PADDING] = PADDING  # the very last character predicts nothing
    return TensorDataset(x, y)


def _tokens_of_words(path: Path, vocabulary: int) -> dict[str, int]:
    try:
        ranks = json.loads(path.read_text(encoding="utf-8"))
        tokens = {str(word): int(rank) + _FIRST_WORD for word, rank in ranks.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        raise malformed(
            path, "no readable word index", "a JSON object from word to frequency rank"
        ) from None
    return {word: token for word, token in tokens.items() if _FIRST_WORD < token < vocabulary}


def _fill_from_text(table: NDArray[np.float32], path: Path, tokens: dict[str, int]) -> None:
    """Copy the vectors of known words out of a text file of ``word number … number`` lines."""
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                word, _, rest = line.partition(" ")
                if word in tokens:
                    values = np.array(rest.split(), dtype=np.float32)
                    if len(values) != DIMENSION:
                        raise malformed(
                            path,
                            f"{len(values)} numbers in line {number}",
                            f"{DIMENSION} after the word",
                        )
                    table[tokens[word]] = values
    except DataError:
        raise
    except (OSError, ValueError):
        raise malformed(
            path, "a line that cannot be read", f"a word and {DIMENSION} numbers per line"
        ) from None
