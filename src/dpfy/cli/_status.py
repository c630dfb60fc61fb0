"""The exit status of the command line.

Tests: tests/cli/test_manners.py.
"""

from dpfy.errors import InvalidArgument, TrainingInterrupted

INTERRUPTED = 130  # Ctrl-C, as shells report it


def status_of(error: Exception) -> int:
    """Return 2 for what was asked wrongly, 128 and the signal for what one ended, 1 for the rest.

    >>> status_of(TrainingInterrupted("Saved.", signal=15))
    143
    """
    if isinstance(error, TrainingInterrupted):
        return 128 + error.signal
    return 2 if isinstance(error, InvalidArgument) else 1
