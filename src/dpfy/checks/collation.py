"""Check that a collate function does not pad a record to the length of its neighbours.

Tests: tests/checks/test_probe.py.
"""

from collections.abc import Callable
from typing import Any

from dpfy.errors import IsolationError
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.synthetic import shortened


def check_collation(collate_fn: Callable[[list[Any]], Any], record: Any) -> None:
    """Refuse a collate function that pads a record to the length of its neighbours.

    It is judged on synthetic records. In a run it is given one record at a time, where such
    padding neither harms nor helps; the refusal tells the user so.
    """
    for long, short in ((1.0, 0.5), (2.0, 1.0)):
        try:
            records = [shortened(record, long), shortened(record, short)]
            together = Chunk.of(collate_fn(records), 2)
            alone = Chunk.of(collate_fn(records[1:]), 1)
        except Exception:
            continue  # it takes one length only, or not these synthetic records: nothing is padded
        if together.signature != alone.signature:
            raise IsolationError(
                "collate_fn pads an example to the longest of its neighbours, so that one record "
                "changes the input of others. Pad to a public fixed length, or to declared buckets."
            )
