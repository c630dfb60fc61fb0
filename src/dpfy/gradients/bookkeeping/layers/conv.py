"""Convolutions of one, two and three dimensions, plain and transposed.

The gradient of one record is written out: by compiled code, or, without it, as a product over
positions for each tap of the kernel. For these the padded image is laid out in rows; the window of
a tap is then the same memory from another offset, so nothing is unfolded or copied.

Tests: tests/gradients/bookkeeping/layers/test_layers.py.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F

from dpfy.gradients.bookkeeping.contributions import Materialized
from dpfy.gradients.bookkeeping.layout import Layout
from dpfy.gradients.bookkeeping.native.convolution import Sliding, products_over_windows
from dpfy.gradients.bookkeeping.recorder import Recorder
from dpfy.gradients.bookkeeping.workspace import Workspace

# of a group: below, products over positions are too small and one grouped convolution is faster
_FEW_CHANNELS = 8
_BLOCK = 2**19  # numbers of padded images that are worked on together
_GROUPED_RECORDS = 16


@dataclass(frozen=True)
class Geometry:
    """The shape parameters of a convolution."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    def arguments(self, groups: int) -> tuple[Any, ...]:
        """Return the arguments of torch's general convolution after its tensors."""
        spread = self.output_padding or (0,) * len(self.kernel)
        return self.stride, self.padding, self.dilation, self.transposed, spread, groups

    def sides(
        self, inputs: torch.Tensor, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the image that the kernel slides over, and what it has at each position."""
        return (gradient, inputs) if self.transposed else (inputs, gradient)


def convolution(
    module: Any, recorder: Recorder, layout: Layout, inputs: torch.Tensor
) -> torch.Tensor:
    """Compute and record :class:`torch.nn.Conv2d` and its relatives."""
    padding = module.padding
    sides = list(module._reversed_padding_repeated_twice)
    symmetric = all(left == right for left, right in zip(sides[::2], sides[1::2], strict=True))
    if module.padding_mode != "zeros" or not symmetric:
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        inputs, padding = F.pad(inputs, sides, mode=mode), (0,) * len(module.kernel_size)
    elif isinstance(padding, str):
        padding = tuple(reversed(sides[::2]))
    geometry = Geometry(module.kernel_size, module.stride, padding, module.dilation, module.groups)
    return _recorded(recorder, layout, inputs, module, geometry)


def transposed_convolution(
    module: Any,
    recorder: Recorder,
    layout: Layout,
    inputs: torch.Tensor,
    output_size: list[int] | None = None,
) -> torch.Tensor:
    """Compute and record :class:`torch.nn.ConvTranspose2d` and its relatives."""
    spread = module._output_padding(
        inputs,
        output_size,
        module.stride,
        module.padding,
        module.kernel_size,
        len(module.kernel_size),
        module.dilation,
    )
    geometry = Geometry(
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        module.groups,
        transposed=True,
        output_padding=tuple(spread),
    )
    return _recorded(recorder, layout, inputs, module, geometry)


def _recorded(
    recorder: Recorder, layout: Layout, inputs: torch.Tensor, module: Any, geometry: Geometry
) -> torch.Tensor:
    """Compute a convolution and record the contributions to weight and bias."""
    weight, bias = module.weight, module.bias
    own, own_bias, shape = recorder.slot(weight), recorder.slot(bias), weight.shape
    layout.items(inputs, recorder.records)

    def record(gradient: torch.Tensor, inputs: torch.Tensor) -> None:
        if own is not None:
            recorder.add(
                own,
                weight_gradients(
                    inputs, gradient, shape, geometry, recorder.records, recorder.memory
                ),
            )
        if own_bias is not None:
            items = gradient.flatten(2).sum(2, dtype=_at_least_float32(gradient.dtype))
            recorder.add(
                own_bias, Materialized.of(items.unflatten(0, (recorder.records, -1)).sum(1))
            )

    return _Convolution.apply(recorder.anchor, inputs, weight, bias, geometry, record)


def weight_gradients(
    inputs: torch.Tensor,
    gradient: torch.Tensor,
    shape: torch.Size,
    geometry: Geometry,
    records: int,
    memory: Workspace,
) -> Materialized:
    """Return the gradients of the weight, written out record by record."""
    dtype = _at_least_float32(gradient.dtype)
    inputs, gradient = inputs.to(dtype).contiguous(), gradient.to(dtype).contiguous()
    given = inputs, gradient, shape, geometry, memory
    written, shaped = (
        _by_compiled_products(*given) or _by_grouped_convolution(*given) or _by_tap_products(*given)
    )
    if written.shape[1] != records:  # several images of a record
        written = written.unflatten(1, (records, -1)).sum(2)
    return Materialized(written, shaped)


Written = tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]
"""Gradients [blocks, items, numbers], and what gives their sum the weight's shape."""


def _by_compiled_products(
    inputs: torch.Tensor,
    gradient: torch.Tensor,
    shape: torch.Size,
    geometry: Geometry,
    memory: Workspace,
) -> Written | None:
    """Return gradients that are products over windows, where C code can be compiled."""
    if geometry.groups > 1:
        return None
    image, small = geometry.sides(inputs, gradient)
    sliding = Sliding(
        tuple(image.shape[2:]),
        tuple(small.shape[2:]),
        geometry.kernel,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
    )
    written = products_over_windows(image, small, sliding, memory)
    if written is None:
        return None
    form = written.shape[1:]
    return written.flatten(1).unsqueeze(
        0
    ), lambda summed: summed.view(form).movedim(-1, 1).reshape(shape)


def _by_tap_products(
    inputs: torch.Tensor,
    gradient: torch.Tensor,
    shape: torch.Size,
    geometry: Geometry,
    memory: Workspace,
) -> Written:
    """Return gradients that are products over positions, a block for each tap of the kernel."""
    image, small = geometry.sides(inputs, gradient)
    items, groups = len(image), geometry.groups
    taps = _taps(geometry)
    written = image.new_empty(
        len(taps), items * groups, small.shape[1] // groups, image.shape[1] // groups
    )
    at_once = max(1, _BLOCK // (math.prod(image.shape[1:]) + math.prod(small.shape[1:])))
    for start in range(0, items, at_once):
        rows = _RowImages(image[start : start + at_once], small[start : start + at_once], geometry)
        target = written[:, start * groups : (start + at_once) * groups]
        for number, (phase, shift) in enumerate(taps):
            torch.bmm(rows.small, rows.window(phase, shift).mT, out=target[number])
    return written.view(
        len(taps), items, -1
    ), lambda summed: summed.view(-1, shape[0], shape[1]).permute(1, 2, 0).reshape(shape)


@lru_cache(maxsize=1024)
def _taps(geometry: Geometry) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the phase and the shift of every tap of the kernel."""
    return [_phase_and_shift(tap, geometry) for tap in product(*map(range, geometry.kernel))]


def _phase_and_shift(
    tap: tuple[int, ...], geometry: Geometry
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return where a tap falls between strides, and how many strides it is away."""
    places = [k * d for k, d in zip(tap, geometry.dilation, strict=True)]
    return (
        tuple(p % s for p, s in zip(places, geometry.stride, strict=True)),
        tuple(p // s for p, s in zip(places, geometry.stride, strict=True)),
    )


class _RowImages:
    """Padded images in rows of one length, so that a shifted window is the same memory.

    A window starts at an offset and ends in zeros.
    """

    def __init__(self, image: torch.Tensor, small: torch.Tensor, geometry: Geometry) -> None:
        outs = small.shape[2:]
        reach = [
            (k - 1) * d // s
            for k, d, s in zip(geometry.kernel, geometry.dilation, geometry.stride, strict=True)
        ]
        self.sides = [out + r for out, r in zip(outs, reach, strict=True)]
        # windows that are shifted along a row run over into one row more
        self.sides[0] += len(outs) > 1
        pads: list[int] = []
        for axis in reversed(range(len(outs))):
            left = geometry.padding[axis]
            pads += [left, geometry.stride[axis] * self.sides[axis] - image.shape[2 + axis] - left]
        self._image = F.pad(image, pads)
        self._stride = geometry.stride
        self._groups = geometry.groups
        self._phases: dict[tuple[int, ...], torch.Tensor] = {}
        wider = [
            n for axis in reversed(range(1, len(outs))) for n in (0, self.sides[axis] - outs[axis])
        ]
        self.small = self._grouped(F.pad(small, wider) if wider else small)

    def _grouped(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return [items·groups, channels per group, positions]."""
        return tensor.reshape(len(tensor) * self._groups, tensor.shape[1] // self._groups, -1)

    def window(self, phase: tuple[int, ...], shift: tuple[int, ...]) -> torch.Tensor:
        """Return the image as the tap sees it, [items·groups, channels, positions]."""
        if phase not in self._phases:
            steps = tuple(slice(p, None, s) for p, s in zip(phase, self._stride, strict=True))
            self._phases[phase] = self._grouped(self._image[(slice(None), slice(None), *steps)])
        offset = 0
        for distance, side in zip(shift, self.sides, strict=True):
            offset = offset * side + distance
        return self._phases[phase][:, :, offset : offset + self.small.shape[2]]


def _by_grouped_convolution(
    inputs: torch.Tensor,
    gradient: torch.Tensor,
    shape: torch.Size,
    geometry: Geometry,
    memory: Workspace,
) -> Written | None:
    """Return the gradients of few channels: items are groups of a convolution, a few at a time."""
    if min(inputs.shape[1], gradient.shape[1]) >= _FEW_CHANNELS * geometry.groups:
        return None
    written = []
    for x, g in zip(inputs.split(_GROUPED_RECORDS), gradient.split(_GROUPED_RECORDS), strict=True):
        # its shape is looked at, not its numbers
        weight = x.new_empty(1).expand(len(x) * shape[0], *shape[1:])
        found = torch.ops.aten.convolution_backward(
            g.reshape(1, -1, *g.shape[2:]),
            x.reshape(1, -1, *x.shape[2:]),
            weight,
            None,
            *geometry.arguments(len(x) * geometry.groups),
            [False, True, False],
        )[1]
        written.append(found.view(len(x), -1))
    return torch.cat(written).unsqueeze(0), lambda summed: summed.view(shape)


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Return a dtype, or float32 for shorter ones."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def _autocast(tensor: Any) -> Any:
    """Return the tensor as autocast would convert it; autocast ignores the general convolution."""
    if tensor is None or not torch.is_autocast_enabled(tensor.device.type):
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


class _Convolution(torch.autograd.Function):
    """A convolution whose weight gradient is left to ``record``."""

    @staticmethod
    def forward(ctx, anchor, inputs, weight, bias, geometry, record):  # type: ignore[no-untyped-def]
        """Compute as ever."""
        outputs = torch.convolution(
            *map(_autocast, (inputs, weight, bias)), *geometry.arguments(geometry.groups)
        )
        ctx.save_for_backward(inputs, weight)
        ctx.geometry, ctx.record = geometry, record
        return outputs

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        """Return the input's gradient alone."""
        inputs, weight = ctx.saved_tensors
        ctx.record(gradient, inputs.detach())
        if not ctx.needs_input_grad[1]:
            return (None,) * 6
        found = torch.ops.aten.convolution_backward(
            gradient,
            inputs.to(gradient.dtype),
            weight.to(gradient.dtype),
            None,
            *ctx.geometry.arguments(ctx.geometry.groups),
            [True, False, False],
        )[0]
        return None, found.to(inputs.dtype), None, None, None, None
