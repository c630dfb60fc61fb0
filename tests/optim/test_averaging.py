"""A tail average is the mean of the last weights, also after a restart."""

import pytest
from hypothesis import given, strategies as st
from torch import nn

from dpfy.optim import TailAverage


@given(st.lists(st.floats(-4, 4, width=16), min_size=1, max_size=12), st.floats(0.01, 1.0))
def test_a_tail_is_the_mean_of_the_last_weights_and_before_it_the_weights(weights, share):
    model = nn.Linear(1, 1, bias=False)
    average = TailAverage(model, steps=len(weights), share=share)
    tail = max(1, round(share * len(weights)))
    for taken, weight in enumerate(weights, start=1):
        nn.init.constant_(model.weight, weight)
        average.update_parameters(model)
        kept = weights[len(weights) - tail : taken] or [weight]
        assert average.module.weight.item() == pytest.approx(sum(kept) / len(kept), abs=1e-5)


def test_a_tail_goes_on_from_its_state():
    model = nn.Linear(1, 1, bias=False)
    whole, first, second = (TailAverage(model, steps=6, share=0.5) for _ in range(3))
    for step in range(6):
        nn.init.constant_(model.weight, 2.0**step)
        if step == 4:
            second.load_state_dict(first.state_dict())
        for average in (whole, second if step >= 4 else first):
            average.update_parameters(model)
    assert (
        second.module.weight.item()
        == whole.module.weight.item()
        == pytest.approx((8 + 16 + 32) / 3)
    )
