"""Data sets by name."""

from collections.abc import Callable
from pathlib import Path

from dpfy import _validate
from dpfy.data.adult import adult
from dpfy.data.images import cifar10, digits, fashion_mnist, mnist
from dpfy.data.source import DataSource
from dpfy.data.text import imdb

_LOADERS: dict[str, Callable[[str | Path | None], DataSource]] = {
    "digits": lambda _: digits(),
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar-10": cifar10,
    "imdb": imdb,
    "adult": adult,
}
NAMES = tuple(_LOADERS)


def load(name: str, data_dir: str | Path | None = None) -> DataSource:
    """Load a benchmark by name: digits, mnist, fashion-mnist, cifar-10, imdb or adult.

    Args:
        name: one of :data:`NAMES`.
        data_dir: a folder with one folder per data set, or the folder of this data set; None takes
            the environment variable ``DPFY_DATA``. ``digits`` needs none.

    Returns:
        The data set.

    Raises:
        InvalidArgument: if there is no data set of this name.
        DataError: if a file is missing or malformed.

    >>> load("digits").description
    'Handwritten digits of 43 people, 8×8 grey (UCI, embedded in scikit-learn).'
    """
    return _LOADERS[_validate.choice("data", name, NAMES)](data_dir)
