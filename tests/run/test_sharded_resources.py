"""The memory of a sharded run is predicted from its shapes."""

import pytest
import torch
from torch import nn

import dpfy
from dpfy.run.sharded_resources import estimate_sharded


def predicted(**options):
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    return estimate_sharded(model, torch.rand(4, 64), **{"batch_size": 64, "ranks": 2, **options})


def test_more_processes_need_less_each():
    two, eight = predicted(), predicted(ranks=8)
    assert two.parameters == eight.parameters == 4 * 65 * 64
    # what is divided: parameter, gradient and two states in float32, a sum in float64
    own = 24 * two.parameters
    fewer = 4 * two.numbers_per_record * (two.records_at_once - eight.records_at_once)
    assert two.peak_bytes - eight.peak_bytes == own // 2 - own // 8 + fewer


def test_more_records_at_once_need_what_they_keep():
    few, many = predicted(max_physical_batch=2), predicted(max_physical_batch=16)
    kept = many.peak_bytes - few.peak_bytes
    assert kept == 4 * few.numbers_per_record * (many.records_at_once - few.records_at_once)


def test_a_model_without_anything_to_train_is_refused():
    with pytest.raises(dpfy.errors.InvalidArgument, match="require gradients"):
        estimate_sharded(
            nn.Linear(2, 2).requires_grad_(False), torch.rand(2, 2), batch_size=2, ranks=2
        )
