"""Sums that are formed by rows are those that are formed at once, whatever the rows."""

import pytest
import torch
from torch import nn

from dpfy.gradients.bookkeeping.arithmetic import Weights
from dpfy.gradients.bookkeeping.contributions import LARGE_WEIGHT, Materialized, OuterProduct
from dpfy.gradients.bookkeeping.embedding_rows import EmbeddingRows, TiedEmbedding
from dpfy.gradients.bookkeeping.strategies import add_parts
from dpfy.gradients.bookkeeping.workspace import Workspace
from dpfy.gradients.sharded.forming import ParameterSum
from dpfy.gradients.sharded.rows import Owned

RECORDS, STEPS, ROWS, WIDTH = 3, 4, LARGE_WEIGHT // 512 + 1, 512


def contributions(kind):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(RECORDS, STEPS, WIDTH, generator=generator)
    outputs = torch.randn(RECORDS, STEPS, ROWS, generator=generator)
    outer = OuterProduct(inputs, outputs)
    tokens = torch.randint(ROWS, (RECORDS, STEPS), generator=generator)
    table = EmbeddingRows(tokens, torch.randn(RECORDS, STEPS, WIDTH, generator=generator), ROWS)
    half = ROWS // 2
    return {
        "product": [(None, outer)],
        "one step": [(None, OuterProduct(inputs[:, :1], outputs[:, :1]))],
        "table": [(None, table)],
        "tied": [(None, TiedEmbedding(table, outer))],
        "written out": [(None, Materialized.of(torch.randn(RECORDS, ROWS, WIDTH)))],
        "in parts": [
            ((0, half), OuterProduct(inputs, outputs[:, :, :half])),
            ((half, ROWS), OuterProduct(inputs, outputs[:, :, half:])),
        ],
        "nothing": [],
    }[kind]


@pytest.mark.parametrize(
    "kind", ["product", "one step", "table", "tied", "written out", "in parts", "nothing"]
)
@pytest.mark.parametrize("at_once", [100, ROWS])
def test_rows_are_those_of_the_whole_sum(kind, at_once):
    torch.manual_seed(0)
    parts, weights = contributions(kind), Weights(torch.tensor([0.5, 1.0, 0.25]).double())
    owned = Owned(nn.Parameter(torch.empty(ROWS, WIDTH)), ROWS, 3, 1)
    expected = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
    add_parts([*parts], weights.exact, expected)
    formed = ParameterSum(parts, weights, owned, Workspace())
    found = [formed.rows(first, min(first + at_once, ROWS)) for first in range(0, ROWS, at_once)]
    assert all(each.shape[1:] == (WIDTH,) for each in found)
    # in float32, as the whole sum of a large weight is
    torch.testing.assert_close(
        torch.cat([each.double() for each in found]), expected, rtol=0, atol=1e-5
    )


def test_a_tied_table_of_one_step_stays_within_its_norm():
    # The norm of both uses is charged for a sum in float64: that of a product in float32 is larger
    # by its rounding, which nothing covers.
    owned = Owned(nn.Parameter(torch.empty(ROWS, WIDTH)), ROWS, 3, 1)
    inputs = torch.ones(1, 1, WIDTH)
    for number in range(1, 30):
        outputs = torch.zeros(1, 1, ROWS)
        outputs[0, 0, 7] = number / 7
        table = EmbeddingRows(torch.tensor([[3]]), torch.zeros(1, 1, WIDTH), ROWS)
        part = TiedEmbedding(table, OuterProduct(inputs, outputs))
        weights = Weights(part.norms().squared.rsqrt())
        found = ParameterSum([(None, part)], weights, owned, Workspace()).rows(0, 100)
        assert 0.999 < float(found.double().norm()) <= 1 + 1e-12
