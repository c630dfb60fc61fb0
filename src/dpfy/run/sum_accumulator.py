"""What a step sums up, from the first chunk to the release."""

import torch

from dpfy.gradients.base import BoundedSums, set_to_zero
from dpfy.run.release_layout import ReleaseLayout


class SumAccumulator:
    """The sums of one step, a tensor for every piece of its vector. Sensitive.

    What the first chunk sums up stays as the engine formed it, in float32 mostly: if it is the only
    one, the noise is added to it there, and no float64 vector as long as the model is zeroed, read
    and written before.
    """

    def __init__(self, pieces: ReleaseLayout, vector: torch.Tensor, several: bool) -> None:
        self._pieces = pieces
        self._vector = vector  # whatever it holds is overwritten
        # chunks are expected, so that a tensor for the first one would only be in the way
        self._several = several
        self._gradients, self._statistics = pieces.split(vector)
        self._formed: list[torch.Tensor] | None = None

    def take(self, sums: BoundedSums) -> None:
        """Add what a chunk sums up, and what its records contribute to the statistics."""
        if self._formed is None:
            self._formed = sums.formed_in(self._gradients)
            self._forget_statistics()
            if self._several:
                self._settle()
        else:
            self._settle()
            sums.add_to(self._gradients)
        self._pieces.add_statistics(sums.seen, self._statistics)

    @property
    def vector(self) -> torch.Tensor:
        """All of them as one float64 vector."""
        self._settle()
        return self._vector

    @property
    def tensors(self) -> list[torch.Tensor]:
        """One for each piece: gradients first, then statistics; zeros if there was no chunk."""
        if self._formed is None:
            self._settle()
        return [*(self._formed or ()), *self._statistics]

    def forget(self) -> None:
        """Overwrite them, where somebody else releases them or nobody does: the vector outlives a
        step.
        """
        set_to_zero(self._vector)
        for formed in self._formed or ():
            set_to_zero(formed.detach())

    def _settle(self) -> None:
        """Bring everything into the vector."""
        if self._formed is None:
            self._forget_statistics()
            for total in self._gradients:
                set_to_zero(total)
        else:
            for total, formed in zip(self._gradients, self._formed, strict=True):
                if formed is not total:
                    total.copy_(formed)
        self._formed = self._gradients

    def _forget_statistics(self) -> None:
        for total in self._statistics:
            set_to_zero(total)
