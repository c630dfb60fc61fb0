"""Every public name says what it does, what it takes, what it returns and what it raises."""

import inspect
import pkgutil
import re
from importlib import import_module

import pytest

import dpfy

ROOMS = [
    "dpfy",
    *(
        f"dpfy.{module.name}"
        for module in pkgutil.iter_modules(dpfy.__path__)
        # docstrings of cli are what --help prints; tests/integrations has a test of its own
        if module.ispkg and module.name not in ("cli", "integrations")
    ),
]
NAMES = [(room, name) for room in ROOMS for name in import_module(room).__all__]
_INHERITED = (str, Exception)  # an enumeration of texts, or an error, is made by its base


def test_every_room_has_public_names():
    assert all(import_module(room).__all__ for room in ROOMS)


def test_every_room_says_what_it_is_for():
    """The first line of a room is what the table of rooms shows."""
    for room in ROOMS:
        assert re.match(r"[A-Z].+[.]\n?", inspect.getdoc(import_module(room)) or ""), room


def own_parameters(value):
    """The arguments that whoever calls a public name may give."""
    if inspect.isclass(value) and (
        issubclass(value, _INHERITED) or getattr(value, "_is_protocol", False)
    ):
        return []
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each.name for each in parameters if each.name not in ("self", "args", "kwargs")]


def section(doc, *titles):
    """The text of the first of these sections of a docstring."""
    found = re.search(rf"^(?:{'|'.join(titles)}):\n((?:[ ]+.*\n?|\n)+)", doc + "\n", re.MULTILINE)
    return found and found.group(1)


@pytest.mark.parametrize(("room", "name"), NAMES)
def test_a_public_name_documents_its_arguments_and_its_result(room, name):
    value = getattr(import_module(room), name)
    if not callable(value):
        return  # a table or a constant: the lines around it explain it
    doc = inspect.getdoc(value) or ""
    summary = doc.split("\n")[0]
    assert summary.endswith("."), f"the first line is no sentence: {summary!r}"
    assert len(summary) <= 97
    parameters = own_parameters(value)
    if parameters:
        given = section(doc, "Args", "Attributes")
        assert given, "there is no Args section"
        missing = [
            each for each in parameters if not re.search(rf"^ +\*{{0,2}}{each}:", given, re.M)
        ]
        assert not missing, f"Args does not explain {missing}"
    if inspect.isfunction(value):
        returns = inspect.signature(value).return_annotation
        if returns not in (None, "None", inspect.Signature.empty):
            assert section(doc, "Returns", "Yields"), "there is no Returns section"
        source = inspect.getsource(value)
        if re.search(r"^\s+raise ", source, re.M) or "_validate." in source:
            assert section(doc, "Raises"), "there is no Raises section"
