"""The service of a book as its command runs it: encryption, addresses, tokens, many clients."""

import datetime
import ipaddress
import json
import multiprocessing
import os
import socket
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import teams
from budget_services import Served, command
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from teams import PLAN

from dpfy.budgets import BudgetBook
from dpfy.budgets.store import Store
from dpfy.budgets.tokens import Tokens, new_token
from dpfy.errors import BookError, BookUnavailable, BudgetExhausted, InvalidArgument
from dpfy.web.tokens import digest_of

TOKEN = "DPFY_BUDGET_TOKEN"


@pytest.fixture
def book(tmp_path):
    return f"sqlite:///{tmp_path / 'team.db'}"


@contextmanager
def served_at(book, *options):
    found = Served(book, *options)
    try:
        yield found
    finally:
        assert found.close()[1] == ""  # nothing is logged of what goes well


def issued(book, name, role):
    """Return a new token of a book that is not served yet."""
    token = new_token()
    with Store(book) as store:
        Tokens(store).issue(name, role, digest_of(token))
    return token


@pytest.fixture
def certificate(tmp_path):
    """A certificate for this machine that nobody has signed, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "budget.test")])
    now = datetime.datetime.now(datetime.UTC)
    found = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .sign(key, hashes.SHA256())
    )
    files = tmp_path / "budget.pem", tmp_path / "budget.key"
    files[0].write_bytes(found.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def test_a_team_from_the_first_token_to_a_settled_run(database, tmp_path, monkeypatch):
    """Fails if the commands, the service and the database do not speak of one book."""
    told = command("token", "root", "--role", "steward", "--book", database, "--json")
    monkeypatch.setenv(TOKEN, json.loads(told)["token"])
    with served_at(database) as served:
        monkeypatch.setenv("DPFY_BUDGET_BOOK", served.url)
        command(*["create", "admissions", "--epsilon", "3", "--delta", "1e-5"])
        told = command(*["token", "anna", "--role", "trainer", "--json"])
        monkeypatch.setenv(TOKEN, json.loads(told)["token"])
        with BudgetBook.open(served.url) as book:
            grant = book.reserve("admissions", PLAN, purpose="a run")
            path = teams.run(grant, tmp_path / "run.dpl", steps=40)
            settled = book.settle(grant, path)
            assert (settled.state, settled.holder) == ("settled", "anna")
            with pytest.raises(BookError, match="role trainer"):
                book.open_tranche("admissions")
    with BudgetBook.open(database) as book:
        assert book.show("admissions").grants == (settled,) and book.verify() > 5
        assert {entry.actor for entry in book.log("admissions")} == {"root", "anna"}


def test_requests_are_encrypted_with_the_certificate(book, certificate, monkeypatch):
    """Fails if tokens travel in the clear, or to whoever answers at the address."""
    monkeypatch.setenv(TOKEN, issued(book, "root", "steward"))
    with served_at(book, "--certfile", certificate[0], "--keyfile", certificate[1]) as served:
        assert served.url.startswith("https://127.0.0.1:")
        with pytest.raises(InvalidArgument, match=r"certificate of .* is not accepted"):
            BudgetBook.open(served.url)
        with pytest.raises(BookUnavailable):
            BudgetBook.open(served.url.replace("https", "http"))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        with BudgetBook.open(served.url) as found:
            assert found.datasets() == ()
        with pytest.raises(InvalidArgument, match=r"certificate of .* is not accepted"):
            BudgetBook.open(served.url.replace("127.0.0.1", "localhost"))


def test_other_machines_do_not_reach_it_and_a_revoked_token_ends_at_once(book, monkeypatch):
    """Fails if the default is another address than 127.0.0.1, or if tokens are remembered."""
    monkeypatch.setenv(TOKEN, issued(book, "anna", "auditor"))
    with served_at(book) as served:
        address = urlsplit(served.url)
        assert address.hostname == "127.0.0.1"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", address.port), timeout=60)
        with BudgetBook.open(served.url) as found:
            assert found.datasets() == ()
            with Store(book) as store:
                Tokens(store).revoke("anna")
            with pytest.raises(BookError, match="Expected a bearer token"):
                found.datasets()


def reserve_all(url, token, number, start, found):
    """Ask for so many grants at once with others; report what was granted."""
    os.environ[TOKEN] = token
    granted = 0
    with BudgetBook.open(url) as book:
        start.wait(timeout=300)
        for each in range(number):
            try:
                book.reserve("admissions", PLAN, purpose=f"race {each}")
                granted += 1
            except BudgetExhausted:
                continue
    found.put(granted)


def room_in(book):
    """Return how many grants fit into the budget of a data set of its own."""
    with BudgetBook.open(book) as alone:
        alone.create("twin", unit="record", epsilon=3.0, delta=1e-5, reference=PLAN)
        for room in range(1000):
            try:
                alone.reserve("twin", PLAN, purpose="alone")
            except BudgetExhausted:
                return room
    raise AssertionError("a budget that does not end")


def test_clients_that_race_are_granted_what_there_is_room_for(database, monkeypatch):
    """Fails if two requests that the service handles at once are granted the same room."""
    steward, room = issued(database, "root", "steward"), room_in(database)
    assert 3 <= room < 30
    monkeypatch.setenv(TOKEN, steward)
    context = multiprocessing.get_context("spawn")
    start, found = context.Barrier(3), context.Queue()
    with served_at(database) as served:
        with BudgetBook.open(served.url) as book:
            book.create("admissions", unit="record", epsilon=3.0, delta=1e-5, reference=PLAN)
        racing = [
            context.Process(target=reserve_all, args=(served.url, steward, 12, start, found))
            for _ in range(3)
        ]
        for process in racing:
            process.start()
        assert sum(found.get(timeout=300) for _ in racing) == min(room, 36)
        for process in racing:
            process.join(timeout=300)
    with BudgetBook.open(database) as book:
        assert len(book.show("admissions").grants) == min(room, 36) and book.verify()
