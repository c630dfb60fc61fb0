"""Find the line of the user's or a library's code at which torch or a check stopped.

What is shown is a file, a line number, a function and the source text: never a value.
"""

import linecache
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType

import torch

import dpfy

_OWN = tuple(f"{Path(str(package.__file__)).parent}/" for package in (torch, dpfy))
_STANDARD = f"{sysconfig.get_path('stdlib')}/"
_INSTALLED = ("site-packages/", "dist-packages/")
_LONGEST = 100  # characters of a source line

Line = tuple[CodeType, int]
"""A piece of code, and the number of a line in its file."""


@dataclass(frozen=True)
class Place:
    """A line of source code; prints as a clause.

    Args:
        file: The file, from the directory that it was imported from.
        line: The number of the line.
        function: The function that the line is in.
        text: The source text, without leading blanks; empty where there is none.
    """

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}, in {self.function}" + (self.text and f": {self.text}")


def stopped_at(error: BaseException) -> Place | None:
    """Return the innermost line of code, neither torch's nor ours, that an error came through."""
    return _last_of_others((tb.tb_frame.f_code, tb.tb_lineno) for tb in _steps(error.__traceback__))


def calling() -> Line | None:
    """Return the innermost line of code, neither torch's nor ours, that is running now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_of_others(frame.f_code):
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None


def place_of(line: Line | None) -> Place | None:
    """Return a line with its source text, which takes long to find."""
    return None if line is None else _place(*line)


def at(place: Place | None) -> str:
    """Return a clause that names a place, or nothing."""
    return "" if place is None else f" (at {place})"


def _steps(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _last_of_others(steps: Iterable[Line]) -> Place | None:
    found = [(code, line) for code, line in steps if _is_of_others(code)]
    return _place(*found[-1]) if found else None


@lru_cache(maxsize=4096)
def _is_of_others(code: CodeType) -> bool:
    """Whether code is the user's or a library's: the standard library only passes calls on."""
    name = code.co_filename
    if name.startswith(_OWN) or name.startswith("<frozen"):
        return False
    return not name.startswith(_STANDARD) or any(part in name for part in _INSTALLED)


def _place(code: CodeType, line: int) -> Place:
    text = linecache.getline(code.co_filename, line).strip()
    return Place(_shortened(code.co_filename), line, code.co_name, text[:_LONGEST])


def _shortened(name: str) -> str:
    """Return a file's path below the directory that Python imports it from."""
    homes = [f"{home.rstrip('/')}/" for home in sys.path if home and name.startswith(home)]
    return name.removeprefix(max(homes, key=len)) if homes else name
