"""Users' own objects by name: found, called, and never quoted in an error."""

import pytest

from dpfy._objects import load_object, make_object
from dpfy.errors import DataError, InvalidArgument


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "own_objects_for_test.py").write_text(
        "value = 3\ndef make():\n    return [value]\n"
        "def fail():\n    raise ValueError('a record')\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "own_objects_for_test"


def test_objects_are_found_and_callables_called(module):
    assert load_object(f"{module}:value") == make_object(f"{module}:value") == 3
    assert make_object(f"{module}:make") == [3]


@pytest.mark.parametrize("reference", ["math", "math:", ":pi", "math:no_such", "no_such_room:x"])
def test_references_that_name_nothing_are_refused(reference):
    with pytest.raises(InvalidArgument):
        load_object(reference)


def test_an_error_of_the_users_code_is_named_without_its_text(module):
    with pytest.raises(DataError, match="ValueError") as caught:
        make_object(f"{module}:fail")
    assert "a record" not in str(caught.value)
