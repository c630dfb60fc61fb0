"""Parameters that are used outside of any layer: position embeddings, scales, tied heads.

A torch function mode sees every function that is given such a parameter. Where the function treats
records alone, it is given one copy of the parameter for each record; a product is recorded as a
linear layer's would be.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.func import vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dpfy.gradients.base import Unsupported
from dpfy.gradients.bookkeeping.layers.fallback import Layouts, per_record
from dpfy.gradients.bookkeeping.layers.linear import recorded_linear, recorded_product
from dpfy.gradients.bookkeeping.layout import Layout
from dpfy.gradients.bookkeeping.recorder import Recorder

_T: Any = torch.Tensor
_NUMBERWISE = {
    getattr(home, name)
    for home, names in (
        (torch, ("add", "sub", "mul", "div")),
        (
            _T,
            (
                "add",
                "sub",
                "mul",
                "div",
                "add_",
                "sub_",
                "mul_",
                "div_",
                "__add__",
                "__radd__",
                "__iadd__",
                "__sub__",
                "__rsub__",
                "__isub__",
                "__mul__",
                "__rmul__",
                "__imul__",
                "__truediv__",
                "__rtruediv__",
                "__itruediv__",
            ),
        ),
    )
    for name in names
}
_REPEATING = {_T.expand, _T.expand_as, _T.repeat, torch.broadcast_to, _T.broadcast_to}
_SHAPING = {
    _T.__getitem__,
    _T.unsqueeze,
    torch.unsqueeze,
    _T.squeeze,
    torch.squeeze,
    _T.view,
    _T.reshape,
    torch.reshape,
    _T.transpose,
    torch.transpose,
    _T.permute,
    torch.permute,
    _T.t,
    torch.t,
    _T.flatten,
    torch.flatten,
    _T.to,
    _T.T.__get__,
    _T.mT.__get__,
    _T.contiguous,
    _T.narrow,
    torch.narrow,
}
_PRODUCTS = {torch.matmul, _T.matmul, _T.__matmul__, torch.mm, _T.mm}
_WITHOUT_GRADIENT = {_T.detach, torch.detach, _T.data.__get__}


class DirectUses(TorchFunctionMode):
    """Sees functions that are given parameters it follows, or parts of them, outside of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False
        self.calls: list[tuple[list[Any], list[Any]]] = []
        self._origin: dict[int, tuple[torch.Tensor, torch.Tensor, Callable[..., Any]]] = {}

    def follow(self, parameter: torch.Tensor) -> None:
        """See uses of a parameter from now on."""
        self._origin[id(parameter)] = (parameter, parameter, lambda same: same)

    def unfollow(self, parameter: torch.Tensor) -> None:
        """Let go of a parameter; another one may take its place in memory."""
        self._origin.pop(id(parameter), None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        own = [] if self._is_idle() else [leaf for leaf in leaves if id(leaf) in self._origin]
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

    def _is_idle(self) -> bool:
        """Whether uses of parameters are not to be observed."""
        return self.inside

    def around(self, layer: Callable[..., Any]) -> Callable[..., Any]:
        """Return a layer's forward pass, inside of which uses of parameters are not observed."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            before, self.inside = self.inside, True
            try:
                return layer(*args, **kwargs)
            finally:
                self.inside = before

        return forward

    def table(self, module: Any) -> Callable[..., Any]:
        """Return the forward pass of an embedding of data-independent tokens, such as positions."""
        return self.around(
            lambda tokens: self.derived(
                module.weight, lambda table: F.embedding(tokens, table, module.padding_idx)
            )
        )

    def derived(
        self, tensor: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Return a data-independent function of a parameter, and remember where it came from."""
        _, parameter, before = self._origin[id(tensor)]
        result = function(tensor)
        result = result.view_as(result) if result is tensor else result
        self._origin[id(result)] = (result, parameter, lambda root: function(before(root)))
        return result

    def used(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Note the other inputs and the result of a function, to learn where the records are."""
        result = func(*args, **kwargs)
        others = [
            leaf
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, torch.Tensor) and id(leaf) not in self._origin
        ]
        self.calls.append(([leaf.detach().clone() for leaf in others], [result.detach().clone()]))
        return result


class RecordedUses(DirectUses):
    """Hands the contributions of those uses to a recorder."""

    def __init__(self, recorder: Recorder, layouts: Sequence[Layouts]) -> None:
        super().__init__()
        self._recorder = recorder
        self._layouts = iter(layouts)
        self._layouts_by_use: dict[Any, Layouts | None] = {}

    def _is_idle(self) -> bool:
        # a backward pass runs with gradients off, and a forward pass that is computed again on the
        # way back with gradients on
        return self.inside or (self._recorder.goes_back and not torch.is_grad_enabled())

    def _layouts_of(self, func: Any, args: Any, kwargs: Any) -> Layouts | None:
        """Return the layouts of the next use, or of an earlier one that is computed again."""
        use = (
            func,
            *(
                id(self._origin[id(leaf)][1]) if id(leaf) in self._origin else leaf.shape
                for leaf in tree_leaves((args, kwargs))
                if isinstance(leaf, torch.Tensor)
            ),
        )
        if self._recorder.goes_back:
            return self._layouts_by_use.get(use)
        layouts = next(self._layouts, None)
        if self._layouts_by_use.setdefault(use, layouts) != layouts:
            self._layouts_by_use[use] = None  # it would not be known which one comes again
        return layouts

    def used(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute with one copy of the parameter for each record, or record a product."""
        layouts = self._layouts_of(func, args, kwargs)
        if layouts is None:
            raise Unsupported("a parameter is used more often than on synthetic input")
        layout = layouts.outputs[0]
        if layout is None or (layout.flat and func in _NUMBERWISE | _REPEATING):
            raise Unsupported("a parameter is used outside of layers where there are no records")
        if func is F.linear or func in _PRODUCTS:
            return self._product(func, layout, *args, **kwargs)
        if func in _REPEATING:
            repeated = func(*args, **kwargs)
            copies = self._copies(args[0], repeated.ndim, layout)
            if any(
                size not in (1, wanted)
                for size, wanted in zip(copies.shape, repeated.shape, strict=True)
            ):
                raise Unsupported("a parameter is repeated along an axis of its own")
            return copies.expand(repeated.shape)
        ndim = max(leaf.ndim for leaf in args if isinstance(leaf, torch.Tensor))
        copied = (
            self._copies(leaf, ndim, layout) if id(leaf) in self._origin else leaf for leaf in args
        )
        return func(*copied, **kwargs)

    def _copies(self, tensor: torch.Tensor, ndim: int, layout: Layout) -> torch.Tensor:
        """Return one copy per record, along the axis of the records, without memory of its own."""
        _, parameter, function = self._origin[id(tensor)]
        shape = [1] * (ndim - tensor.ndim) + list(tensor.shape)  # as broadcasting has it
        if shape.pop(layout.axis) != 1:
            raise Unsupported(
                "a parameter has a value of its own for each place of a record in the chunk"
            )
        copies = vmap(function)(per_record(self._recorder, parameter))
        return copies.reshape(self._recorder.records, *shape).movedim(0, layout.axis)

    def _product(
        self,
        func: Any,
        layout: Layout,
        inputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute inputs @ weight, or with its transpose, as a linear layer."""
        recorder = self._recorder
        if id(inputs) in self._origin or not recorder.trains(weight) or weight.ndim != 2:
            raise Unsupported("a product with a part of a parameter")
        if func is F.linear:
            return recorded_linear(recorder, layout, inputs, weight, bias)
        return recorded_product(recorder, layout, inputs, weight)
