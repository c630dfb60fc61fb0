"""A bar below a cell of a notebook; it needs no widgets, which may be missing."""

import html
import sys
import time
from typing import Any

_UPDATES = 200  # each is a message to whoever looks


class CellBar:
    """Draws how far something has come, by changing one output of the cell that runs.

    Args:
        label: What is counted.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._handle: Any = None

    def show(self, done: int, total: int, words: str = "", *, at_once: bool = False) -> None:
        """Show how many are done, if there is anything to see.

        Args:
            done: How many are done.
            total: How many there are.
            words: What else is known.
            at_once: Whether to show it even if the bar has hardly moved.
        """
        if self._handle is None:
            self._first, self._begun = done, time.monotonic()
        elif not (at_once or done % max(1, total // _UPDATES) == 0 or done == total):
            return
        left = self._left(done, total)
        text = "  ".join(filter(None, (f"{self._label} {done:,}/{total:,}", words, left)))
        bar = f'<progress max="{total}" value="{done}" aria-hidden="true"></progress>'
        shown = {"text/plain": text, "text/html": f"<div>{bar} {html.escape(text)}</div>"}
        if self._handle is None:
            from IPython.display import display

            self._handle = display(shown, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(shown, raw=True)

    def _left(self, done: int, total: int) -> str:
        """Return the time left, by the pace so far."""
        taken, left = done - self._first, total - done
        if taken <= 0 or left <= 0:
            return ""
        seconds = round((time.monotonic() - self._begun) / taken * left)
        return f"{seconds // 60}:{seconds % 60:02} left"


def in_notebook() -> bool:
    """Tell whether a kernel runs this, so that HTML is shown; any kernel has loaded IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
