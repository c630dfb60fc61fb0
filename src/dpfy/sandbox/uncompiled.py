"""Run compiled functions as the Python functions that were compiled.

Tests: tests/gradients/test_precision.py.
"""

import sys
from contextlib import AbstractContextManager, nullcontext

import torch


def uncompiled() -> AbstractContextManager[None]:
    """Return a context in which ``torch.compile`` neither compiles nor runs compiled code.

    Gradients of single records are taken with hooks and substituted parameters, in the probe for
    batches of many sizes. The compiler would make code for each of them, hooks included: 133 s at
    the first step of a small network, whose later steps would be slower too. And the probed code
    would not be the code that is trained.
    """
    if "torch._dynamo" not in sys.modules:  # nothing is compiled yet, and the import takes seconds
        return nullcontext()
    try:
        return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]
    except RuntimeError:  # inside of a compiled function, which stays what it is
        return nullcontext()
