"""Every form of clipping, beside what it means: an oracle in plain numbers that shares nothing with
the library.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import dpfy
from dpfy.mechanisms.query import ClippedSum, NormalisedSum

SIZES = {"bare": 2, "dense.weight": 2, "dense.bias": 1, "sequence.weight": 2, "table.weight": 6}
NUMBERS, TOKENS = 11, 3


class Layers(nn.Module):
    """A parameter outside of layers, a Linear with one time step, one with two, and a table;
    gradients are known.
    """

    def __init__(self):
        super().__init__()
        self.bare = nn.Parameter(torch.zeros(2))
        self.dense = nn.Linear(2, 1)
        self.sequence = nn.Linear(2, 1, bias=False)
        self.table = nn.Embedding(TOKENS, 2)

    def forward(self, x, token):
        return (
            x[:, 0] * self.dense(x[:, 1:3]).squeeze(1)
            + self.sequence(x[:, 3:7].unflatten(1, (2, 2))).sum((1, 2))
            + (x[:, 7:9] * self.bare).sum(1)
            + (self.table(token) * x[:, 9:11]).sum(1)
        )


def gradients(row, token):
    """The gradients of one record, by hand: the float32 numbers that any engine finds, for moderate
    ones.
    """
    x = np.asarray(row, dtype=np.float32)
    table = np.zeros((TOKENS, 2), dtype=np.float32)
    with np.errstate(all="ignore"):
        table[token] = x[9:11]
        return {
            name: [float(value) for value in np.ravel(found)]
            for name, found in {
                "bare": x[7:9],
                "dense.weight": x[0] * x[1:3],
                "dense.bias": x[:1],
                "sequence.weight": x[3:5] + x[5:7],
                "table.weight": table,
            }.items()
        }


@dataclass(frozen=True)
class Bounded:
    """One clipped sum as the documentation defines it."""

    scales: dict  # α of each parameter in it
    bound: float
    share: float  # of the noise: all add up to 1
    gamma: float = 0.0

    def factor(self, found):
        """What the gradients of one record are multiplied by; None if they are left out."""
        scaled = [value / scale for name, scale in self.scales.items() for value in found[name]]
        if not all(map(math.isfinite, scaled)):
            return None
        norm = math.hypot(*scaled)
        if self.gamma:
            return self.bound / (norm + self.gamma)
        return 1.0 if norm <= self.bound else self.bound / norm

    def sum_scale(self, name):
        """The noise of a parameter over the noise multiplier."""
        return self.scales[name] * self.bound / math.sqrt(self.share)


def expected_sum(form, records):
    """Σ of what every record adds, by parameter, in the user's units."""
    totals = {name: [0.0] * size for name, size in SIZES.items()}
    for found in records:
        for leaf in form:
            factor = leaf.factor(found)
            for name in leaf.scales if factor is not None else ():
                totals[name] = [
                    total + factor * value
                    for total, value in zip(totals[name], found[name], strict=True)
                ]
    return totals


def units(form):
    """The noise of every parameter over the noise multiplier."""
    return {name: leaf.sum_scale(name) for leaf in form for name in leaf.scales}


def distance(form, one, other):
    """How far two sums by parameter are apart, in the norm of the vector that gets the same noise
    everywhere.
    """
    return math.hypot(
        *(
            (a - b) / unit
            for name, unit in units(form).items()
            for a, b in zip(one[name], other[name], strict=True)
        )
    )


HEAD, BODY = ("bare", "dense.bias"), ("dense.weight", "sequence.weight", "table.weight")


def ones(names):
    return dict.fromkeys(names, 1.0)


def chosen(scales, names):
    return {name: scales[name] for name in names}


def grouped(model, bounds):
    """Two groups with bounds and noise of their own: shares 1 and 4, as of (S/σ)²."""
    return dpfy.clip_groups(
        model,
        lambda name, _: "head" if name in HEAD else "body",
        bounds={"head": bounds[0], "body": bounds[1]},
        noise={"head": bounds[0], "body": bounds[1] / 2},
    )


def own(names, scales, bound, kind=ClippedSum, **options):
    return kind(bound, names[0], names, tuple(scales[name] for name in names), **options)


FORMS = {
    "flat": lambda model, scales, bounds, gamma: (
        ClippedSum(bounds[0]),
        [Bounded(ones(SIZES), bounds[0], 1.0)],
    ),
    "groups": lambda model, scales, bounds, gamma: (
        grouped(model, bounds),
        [Bounded(ones(HEAD), bounds[0], 0.2), Bounded(ones(BODY), bounds[1], 0.8)],
    ),
    "every tensor": lambda model, scales, bounds, gamma: (
        dpfy.clip_groups(model, "tensor", clip=bounds[0]),
        [Bounded({name: 1.0}, bounds[0] / math.sqrt(len(SIZES)), 1 / len(SIZES)) for name in SIZES],
    ),
    "joint": lambda model, scales, bounds, gamma: (
        dpfy.clip_jointly(model, scales, clip=bounds[0]),
        [Bounded(scales, bounds[0], 1.0)],
    ),
    "groups of joint": lambda model, scales, bounds, gamma: (
        [own(HEAD, scales, bounds[0], share=1.0), own(BODY, scales, bounds[1], share=3.0)],
        [
            Bounded(chosen(scales, HEAD), bounds[0], 0.25),
            Bounded(chosen(scales, BODY), bounds[1], 0.75),
        ],
    ),
    "normalised": lambda model, scales, bounds, gamma: (
        dpfy.clip_automatically(bounds[0], gamma=gamma),
        [Bounded(ones(SIZES), bounds[0], 1.0, gamma)],
    ),
    "normalised groups": lambda model, scales, bounds, gamma: (
        dpfy.clip_automatically(grouped(model, bounds), gamma=gamma),
        [Bounded(ones(HEAD), bounds[0], 0.2, gamma), Bounded(ones(BODY), bounds[1], 0.8, gamma)],
    ),
    "normalised joint": lambda model, scales, bounds, gamma: (
        dpfy.clip_automatically(dpfy.clip_jointly(model, scales, clip=bounds[0]), gamma=gamma),
        [Bounded(scales, bounds[0], 1.0, gamma)],
    ),
    "one group joint and normalised": lambda model, scales, bounds, gamma: (
        [own(HEAD, scales, bounds[0], NormalisedSum, gamma=gamma), ClippedSum(bounds[1], "rest")],
        [Bounded(chosen(scales, HEAD), bounds[0], 0.5, gamma), Bounded(ones(BODY), bounds[1], 0.5)],
    ),
}
"""From a model and numbers to what a plan is given as ``clip``, and to what it means."""
