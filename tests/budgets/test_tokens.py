"""Tokens of a book: the hash alone is kept, and who has one is on record."""

import pytest

from dpfy.budgets.store import Store
from dpfy.budgets.tokens import Role, Tokens, new_token
from dpfy.errors import BookError, InvalidArgument
from dpfy.web.tokens import digest_of


@pytest.fixture
def store(tmp_path):
    with Store(f"sqlite:///{tmp_path / 'team.db'}") as found:
        yield found


def test_a_token_is_kept_as_a_hash_and_found_by_it(store, tmp_path):
    token, tokens = new_token(), Tokens(store, "root")
    assert len(token) >= 43 and token != new_token()
    tokens.issue("anna", "trainer", digest_of(token))
    found = tokens.of(token)
    assert (found.name, found.role) == ("anna", Role.TRAINER)
    assert tokens.of(token[:-1]) is None and tokens.of("") is None
    assert tokens.of(digest_of(token)) is None  # who reads the book cannot ask in another's name
    assert all(token.encode() not in file.read_bytes() for file in tmp_path.iterdir())


def test_issue_and_revoke_may_be_repeated_and_are_entries(store):
    tokens = Tokens(store, "root")
    first = tokens.issue("anna", "trainer", "a" * 64)
    assert tokens.issue("anna", "trainer", "a" * 64) == first
    revoked = tokens.revoke("anna")
    assert revoked.revoked and tokens.revoke("anna") == revoked
    second = tokens.issue("anna", "steward", "b" * 64)
    assert tokens.tokens() == (revoked, second)
    for name, role, sha256 in (("anna", "trainer", "a"), ("bert", "trainer", "b")):
        with pytest.raises(BookError, match="issued to 'anna' as"):
            tokens.issue(name, role, sha256 * 64)
    kinds = [entry.kind for entry in store.read(lambda book: book.entries(None, 1, 10))]
    assert kinds == ["token", "revoke", "token"]


@pytest.mark.parametrize(
    ("name", "role", "sha256"),
    [
        ("", "trainer", "a" * 64),
        ("a/b", "trainer", "a" * 64),
        ("a:b", "trainer", "a" * 64),
        ("ä", "trainer", "a" * 64),
        ("x" * 101, "trainer", "a" * 64),
        ("anna", "king", "a" * 64),
        ("anna", "trainer", "a" * 63),
        ("anna", "trainer", "A" * 64),
    ],
)
def test_tokens_of_another_form_are_refused(store, name, role, sha256):
    with pytest.raises(InvalidArgument):
        Tokens(store).issue(name, role, sha256)


def test_names_without_a_token_have_none_to_revoke(store):
    with pytest.raises(BookError, match="has no token"):
        Tokens(store).revoke("anna")
