"""The rule of every kind of layer against one record at a time, over random shapes, ranks and
layouts.
"""

import pytest
import torch
from against_oracle import assert_agrees
from hypothesis import assume, given, settings, strategies as st
from torch import nn

pytestmark = pytest.mark.filterwarnings(
    "ignore:Using padding='same' with even kernel lengths"
)  # torch's own

DTYPES = st.sampled_from([torch.float64, torch.float32])
SMALL = st.integers(1, 4)


@st.composite
def settings_of(draw):
    """Precision, grouping and chunking of one comparison."""
    return {"dtype": draw(DTYPES), "grouped": draw(st.booleans()), "split": draw(st.integers(1, 3))}


def floats(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(seed, high, *shape):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


class Around(nn.Module):
    """A layer between a linear map with weights of its own and what is done to the axes."""

    def __init__(self, layer, before=None, after=None):
        super().__init__()
        self.layer, self.before, self.after = layer, before, after

    def forward(self, *fields):
        fields = fields if self.before is None else self.before(*fields)
        found = self.layer(*fields) if isinstance(fields, tuple) else self.layer(fields)
        return found if self.after is None else self.after(found)


# Linear


@settings(max_examples=60)
@given(
    settings_of(),
    SMALL,
    SMALL,
    st.lists(SMALL, max_size=3),
    st.booleans(),
    st.sampled_from("bts"),
    st.integers(0),
)
def test_linear_of_any_rank_and_layout(how, inputs, outputs, axes, bias, layout, seed):
    x = floats(seed % 2**32, 4, *axes, inputs)
    if layout != "b" and not axes:
        axes, x = [3], floats(seed % 2**32, 4, 3, inputs)
    before, after = {
        "b": (None, None),
        "t": (lambda x: x.transpose(0, 1), lambda y: y.transpose(0, 1)),  # time first
        "s": (
            lambda x: x.flatten(0, 1),
            lambda y: y.unflatten(0, (-1, axes[0] if axes else 1)),
        ),  # every step a row
    }[layout]
    assert_agrees(lambda: Around(nn.Linear(inputs, outputs, bias=bias), before, after), (x,), **how)


@settings(max_examples=20)
@given(settings_of(), SMALL, st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_linear_layers_that_are_used_again(how, width, steps, seed):
    class Reused(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.other = nn.Linear(width, width), nn.Linear(width, width)
            self.other.weight = self.inner.weight

        def forward(self, x):
            return self.other(torch.tanh(self.inner(torch.tanh(self.inner(x)))))

    x = floats(seed, 4, width) if steps == 1 else floats(seed, 4, steps, width)
    assert_agrees(Reused, (x,), **how)


@pytest.mark.parametrize(
    "shape", [(1, 40, 30), (40, 6, 5), (2, 60, 70)], ids=["one step", "keep", "ghost"]
)
def test_linear_in_each_of_its_forms(shape):
    # Shapes for which the cost model takes different ways.
    steps, inputs, outputs = shape
    for dtype in (torch.float64, torch.float32):
        assert_agrees(
            lambda: nn.Linear(inputs, outputs), (floats(1, 4, steps, inputs),), dtype=dtype
        )


# Convolutions


@st.composite
def convolutions(draw):
    """The arguments of a convolution and an input that is large enough for it."""
    dimensions = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    wide = (
        draw(st.booleans()) and dimensions < 3
    )  # many channels: products over positions for every tap
    depthwise = draw(st.booleans()) and not wide
    inputs = groups * (draw(st.integers(8, 9)) if wide else draw(st.integers(1, 3)))
    if depthwise:
        groups = inputs
    outputs = groups * (draw(st.integers(8, 9)) if wide else draw(st.integers(1, 3)))

    def each(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(dimensions))

    kernel, dilation = each(1, 3 if dimensions == 3 else 4), each(1, 2)
    padding = draw(st.sampled_from(["same", "valid", "numbers", "numbers"]))
    stride = (1,) * dimensions if padding == "same" else each(1, 3)
    padding = each(0, 2) if padding == "numbers" else padding
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    pads = padding if isinstance(padding, tuple) else (0,) * dimensions
    mode = draw(st.sampled_from(["zeros", "zeros", "reflect", "circular", "replicate"]))
    least = [
        max(
            1,
            3 if mode != "zeros" else 1,
            1 if padding == "same" else r - 2 * p,
            r if mode != "zeros" else 1,
        )
        for r, p in zip(reach, pads, strict=True)
    ]
    size = tuple(low + draw(st.integers(0, 3)) for low in least)
    arguments = dict(
        in_channels=inputs,
        out_channels=outputs,
        kernel_size=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        padding_mode=mode,
        bias=draw(st.booleans()),
    )
    return arguments, (inputs, *size)


@settings(max_examples=150)
@given(settings_of(), convolutions(), st.integers(0, 2**32 - 1))
def test_convolutions(how, convolution, seed):
    arguments, shape = convolution
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(shape) - 2]
    assert_agrees(lambda: kind(**arguments), (floats(seed, 4, *shape),), **how)


@settings(max_examples=60)
@given(settings_of(), convolutions(), st.data(), st.integers(0, 2**32 - 1))
def test_transposed_convolutions(how, convolution, data, seed):
    arguments, shape = convolution
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[len(shape) - 2]
    stride, dilation, kernel = arguments["stride"], arguments["dilation"], arguments["kernel_size"]
    spread = tuple(
        data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)
    )
    padding = (
        arguments["padding"] if isinstance(arguments["padding"], tuple) else (0,) * len(stride)
    )
    sizes = [
        (n - 1) * s - 2 * p + d * (k - 1) + o + 1
        for n, s, p, d, k, o in zip(
            shape[1:], stride, padding, dilation, kernel, spread, strict=True
        )
    ]
    assume(min(sizes) > 0)
    arguments |= {"padding": padding, "output_padding": spread, "padding_mode": "zeros"}
    assert_agrees(lambda: kind(**arguments), (floats(seed, 4, *shape),), **how)


@settings(max_examples=10)
@given(settings_of(), st.booleans(), st.integers(0, 2**32 - 1))
def test_convolutions_that_are_used_again_or_on_several_images_of_a_record(how, wide, seed):
    channels = 9 if wide else 2

    class Frames(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(channels, channels, 3, padding=1)

        def forward(self, x):
            frames = x.flatten(0, 1)
            return self.conv(torch.tanh(self.conv(frames))).unflatten(0, (len(x), -1))

    assert_agrees(Frames, (floats(seed, 4, 2, channels, 4, 3),), **how)


def test_a_transposed_convolution_that_is_told_its_output_size():
    class Sized(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose1d(2, 3, 3, stride=2)

        def forward(self, x):
            return self.up(x, output_size=[10])

    assert_agrees(Sized, (floats(1, 4, 2, 4),))


# Embeddings


@settings(max_examples=40)
@given(
    settings_of(),
    st.integers(1, 6),
    SMALL,
    st.lists(SMALL, max_size=2),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_embeddings_with_repeated_and_padding_tokens(how, vocabulary, width, axes, padded, seed):
    class Looked(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(vocabulary, width, padding_idx=0 if padded else None)

        def forward(self, places, scale):
            return torch.tanh(self.table(places)) * scale.view(-1, *(1,) * places.ndim)

    fields = tokens(seed, vocabulary, 4, *axes), floats(seed, 4)
    assume(not padded or bool((fields[0] > 0).any()))
    assert_agrees(Looked, fields, **how)


@settings(max_examples=30)
@given(
    settings_of(),
    st.integers(2, 6),
    SMALL,
    SMALL,
    st.booleans(),
    st.sampled_from(["sum", "weighted", "mean"]),
    st.integers(0, 2**32 - 1),
)
def test_embedding_bags(how, vocabulary, width, steps, padded, mode, seed):
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            kind = "mean" if mode == "mean" else "sum"
            self.bag = nn.EmbeddingBag(
                vocabulary, width, mode=kind, padding_idx=1 if padded else None
            )

        def forward(self, places, weights):
            return torch.tanh(
                self.bag(places, per_sample_weights=weights if mode == "weighted" else None)
            )

    assert_agrees(Bag, (tokens(seed, vocabulary, 4, steps), floats(seed, 4, steps)), **how)


# Normalisation and slopes


@settings(max_examples=40)
@given(
    settings_of(),
    st.lists(st.integers(2, 4), min_size=1, max_size=3),
    st.data(),
    st.booleans(),
    st.sampled_from(["layer", "rms"]),
    st.integers(0, 2**32 - 1),
)
def test_layer_norms_over_several_axes(how, axes, data, bias, kind, seed):
    normalised = axes[-data.draw(st.integers(1, len(axes))) :]
    layer = (
        (lambda: nn.LayerNorm(normalised, bias=bias))
        if kind == "layer"
        else (lambda: nn.RMSNorm(normalised))
    )
    assert_agrees(layer, (floats(seed, 4, *axes),), **how)


@settings(max_examples=40)
@given(
    settings_of(), SMALL, SMALL, st.lists(st.integers(2, 3), max_size=3), st.integers(0, 2**32 - 1)
)
def test_group_norms_with_and_without_positions(how, groups, size, axes, seed):
    assume(size > 1 or axes)
    assert_agrees(
        lambda: nn.GroupNorm(groups, groups * size), (floats(seed, 4, groups * size, *axes),), **how
    )


@settings(max_examples=20)
@given(settings_of(), SMALL, st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_instance_norms(how, channels, dimensions, seed):
    kind = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[dimensions - 1]
    assert_agrees(
        lambda: kind(channels, affine=True),
        (floats(seed, 4, channels, *(3, 2, 2)[:dimensions]),),
        **how,
    )


@settings(max_examples=20)
@given(settings_of(), SMALL, st.lists(SMALL, max_size=2), st.booleans(), st.integers(0, 2**32 - 1))
def test_slopes(how, channels, axes, by_channel, seed):
    assert_agrees(
        lambda: nn.PReLU(channels if by_channel else 1), (floats(seed, 4, channels, *axes),), **how
    )


def test_norms_without_parameters_take_part_in_the_pass():
    def make():
        return nn.Sequential(
            nn.Linear(4, 6),
            nn.LayerNorm(6, elementwise_affine=False),
            nn.Unflatten(1, (3, 2)),
            nn.GroupNorm(3, 3, affine=False),
            nn.InstanceNorm1d(3),
            nn.RMSNorm(2),
        )

    assert_agrees(make, (floats(1, 4, 4),))
