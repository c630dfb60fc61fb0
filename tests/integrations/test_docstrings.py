"""Public names of the rooms for other frameworks are documented as all others are."""

import pkgutil
from importlib import import_module

import pytest
from tests.test_docstrings import test_a_public_name_documents_its_arguments_and_its_result as check

import dpfy.integrations

ROOMS = [
    f"dpfy.integrations.{module.name}"
    for module in pkgutil.iter_modules(dpfy.integrations.__path__)
    if module.ispkg and module.name != "flower"  # tests/flower has its own
]
NAMES = [(room, name) for room in ROOMS for name in import_module(room).__all__]


@pytest.mark.parametrize(("room", "name"), NAMES)
def test_public_name_is_documented(room, name) -> None:
    check(room, name)
