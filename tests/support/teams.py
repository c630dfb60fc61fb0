"""Teams for tests: a plan, runs without torch, and clients that reach a service in this process."""

import json

import asgi

from dpfy import dpsgd
from dpfy.budgets import BudgetBook
from dpfy.budgets.client import Service
from dpfy.budgets.service import make_app
from dpfy.budgets.store import Store
from dpfy.budgets.tokens import Tokens
from dpfy.ledger import Ledger
from dpfy.web.tokens import digest_of

PLAN = dpsgd(rate=0.01, divisor=600, steps=100, noise_multiplier=1.0)
NAMES = {"root": "steward", "anna": "trainer", "bert": "trainer", "carl": "auditor"}


def token_of(name):
    return f"the token of {name}"


def bearer(name):
    return {"authorization": f"Bearer {token_of(name)}"}


class Team:
    """A book in a file, its service, and everybody who may ask it."""

    def __init__(self, folder, **limits):
        self.store = Store(f"sqlite:///{folder / 'team.db'}")
        self.tokens = Tokens(self.store)
        for name, role in NAMES.items():
            self.tokens.issue(name, role, digest_of(token_of(name)))
        self.app = make_app(self.store, **limits)

    def ask(self, name, method, path, value=None):
        """Return the status and the parsed body of a request in somebody's name."""
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        headers = {} if name is None else bearer(name)
        return asgi.call(self.app, method, f"/v1{path}", b"" if value is None else body, headers)

    def client(self, name, **options):
        return InProcess(self.app, token_of(name), **options)

    def book(self, name):
        return BudgetBook(self.client(name))

    def close(self):
        self.store.close()


class InProcess(Service):
    """A client whose requests reach an application without a network, or get lost on the way.

    ``lost`` says for each request in turn whether it is lost ``"before"`` the service sees it, or
    its answer ``"after"``; later ones arrive.
    """

    def __init__(self, app, token, lost=()):
        self._app, self.pauses, self.sent = app, [], 0
        self.lost = []
        super().__init__("http://localhost", token, pause=self.pauses.append)
        self.lost = list(lost)

    def _sent(self, method, path, value):
        when = self.lost.pop(0) if self.lost else None
        if when == "before":
            raise ConnectionRefusedError
        body = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
        headers = {"authorization": f"Bearer {self._token}"}
        status, found, answer = asgi.send(self._app, method, f"/v1{path}", body or b"", headers)
        self.sent += 1
        if when == "after":
            raise ConnectionResetError
        return status, found.get("content-type", ""), answer


def run(grant, path, steps, plan=PLAN):
    """Take so many steps of the plan under a grant; return the path of the ledger."""
    with Ledger.open(path, grant=grant) as ledger:
        for _ in range(steps):
            ledger.reserve(plan.event)
    return path
