"""Judge a collate function: it must not pad a record to the length of its neighbours."""

from collections.abc import Callable
from typing import Any

from dpfy.errors import IsolationError
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.synthetic import shortened


def check_collation(collate_fn: Callable[[list[Any]], Any], record: Any) -> None:
    """Refuse a collate function that pads a record to the length of its neighbours; judged on
    made-up records.

    It is only ever given one record, so padding to the longest would do no harm, and no good
    either: better say so.
    """
    for long, short in ((1.0, 0.5), (2.0, 1.0)):
        try:
            records = [shortened(record, long), shortened(record, short)]
            together = Chunk.of(collate_fn(records), 2)
            alone = Chunk.of(collate_fn(records[1:]), 1)
        except Exception:
            continue  # it takes one length only, or not these made-up records: nothing is padded
        if together.signature != alone.signature:
            raise IsolationError(
                "collate_fn pads an example to the longest of its neighbours, so that one record "
                "changes the input of others. Pad to a public fixed length, or to declared buckets."
            )
