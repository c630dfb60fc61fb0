"""Add up the sums of a step, from the first chunk to the release."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import torch

from dpfy.gradients.base import BoundedSums, set_to_zero
from dpfy.mechanisms.controllers import StepConfig
from dpfy.run.release_layout import ReleaseLayout

Pieces = tuple[list[torch.Tensor], list[torch.Tensor]]
"""Views of a vector: one for each gradient, and one for each statistic."""


class SumBuffer:
    """Keep the float64 vector in which sums are formed, as fresh memory costs more than the sums.

    After a step it holds what was released, or zeros on ranks that release nothing and after a step
    that failed. The layout is kept as well, since most steps have that of the one before.
    """

    def __init__(self) -> None:
        self.vector: torch.Tensor | None = None
        self._layout: ReleaseLayout | None = None
        self._pieces: Pieces | None = None  # of the vector, as the layout divides it

    def layout_of(
        self, step: int, config: StepConfig, parameters: Mapping[str, torch.Tensor]
    ) -> ReleaseLayout:
        """Return the layout of a step, counted from 1: the last one, if that is as good."""
        layout = ReleaseLayout.of_step(step, config, parameters)
        if self._layout is None or not self._layout.serves(layout):
            self._layout, self._pieces = layout, None
        return self._layout

    def sums_for(self, layout: ReleaseLayout) -> "SumAccumulator":
        """Return the sums of a step, as a context manager that zeroes them if the step fails."""
        size = layout.size
        if self.vector is None or len(self.vector) < size:
            device = next(iter(layout.parameters.values())).device
            self.vector, self._pieces = torch.empty(size, dtype=torch.float64, device=device), None
        vector = self.vector[:size]
        if self._pieces is None or layout is not self._layout:
            self._layout, self._pieces = layout, layout.split(vector)
        return SumAccumulator(layout, vector, pieces=self._pieces)


class SumAccumulator:
    """Add up the sums of one step, a tensor for every piece of its vector. Sensitive.

    The sums of the first chunk stay as the engine formed them, in float32 mostly: if it is the only
    one, the noise is added to them there, and no float64 vector as long as the model is zeroed,
    read and written before.

    Args:
        layout: the pieces of the step's vector.
        vector: float64 memory for the sums of several chunks; whatever it holds is overwritten.
        several: whether several chunks are expected, so that tensors for the first one would only
            be in the way.
        pieces: the vector as the layout divides it, if that is known.
    """

    def __init__(
        self,
        layout: ReleaseLayout,
        vector: torch.Tensor,
        several: bool = False,
        pieces: Pieces | None = None,
    ) -> None:
        self.several = several
        self.layout = layout
        self._vector = vector
        self._gradients, self._statistics = pieces or layout.split(vector)
        self._formed: list[torch.Tensor] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.zero()  # a step that fails leaves no sum without noise in memory

    def add_chunk(self, sums: BoundedSums) -> None:
        """Add the sums of a chunk, and what its records contribute to the statistics."""
        if self._formed is None:
            self._formed = sums.formed_in(self._gradients)
            self._zero_statistics()
            if self.several:
                self._flush()
        else:
            self._flush()
            sums.add_to(self._gradients)
        self.layout.add_statistics(sums.seen, self._statistics)

    def zeroed(self) -> Pieces:
        """Return the pieces of the vector, to which nothing was added yet."""
        self._flush()
        return self._gradients, self._statistics

    @property
    def vector(self) -> torch.Tensor:
        """All sums as one float64 vector."""
        self._flush()
        return self._vector

    @property
    def tensors(self) -> list[torch.Tensor]:
        """One sum for each piece: gradients, then statistics; zeros if there was no chunk."""
        if self._formed is None:
            self._flush()
        return [*(self._formed or ()), *self._statistics]

    def zero(self) -> None:
        """Overwrite the sums, as the vector outlives the step."""
        set_to_zero(self._vector)
        for formed in self._formed or ():
            set_to_zero(formed.detach())

    def _flush(self) -> None:
        """Bring everything into the vector."""
        if self._formed is None:
            self._zero_statistics()
            for total in self._gradients:
                set_to_zero(total)
        else:
            for total, formed in zip(self._gradients, self._formed, strict=True):
                if formed is not total:
                    total.copy_(formed)
        self._formed = self._gradients

    def _zero_statistics(self) -> None:
        for total in self._statistics:
            set_to_zero(total)
