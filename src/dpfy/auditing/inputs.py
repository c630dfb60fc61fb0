"""Input canaries: synthetic records that go through the model and the loss like any other.

They share parameters with the records beside them, so what an attack on them shows depends on these
records too: they must be public or synthetic.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import grad, vmap
from torch.utils.data import ConcatDataset, Dataset, default_collate

from dpfy import _validate
from dpfy.auditing.canaries import Canaries, fields_of
from dpfy.errors import InvalidArgument
from dpfy.gradients.base import LossCall, LossFn, Substitutes, loss_of_one
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.loop import LoopEngine
from dpfy.gradients.losses import per_example
from dpfy.run.released import Released

KINDS = ("mislabelled", "crafted")
ATTACKS = ("white-box", "black-box")
_NUMBERS_AT_ONCE = 2**25  # entries of gradients in memory: 128 MB in float32
_LONGER = 1.5  # norm of a crafted gradient, in clip bounds: training makes it shorter
_ROUNDS, _STEP = 60, 0.05


class MadeUp(Dataset[tuple[torch.Tensor, int]]):
    """A data set of random patterns with random labels.

    Args:
        shape: the shape of a pattern.
        classes: the number of labels.
        count: the number of patterns.
        seed: the seed of the patterns, which are not secret.

    >>> made = MadeUp((2, 3), classes=10, count=5)
    >>> len(made), made[1][0].shape, bool((made[1][0] == made[1][0]).all())
    (5, torch.Size([2, 3]), True)
    """

    def __init__(self, shape: Sequence[int], classes: int, count: int, seed: int = 0) -> None:
        self.shape, self.classes = tuple(shape), _validate.count("classes", classes)
        self.count, self.seed = _validate.count("count", count), seed

    @property
    def example_input(self) -> tuple[torch.Tensor, torch.Tensor]:
        """An example of the shape that all patterns have."""
        return torch.zeros(1, *self.shape), torch.zeros(1, dtype=torch.long)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        generator = torch.Generator().manual_seed(self.seed * 2**32 + index)
        return torch.randn(self.shape, generator=generator), int(
            torch.randint(self.classes, (), generator=generator)
        )


def mislabelled(
    loss_fn: LossFn,
    shape: Sequence[int],
    classes: int,
    count: int,
    seed: int = 1,
) -> list[tuple[torch.Tensor, int]]:
    """Return random patterns, each with the label that the initial model finds least likely.

    The initial model is public.

    Args:
        loss_fn: takes inputs and labels and returns one loss for each, as in training.
        shape: the shape of a pattern.
        classes: the number of labels.
        count: the number of patterns.
        seed: the seed of the patterns.

    Returns:
        The patterns and their labels.

    >>> model = nn.Linear(3, 2)
    >>> loss = lambda x, y: nn.functional.cross_entropy(model(x), y, reduction="none")
    >>> x, y = mislabelled(loss, (3,), classes=2, count=4)[0]
    >>> y == int(model(x).argmin())
    True
    """
    made = MadeUp(shape, classes, count, seed)
    patterns = torch.stack([made[place][0] for place in range(count)])
    with torch.no_grad():
        losses = torch.stack(
            [
                per_example(loss_fn(patterns, torch.full((count,), label)), count)
                for label in range(classes)
            ]
        )
    return list(zip(patterns, losses.argmax(0).tolist(), strict=True))


def crafted(
    model: nn.Module,
    loss_fn: LossFn,
    records: Sequence[tuple[torch.Tensor, int]],
    clip: float,
) -> list[tuple[torch.Tensor, int]]:
    """Return the records with inputs changed until their gradients are distinct and long.

    On the public initial model, gradients of different canaries are made orthogonal to each other,
    so releases distinguish them, and longer than the clip bound, so they are as strong as a record
    can be. Canaries that do not fit into memory together are crafted in turn.

    Args:
        model: the public initial model.
        loss_fn: takes inputs and labels and returns one loss for each, as in training.
        records: the inputs to start from, with their labels.
        clip: the clip bound of the run.

    Returns:
        The changed inputs, with the same labels.
    """
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    at_once = max(2, _NUMBERS_AT_ONCE // 4 // trained)
    return [
        each
        for start in range(0, len(records), at_once)
        for each in _crafted(model, loss_fn, records[start : start + at_once], clip)
    ]


def _crafted(
    model: nn.Module,
    loss_fn: LossFn,
    records: Sequence[tuple[torch.Tensor, int]],
    clip: float,
) -> list[tuple[torch.Tensor, int]]:
    start, labels = default_collate(list(records))
    inputs = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([inputs], lr=_STEP)
    for _ in range(_ROUNDS):
        found = vectorised_gradients(model, loss_fn, inputs, labels)
        norms = found.norm(dim=1, keepdim=True)
        alike = (found / norms.clamp(min=1e-12)) @ (found / norms.clamp(min=1e-12)).T
        # The interference of all canaries with each other is a sum of squared cosines.
        cost = (alike.square().sum() - len(found)) / len(found) + (
            1 - norms / (_LONGER * clip)
        ).relu().square().mean()
        (direction,) = torch.autograd.grad(cost, inputs)
        inputs.grad = direction.nan_to_num(0.0, 0.0, 0.0)
        optimizer.step()
    return list(zip(inputs.detach(), labels.tolist(), strict=True))


class InputCanaries(Canaries):
    """Canaries that are records, scored by released gradients or by losses of the last model.

    *White box*: the score adds up, step by step, the inner product of the release with the canary's
    own clipped gradient at that step; quieter tensors have a larger weight, so a tensor without
    noise shows. *Black box*: the score is the decrease of the canary's loss since the public
    initial model.
    """

    def __init__(
        self,
        present: torch.Tensor,
        records: Sequence[Any],
        model: nn.Module,
        loss_fn: LossFn,
        clip: float,
        attack: str,
    ) -> None:
        super().__init__(present)
        self._records = records
        self._model, self._loss_fn, self._clip = model, loss_fn, clip
        self._white = _validate.choice("attack", attack, ATTACKS) == "white-box"
        self.setting = f"input canaries, {attack.replace('-', ' ')}"
        self._chunk = Chunk.of(
            default_collate([tuple(fields_of(record)) for record in records]), len(records)
        )
        self._sizes = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
        self._products = torch.zeros(len(records), len(self._sizes), dtype=torch.float64)
        self._squares = torch.zeros(len(self._sizes), dtype=torch.float64)
        self._losses = torch.zeros(()) if self._white else self._losses_now()

    def among(self, data: Any, example_input: Any) -> tuple["ConcatDataset[Any]", tuple[Any, ...]]:
        """Return the records and the canaries that are in, and all canaries as examples of both."""
        chosen: Any = [self._records[place] for place in self.present.nonzero().flatten().tolist()]
        return ConcatDataset([data, chosen]), self._chunk.arguments

    def see(self, released: Released) -> None:
        """Multiply the release with what each canary would have contributed, tensor by tensor."""
        if not self._white:
            return
        seen = [released.gradients[name].flatten().double() for name in self._sizes]
        self._squares += torch.stack([tensor.square().mean() for tensor in seen])
        at_once = max(1, _NUMBERS_AT_ONCE // sum(self._sizes.values()))
        for start in range(0, self._chunk.size, at_once):
            found = gradients_of(
                self._model, self._loss_fn, self._chunk.part(start, start + at_once)
            ).double()
            found *= (self._clip / found.norm(dim=1, keepdim=True)).clamp(max=1.0)
            parts = found.nan_to_num(0.0, 0.0, 0.0).split(list(self._sizes.values()), 1)
            self._products[start : start + at_once] += torch.stack(
                [part @ tensor for part, tensor in zip(parts, seen, strict=True)], 1
            )

    def scores(self) -> torch.Tensor:
        """Return the weighted sums, or the decreases of the losses."""
        if not self._white:
            return self._losses - self._losses_now()
        return (self._products / self._squares.clamp(min=1e-300)).sum(1)

    def _losses_now(self) -> torch.Tensor:
        with torch.no_grad():
            return per_example(self._loss_fn(*self._chunk.arguments), self._chunk.size).double()


def gradients_of(model: nn.Module, loss_fn: LossFn, chunk: Chunk) -> torch.Tensor:
    """Return the gradients [records, numbers]: vectorised where torch can, else one by one."""
    try:
        with torch.no_grad():
            return vectorised_gradients(model, loss_fn, *chunk.arguments)
    except Exception:  # torch cannot vectorise some layer
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        loop, call, state = (
            LoopEngine(model, parameters),
            LossCall(model, loss_fn),
            Substitutes(model, parameters),
        )
        rows = [loop.gradients(call, state, chunk.record(place))[0] for place in range(chunk.size)]
        return torch.stack(
            [
                torch.cat(
                    [
                        (torch.zeros_like(p) if g is None else g.to_dense()).flatten()
                        for g, p in zip(row, parameters.values(), strict=True)
                    ]
                )
                for row in rows
            ]
        )


def vectorised_gradients(model: nn.Module, loss_fn: LossFn, *fields: torch.Tensor) -> torch.Tensor:
    """Return the gradients [records, numbers] of records, as a function of their fields."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    call, state = LossCall(model, loss_fn), Substitutes(model, parameters)

    def loss(trained: dict[str, torch.Tensor], *one: torch.Tensor) -> torch.Tensor:
        return loss_of_one(
            call, trained, state.others, Chunk(tuple(field.unsqueeze(0) for field in one), 1)
        )[0]

    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="There is a performance drop", category=UserWarning
        )
        found = vmap(grad(loss), in_dims=(None, *(0 for _ in fields)), randomness="different")(
            state.trained, *fields
        )
    return torch.cat([each.flatten(1) for each in found.values()], 1)


def shape_of(record: Any) -> tuple[int, ...]:
    """Return the shape of a record's input.

    Raises:
        InvalidArgument: if no synthetic records of this kind can be made.
    """
    fields = fields_of(record)
    if (
        len(fields) != 2
        or not isinstance(fields[0], torch.Tensor)
        or not fields[0].is_floating_point()
    ):
        raise InvalidArgument(
            "Expected records of an input of floating-point numbers and a label: for others, "
            "there are no synthetic canaries. Give audit_run your own, as a list of records."
        )
    return tuple(fields[0].shape)


def make(
    kind: str,
    model: nn.Module,
    loss_fn: Callable[..., Any],
    shape: Sequence[int],
    classes: int,
    count: int,
    clip: float,
) -> list[tuple[torch.Tensor, int]]:
    """Return canaries of a kind by its name."""
    records = mislabelled(loss_fn, shape, classes, count)
    return (
        records
        if _validate.choice("kind", kind, KINDS) == "mislabelled"
        else crafted(model, loss_fn, records, clip)
    )
