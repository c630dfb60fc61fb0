"""Losses of synthetic records, and what is known of a loss function from them alone.

Tests: tests/checks/test_probe.py.
"""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn

from dpfy.checks.culprits import dtypes_of, outputs_of
from dpfy.checks.forward import Forward
from dpfy.checks.places import at, stopped_at
from dpfy.checks.preconditions import check_statistics, without_scalers
from dpfy.checks.tolerance import are_equal
from dpfy.checks.undisturbed import without_dropout
from dpfy.checks.vmap_check import alone_at_once, can_be_vectorised
from dpfy.errors import LossError
from dpfy.gradients.base import LossCall, LossFn
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.losses import shown_of_each, statistics_of
from dpfy.gradients.sharded.gather import Gathering
from dpfy.gradients.synthetic import synthetic
from dpfy.mechanisms.query import Statistic
from dpfy.sandbox.rng_isolation import fix_seed

SIZES = (2, 3, 5)
SEED = 20181216
_SCALES = (1.0, 1.0 / 16)
# of a few records that are kept; those of one probe are about twenty times that
_MOST_BYTES = 2**20


@dataclass(frozen=True)
class Trial:
    """One model and one loss function, called on synthetic input.

    Args:
        model: The user's module.
        parameters: The trained parameters by name.
        loss_fn: The user's loss function.
        example: A chunk of the public shape of the records.
        declared: Whether the values of ``example`` are valid and public, not its shape alone.
        statistics: The statistics that the plan releases.
        gathering: The whole parameters of a sharded model; None for one that is whole.
    """

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    loss_fn: LossFn
    example: Chunk
    declared: bool
    statistics: tuple[Statistic, ...] = ()
    gathering: Gathering | None = None
    _bases: dict[tuple[int, float], torch.Tensor] = field(default_factory=dict, init=False)
    _dtypes: set[torch.dtype] = field(default_factory=set, init=False)
    _made: dict[tuple[int, int, float], Chunk] = field(default_factory=dict, init=False)

    def input(self, size: int, seed: int = 0, scale: float = 1.0) -> Chunk:
        """Return synthetic records, in memory of their own: a loss may write to them."""
        known = self._made.get((size, seed, scale))
        if known is not None:
            return known.copied()
        made = synthetic(self.example, size, SEED + seed, scale, declared=self.declared)
        if size <= SIZES[-1] and made.nbytes <= _MOST_BYTES:
            self._made[size, seed, scale] = made.copied()
        return made

    def base(self, size: int, scale: float = 1.0) -> Chunk:
        """Return the first of the records that losses are compared on, in memory of their own."""
        return self.input(SIZES[-1], 1, scale).part(0, size)

    @property
    def bases(self) -> Chunk:
        """All records that losses are compared on, scale after scale."""
        return Chunk.joined([self.base(SIZES[-1], scale) for scale in self.scales])

    def many(self, size: int) -> Chunk:
        """Return ``size`` records, of which the first are those that losses are compared on."""
        if size <= SIZES[-1]:
            return self.base(size)
        return Chunk.joined([self.base(SIZES[-1]), self.input(size - SIZES[-1], 4)])

    @cached_property
    def scales(self) -> tuple[float, ...]:
        """The scales of numbers to try: one if there are only whole numbers, which have none."""
        ones, others = (self.base(SIZES[-1], scale).leaves() for scale in _SCALES)
        same = all(
            torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
            for a, b in zip(ones, others, strict=True)
        )
        return _SCALES[:1] if same else _SCALES

    @cached_property
    def forward(self) -> Forward:
        """How the loss is called where nothing is differentiated."""
        return Forward()

    def losses(self, chunk: Chunk, seed: int = 0) -> torch.Tensor:
        """Return losses and statistics of a chunk, with the randomness of dropout held fixed.

        Raises:
            LossError: The loss fails, is not finite or returns something else than expected.
        """
        call = LossCall(self.model, self.loss_fn)
        try:
            # as in a step: a module may observe only what is differentiated
            with torch.enable_grad(), without_scalers():
                returned = self.forward.call(lambda: call(*chunk.arguments), SEED + seed)
        except LossError:
            raise
        except Exception as error:
            raise LossError(
                f"loss_fn fails on synthetic input of the public shape ({type(error).__name__}: "
                f"{error}){at(stopped_at(error))}. If valid input has to look otherwise (labels, "
                "token ids, lengths of sequences), pass example_input= a collated batch of "
                "synthetic but valid examples."
            ) from None
        shown = shown_of_each(returned, chunk.size)
        if not bool(shown[:, 0].isfinite().all()):
            raise LossError(
                "The loss is not finite on synthetic input, so the model cannot be judged. If "
                "valid input has to look otherwise (for CTC, lengths that leave room for the "
                "targets), pass example_input= a collated batch of synthetic but valid examples."
            )
        check_statistics(self.statistics, statistics_of(returned))
        return shown

    def base_losses(self, size: int, scale: float = 1.0) -> torch.Tensor:
        """Return the losses of the first records, from the first call that computed them."""
        if (size, scale) not in self._bases:
            chunk = self.base(size, scale)
            if self._bases:
                self._bases[size, scale] = self.losses(chunk)
            else:
                with dtypes_of(self.model, self._dtypes):
                    self._bases[size, scale] = self.losses(chunk)
        return self._bases[size, scale]

    def alone(self, chunk: Chunk) -> torch.Tensor:
        """Return losses and statistics of each record by itself.

        Vectorised, the loss is given one record as well, and all of them take one pass.
        """
        fix_seed(SEED)
        found = alone_at_once(self.model, self.loss_fn, chunk)
        if found is None:
            return torch.cat([self.losses(chunk.record(row)) for row in range(chunk.size)])
        return found

    @cached_property
    def alone_traced(self) -> torch.Tensor | None:
        """Losses and statistics of each of :attr:`bases` by itself, in one pass with dropout on.

        None if there is no such pass. If there is one, no value of a record decides what is
        computed, and no mask is drawn.
        """
        if not can_be_vectorised(self.model):
            return None
        fix_seed(SEED)
        return alone_at_once(self.model, self.loss_fn, self.bases)

    def outputs(self, chunk: Chunk) -> dict[str, torch.Tensor]:
        """Return the first output of every module on a chunk, in the order of execution."""
        return outputs_of(self.model, lambda: self.losses(chunk))

    @cached_property
    def varies(self) -> bool:
        """Whether the loss depends on the seed, or on other records that were seen before."""
        before = self.base_losses(SIZES[1])
        self.losses(self.input(SIZES[0], 3, self.scales[-1]))
        return not self.same(before, self.losses(self.base(SIZES[1]), seed=1))

    @cached_property
    def random(self) -> bool:
        """Whether the loss depends on the seed without dropout."""
        if not self.varies:
            return False
        chunk = self.input(SIZES[1])
        with without_dropout(self.model):
            return not self.same(self.losses(chunk, seed=1), self.losses(chunk, seed=2))

    @property
    def precision(self) -> float:
        """The coarsest precision of the parameters."""
        return max(torch.finfo(p.dtype).eps for p in self.parameters.values())

    @cached_property
    def shortest(self) -> float:
        """The coarsest precision of outputs of layers, which autocast makes coarser."""
        self.base_losses(SIZES[0])
        return max(self.precision, *(torch.finfo(dtype).eps for dtype in self._dtypes), 0.0)

    def equal(self, a: torch.Tensor, b: torch.Tensor, precision: float | None = None) -> bool:
        """Whether numbers are equal up to the rounding of kernels in a precision."""
        return are_equal(a, b, precision or self.precision)

    def same(self, a: torch.Tensor, b: torch.Tensor, precision: float | None = None) -> bool:
        """Whether losses and statistics are equal, each by its own scale."""
        return a.shape == b.shape and all(
            self.equal(one, other, precision)
            for one, other in zip(a.unbind(1), b.unbind(1), strict=True)
        )
