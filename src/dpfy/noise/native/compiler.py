"""Compile C code for this process.

A library is made in a temporary directory, loaded, and deleted at once: it is kept in the memory of
the process only, so that no file is left that somebody else could replace. ``CC`` names the
compiler (default ``cc``), and ``DPFY_NO_COMPILER=1`` switches it off.

Tests: tests/noise/native/test_kernels.py.
"""

import atexit
import ctypes
import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

# Whatever CC says before. Code that was linked for unsafe mathematics would even make the loading
# thread treat denormal numbers as zero.
IEEE = (
    "-std=c11",
    "-O3",
    "-fno-fast-math",
    "-fno-unsafe-math-optimizations",
    "-fno-associative-math",
)
"""Options for arithmetic that is not reordered."""

# of this very processor, whose vectors may be twice as long; not every compiler knows the option
_INSTRUCTIONS = "-march=native"

# what goes wrong where a library cannot be made, loaded, or lacks a function
_FAILURES = (OSError, AttributeError, subprocess.SubprocessError)

_HEADERS = Path(__file__).parent
_Loaded = TypeVar("_Loaded")


def compilations(source: Path, options: Sequence[str]) -> "list[Compilation]":
    """Start the compiler; return what it is at, or nothing if there is none.

    Args:
        source: A file of C, which may include the headers beside this module.
        options: Options of the compiler.

    Returns:
        The compilation, in a list that is empty if ``DPFY_NO_COMPILER`` is set to anything but
        ``0`` or no compiler starts.
    """
    if os.environ.get("DPFY_NO_COMPILER", "0") not in ("", "0"):
        return []
    try:
        return [Compilation(shlex.split(os.environ.get("CC", "cc")), source, options)]
    except (OSError, ValueError):
        return []


def loaded(
    begun: "list[Compilation]",
    source: Path,
    options: Sequence[str],
    load: Callable[[ctypes.CDLL], _Loaded],
    is_right: Callable[[_Loaded], bool],
) -> _Loaded | None:
    """Return what a library offers, or None if it cannot be made, loaded, or errs.

    Args:
        begun: A compilation that was begun ahead, in a list that is emptied; or nothing.
        source: A file of C.
        options: Options of the compiler.
        load: Makes something of the library that can be called from Python.
        is_right: Compares that with another way to compute the same.
    """
    for compilation in begun or compilations(source, options):
        try:
            found = load(compilation.library())
        except _FAILURES:
            return None
        finally:
            compilation.close()
            begun.clear()
        return found if is_right(found) else None
    return None


class Compilation:
    """A compiler at work in a directory that nobody else can write to.

    Args:
        compiler: The command.
        source: A file of C.
        options: Options of the compiler.
    """

    def __init__(self, compiler: Sequence[str], source: Path, options: Sequence[str]) -> None:
        self._folder = TemporaryDirectory(prefix="dpfy-")
        self._target = str(Path(self._folder.name, "library.so"))
        self._command = [*compiler, *options, "-fPIC", "-shared", f"-I{_HEADERS}", str(source)]
        self._command += ["-o", self._target, "-lm"]
        try:
            self._process = self._started(_INSTRUCTIONS)
        except OSError:
            self._folder.cleanup()
            raise
        atexit.register(self.close)  # of a process that ends before it needs the library

    def _started(self, *options: str) -> "subprocess.Popen[bytes]":
        """Start the compiler with further options, and without output."""
        nowhere = subprocess.DEVNULL
        return subprocess.Popen(
            [*self._command, *options], stdin=nowhere, stdout=nowhere, stderr=nowhere
        )

    @property
    def is_running(self) -> bool:
        """Whether the compiler is still at work."""
        return self._process.poll() is None

    def library(self) -> ctypes.CDLL:
        """Wait for the compiler and load what it made; that stays when the file is gone."""
        if self._process.wait(timeout=60):
            self._process = self._started()
            if code := self._process.wait(timeout=60):
                raise subprocess.CalledProcessError(code, self._process.args)
        return ctypes.CDLL(self._target)

    def close(self) -> None:
        """Stop the compiler if it still runs, and delete its directory."""
        atexit.unregister(self.close)
        if self.is_running:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
