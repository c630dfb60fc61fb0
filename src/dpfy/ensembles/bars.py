"""Show how far teachers or questions have come, where somebody sees it.

Tests: tests/ensembles/test_bars.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dpfy._extras import require
from dpfy.run.cell_bar import CellBar, in_notebook
from dpfy.run.progress import ProgressBar

Tell = Callable[[int, int], None]
"""A function that is told how many are done, and how many there are."""


@contextmanager
def telling(progress: bool | Tell | None, label: str) -> Iterator[Tell]:
    """Yield the function to tell of progress: the user's own, a bar, or one that does nothing.

    Args:
        progress: The user's own function; whether to show a bar; None shows one in a notebook
            and, if ``rich`` is installed, on a terminal.
        label: What is counted.

    Yields:
        The function; a bar ends with the block.
    """
    if callable(progress):
        yield progress
    elif not (progress or (progress is None and ProgressBar.is_seen())):
        yield lambda done, total: None
    elif in_notebook():
        yield CellBar(label).show
    else:
        require("rich", "cli")
        from rich.progress import Progress

        with Progress() as bar:
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
