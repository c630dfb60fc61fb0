import hashlib
import json

import pytest

from dpfy.errors import InvalidArgument, LedgerDamaged
from dpfy.ledger import Header
from dpfy.ledger.events import NonPrivate, Repeated, canonical_json
from dpfy.ledger.journal import GENESIS, Journal, recovery_line, seal


def feed(*entries, journal=None):
    journal = journal or Journal("test")
    for kind, payload in entries:
        journal.feed(seal(journal.head.hash, canonical_json({kind: payload}))[0])
    return journal


def use(event, times=1, **extra):
    return "use", {"event": event.address, "times": times, **extra}


def test_a_line_is_plain_json_whose_last_key_is_the_documented_hash():
    line, digest = seal(GENESIS, b'{"settle":{"unused":1}}')
    assert digest == hashlib.sha256(b"0" * 64 + b'{"settle":{"unused":1}}').hexdigest()
    assert line == b'{"settle":{"unused":1},"hash":"' + digest.encode() + b'"}\n'
    assert list(json.loads(line)) == ["settle", "hash"]


@pytest.mark.parametrize(
    "reason, entries",
    [
        ("use before header", lambda h, e: [("define", e.to_json()), use(e)]),
        ("undefined event", lambda h, e: [("header", h), use(e)]),
        ("second header", lambda h, e: [("header", h), ("header", h)]),
        (
            "settled more than paid",
            lambda h, e: [
                ("header", h),
                ("define", e.to_json()),
                use(e, 4),
                ("settle", {"unused": 4}),
            ],
        ),
        (
            "settled twice",
            lambda h, e: [
                ("header", h),
                ("define", e.to_json()),
                use(e, 4),
                ("settle", {"unused": 2}),
                ("settle", {"unused": 1}),
            ],
        ),
        (
            "settled negative",
            lambda h, e: [
                ("header", h),
                ("define", e.to_json()),
                use(e, 4),
                ("settle", {"unused": -1}),
            ],
        ),
        (
            "voided in part",
            lambda h, e: [
                ("header", h),
                ("define", e.to_json()),
                use(e, 4),
                ("void", {"unused": 3}),
            ],
        ),
        (
            "voided after a settlement",
            lambda h, e: [
                ("header", h),
                ("define", e.to_json()),
                use(e, 2),
                ("settle", {"unused": 1}),
                ("void", {"unused": 1}),
            ],
        ),
        (
            "voided behind another line",
            lambda h, e: [
                ("header", h),
                ("define", e.to_json()),
                use(e),
                ("basis", {"engine": "loop"}),
                ("void", {"unused": 1}),
            ],
        ),
        ("no times", lambda h, e: [("header", h), ("define", e.to_json()), use(e, 0)]),
        ("boolean times", lambda h, e: [("header", h), ("define", e.to_json()), use(e, True)]),
        ("negative times", lambda h, e: [("header", h), ("define", e.to_json()), use(e, -3)]),
        ("unknown field", lambda h, e: [("header", h), ("define", e.to_json()), use(e, refund=1)]),
        ("unknown kind", lambda h, e: [("header", h), ("refund", 3)]),
        (
            "recover without torn bytes",
            lambda h, e: [
                ("header", h),
                ("recover", {"bytes": 0, "event": None, "sha256": hashlib.sha256(b"").hexdigest()}),
            ],
        ),
        ("future schema", lambda h, e: [("header", {**h, "schema": 2})]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_chained_lines_that_say_what_is_not_allowed_are_refused(reason, entries, header, step):
    with pytest.raises(LedgerDamaged, match=r"line \d+ \(byte \d+\)"):
        feed(*entries(header.to_json(), step))


def test_a_body_that_is_not_canonical_is_refused(step):
    """Duplicate keys would let two readers see two ledgers in the same bytes."""
    definition = b'"define":' + canonical_json(step.to_json())
    Journal("test").feed(seal(GENESIS, b"{" + definition + b"}")[0])
    with pytest.raises(LedgerDamaged, match="not canonical"):
        Journal("test").feed(seal(GENESIS, b"{" + definition + b"," + definition + b"}")[0])


def test_definitions_are_shared_and_notes_do_not_change_the_event(header, step):
    journal = feed(
        ("header", header.to_json()),
        ("define", step.to_json()),
        use(step),
        use(step, note={"scale": 2}),
        use(step, 3),
    )
    assert list(journal.runs()) == [Repeated(step, 5)]


@pytest.mark.parametrize(
    "spent, expected", [(0, "a"), (1, "a"), (2, "b"), (4, "b"), (5, "b"), (9, "b")]
)
def test_a_torn_tail_is_charged_as_the_next_event_of_the_envelope(spent, expected):
    a, b = NonPrivate("a"), NonPrivate("b")
    header = Header(envelope=(Repeated(a, 2), Repeated(b, 3)))
    journal = feed(("header", header.to_json()), ("define", a.to_json()), *[use(a)] * spent)
    journal.feed(b'{"use"')
    charged = sum(run.times for run in journal.runs() if run.event.reason == expected)
    assert charged == (spent if expected == "a" else 0) + 1


def test_a_torn_tail_without_an_envelope_is_charged_as_the_last_event(step):
    journal = feed(("header", Header().to_json()), ("define", step.to_json()), use(step))
    journal.feed(b"x")
    assert list(journal.runs()) == [Repeated(step, 1), Repeated(step, 1)]


def test_every_flip_of_a_sealed_torn_tail_is_found(header, step):
    lines = [("header", header.to_json()), ("define", step.to_json()), use(step)]
    journal = feed(*lines)
    journal.feed(b'{"recover":{"bytes":')  # itself a torn seal
    sealed = journal.torn + recovery_line(journal)
    for index in range(len(sealed)):
        again = feed(*lines)
        flipped = sealed[:index] + bytes([sealed[index] ^ 1]) + sealed[index + 1 :]
        try:
            again.feed(flipped)
        except LedgerDamaged:
            continue
        assert (
            again.torn == flipped and index == len(sealed) - 1
        )  # the newline: a torn tail, again charged
    again = feed(*lines)
    again.feed(sealed)
    assert list(again.runs()) == [Repeated(step, 2)]
    for kind in ("settle", "void"):  # a recovered step is no block that could be handed back
        with pytest.raises(LedgerDamaged):
            feed((kind, {"unused": 1}), journal=again)


def test_header_round_trip_and_bad_headers(header):
    assert Header.from_json(json.loads(canonical_json(header.to_json()))) == header
    for wrong in (
        {"plan": float("nan")},
        {"plan": object()},
        {"unit": "family"},
        {"relation": "cousins"},
    ):
        with pytest.raises(InvalidArgument, match="header"):
            Header(**wrong)
    with pytest.raises(InvalidArgument, match="fields"):
        Header.from_json({**header.to_json(), "extra": 1})


def test_ever_new_notes_do_not_fill_the_memory(header, step):
    journal = feed(
        ("header", header.to_json()),
        ("define", step.to_json()),
        *[use(step, note={"scale": index}) for index in range(5000)],
    )
    assert len(journal._known_uses) < 5000
    assert list(journal.runs()) == [Repeated(step, 5000)]
