"""Call a loss in order to look at its value alone, without keeping what a backward pass needs."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch.autograd.graph import saved_tensors_hooks

from dpfy.sandbox.rng_isolation import fix_seed

Result = TypeVar("Result")


class Forward:
    """Call functions as in training, but let autograd keep no activations.

    These are most of the memory that a pass over many records takes. A function that fails without
    them, since it takes gradients itself, is called again with them, and from then on always.
    """

    def __init__(self) -> None:
        self._drops: bool | None = None  # not known before the first call

    def dropping(self) -> AbstractContextManager[Any]:
        """Return a context in which autograd keeps nothing, if calls have shown that it may."""
        return saved_tensors_hooks(_drop, _refuse) if self._drops else nullcontext()

    def call(self, function: Callable[[], Result], seed: int) -> Result:
        """Call a function with the generators in a known state.

        Args:
            function: What is called.
            seed: The state of the generators.

        Returns:
            What the function returns, which cannot be differentiated.
        """
        if self._drops is not False:
            fix_seed(seed)
            try:
                with saved_tensors_hooks(_drop, _refuse):
                    returned = function()
                self._drops = True
                return returned
            except Exception:
                self._drops = False
        fix_seed(seed)
        return function()


def _drop(tensor: torch.Tensor) -> None:
    return None


def _refuse(nothing: None) -> torch.Tensor:
    raise RuntimeError("no activations were kept")
