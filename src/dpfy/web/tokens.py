"""The bearer token of a service: shown once, kept as a hash, compared in constant time."""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from dpfy.errors import InvalidArgument

_BYTES = 32  # of randomness, so that a plain hash needs no salt and no stretching
_DIGEST = 64  # hexadecimal digits of a SHA-256 hash


def create_token(path: str | os.PathLike[str]) -> str:
    """Make a new token and keep its hash in a file; the token itself is kept nowhere.

    Args:
        path: The file; it must not exist.

    Returns:
        The token, to be given to who may ask.

    Raises:
        InvalidArgument: If the file exists.
    """
    token = secrets.token_urlsafe(_BYTES)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidArgument(f"{path} exists. Remove it to make a new token.") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{digest_of(token)}\n")
    return token


def read_digest(path: str | os.PathLike[str]) -> str:
    """Return the hash that :func:`create_token` kept.

    Args:
        path: The file.

    Returns:
        The hash, in hexadecimal digits.

    Raises:
        InvalidArgument: If the file is missing or holds something else.
    """
    try:
        found = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        found = ""
    if len(found) != _DIGEST or set(found) - set("0123456789abcdef"):
        raise InvalidArgument(
            f"Expected {path} to hold the SHA-256 hash of a token. `dpfy serve` makes one if the "
            "file does not exist."
        )
    return found


def digest_of(token: str) -> str:
    """Return the hash of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def admits(authorization: str | None, digest: str) -> bool:
    """Tell whether an ``Authorization`` header has the token of a hash, in constant time."""
    scheme, _, token = (authorization or "").partition(" ")
    right = hmac.compare_digest(digest_of(token.strip()), digest)
    return scheme.lower() == "bearer" and right
