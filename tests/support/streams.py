"""Streams whose words a test chooses, and forks."""

import os
from collections.abc import Callable, Iterable

from dpfy.noise.random_stream import Purpose, SecureStream, Words


class ScriptedStream(SecureStream):
    """Emits the given words, then fails: a test notices every word it did not expect to be
    drawn.
    """

    def __init__(self, words: Iterable[int], purpose: Purpose = "noise") -> None:
        super().__init__(insecure_test_key=0, purpose=purpose)
        self.script = [word % 2**64 for word in words]

    def fill(self, out: Words) -> None:
        """Overwrite ``out`` with the next words of the script."""
        assert len(self.script) >= len(out), "more words were drawn than the test provides"
        for index in range(len(out)):
            out[index] = self.script.pop(0)


def in_child(draw: Callable[[], bytes]) -> bytes:
    """Return what ``draw`` gives in a forked child, as bytes."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, draw())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    assert data, "the child failed"
    return data
