"""Take Ctrl-C and SIGTERM as a request to stop after the step under way.

An exception in the middle of a step would lose what the step paid for, and leave an optimizer that
has applied half of it; of several ranks it would leave the others waiting.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Seconds within which a signal repeats the request before it: a scheduler signals a shell and its
# children, and the shell passes the signal on.
_ECHO = 1.0
_NOTICE = b"\nStopping after this step. Another signal stops at once, without saving.\n"


class StopSignals:
    """Remember the first Ctrl-C or SIGTERM of a block; a later one has its usual effect at once.

    A handler that the program has set is called as well, and a signal that it ignores stays
    ignored. Outside the main thread signals cannot be caught, and nothing is changed.

    Args:
        announce: whether to say on standard error that a request was heard.
        clock: the time in seconds.

    >>> with StopSignals(announce=False) as stop:
    ...     stop.received
    0
    """

    def __init__(self, announce: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.received = 0  # the number of the signal
        self._announce, self._clock = announce, clock
        self._since = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if handler not in (signal.SIG_IGN, None):  # None: set by other code than Python's
                    self._previous[number] = handler
                    signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self.received and kind is None and not self._own_handler(self.received):
            signal.raise_signal(self.received)  # it came after the last step: it must not be lost

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received and self._clock() - self._since > _ECHO:
            signal.signal(number, self._previous[number])
            signal.raise_signal(number)
            return
        if not self.received:
            self.received, self._since = number, self._clock()
            if self._announce:
                os.write(2, _NOTICE)  # a buffered stream may be in the middle of a write
        if own := self._own_handler(number):
            own(number, frame)

    def _own_handler(self, number: int) -> Callable[[int, FrameType | None], Any] | None:
        """The handler that the program has set itself, if any."""
        handler = self._previous[number]
        return handler if callable(handler) and handler is not signal.default_int_handler else None
