"""Runs that are closed when a test ends."""

import pytest
import torch
from runs import Started
from torch.utils.data import TensorDataset


@pytest.fixture
def started():
    """Start a run over rows of numbers (or any data set) and close it afterwards."""
    runs = []

    def start(data, **options):
        if isinstance(data, torch.Tensor):
            data = TensorDataset(data)
        runs.append(Started(data, **options))
        return runs[-1]

    yield start
    for each in runs:
        each.run.close()
