"""Every data set by its name."""

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

    ``data_dir``, by default the environment variable ``DPFY_DATA``, holds one folder per data set
    or is the folder itself; ``digits`` needs none. A file that is missing or malformed raises
    :class:`~dpfy.DataError`.

    >>> load("digits").description
    'Handwritten digits of 43 people, 8×8 grey (UCI, embedded in scikit-learn).'
    """
    return _LOADERS[_validate.choice("data", name, NAMES)](data_dir)
