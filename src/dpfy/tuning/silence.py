"""Hide the trials of a selection: their number from outside, and from each which one it is."""

import contextlib
import ctypes
import gc
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO

from dpfy.sandbox.rng_isolation import bookmark

_OUTPUT = (1, 2)  # C code, subprocesses and workers write to these, whatever Python redirects


@contextmanager
def silence() -> Iterator[None]:
    """Drop everything that is printed, warned or logged inside.

    *Formal guarantee*: what reaches standard output, standard error, the warnings and the handlers
    of ``logging`` is the same however much is said inside, also by objects that die with the last
    trial.

    *Assumes* that code inside writes no files, terminals or sockets of its own. Other threads are
    silent meanwhile, too.
    """
    said_before = logging.root.manager.disable
    _flush()
    with ExitStack() as stack:
        nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        for number in _OUTPUT:
            stack.enter_context(led_to(nowhere.fileno(), number))
        # While the numbers lead nowhere: what is left in buffers was said inside.
        stack.callback(_flush)
        for stream in {id(each): each for each in (sys.stdout, sys.stderr)}.values():
            # A notebook's stream is no file, and code may have kept it.
            stack.enter_context(_muted(stream, nowhere))
        stack.enter_context(contextlib.redirect_stdout(nowhere))
        stack.enter_context(contextlib.redirect_stderr(nowhere))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.callback(logging.disable, said_before)
        logging.disable(sys.maxsize)
        # Objects that trials leave behind, such as workers, may print when they are collected.
        stack.callback(gc.collect)
        yield


@contextmanager
def alike() -> Iterator[None]:
    """Restore all random generators after a trial, so that each trial begins with the same state.

    Otherwise a model whose first weights come from NumPy's generator would show which trial it is,
    and draws after the search would show how many trials there were.
    """
    again = bookmark()
    try:
        yield
    finally:
        again()


@contextmanager
def led_to(target: int, number: int) -> Iterator[None]:
    """Redirect a file number to another file."""
    try:
        kept = os.dup(number)
    except OSError:  # this process has none
        yield
        return
    os.dup2(target, number)
    try:
        yield
    finally:
        os.dup2(kept, number)
        os.close(kept)


@contextmanager
def _muted(stream: Any, nowhere: TextIO) -> Iterator[None]:
    """Redirect a stream of Python to another one, also for code that holds it already."""
    own = getattr(stream, "__dict__", None)
    if own is None:  # there is no stream, or it lets nothing be put in its way
        yield
        return
    before = own.get("write")
    own["write"] = nowhere.write
    try:
        yield
    finally:
        own.pop("write", None)
        if before is not None:
            own["write"] = before


def _flush() -> None:
    """Write out the buffers of Python and of the C library."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it
            if stream is not None:
                stream.flush()
    # Not every system has a C library that is found like this.
    with contextlib.suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).fflush(None)
