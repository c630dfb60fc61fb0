"""Show how far teachers or questions have come, where somebody sees it.

Tests: tests/ensembles/test_bars.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dpfy._extras import require
from dpfy.run.progress import ProgressBar

Tell = Callable[[int, int], None]
"""A function that is told how many are done, and how many there are."""


@contextmanager
def telling(progress: bool | Tell | None, label: str) -> Iterator[Tell]:
    """Yield the function to tell of progress: the user's own, a bar, or one that does nothing.

    Args:
        progress: The user's own function; whether to show a bar; None shows one on a terminal and
            in a notebook, if ``rich`` is installed.
        label: What is counted.

    Yields:
        The function; a bar ends with the block.
    """
    if callable(progress):
        yield progress
    elif progress or (progress is None and ProgressBar.is_seen()):
        require("rich", "cli")
        from rich.progress import Progress

        with Progress() as bar:
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        yield lambda done, total: None
