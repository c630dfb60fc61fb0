"""Compiled gradients of convolutions beside autograd's, record by record."""

from functools import cache
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpfy.gradients.bookkeeping.layers import conv
from dpfy.gradients.bookkeeping.layers.conv import Geometry, weight_gradients
from dpfy.gradients.bookkeeping.native import convolution
from dpfy.gradients.bookkeeping.workspace import Workspace


@pytest.fixture
def in_c():
    return convolution.compiled() or pytest.skip("there is no C compiler")


CASES = [
    # channels, rows, image, kernel, stride, padding, dilation
    *(
        (c, r, (9, 7), (3, 3), (1, 1), (1, 1), (1, 1))
        for c, r in product((1, 3, 8, 17), (1, 5, 12, 13))
    ),
    (2, 3, (28, 28), (8, 8), (2, 2), (3, 3), (1, 1)),
    (5, 4, (11, 10), (3, 2), (2, 3), (0, 1), (2, 1)),
    (5, 4, (11, 10), (3, 2), (1, 1), (2, 0), (1, 2)),  # taps that are no neighbours
    (33, 26, (4, 4), (1, 1), (2, 2), (0, 0), (1, 1)),
    (7, 9, (30,), (5,), (3,), (2,), (1,)),
    (3, 4, (5, 6, 4), (2, 3, 2), (1, 2, 1), (1, 0, 1), (1, 1, 1)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_are_those_of_autograd(in_c, case, transposed):
    """Fails if a tap, a channel, a position or a record is left out or taken for another."""
    channels, rows, image, kernel, stride, padding, dilation = case
    geometry = Geometry(kernel, stride, padding, dilation, 1, transposed=transposed)
    records = 5  # not a multiple of what a thread takes at once
    shape = (channels, rows, *kernel) if transposed else (rows, channels, *kernel)
    weight = torch.randn(shape, generator=torch.manual_seed(1), requires_grad=True)
    inputs = torch.randn(records, channels, *image)
    outputs = torch.convolution(inputs, weight, None, *geometry.arguments(1))
    gradient = torch.randn_like(outputs)
    found = weight_gradients(inputs, gradient, weight.shape, geometry, records, Workspace())
    assert found.gradients.shape[0] == 1  # compiled code has one block
    for record in range(records):
        (expected,) = torch.autograd.grad(
            outputs[record], weight, gradient[record], retain_graph=True
        )
        one = found.shaped(found.gradients[:, record])
        assert torch.allclose(one, expected, rtol=1e-4, atol=1e-4)


def test_a_record_has_the_same_bits_whatever_is_beside_it(in_c):
    """Fails if the arithmetic of a record depends on the others, or on the number of threads."""
    geometry = Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)
    inputs, gradient = torch.randn(9, 6, 8, 8), torch.randn(9, 10, 8, 8)

    def written(rows):
        return weight_gradients(
            inputs[rows],
            gradient[rows],
            torch.Size((10, 6, 3, 3)),
            geometry,
            len(rows),
            Workspace(),
        ).gradients

    threads = torch.get_num_threads()
    together = written([*range(9)])
    for each in range(9):
        assert torch.equal(written([each])[:, 0], together[:, each])
    try:
        torch.set_num_threads(2)
        assert torch.equal(written([*range(9)]), together)
    finally:
        torch.set_num_threads(threads)


def test_several_images_of_a_record_are_one_gradient(in_c):
    geometry = Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)
    inputs, gradient, shape = (
        torch.randn(6, 4, 5, 5),
        torch.randn(6, 9, 5, 5),
        torch.Size((9, 4, 3, 3)),
    )
    each = weight_gradients(inputs, gradient, shape, geometry, 6, Workspace())
    pairs = weight_gradients(inputs, gradient, shape, geometry, 3, Workspace())
    expected = each.gradients.unflatten(1, (3, 2)).sum(2)
    assert torch.allclose(pairs.gradients, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "gradient"),
    [
        (torch.full((1, 2, 4, 4), float("nan")), torch.ones(1, 9, 4, 4)),
        (torch.full((1, 2, 4, 4), 3e38), torch.full((1, 9, 4, 4), 3e38)),
        (torch.zeros(1, 2, 4, 4), torch.zeros(1, 9, 4, 4)),
    ],
    ids=["NaN", "overflow", "zero"],
)
def test_edge_cases_are_those_of_torch(inputs, gradient):
    geometry, shape = Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1), torch.Size((9, 2, 3, 3))
    found = weight_gradients(inputs, gradient, shape, geometry, len(inputs), Workspace())
    others, shaped = conv._by_tap_products(inputs, gradient, shape, geometry, Workspace())
    for record in range(len(inputs)):
        one, other = found.shaped(found.gradients[:, record]), shaped(others[:, record])
        assert torch.equal(one.isfinite(), other.isfinite())
        assert torch.equal(one.nan_to_num(0, 0, 0), other.nan_to_num(0, 0, 0))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("image + position[p]", "image + position[0]"),
        ("from[c * pixels + q]", "from[q]"),
        ("c->run[run] + at", "c->run[0] + at"),
        ("rows * c->positions", "(rows - 1) * c->positions"),
    ],
)
def test_a_library_that_errs_is_not_used(monkeypatch, in_c, tmp_path, right, wrong):
    source = convolution._SOURCE.read_text()
    assert right in source
    (tmp_path / "convolution.c").write_text(source.replace(right, wrong))
    monkeypatch.setattr(convolution, "_SOURCE", tmp_path / "convolution.c")
    assert convolution.compiled.__wrapped__() is None


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false", "true"])
def test_torch_writes_gradients_where_no_compiler_works(monkeypatch, compiler):
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(convolution, "compiled", convolution.compiled.__wrapped__)
    geometry = Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)
    inputs, gradient = torch.randn(3, 9, 5, 5), torch.randn(3, 8, 5, 5)
    found = weight_gradients(inputs, gradient, torch.Size((8, 9, 3, 3)), geometry, 3, Workspace())
    summed = found.shaped(found.gradients.sum(1))
    expected = F.conv2d(inputs.transpose(0, 1), gradient.transpose(0, 1), padding=1)
    assert torch.allclose(summed, expected.transpose(0, 1), atol=1e-4)


@pytest.mark.parametrize(("model", "calls"), [(nn.Conv1d(1, 1, 1), 1), (nn.Linear(1, 1), 0)])
def test_the_compiler_is_started_once_and_only_for_convolutions(monkeypatch, model, calls):
    started, begun = [], []
    monkeypatch.setattr(convolution, "_begun", begun)
    monkeypatch.setattr(convolution, "compiled", cache(lambda: None))
    monkeypatch.setattr(convolution, "compilations", lambda *given: started.append(1) or [object()])
    for _ in range(2):
        convolution.compile_ahead(nn.Sequential(model))
    assert len(started) == len(begun) == calls
