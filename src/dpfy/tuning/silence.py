"""Where the trials of a selection run: nobody outside can tell how many there are, nor a trial
which one it is.
"""

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

_OUTPUT = (1, 2)  # what C code, subprocesses and workers write to, whatever Python calls its own


@contextmanager
def silence() -> Iterator[None]:
    """Drop everything that is printed, warned or logged inside, by our own code, by the user's and
    by torch.

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
        stack.callback(
            _flush
        )  # while the numbers lead nowhere: what is left in buffers was said inside
        for stream in {id(each): each for each in (sys.stdout, sys.stderr)}.values():
            stack.enter_context(
                _muted(stream, nowhere)
            )  # a notebook's is no file, and code may have kept it
        stack.enter_context(contextlib.redirect_stdout(nowhere))
        stack.enter_context(contextlib.redirect_stderr(nowhere))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.callback(logging.disable, said_before)
        logging.disable(sys.maxsize)
        stack.callback(
            gc.collect
        )  # what trials leave to be collected, such as workers, speaks now or never
        yield


@contextmanager
def alike() -> Iterator[None]:
    """Leave no generator moved by a trial: the next one begins where it began, and so does what
    follows the last.

    Otherwise a model whose first weights come from NumPy's generator would tell which trial it is,
    and whoever draws from a generator afterwards how many there were.
    """
    again = bookmark()
    try:
        yield
    finally:
        again()


@contextmanager
def led_to(target: int, number: int) -> Iterator[None]:
    """Let what is written to a file number go to another file."""
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
    """Let what is written to a stream of Python's go to another one, whoever holds it."""
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
    """Write out what Python and the C library have in their buffers."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it
            if stream is not None:
                stream.flush()
    with contextlib.suppress(
        OSError, TypeError, AttributeError
    ):  # not every system lets itself be asked so
        ctypes.CDLL(None).fflush(None)
