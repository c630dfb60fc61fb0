"""The description of the service: complete, and true of what the service takes."""

from dpfy.budgets.declarations import Declaration
from dpfy.budgets.service.endpoints import ENDPOINTS
from dpfy.budgets.service.openapi import description
from dpfy.budgets.service.schemas import DECLARATION, REQUEST
from dpfy.budgets.values import Request


def test_every_endpoint_is_described_once():
    described = {
        (method.upper(), path) for path, place in description()["paths"].items() for method in place
    }
    assert described == {(each.method, f"/v1{each.path}") for each in ENDPOINTS}
    names = [
        operation["operationId"]
        for place in description()["paths"].values()
        for operation in place.values()
    ]
    assert len(set(names)) == len(names)


def test_schemas_have_the_fields_of_what_is_read():
    """Fails if a field is added to a value and the description is not told."""
    declared = Declaration.make("a", unit="record", epsilon=1.0, delta=1e-5)
    assert list(DECLARATION["properties"]) == list(declared.to_json())
    assert list(REQUEST["properties"]) == list(Request.__dataclass_fields__)
