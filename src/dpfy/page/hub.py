"""Tell open pages that something they show has changed.

Tests: tests/page/test_app.py.
"""

import asyncio
import secrets
import threading
from collections import Counter


class Hub:
    """Counts the changes of each topic, and wakes whoever waits for one.

    A topic is ``runs``, ``budgets`` or ``run-`` with the key of a run.
    """

    def __init__(self) -> None:
        self._start = secrets.token_hex(4)  # so that a page of an earlier process is out of date
        self._counts: Counter[str] = Counter()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._mutex = threading.Lock()

    def version(self, topic: str) -> str:
        """Return a text that changes whenever the topic does."""
        with self._mutex:
            return f"{self._start}.{self._counts[topic]}"

    def changed(self, *topics: str) -> None:
        """Note that topics have changed; called from any thread."""
        if not topics:
            return
        with self._mutex:
            self._counts.update(topics)
            waiting = list(self._waiting)
        for loop, event in waiting:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # its loop was closed a moment ago
                continue

    async def wait(self, topic: str, seen: str, patience: float) -> str:
        """Return the version of a topic once it is another one than ``seen``, or when time is up.

        Args:
            topic: The topic.
            seen: The version that is known.
            patience: The seconds to wait at most.

        Returns:
            The version now.
        """
        event = asyncio.Event()
        me = (asyncio.get_running_loop(), event)
        with self._mutex:
            self._waiting.add(me)
        try:
            async with asyncio.timeout(patience):
                while self.version(topic) == seen:
                    event.clear()
                    if self.version(topic) == seen:
                        await event.wait()
        except TimeoutError:
            pass
        finally:
            with self._mutex:
                self._waiting.discard(me)
        return self.version(topic)
