"""Parameters that are used outside of any layer: position embeddings, class tokens, scales, tied heads.

A mode of torch sees every function that is given one. Where the function treats records alone, the parameter is given to
it as one copy for each record, or the product is recorded as a layer's would be.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.func import vjp, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from dpfy.training.engines.base import Unsupported
from dpfy.training.engines.bookkeeping.contributions import Kept
from dpfy.training.engines.bookkeeping.layout import Layout
from dpfy.training.engines.bookkeeping.rules.linear import _Linear, recorded_linear
from dpfy.training.engines.bookkeeping.rules.opaque import Layouts
from dpfy.training.engines.bookkeeping.tape import Tap, Tape

_T = torch.Tensor
_NUMBERWISE = {getattr(home, name) for home, names in (
    (torch, ("add", "sub", "mul", "div")),
    (_T, ("add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_", "__add__", "__radd__", "__iadd__", "__sub__",
          "__rsub__", "__isub__", "__mul__", "__rmul__", "__imul__", "__truediv__", "__rtruediv__", "__itruediv__")),
) for name in names}
_REPEATING = {_T.expand, _T.expand_as, _T.repeat, torch.broadcast_to, _T.broadcast_to}
_SHAPING = {_T.__getitem__, _T.unsqueeze, torch.unsqueeze, _T.squeeze, torch.squeeze, _T.view, _T.reshape, torch.reshape,
            _T.transpose, torch.transpose, _T.permute, torch.permute, _T.t, torch.t, _T.flatten, torch.flatten, _T.to,
            _T.T.__get__, _T.mT.__get__, _T.contiguous, _T.type_as, _T.narrow, torch.narrow}
_PRODUCTS = {torch.matmul, _T.matmul, _T.__matmul__, torch.mm, _T.mm}
_WITHOUT_GRADIENT = {_T.detach, torch.detach, _T.data.__get__}  # type: ignore[attr-defined]


class BareUses(TorchFunctionMode):
    """Sees the functions that trained parameters, or parts of them, are given to while no layer is at work."""

    def __init__(self, trained: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.inside = False
        self.calls: list[tuple[list[Any], list[Any]]] = []
        self._origin: dict[int, tuple[torch.Tensor, torch.Tensor, Callable[..., Any]]] = {
            id(parameter): (parameter, parameter, lambda same: same) for parameter in trained}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        own = [] if self.inside else [leaf for leaf in leaves if id(leaf) in self._origin]
        if not own or func in _WITHOUT_GRADIENT:
            return func(*args, **kwargs)
        if func in _SHAPING and len(leaves) == 1:
            return self.derived(own[0], lambda tensor: func(tensor, *args[1:], **kwargs))
        if func in _NUMBERWISE | _REPEATING | _PRODUCTS | {F.linear}:
            return self.used(func, args, kwargs)
        result = func(*args, **kwargs)
        if any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(result)):
            raise Unsupported("a parameter is used in a way that no rule knows")
        return result  # a shape or a type

    def derived(self, tensor: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return a function of a parameter that no record takes part in, and remember where it came from."""
        _, parameter, before = self._origin[id(tensor)]
        result = function(tensor)
        result = result.view_as(result) if result is tensor else result
        self._origin[id(result)] = (result, parameter, lambda root: function(before(root)))
        return result

    def used(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Note what else the function is given and what it gives, to learn where the records are."""
        result = func(*args, **kwargs)
        others = [leaf for leaf in tree_leaves((args, kwargs))
                  if isinstance(leaf, torch.Tensor) and id(leaf) not in self._origin]
        self.calls.append(([leaf.detach().clone() for leaf in others], [result.detach().clone()]))
        return result


class RecordedUses(BareUses):
    """Records those uses on a tape."""

    def __init__(self, tape: Tape, trained: Iterable[torch.Tensor], layouts: Sequence[Layouts]) -> None:
        super().__init__(trained)
        self._tape = tape
        self._layouts = iter(layouts)

    def used(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute with one copy of the parameter for each record, or record a product."""
        layouts = next(self._layouts, None)
        layout = layouts.outputs[0] if layouts else None
        if layout is None or layout.flat and func in _NUMBERWISE | _REPEATING:
            raise Unsupported("a parameter is used outside of layers in an unknown place")
        if func is F.linear or func in _PRODUCTS:
            return self._product(func, layout, *args, **kwargs)
        if func in _REPEATING:
            return self._shown(args[0], func(*args, **kwargs), layout)
        ndim = max(leaf.ndim for leaf in args if isinstance(leaf, torch.Tensor))

        def copied(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or id(leaf) not in self._origin:
                return leaf
            padded = _padded(leaf, ndim)
            sizes = [self._tape.records if axis == layout.axis else -1 for axis in range(ndim)]
            return self._shown(leaf, padded.expand(sizes), layout)

        return func(*tree_map(copied, tuple(args)), **kwargs)

    def _shown(self, tensor: torch.Tensor, copies: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Return the copies, which leave each record's share of their gradient on the tape."""
        _, parameter, function = self._origin[id(tensor)]
        shape = list(_padded(tensor, copies.ndim).shape)
        if shape.pop(layout.axis) != 1:
            raise Unsupported("a parameter has a value of its own for each place of a record in the chunk")

        def record(gradient: torch.Tensor) -> None:
            rows = layout.records(gradient, self._tape.records).sum_to_size(self._tape.records, *shape)
            _, back = vjp(function, parameter)
            self._tape.add(parameter, Kept.of(vmap(back)(rows.reshape(-1, *tensor.shape).to(parameter.dtype))[0]))

        return Tap.apply(self._tape.anchor, copies, record)

    def _product(self, func: Any, layout: Layout, inputs: torch.Tensor, weight: torch.Tensor,
                 bias: torch.Tensor | None = None) -> torch.Tensor:
        """Compute inputs @ weight, or with its transpose, as a linear layer."""
        tape = self._tape
        if id(inputs) in self._origin or not tape.trains(weight) or weight.ndim != 2:
            raise Unsupported("a product with a part of a parameter")
        if func is F.linear:
            return recorded_linear(tape, layout, inputs, weight, bias)

        def record(gradient: torch.Tensor) -> None:
            rows = layout.sequences(inputs.detach(), tape.records)
            tape.outer(weight, layout.sequences(gradient, tape.records), rows)

        layout.items(inputs, tape.records)
        return _Linear.apply(tape.anchor, inputs, weight.t(), None, record)


def _padded(tensor: torch.Tensor, ndim: int) -> torch.Tensor:
    """Return the tensor with axes of one in front, as broadcasting adds them."""
    return tensor.reshape((1,) * (ndim - tensor.ndim) + tensor.shape)
