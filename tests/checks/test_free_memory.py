"""Free memory goes back to the operating system where a model is large."""

import ctypes

import pytest
import torch
from torch import nn

from dpfy.checks import free_memory
from dpfy.checks.probe import Probe
from dpfy.gradients.chunk import Chunk


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    found: list[int] = []
    monkeypatch.setattr(free_memory, "_trim", lambda: found.append)
    return found


def test_memory_of_small_models_is_kept(calls) -> None:
    free_memory.give_back([torch.empty(free_memory._LARGE - 1, device="meta")])
    assert not calls


def test_memory_of_large_models_is_given_back(calls) -> None:
    free_memory.give_back([torch.empty(2**23, device="meta")] * 2)
    assert calls == [0]


def test_a_library_without_the_function_is_left_alone(monkeypatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    free_memory._trim.cache_clear()
    found = free_memory._trim()
    free_memory.give_back([torch.empty(free_memory._LARGE, device="meta")])  # calls nothing
    free_memory._trim.cache_clear()
    assert found is None


def test_a_probe_gives_back_before_the_next_large_pass(calls, monkeypatch) -> None:
    monkeypatch.setattr(free_memory, "_LARGE", 1)
    model = nn.Linear(3, 1)
    probe = Probe(
        model,
        dict(model.named_parameters()),
        lambda x: model(x).squeeze(1),
        Chunk((torch.zeros(1, 3),), 1),
        declared=False,
    )
    probe.choose("auto")
    assert len(calls) >= 3
