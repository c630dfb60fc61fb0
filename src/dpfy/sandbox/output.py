"""Drop the output of code that has private records; other threads keep writing.

Tests: tests/sandbox/test_rng_isolation.py.
"""

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# loggers that speak of compilation, and not of what a loss function was given
_OURS_TO_KEEP = "torch"


class OutputWatch:
    """Whether anything was written."""

    written = False


@contextmanager
def suppress_output() -> Iterator[OutputWatch]:
    """Drop what this thread writes to stdout, stderr and logs; yield whether it wrote anything."""
    found, thread = OutputWatch(), threading.get_ident()
    streams = {
        name: getattr(sys, name) for name in ("stdout", "stderr", "__stdout__", "__stderr__")
    }
    call_handlers = logging.Logger.callHandlers

    def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
        if threading.get_ident() != thread:
            call_handlers(logger, record)
        elif not record.name.startswith(_OURS_TO_KEEP):
            found.written = True

    try:
        for name, stream in streams.items():
            setattr(sys, name, _Muted(stream, thread, found))
        logging.Logger.callHandlers = handle  # type: ignore[method-assign, assignment]
        yield found
    finally:
        logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign]
        for name, stream in streams.items():
            setattr(sys, name, stream)


class _Muted:
    """A stream that drops what one thread writes."""

    def __init__(self, stream: Any, thread: int, found: OutputWatch) -> None:
        self._stream = stream
        self._thread = thread
        self._found = found

    def write(self, text: Any) -> int:
        """Drop the text, or pass on that of another thread."""
        if threading.get_ident() != self._thread:
            return int(self._stream.write(text))
        self._found.written = True
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write the lines one by one."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._stream, name)
        return _Muted(found, self._thread, self._found) if name in ("buffer", "raw") else found
