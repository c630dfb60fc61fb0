"""Checking a report: compute every number again from the ledger and compare."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpfy.errors import InvalidArgument
from dpfy.ledger import Ledger
from dpfy.reporting.document import SCHEMA_VERSION, report
from dpfy.reporting.facts import RunFacts

_ROUNDING = 1e-6  # relative: the rounding error of transforms differs between machines
_MAY_DIFFER = ("$.ledger.read_by", "$.statement[10].text")  # they name the version that accounts


def differences(ledger: Ledger, certificate: dict[str, Any]) -> list[str]:
    """Return where a ``report.json`` disagrees with its ledger; nothing if all of it holds.

    *Formal guarantee*: with no difference, the certificate is the report that this version computes
    from that very ledger, whose hash chain was verified when it was read; numbers agree to a
    relative 1e-6.

    *Assumes* that the declared facts are true: they are taken from the certificate.

    Args:
        ledger: the ledger that the report is about.
        certificate: the content of the ``report.json``.

    Returns:
        One sentence for each difference.

    Raises:
        InvalidArgument: if the certificate is of another version or incomplete.
    """
    if certificate.get("schema_version") != SCHEMA_VERSION:
        raise InvalidArgument(
            f"Expected a report.json of schema_version {SCHEMA_VERSION}, got "
            f"{certificate.get('schema_version')!r}. Use the version of dpfy that wrote it."
        )
    try:
        delta, facts = (
            float(certificate["costs"]["delta"]),
            RunFacts.from_json(certificate["facts"]),
        )
    except (KeyError, TypeError, ValueError):
        raise InvalidArgument(
            "The certificate lacks its δ or its declared facts; it is not a whole report.json."
        ) from None
    again = json.loads(json.dumps(report(ledger, delta, facts).to_json()))
    return [
        found for found in _compare(certificate, again, "$") if not found.startswith(_MAY_DIFFER)
    ]


def read_certificate(path: Path) -> dict[str, Any]:
    """Return the content of a ``report.json``.

    Raises:
        InvalidArgument: if there is no such file, or if it is no ``report.json``.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidArgument(
            f"There is no certificate at {path}. Write one with dpfy report --out, or name it with "
            "--facts."
        ) from None
    except ValueError:
        raise InvalidArgument(f"{path} is not JSON, so it is no report.json.") from None
    if not isinstance(value, dict):
        raise InvalidArgument(f"{path} is not a report.json.")
    return value


def _compare(stated: Any, computed: Any, where: str) -> Iterator[str]:
    """Yield a sentence for every place in which the two differ."""
    if isinstance(stated, dict) and isinstance(computed, dict):
        for name in dict.fromkeys((*computed, *stated)):
            if name in stated and name in computed:
                yield from _compare(stated[name], computed[name], f"{where}.{name}")
            else:
                missing = "certificate" if name in computed else "report"
                yield f"{where}.{name} is not in the {missing}"
    elif isinstance(stated, list) and isinstance(computed, list) and len(stated) == len(computed):
        for index, (one, other) in enumerate(zip(stated, computed, strict=True)):
            yield from _compare(one, other, f"{where}[{index}]")
    elif not _same(stated, computed):
        yield f"{where}: the certificate says {_short(stated)}, the ledger {_short(computed)}"


def _same(stated: Any, computed: Any) -> bool:
    numbers = [
        isinstance(value, int | float) and not isinstance(value, bool)
        for value in (stated, computed)
    ]
    if all(numbers):
        return math.isclose(stated, computed, rel_tol=_ROUNDING, abs_tol=1e-12)
    return type(stated) is type(computed) and stated == computed


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"
