"""Norms and sums whose rounding error is bounded.

The bounds are proved in docs/proofs/clipping-engines.md.

Tests: tests/gradients/bookkeeping/test_contributions.py.
"""

from functools import lru_cache

import torch

from dpfy.gradients.bookkeeping.workspace import Workspace

# most squares that are added in the gradient's own precision; such runs are added in float64
_RUN = 256
# records of a product, or of a sum of written-out gradients, in the gradients' own precision
PRODUCT_ROWS = 128
PRODUCTS_PER_SUM = 8  # that are added up before the sum is continued in float64
_NARROW = 2**14  # entries of a product of which several are formed in one call
# entries of a product, all of which another order of summation hardly leaves as they are
_TELLING = 2**12
_PIECE = 2**17  # numbers that are converted to float64 and added while they stay in the cache
FLOAT64_ROWS = 4096  # of a product in float64
# numbers of a sum that records with several time steps are added to while it stays in the cache
_TILE = 2**20
_WIDENED = 2**22  # numbers that are in float64 at the same time
RECORD_PRODUCTS_PER_SUM = 40  # products of single records that are added up in float32
RECORD_ROUNDING = (PRODUCT_ROWS + PRODUCTS_PER_SUM + 8) * 2.0**-24
"""The rounding error of a record's own products in float32, relative to terms that do not cancel.

See docs/proofs/clipping-engines.md.
"""
SUM_ROUNDING = (PRODUCT_ROWS + PRODUCTS_PER_SUM + 8) * 2.0**-24
"""The most that another record may move the share of each co-batched one in a sum, in clip bounds.

See docs/proofs/clipping-engines.md.
"""


def squared_norm_bounds(rows: torch.Tensor) -> torch.Tensor:
    """Return an upper bound of each row's squared norm, in float64, never below the truth.

    Runs of at most 256 squares are added in the numbers' own precision, which is far quicker than
    converting each of them: at most 258 roundings u, for which 384 are charged; squares that
    underflow count as the smallest normal number.
    """
    rows, width = in_working_precision(rows), rows.shape[1:].numel()
    length, count, rest, factor, least = _charges(width, rows.dtype)
    if rest:
        flat = rows.reshape(rows.shape[0], width)
        runs = flat.unfold(1, length, length)
    else:
        runs = rows.reshape(rows.shape[0], count, length)
    squares = torch.linalg.vector_norm(runs, dim=2).double().square_()
    total = squares.view(-1) if count == 1 else squares.sum(1)
    if rest:
        total += torch.linalg.vector_norm(flat[:, width - rest :], dim=1).double().square_()
    return total.mul_(factor).add_(least)


@lru_cache(maxsize=1024)
def _charges(width: int, dtype: torch.dtype) -> tuple[int, int, int, float, float]:
    """Return the length and the number of runs in a row, the rest, and what rounding is charged.

    The charges are a factor of the squared norm and a summand.
    """
    length, info = _run_length(width), torch.finfo(dtype)
    count, rest = divmod(width, length)
    charged = (_RUN + 128) * info.eps / 2 + count * 2.0**-52
    return length, count, rest, 1 + charged, width * info.tiny


def _run_length(width: int) -> int:
    """Return the length of runs: one that divides the width, if one is neither long nor short."""
    if width <= _RUN:
        return max(1, width)
    divisors = (length for length in range(_RUN, _RUN // 4, -1) if width % length == 0)
    return next(divisors, _RUN)


def in_working_precision(values: torch.Tensor) -> torch.Tensor:
    """Return values in float32 at least: half precision overflows and loses small squares."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def add_in_float64(total: torch.Tensor, summed: torch.Tensor) -> None:
    """Add to a float64 total piece by piece, since torch converts the whole summand first."""
    if not (total.is_contiguous() and summed.is_contiguous()):
        total += summed
        return
    for part, piece in zip(
        total.view(-1).split(_PIECE), summed.view(-1).split(_PIECE), strict=True
    ):
        part += piece


def product_sum(
    weights: torch.Tensor, outputs: torch.Tensor, inputs: torch.Tensor, memory: Workspace
) -> torch.Tensor:
    """Return the weighted sum of the outer products of records, few records per product."""
    # all products in one call
    count = weights.shape[0]
    if count % PRODUCT_ROWS == 0 and outputs.shape[1] * inputs.shape[1] <= _NARROW:
        weighed = (weights.unsqueeze(1) * outputs).unflatten(0, (-1, PRODUCT_ROWS))
        return torch.bmm(weighed.mT, inputs.unflatten(0, (-1, PRODUCT_ROWS))).sum(0)
    if count <= PRODUCT_ROWS:
        weighed = weights.unsqueeze(1) * outputs
        room = memory.like(weighed, outputs.shape[1], inputs.shape[1])
        return torch.mm(weighed.t(), inputs, out=room)
    pairs = (
        (w.unsqueeze(1) * b, x)
        for w, b, x in zip(
            weights.split(PRODUCT_ROWS),
            outputs.split(PRODUCT_ROWS),
            inputs.split(PRODUCT_ROWS),
            strict=True,
        )
    )
    b, x = next(pairs)
    product = torch.mm(b.t(), x, out=memory.like(b, b.shape[1], x.shape[1]))
    facts = (*product.shape, product.dtype, product.device, torch.get_num_threads())
    for b, x in pairs:
        # in this order: to try it takes longer than all products of a large layer
        if len(b) == PRODUCT_ROWS and _completes_products(*facts):
            product.addmm_(b.t(), x)
        else:
            product += b.t() @ x
    return product


def record_product_sum(
    weights: torch.Tensor, outputs: torch.Tensor, inputs: torch.Tensor, memory: Workspace
) -> torch.Tensor:
    """Return the weighted sum of Σ_t b_t ⊗ a_t, with products of their own for every record.

    Terms of a record may cancel, so none of its products has rows of another one, and what each
    record adds does not depend on the others.

    Args:
        weights: [records].
        outputs: b, [records, time, p].
        inputs: a, [records, time, d].
        memory: Where the sum is written.
    """
    p, d = outputs.shape[2], inputs.shape[2]
    total = memory.like(outputs, p, d)
    rows = max(1, _TILE // d)
    weighed = [weight * b for weight, b in zip(weights, outputs, strict=True)]
    for start in range(0, p, rows):
        tile = total[start : start + rows]
        first = True
        for b, x in zip(weighed, inputs, strict=True):
            these = b[:, start : start + rows]
            for left, right in zip(these.split(PRODUCT_ROWS), x.split(PRODUCT_ROWS), strict=True):
                _add_product(tile, left, right, first)
                first = False
    return total


def _add_product(total: torch.Tensor, b: torch.Tensor, x: torch.Tensor, first: bool) -> None:
    """Add bᵀx to a total, or write it there if it is the first one; it is complete before."""
    if first:
        torch.mm(b.t(), x, out=total)
        return
    facts = (*total.shape, total.dtype, total.device, torch.get_num_threads())
    if _completes_products(*facts, len(b)):
        total.addmm_(b.t(), x)
    else:
        total += b.t() @ x


def weighted_sum(weights: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum of records [blocks, records, numbers], few records per product."""
    if weights.shape[0] <= PRODUCT_ROWS:
        return torch.matmul(weights, gradients)
    whole = len(weights) // PRODUCT_ROWS * PRODUCT_ROWS if len(gradients) == 1 else 0
    if whole > PRODUCT_ROWS:  # all products in one call
        records = gradients[0, :whole].unflatten(0, (-1, PRODUCT_ROWS))
        total = torch.bmm(weights[:whole].view(-1, 1, PRODUCT_ROWS), records).sum(0)
        weights, gradients = weights[whole:], gradients[:, whole:]
    else:
        total = torch.matmul(weights[:PRODUCT_ROWS], gradients[:, :PRODUCT_ROWS])
        weights, gradients = weights[PRODUCT_ROWS:], gradients[:, PRODUCT_ROWS:]
    for start in range(0, len(weights), PRODUCT_ROWS):
        total += torch.matmul(
            weights[start : start + PRODUCT_ROWS], gradients[:, start : start + PRODUCT_ROWS]
        )
    return total


@lru_cache(maxsize=1024)
def _completes_products(
    p: int,
    d: int,
    dtype: torch.dtype,
    device: torch.device,
    threads: int,
    rows: int = PRODUCT_ROWS,
) -> bool:
    """Whether ``addmm_`` completes a product of so many rows before it adds.

    Tried on synthetic numbers. For narrow matrices some libraries start from the previous total,
    and many short sums become a long one.
    """
    if dtype is torch.float64:  # whose rounding is nothing beside what is charged
        return True
    if p * d < _TELLING:
        return False
    b, x, before = (
        torch.arange(rows * columns, dtype=dtype, device=device).sin_().view(rows, -1)
        for rows, columns in ((rows, p), (rows, d), (p, d))
    )
    return torch.equal(before + b.t() @ x, before.addmm_(b.t(), x))


class Weights:
    """The weights of the records of a chunk in one or more sums, rounded once for each precision.

    Sensitive, as the norms are that they come from.

    Args:
        exact: One weight per record, in float64.
    """

    def __init__(self, exact: torch.Tensor) -> None:
        self.exact = exact
        self._rounded: dict[torch.dtype, torch.Tensor] = {}

    def __len__(self) -> int:
        return self.exact.shape[0]

    def rounded(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weights in a precision; nobody may write to them."""
        if dtype not in self._rounded:
            self._rounded[dtype] = rounded_weights(self.exact, dtype)
        return self._rounded[dtype]


def rounded_weights(weights: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the weights in another precision; those below its normal numbers become zero."""
    rounded = weights.to(dtype)
    return (
        rounded.masked_fill_(rounded < torch.finfo(dtype).tiny, 0)
        if dtype != weights.dtype
        else rounded
    )


def row_norms(rows: torch.Tensor) -> torch.Tensor:
    """Return norms over features in float64, with a charge for squares that underflow."""
    steps, width = rows.shape[1:]
    # torch makes a copy in float64 first: of a few records at a time
    parts = rows.split(max(1, _WIDENED // max(1, steps * width)))
    found = [torch.linalg.vector_norm(part, dim=2, dtype=torch.float64) for part in parts]
    return torch.cat(found) + 2.0**-511 * width**0.5
