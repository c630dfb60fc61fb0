"""Fits whose exact vectors are caught before noise is added, for tests of bounds and of noise."""

from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch

from dpfy.mechanisms.one_shot import Gaussian


@contextmanager
def caught(answer=None):
    """Catch (mechanism, exact vector, noisy vector) of every Gaussian release.

    ``answer`` replaces the noisy vector by a function of the number of the release and the shape:
    two fits with the same answers evaluate their rows at the same parameters.
    """
    found, release = [], Gaussian.release

    def catching(self, values, stream):
        exact = np.array(values, dtype=np.float64)
        noisy = release(self, values, stream) if answer is None else answer(len(found), exact.shape)
        found.append((self, exact, np.asarray(noisy)))
        return torch.as_tensor(noisy)

    with mock.patch.object(Gaussian, "release", catching):
        yield found


def scripted(scale):
    """Answers that depend on nothing but the number of the release."""

    def answer(number, shape):
        return np.random.default_rng(number).normal(size=shape) * scale

    return answer


def moves(fit, data, neighbour, scale=10.0):
    """How far each vector of a fit moves between neighbours, in units of its declared bound."""
    with caught(scripted(scale)) as first:
        fit(*data)
    with caught(scripted(scale)) as second:
        fit(*neighbour)
    assert first and len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one[0] == other[0]  # the noise does not depend on the rows
    return [
        float(np.linalg.norm(one[1] - other[1])) / one[0].l2_bound
        for one, other in zip(first, second, strict=True)
    ]
