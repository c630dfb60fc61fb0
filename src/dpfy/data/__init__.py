"""The reference data sets, read from their public formats and without pickles.

Loaders check *files*: a malformed file raises before a ledger exists. Nothing about the encoding is
learnt from the records: categories, ranges, alphabets and lengths are constants.
"""

from dpfy.data.adult import adult
from dpfy.data.catalog import NAMES, load
from dpfy.data.images import cifar10, digits, fashion_mnist, mnist
from dpfy.data.source import DataSource, UserSource
from dpfy.data.text import glove, imdb, shakespeare

__all__ = [
    "NAMES",
    "DataSource",
    "UserSource",
    "adult",
    "cifar10",
    "digits",
    "fashion_mnist",
    "glove",
    "imdb",
    "load",
    "mnist",
    "shakespeare",
]
