"""The book-keeping engine beside one record at a time, on any model."""

from dataclasses import dataclass, field

import torch

from dpfy.gradients import BookkeepingEngine, GhostEngine, LoopEngine
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.clipping import ClipEach, Clipping, clip_to

GRID = 2.0**-60  # finer than any rounding that is looked at here
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4}


class _Strict:
    """Never hands a record to the oracle: a test that compared the oracle with itself would pass
    always.
    """

    def _exact(self, loss_fn, chunk, clipping):
        raise AssertionError("a record was handed to the oracle")


class Strict(_Strict, BookkeepingEngine):
    pass


class StrictGhost(_Strict, GhostEngine):
    pass


def pattern_loss(model):
    """Half the mean square of the output's distance from a fixed pattern; outputs have records
    first.
    """

    def loss_fn(*fields):
        output = model(*fields).flatten(1)
        return (output - torch.linspace(-1, 1, output.shape[1], dtype=output.dtype)).square().mean(
            1
        ) / 2

    return loss_fn


def trained_of(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@dataclass
class Subject:
    """An engine with a loss; ``squared`` are the norms it reported last."""

    engine: object
    loss_fn: object
    grouped: bool = False
    squared: torch.Tensor = field(default_factory=lambda: torch.zeros(0))

    @classmethod
    def prepared(cls, model, fields, *, engine=Strict, loss=pattern_loss, grouped=False):
        """A book-keeping engine that saw two variants of the fields."""
        subject = cls(engine(model, trained_of(model)), loss(model), grouped)
        rows = len(fields[0])
        variants = [fields, tuple(f.flip(0) for f in fields)]
        subject.engine.prepare(
            subject.loss_fn,
            lambda size, seed: Chunk(
                tuple(f[torch.arange(size) % rows] for f in variants[seed % 2]), size
            ),
        )
        return subject

    @property
    def groups(self):
        count = len(self.engine.parameters)
        return tuple(range(count)) if self.grouped else (0,) * count

    def sums(self, fields, weigh):
        """The sums by parameter, in float64, for any function of the squared norms."""
        totals = [torch.zeros_like(p, dtype=torch.float64) for p in self.engine.parameters.values()]
        groups = self.groups

        def noted(squared):
            self.squared = squared
            return weigh(squared)

        # Bounds for each group are known by their type to engines that clip a group as soon as it
        # is complete.
        clipping = Clipping(
            weigh if isinstance(weigh, ClipEach) and len(weigh.bounds) > 1 else noted, GRID, groups
        )
        self.engine.bounded_sums(self.loss_fn, Chunk(fields, len(fields[0])), clipping).add_to(
            totals
        )
        return totals

    def alone(self, fields, position):
        """What one record adds with weight one, as the engine adds it among the others."""

        def weigh(squared):
            weights = torch.zeros_like(squared)
            weights[position] = 1
            return weights

        return self.sums(fields, weigh)


def shaken(model):
    """Move every parameter a little: scales of one and shifts of zero would hide what they are
    multiplied with.
    """
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += 0.1 * noise.to(parameter.dtype)
    return model


def in_float64(fields):
    return tuple(f.double() if f.is_floating_point() else f for f in fields)


def assert_close(found, expected, scales, tolerance, what):
    """Parameter by parameter, so that a wrong bias does not hide behind a large weight."""
    for position, (a, b, scale) in enumerate(zip(found, expected, scales, strict=True)):
        distance = float((a - b).norm())
        assert distance <= tolerance * scale, (
            f"{what}: parameter {position} is {distance / scale:.1e} off"
        )


@dataclass
class Expected:
    """What one record at a time gives in float64, with a bound that clips about half of the
    records.
    """

    oracle: Subject
    fields: tuple

    def __post_init__(self):
        gradients, squared = [], []
        for row in range(len(self.fields[0])):
            gradients.append(
                self.oracle.sums(tuple(f[row : row + 1] for f in self.fields), torch.ones_like)
            )
            squared.append(self.oracle.squared)
        self.norms = torch.cat(squared).sqrt()
        self.bound = float(self.norms.median()) or 1.0
        weights = clip_to(self.bound)(torch.cat(squared))
        clipped = [
            [g * w for g, w in zip(record, row.expand(len(record)), strict=True)]
            for record, row in zip(gradients, weights, strict=True)
        ]
        self.sums = [sum(parts) for parts in zip(*clipped, strict=True)]
        # A parameter that hardly matters, such as a shift before a softmax, is judged by a
        # thousandth of the bound.
        self.scales = [
            sum(float(part.norm()) for part in parts) + 1e-3 * self.bound
            for parts in zip(*clipped, strict=True)
        ]


def assert_agrees(
    make, fields, *, dtype=torch.float64, grouped=False, split=1, loss=pattern_loss, rules=None
):
    """Sums, chunking, and norms that are never below what is added, against the oracle in float64.

    ``make`` makes the model, ``fields`` are float64 or whole numbers with records first; ``rules``
    is how many layers have a rule of their own, all of them unless given. Returns those layers."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, exact = shaken(make().to(dtype)), make().double()
    exact.load_state_dict(
        model.state_dict()
    )  # the same numbers, those that the coarser type can hold
    fields = tuple(f.to(dtype) if f.is_floating_point() else f for f in fields)
    engine = StrictGhost if split == 2 else Strict
    subject = Subject.prepared(model, fields, engine=engine, loss=loss, grouped=grouped)
    layers = subject.engine.layers
    assert sum(layer.rule is not None for layer in layers) == (
        len(layers) if rules is None else rules
    ), layers
    expected = Expected(
        Subject(LoopEngine(exact, trained_of(exact)), loss(exact), grouped), in_float64(fields)
    )
    clip, tolerance = clip_to(expected.bound), TOLERANCE[dtype]

    assert_close(subject.sums(fields, clip), expected.sums, expected.scales, tolerance, "sum")
    torch.testing.assert_close(
        subject.squared.sqrt(),
        expected.norms,
        rtol=tolerance,
        atol=tolerance * float(expected.norms.max()) + 1e-15,
    )
    each = ClipEach((expected.bound,) * (max(subject.groups) + 1))
    first, second = (
        subject.sums(tuple(f[rows] for f in fields), each)
        for rows in (slice(None, split), slice(split, None))
    )
    assert_close(
        [a + b for a, b in zip(first, second, strict=True)],
        expected.sums,
        expected.scales,
        tolerance,
        "chunks",
    )
    position = split % len(fields[0])
    squares = torch.stack([part.square().sum() for part in subject.alone(fields, position)])
    squares = squares if grouped else squares.sum()
    assert bool((squares <= subject.squared[position] * (1 + 1e-12)).all()), (
        "a norm is below what is added"
    )
    return layers
