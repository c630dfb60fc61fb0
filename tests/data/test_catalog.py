"""Data sets by name."""

import pytest

from dpfy.data import NAMES, load
from dpfy.errors import DataError, InvalidArgument


def test_a_data_set_has_the_name_that_it_was_asked_for():
    source = load("digits")
    assert source.name == "digits" and len(source.train) == source.records


def test_unknown_names_are_refused_and_known_ones_listed():
    with pytest.raises(InvalidArgument, match="digits"):
        load("imagenet")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_files_that_are_missing_are_named(name, tmp_path):
    with pytest.raises(DataError, match=name):
        load(name, tmp_path)
