"""What one use of a layer adds to the per-record gradients of one parameter, in the form that is
cheapest to handle.

Every form knows an upper bound on each record's squared norm and can add the weighed sum over the
records to a total. Where a unit of privacy has several rows, these are folded first: from then on a
unit is a record whose rows are like more time steps, so that the cross terms between them are in
every norm.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce

import torch

# numbers whose squares are added in the gradient's own precision; the runs are added in float64
_RUN = 256
# records of a product, or of a sum of written-out gradients, in the gradients' own precision
_ROWS = 128
_PRODUCTS = 8  # that are added up before the sum is continued in float64
_NARROW = 2**14  # entries of a product of which several are formed in one call
_TELLING = (
    2**12
)  # entries of a product, all of which another order of summation hardly leaves as they are
_PIECE = 2**17  # numbers that are converted to float64 and added while they stay in the cache
_DOUBLE_ROWS = 4096  # of a product in float64
_NOTHING = 2.0**-400  # a norm of zero with its charges for underflow, far below any clip bound
SUM_ROUNDING = (_ROWS + _PRODUCTS + 8) * 2.0**-24
"""By how many clip bounds one record more may move each other's share of a sum:
docs/proofs/clipping-engines.md.
"""


@dataclass(frozen=True)
class Norms:
    """Bounds of one contribution: what is added is never larger, arithmetic included.

    ``magnitude`` is the norm that the terms would have if none of them cancelled, where the sum is
    formed by a product over all records at once; None where every record's own vector is what is
    added.
    """

    squared: torch.Tensor
    magnitude: torch.Tensor | None = None


class Contribution(ABC):
    """Per-record gradients of one parameter from one use of it. Sensitive."""

    @abstractmethod
    def norms(self) -> Norms:
        """Return upper bounds of the squared norms, one per record, in float64."""

    @abstractmethod
    def add_sum(self, weights: torch.Tensor, total: torch.Tensor) -> None:
        """Add Σ weight·gradient to the float64 ``total``."""

    def summed(self, weights: torch.Tensor) -> torch.Tensor | None:
        """Return what ``add_sum`` would add if it is one tensor in the gradients' precision, and
        None otherwise.
        """
        return None

    @abstractmethod
    def instantiate(self) -> "Materialized":
        """Return the same gradients, written out record by record."""

    @abstractmethod
    def folded(self, rows: int) -> "Contribution":
        """Return the gradients of units that have ``rows`` consecutive records each: the sums over
        these.
        """


def squared_norm_bounds(rows: torch.Tensor) -> torch.Tensor:
    """Return an upper bound of each row's squared norm, in float64, never below the truth.

    Runs of 256 squares are added in the numbers' own precision, which is far quicker than
    converting each of them: at most 258 roundings u, for which 384 are charged; squares that
    underflow count as the smallest normal number.
    """
    flat = _in_working_precision(rows.flatten(1))
    info = torch.finfo(flat.dtype)
    whole = flat.shape[1] // _RUN * _RUN
    total = torch.linalg.vector_norm(flat[:, whole:], dim=1).double().square()
    if whole:
        total += (
            torch.linalg.vector_norm(flat[:, :whole].unflatten(1, (-1, _RUN)), dim=2)
            .double()
            .square()
            .sum(1)
        )
    charged = (_RUN + 128) * info.eps / 2 + flat.shape[1] / _RUN * 2.0**-52
    return total * (1 + charged) + flat.shape[1] * info.tiny


def _in_working_precision(values: torch.Tensor) -> torch.Tensor:
    """float32 at least: half precision overflows and swallows small squares."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def _add(total: torch.Tensor, summed: torch.Tensor) -> None:
    """Add to a float64 total piece by piece: torch converts all that it is given before it adds."""
    if not (total.is_contiguous() and summed.is_contiguous()):
        total += summed
        return
    for part, piece in zip(
        total.view(-1).split(_PIECE), summed.view(-1).split(_PIECE), strict=True
    ):
        part += piece


def _product(weights: torch.Tensor, outputs: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Return the weighed sum of outer products of records: products over few, each complete before
    it is added.
    """
    if (
        len(weights) % _ROWS == 0 and outputs.shape[1] * inputs.shape[1] <= _NARROW
    ):  # all products in one call
        weighed = (weights.unsqueeze(1) * outputs).unflatten(0, (-1, _ROWS))
        return torch.bmm(weighed.mT, inputs.unflatten(0, (-1, _ROWS))).sum(0)
    pairs = (
        (w.unsqueeze(1) * b, x)
        for w, b, x in zip(
            weights.split(_ROWS), outputs.split(_ROWS), inputs.split(_ROWS), strict=True
        )
    )
    b, x = next(pairs)
    product = b.t() @ x
    at_once = _completes_products(
        *product.shape, product.dtype, product.device, torch.get_num_threads()
    )
    for b, x in pairs:
        if at_once and len(b) == _ROWS:
            product.addmm_(b.t(), x)
        else:
            product += b.t() @ x
    return product


def _weighed(weights: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
    """Return the weighed sum of records [blocks, records, numbers]: products over few, as above."""
    whole = len(weights) // _ROWS * _ROWS if len(gradients) == 1 else 0
    if whole > _ROWS:  # all products in one call
        records = gradients[0, :whole].unflatten(0, (-1, _ROWS))
        total = torch.bmm(weights[:whole].view(-1, 1, _ROWS), records).sum(0)
        weights, gradients = weights[whole:], gradients[:, whole:]
    else:
        total = torch.matmul(weights[:_ROWS], gradients[:, :_ROWS])
        weights, gradients = weights[_ROWS:], gradients[:, _ROWS:]
    for start in range(0, len(weights), _ROWS):
        total += torch.matmul(weights[start : start + _ROWS], gradients[:, start : start + _ROWS])
    return total


@lru_cache(maxsize=1024)
def _completes_products(
    p: int, d: int, dtype: torch.dtype, device: torch.device, threads: int
) -> bool:
    """Whether ``addmm_`` forms a product of ``_ROWS`` rows before it adds what was there; tried on
    made-up numbers.

    For narrow matrices some libraries begin with what was there, and many short sums become one
    that is long.
    """
    if dtype is torch.float64:  # whose rounding is nothing beside what is charged
        return True
    if p * d < _TELLING:
        return False
    b, x, before = (
        torch.arange(rows * columns, dtype=torch.float64, device=device)
        .sin_()
        .to(dtype)
        .view(rows, -1)
        for rows, columns in ((_ROWS, p), (_ROWS, d), (p, d))
    )
    return torch.equal(before + b.t() @ x, before.addmm_(b.t(), x))


def _rounded(weights: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the weights in another precision; one too small to keep its digits there is zero, not
    rounded up.
    """
    rounded = weights.to(dtype)
    return (
        rounded.masked_fill_(rounded < torch.finfo(dtype).tiny, 0)
        if dtype != weights.dtype
        else rounded
    )


@dataclass(frozen=True)
class Materialized(Contribution):
    """One gradient per record, written out: [blocks, records, numbers], and how a sum takes the
    parameter's shape.
    """

    gradients: torch.Tensor
    shaped: Callable[[torch.Tensor], torch.Tensor]

    @classmethod
    def of(cls, gradients: torch.Tensor) -> "Materialized":
        """Wrap gradients whose first axis is the records and whose others are the parameter's."""
        shape = gradients.shape[1:]
        return cls(gradients.reshape(1, len(gradients), -1), lambda summed: summed.view(shape))

    def norms(self) -> Norms:
        """Return the norms of the very vectors that are added."""
        return Norms(sum(squared_norm_bounds(block) for block in self.gradients))  # type: ignore[arg-type]

    def add_sum(self, weights: torch.Tensor, total: torch.Tensor) -> None:
        """Add the weighed records, in one pass over them."""
        for summed in self._products(weights):
            _add(total, summed)

    def summed(self, weights: torch.Tensor) -> torch.Tensor | None:
        """Return the sum if no more products are added up than in the gradients' own precision."""
        return next(self._products(weights)) if len(weights) <= _ROWS * _PRODUCTS else None

    def _products(self, weights: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the sums over as many records as are added up in the gradients' own precision."""
        gradients = _in_working_precision(self.gradients)
        weights = _rounded(weights, gradients.dtype)
        for part in zip(
            weights.split(_ROWS * _PRODUCTS), gradients.split(_ROWS * _PRODUCTS, 1), strict=True
        ):
            yield self.shaped(_weighed(*part))

    def instantiate(self) -> "Materialized":
        """Return itself."""
        return self

    def folded(self, rows: int) -> "Materialized":
        """Add the vectors of a unit up; the sum is what is measured and added."""
        summed = _in_working_precision(self.gradients).unflatten(1, (-1, rows)).sum(2)
        return replace(self, gradients=summed)

    def added(self, other: "Materialized") -> "Materialized":
        """Return the sum of two uses, in the parameter's own shape, since their layouts may
        differ.
        """
        return Materialized.of(self._dense() + other._dense())

    def _dense(self) -> torch.Tensor:
        return torch.stack([self.shaped(gradient) for gradient in self.gradients.unbind(1)])


@dataclass(frozen=True)
class OuterProduct(Contribution):
    """Σ_t b_t ⊗ a_t per record, never written out: inputs a [records, time, d], output gradients b
    [records, time, p].

    Norms come from the two Gram matrices over time, in float64: float32 loses all digits where time
    steps cancel.
    """

    inputs: torch.Tensor
    outputs: torch.Tensor

    def norms(self) -> Norms:
        """Return exact products for one time step, and Gram matrices for more."""
        if self.inputs.shape[1] == 1:
            return Norms(squared_norm_bounds(self.inputs) * self.output_norms)
        return self.certified(self.gram(), self.magnitude())

    @cached_property
    def output_norms(self) -> torch.Tensor:
        """Upper bounds of the squared norms of output gradients, which are those of a bias for one
        time step.
        """
        return squared_norm_bounds(self.outputs)

    def gram(self) -> torch.Tensor:
        """Return the squared norms as float64 gives them."""
        a, b = self.inputs.double(), self.outputs.double()
        return (torch.bmm(a, a.mT) * torch.bmm(b, b.mT)).sum((1, 2))

    def magnitude(self) -> torch.Tensor:
        """Return the norms that the sums over time would have if nothing cancelled."""
        return (_row_norms(self.inputs) * _row_norms(self.outputs)).sum(1)

    def certified(
        self, squared: torch.Tensor, magnitude: torch.Tensor, more_steps: int = 0
    ) -> Norms:
        """Add what float64 may have lost in the Gram matrices, and what it may add to the record's
        terms in a sum.
        """
        steps, d, p = self.inputs.shape[1], self.inputs.shape[2], self.outputs.shape[2]
        lost = (d + p + (steps + more_steps) ** 2 + 8) * 2.0**-52 * magnitude.square()
        own = (_DOUBLE_ROWS + 8) * 2.0**-53 * magnitude + _NOTHING
        return Norms(((squared + lost).clamp(min=0).sqrt() + own).square(), magnitude)

    def add_sum(self, weights: torch.Tensor, total: torch.Tensor) -> None:
        """Add products over many records; over several time steps, which may cancel, they are
        formed in float64.
        """
        if self.inputs.shape[1] != 1:
            self.add_sum_in_float64(weights, total)
            return
        for summed in self._products(weights):
            _add(total, summed)

    def summed(self, weights: torch.Tensor) -> torch.Tensor | None:
        """Return the sum if no more products are added up than in the gradients' own precision."""
        if self.inputs.shape[1] != 1 or len(weights) > _ROWS * _PRODUCTS:
            return None
        return next(self._products(weights))

    def _products(self, weights: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the sums over as many records as are added up in the gradients' own precision; for
        one time step.
        """
        outputs, inputs = (
            _in_working_precision(self.outputs[:, 0]),
            _in_working_precision(self.inputs[:, 0]),
        )
        weights = _rounded(weights, outputs.dtype)
        for part in zip(
            *(each.split(_ROWS * _PRODUCTS) for each in (weights, outputs, inputs)), strict=True
        ):
            yield _product(*part)

    def add_sum_in_float64(self, weights: torch.Tensor, total: torch.Tensor) -> None:
        """Add products over many records and time steps, whose rounding is far below the norm even
        if terms cancel.
        """
        records = max(1, _DOUBLE_ROWS // max(1, self.inputs.shape[1]))
        for outputs, inputs, weight in zip(
            self.outputs.split(records),
            self.inputs.split(records),
            weights.double().split(records),
            strict=True,
        ):
            weighed = (outputs.double() * weight[:, None, None]).flatten(0, 1)
            for b, x in zip(
                weighed.split(_DOUBLE_ROWS),
                inputs.double().flatten(0, 1).split(_DOUBLE_ROWS),
                strict=True,
            ):
                total += b.t() @ x

    def instantiate(self) -> Materialized:
        """Write the gradients out."""
        return Materialized.of(
            torch.bmm(_in_working_precision(self.outputs).mT, _in_working_precision(self.inputs))
        )

    def folded(self, rows: int) -> "OuterProduct":
        """Take the rows of a unit for time steps."""
        return replace(
            self, inputs=_as_steps(self.inputs, rows), outputs=_as_steps(self.outputs, rows)
        )

    def joined(self, other: "OuterProduct") -> "OuterProduct":
        """Return the sum of two uses of one weight: more time steps, so that cross terms are in the
        Gram matrices.
        """
        return OuterProduct(
            torch.cat([self.inputs, other.inputs], 1), torch.cat([self.outputs, other.outputs], 1)
        )


@dataclass(frozen=True)
class BiasOf(Materialized):
    """The gradients of a bias where they are a factor of those of its weight: they are measured
    once for both.
    """

    outer: OuterProduct

    def norms(self) -> Norms:
        """Return the norms that the weight needs as well."""
        return Norms(self.outer.output_norms)

    def folded(self, rows: int) -> Materialized:
        """Add the vectors of a unit up; the sums are measured by themselves."""
        return Materialized(self.gradients, self.shaped).folded(rows)


@dataclass(frozen=True)
class Rematerialized(OuterProduct):
    """As :class:`OuterProduct`, but written out for a few records at a time: once for the norms,
    and again for the sum.
    """

    records_at_once: int = 1

    def norms(self) -> Norms:
        """Return norms of the very gradients that are written out again for the sum."""
        return Norms(torch.cat([block.norms().squared for block in self._blocks()]))

    def add_sum(self, weights: torch.Tensor, total: torch.Tensor) -> None:
        """Write the gradients out again, a few records at a time, and add them."""
        for block, weight in zip(self._blocks(), weights.split(self.records_at_once), strict=True):
            block.add_sum(weight, total)

    def summed(self, weights: torch.Tensor) -> None:
        """Return nothing: there is a product for every few records."""
        return

    def _blocks(self) -> Iterator[Materialized]:
        for inputs, outputs in zip(
            self.inputs.split(self.records_at_once),
            self.outputs.split(self.records_at_once),
            strict=True,
        ):
            yield OuterProduct(inputs, outputs).instantiate()


def _as_steps(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Return [units, rows·time, …] for [units·rows, time, …]."""
    return tensor.unflatten(0, (-1, rows)).flatten(1, 2)


def _row_norms(rows: torch.Tensor) -> torch.Tensor:
    """Return the norm over features, in float64; squares that underflow there are charged at the
    smallest one.
    """
    found = torch.linalg.vector_norm(rows, dim=2, dtype=torch.float64)
    return found + 2.0**-511 * rows.shape[2] ** 0.5


@dataclass(frozen=True)
class EmbeddingRows(Contribution):
    """Gradients of an embedding: Σ_t row(token_t) += g_t per record, kept as the rows that occur.

    ``tokens`` [records, time] and ``outputs`` [records, time, d]; a token that occurs twice in a
    record is one row.
    """

    tokens: torch.Tensor
    outputs: torch.Tensor
    vocabulary: int

    def norms(self) -> Norms:
        """Return the norms of the rows after equal tokens of a record were added up."""
        rows, owners, _, _ = self.distinct
        squared = torch.zeros(len(self.tokens), dtype=torch.float64, device=rows.device)
        return Norms(
            squared.index_add_(0, owners, squared_norm_bounds(rows))
            * (1 + self.tokens.shape[1] * 2.0**-52)
        )

    @cached_property
    def distinct(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the summed rows, and of each its record, its token, and its number by place in
        ``tokens``.
        """
        numbers = (
            torch.arange(len(self.tokens), device=self.tokens.device).unsqueeze(1) * self.vocabulary
            + self.tokens
        )
        keys, places = torch.unique(numbers.flatten(), return_inverse=True)
        outputs = _in_working_precision(self.outputs).flatten(0, 1)
        rows = outputs.new_zeros(len(keys), outputs.shape[1]).index_add_(0, places, outputs)
        return (
            rows,
            torch.div(keys, self.vocabulary, rounding_mode="floor"),
            keys % self.vocabulary,
            places,
        )

    def add_sum(self, weights: torch.Tensor, total: torch.Tensor) -> None:
        """Add the rows that occur; the others stay as they are and get noise like all."""
        rows, owners, tokens, _ = self.distinct
        total.index_add_(0, tokens, rows * weights.double()[owners].unsqueeze(1))

    def instantiate(self) -> Materialized:
        """Write out dense gradients; only ever needed where a table is tied to something that is
        not a Linear.
        """
        rows, owners, tokens, _ = self.distinct
        dense = rows.new_zeros(len(self.tokens), self.vocabulary, rows.shape[1])
        return Materialized.of(dense.index_put_((owners, tokens), rows, accumulate=True))

    def folded(self, rows: int) -> "EmbeddingRows":
        """Take the tokens of a unit's rows for tokens of one record: a token that occurs in two of
        them is one row.
        """
        return replace(
            self, tokens=_as_steps(self.tokens, rows), outputs=_as_steps(self.outputs, rows)
        )

    def joined(self, other: "EmbeddingRows") -> "EmbeddingRows":
        """Return the sum of two uses of one table."""
        return EmbeddingRows(
            torch.cat([self.tokens, other.tokens], 1),
            torch.cat([self.outputs, other.outputs], 1),
            self.vocabulary,
        )

    def inner(self, other: OuterProduct) -> torch.Tensor:
        """Return ⟨rows, outer⟩ per record: Σ_t Σ_s b_s[token_t]·(r_t·a_s), without a table.

        r_t is the very row that is added, rounding included, at the first place of its token and
        zero at the others.
        """
        rows, _, _, places = self.distinct
        numbers = torch.arange(len(places), device=places.device)
        first = torch.full_like(numbers[: len(rows)], len(places)).scatter_reduce_(
            0, places, numbers, "amin"
        )
        placed = rows.new_zeros(len(places), rows.shape[1], dtype=torch.float64).index_copy_(
            0, first, rows.double()
        )
        products = torch.bmm(placed.unflatten(0, self.tokens.shape), other.inputs.double().mT)
        tokens = self.tokens.unsqueeze(2).expand(-1, -1, other.inputs.shape[1])
        entries = other.outputs.double().mT.gather(1, tokens)
        return (products * entries).sum((1, 2))


@dataclass(frozen=True)
class TiedEmbedding(Contribution):
    """An embedding table that is also the weight of a Linear: two forms of gradient with their
    cross term.
    """

    rows: EmbeddingRows
    outer: OuterProduct

    def norms(self) -> Norms:
        """Return ‖r‖² + ‖o‖² + 2⟨r, o⟩."""
        rows = self.rows.norms().squared
        squared = rows + self.outer.gram() + 2 * self.rows.inner(self.outer)
        return self.outer.certified(
            squared, rows.sqrt() + self.outer.magnitude(), self.rows.tokens.shape[1]
        )

    def add_sum(self, weights: torch.Tensor, total: torch.Tensor) -> None:
        """Add both."""
        self.rows.add_sum(weights, total)
        self.outer.add_sum_in_float64(weights, total)

    def instantiate(self) -> Materialized:
        """Write both out."""
        return self.rows.instantiate().added(self.outer.instantiate())

    def folded(self, rows: int) -> "TiedEmbedding":
        """Fold both."""
        return TiedEmbedding(self.rows.folded(rows), self.outer.folded(rows))


def combined(parts: Sequence[Contribution]) -> Contribution:
    """Return the sum of all uses of one parameter, cross terms included."""
    if len(parts) == 1:
        return parts[0]
    outers = [part for part in parts if isinstance(part, OuterProduct)]
    rows = [part for part in parts if isinstance(part, EmbeddingRows)]
    if len(outers) + len(rows) < len(parts):
        return reduce(Materialized.added, [part.instantiate() for part in parts])
    if not rows:
        return reduce(OuterProduct.joined, outers)
    table = reduce(EmbeddingRows.joined, rows)
    return TiedEmbedding(table, reduce(OuterProduct.joined, outers)) if outers else table
