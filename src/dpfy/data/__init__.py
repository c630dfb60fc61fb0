"""The reference data sets, the rows of Arrow files and sequences of text, read without pickles.

Loaders check *files*: a malformed file raises before a ledger exists. Nothing about the encoding is
learnt from the records: categories, ranges, alphabets and lengths are constants.
"""

from dpfy.data.adult import adult
from dpfy.data.arrow import ArrowRecords
from dpfy.data.arrow_layout import Column
from dpfy.data.catalog import NAMES, load
from dpfy.data.images import cifar10, digits, fashion_mnist, mnist
from dpfy.data.index import index_files
from dpfy.data.sequences import TokenSequences
from dpfy.data.source import DataSource, UserSource
from dpfy.data.text import glove, imdb, shakespeare
from dpfy.data.vocabulary import Vocabulary

__all__ = [
    "NAMES",
    "ArrowRecords",
    "Column",
    "DataSource",
    "TokenSequences",
    "UserSource",
    "Vocabulary",
    "adult",
    "cifar10",
    "digits",
    "fashion_mnist",
    "glove",
    "imdb",
    "index_files",
    "load",
    "mnist",
    "shakespeare",
]
