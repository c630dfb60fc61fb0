"""Bearer tokens of a book's service: 256 random bits, of which the book keeps the hash.

Tests: tests/budgets/test_tokens.py.
"""

import secrets
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from dpfy import _validate
from dpfy.budgets.values import Entry, whoever
from dpfy.errors import BookError, InvalidArgument
from dpfy.web.tokens import digest_of

if TYPE_CHECKING:  # clients of a service need no database
    from dpfy.budgets.store import Store, Transaction

_BYTES = 32
_DIGEST = 64
_MOST_LETTERS = 100


class Role(StrEnum):
    """What a token permits: everything, running under grants of one's own, or reading."""

    STEWARD = "steward"
    TRAINER = "trainer"
    AUDITOR = "auditor"


@dataclass(frozen=True)
class TokenState:
    """What a book knows of a token.

    Args:
        name: who has it: the actor of the entries that are written with it.
        role: what it permits.
        sha256: the hash of the token.
        created: when it was issued, ISO 8601, UTC.
        revoked: when it was revoked, or None.
    """

    name: str
    role: Role
    sha256: str
    created: str
    revoked: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return {**asdict(self), "role": str(self.role)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the state that :meth:`to_json` wrote."""
        return cls(**{**value, "role": Role(value["role"])})


def new_token() -> str:
    """Return a new token, to be shown once."""
    return secrets.token_urlsafe(_BYTES)


class Tokens:
    """Issue and revoke the tokens of a book in a database.

    Args:
        store: the database of the book.
        actor: who writes, for the log.

    *Formal guarantee*: the book has no token, only hashes; a token that was revoked is not accepted
    by requests that begin after :meth:`revoke` returned.
    """

    def __init__(self, store: "Store", actor: str | None = None) -> None:
        self._store = store
        self._actor = whoever() if actor is None else actor

    def issue(self, name: str, role: Role | str, sha256: str) -> TokenState:
        """Accept a token from now on; the same call may be repeated.

        Args:
            name: who has it; letters, digits and ``-_.@``.
            role: what it permits.
            sha256: the hash of the token.

        Returns:
            What the book knows of it.

        Raises:
            InvalidArgument: if an argument is outside its domain.
            BookError: if the name has another token, or if the token was issued before.
        """
        name, role = _name(name), Role(_validate.choice("role", role, tuple(Role)))
        if len(sha256) != _DIGEST or set(sha256) - set("0123456789abcdef"):
            raise InvalidArgument("Expected sha256 to be the SHA-256 hash of a token, in hex.")

        def change(book: "Transaction") -> TokenState:
            for found in _all(book):
                if found.sha256 == sha256:
                    return _same(found, name, role)
                if found.name == name and found.revoked is None:
                    raise BookError(
                        f"{name!r} has a token already. Revoke it before a new one is issued."
                    )
            facts = {"name": name, "role": str(role), "sha256": sha256, "key": f"token:{sha256}"}
            entry = book.append("token", facts, actor=self._actor)
            return TokenState(name, role, sha256, entry.time)

        return self._store.write(change)

    def revoke(self, name: str) -> TokenState:
        """Accept the token of a name no longer; the same call may be repeated.

        Args:
            name: who has it.

        Returns:
            What the book knows of it.

        Raises:
            BookError: if the name has no token.
        """

        def change(book: "Transaction") -> TokenState:
            own = [found for found in _all(book) if found.name == name]
            if not own:
                raise BookError(
                    f"{name!r} has no token. `dpfy budget token` lists those there are."
                )
            if own[-1].revoked is not None:
                return own[-1]
            sha256 = own[-1].sha256
            facts = {"name": name, "sha256": sha256, "key": f"revoke:{sha256}"}
            entry = book.append("revoke", facts, actor=self._actor)
            return replace(own[-1], revoked=entry.time)

        return self._store.write(change)

    def tokens(self) -> tuple[TokenState, ...]:
        """Return all tokens, oldest first."""
        return self._store.read(lambda book: tuple(_all(book)))

    def of(self, token: str) -> TokenState | None:
        """Return what the book knows of a token; None if it is not, or no longer, accepted."""
        sha256 = digest_of(token)

        def question(book: "Transaction") -> TokenState | None:
            issued = book.with_key(f"token:{sha256}")
            revoked = book.with_key(f"revoke:{sha256}")
            if issued is None or issued.kind != "token" or revoked is not None:
                return None
            return _token(issued)

        return self._store.read(question)


def _all(book: "Transaction") -> list[TokenState]:
    revoked = {entry.body["sha256"]: entry.time for entry in book.first_of("revoke")}
    tokens = map(_token, book.first_of("token"))
    return [replace(token, revoked=revoked.get(token.sha256)) for token in tokens]


def _token(entry: Entry) -> TokenState:
    body = entry.body
    return TokenState(body["name"], Role(body["role"]), body["sha256"], entry.time)


def _same(found: TokenState, name: str, role: Role) -> TokenState:
    """Return a token that is issued again, if it is for the same and still accepted."""
    if (found.name, found.role, found.revoked) != (name, role, None):
        raise BookError(
            f"This token was issued to {found.name!r} as {found.role} before. Issue a new one."
        )
    return found


def _name(value: object) -> str:
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= _MOST_LETTERS
        or not all((each.isascii() and each.isalnum()) or each in "-_.@" for each in value)
    ):
        raise InvalidArgument(
            f"Expected name={value!r} to be at most {_MOST_LETTERS} letters, digits and '-_.@'."
        )
    return value
