"""Things that close themselves at the end of a block."""

import pytest

from dpfy._closing import Closing


class File(Closing):
    closed = 0

    def close(self):
        self.closed += 1


def test_a_block_closes_also_when_it_fails():
    file = File()
    with file as opened:
        assert opened is file and not file.closed
    with pytest.raises(KeyError), file:
        raise KeyError
    assert file.closed == 2
