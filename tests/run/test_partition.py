"""Blocks that records draw: who is moved by one record more."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import poisson

from dpfy.noise import SecureStream
from dpfy.run.partition import BatchPartition, even_parts


def tags(count, key=5):
    return torch.from_numpy((SecureStream(insecure_test_key=key).words(count) >> 1).astype("int64"))


@settings(max_examples=60, deadline=None)
@given(records=st.integers(1, 300), position=st.integers(0, 300), blocks=st.integers(1, 9))
def test_one_record_more_leaves_all_blocks_but_one_as_they_were(records, position, blocks):
    """Consecutive blocks would fail: all of them after the record shift by one."""
    division, drawn = BatchPartition(blocks, records), tags(records + 1)
    names = torch.arange(records + 1)
    position = min(position, records)
    without = torch.cat([names[:position], names[position + 1 :]])
    before = {
        block: without[division.of(drawn[without]) == block].tolist() for block in range(blocks)
    }
    after = {block: names[division.of(drawn) == block].tolist() for block in range(blocks)}
    changed = [block for block in range(blocks) if before[block] != after[block]]
    assert changed == [int(division.of(drawn[position : position + 1]))]


@settings(max_examples=60, deadline=None)
@given(records=st.integers(1, 400), position=st.integers(0, 400), largest=st.integers(1, 40))
def test_one_record_more_touches_no_more_than_a_part_however_many_there_are(
    records, position, largest
):
    """Even parts would fail: one record more moves the borders between all of them."""
    division, drawn, names = (
        BatchPartition(1, largest),
        tags(records + 1),
        torch.arange(records + 1),
    )
    position = min(position, records)
    without = torch.cat([names[:position], names[position + 1 :]])
    before = {tuple(part.tolist()) for part in division.divided(without, drawn[without])}
    after = {tuple(part.tolist()) for part in division.divided(names, drawn)}
    assert sorted(sum(after, ())) == names.tolist() and max(map(len, before | after)) <= largest
    touched = {name for part in before ^ after for name in part} - {position}
    assert len(touched) <= largest


def test_equal_lots_are_never_divided_for_ever():
    parts = BatchPartition(1, 2).divided(torch.arange(5), torch.zeros(5, dtype=torch.int64))
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("expected", [0.01, 1.0, 7.5, 50.0, 400.0])
def test_a_block_is_hardly_ever_divided(expected):
    assert poisson.logsf(BatchPartition.planned(expected, 10_000).largest, expected) < -20 * 0.69


@pytest.mark.parametrize(
    ("expected", "largest", "ranks"), [(0.3, None, 1), (1000, 64, 1), (1000, 64, 3), (5, 1, 2)]
)
def test_blocks_leave_room_in_a_chunk_and_suit_the_ranks(expected, largest, ranks):
    division = BatchPartition.planned(expected, largest, ranks)
    assert division.count % ranks == 0
    assert expected / division.count <= max(1, 0.8 * (largest or 1024))
    assert division.largest <= (largest or 1024)


@pytest.mark.parametrize(
    ("expected", "largest", "count"), [(64, 64, 1), (65, 64, 2), (1024, 2000, 1), (1025, 2000, 2)]
)
def test_what_is_expected_to_be_one_chunk_is_one_block(expected, largest, count):
    """Two half chunks would be slower, and a step on many chunks would peak higher than a step on
    one.
    """
    assert BatchPartition.planned(expected, largest).count == count


def test_every_block_is_drawn_equally_often():
    """χ² with 12 degrees of freedom exceeds 70 with probability 3e-10."""
    counts = torch.bincount(BatchPartition(13, 1).of(tags(130_000)), minlength=13)
    assert len(counts) == 13 and float(((counts - 10_000) ** 2 / 10_000).sum()) < 70


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 100])
def test_parts_are_even_and_hold_everything_once(count):
    parts = even_parts(torch.arange(count), 8)
    assert torch.equal(torch.cat(parts) if parts else torch.arange(0), torch.arange(count))
    assert all(1 <= len(part) <= 8 for part in parts)
    assert max((len(p) for p in parts), default=0) - min((len(p) for p in parts), default=0) <= 1
