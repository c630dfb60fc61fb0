"""What a book's service and its clients agree on: paths, and names of errors.

Tests: tests/budgets/test_client.py.
"""

import re
from http import HTTPStatus

from dpfy import errors
from dpfy.errors import DpfyError

PREFIX = "/v1"
TOKEN = "DPFY_BUDGET_TOKEN"  # the environment variable in which clients find their token

_STATUSES: dict[type[DpfyError], HTTPStatus] = {
    errors.BookUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.InvalidArgument: HTTPStatus.BAD_REQUEST,
    errors.UnsupportedEvent: HTTPStatus.BAD_REQUEST,
    errors.BudgetExhausted: HTTPStatus.CONFLICT,
    errors.BookError: HTTPStatus.CONFLICT,
    errors.LedgerError: HTTPStatus.CONFLICT,
}


def status_of(error: DpfyError) -> HTTPStatus | None:
    """Return the status that an error is answered with; None if it is the service's own failure."""
    if isinstance(error, errors.BookDamaged):
        return HTTPStatus.INTERNAL_SERVER_ERROR  # which clients are told, whoever they are
    return next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), None)


def tag_of(kind: type[DpfyError]) -> str:
    """Return the name of an error in answers: ``budget_exhausted`` of ``BudgetExhausted``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


KINDS: dict[str, type[DpfyError]] = {
    tag_of(kind): kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, DpfyError)
}
