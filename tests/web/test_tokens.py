"""A token is shown once, and its hash is all that is kept."""

import pytest

from dpfy.errors import InvalidArgument
from dpfy.web.tokens import admits, create_token, digest_of, read_digest


def test_token_is_kept_as_a_hash_that_only_its_owner_reads(tmp_path):
    file = tmp_path / "token.sha256"
    token = create_token(file)
    assert len(token) >= 43 and token not in file.read_text()
    assert read_digest(file) == digest_of(token) and file.stat().st_mode & 0o077 == 0
    assert admits(f"Bearer {token}", read_digest(file)) and admits(
        f"bearer {token}", digest_of(token)
    )
    assert not admits(f"Bearer {token[:-1]}", read_digest(file))
    assert not admits(f"Bearer {read_digest(file)}", read_digest(file))
    assert create_token(tmp_path / "other") != token


def test_token_is_not_replaced_by_accident(tmp_path):
    create_token(tmp_path / "token")
    with pytest.raises(InvalidArgument, match="exists"):
        create_token(tmp_path / "token")


@pytest.mark.parametrize("text", [None, "", "right", "z" * 64, "ä" * 64])
def test_file_without_a_hash_is_refused(tmp_path, text):
    # An empty hash that equals an empty token would let everybody in.
    if text is not None:
        (tmp_path / "token").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidArgument, match="SHA-256"):
        read_digest(tmp_path / "token")
