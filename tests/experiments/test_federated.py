"""A client counts what it has and no padding, and a curve goes on after a crash."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from dpfy.data import UserSource
from experiments import federated
from experiments.federated import CharacterModel, Roles, Setting, gradients, plan_for, trained


def windows(seed: int, count: int) -> TensorDataset:
    """Windows of 80 characters, the last half empty."""
    chance = torch.Generator().manual_seed(seed)
    text = torch.randint(1, 6, (count, 81), generator=chance)
    x, y = text[:, :-1].clone(), text[:, 1:].clone()
    x[-1, 40:] = y[-1, 40:] = 0
    return TensorDataset(x, y)


def source() -> UserSource:
    """Six roles, of which the first has too little text."""
    counts = [2, 12, 13, 14, 15, 16]
    return UserSource(
        name="made up",
        train=tuple(windows(role, count) for role, count in enumerate(counts)),
        test=tuple(windows(100 + role, 3) for role in range(len(counts))),
        users=6,
        classes=6,
        input_shape=(80,),
        description="Random characters.",
    )


def test_padding_has_no_part_in_a_gradient() -> None:
    # A mean over padding too would shrink it; nothing but padding would make it NaN.
    torch.manual_seed(0)
    model = CharacterModel(classes=6)
    x, y = windows(0, 2).tensors
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=0)
    expected = torch.autograd.grad(loss, [*model.parameters()])
    for found, each in zip(gradients(model, x, y).values(), expected, strict=True):
        assert torch.allclose(found, each, atol=1e-6)
    empty = gradients(model, x, torch.zeros_like(y))
    assert not any(each.any() for each in empty.values())


def test_roles_with_enough_text_take_part_and_the_baseline_is_a_count() -> None:
    roles = Roles(source())
    assert [*roles.train] == [1, 2, 3, 4, 5]
    y = roles.held_out[1]
    assert roles.unigram() == pytest.approx(float(y[y > 0].bincount().max()) / int((y > 0).sum()))


@pytest.mark.parametrize("epsilon", [8.0, None])
def test_a_curve_goes_on_where_it_was_interrupted(epsilon, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(federated, "_BETWEEN", 1)
    setting = replace(Setting(epsilon), rounds=3, cohort=3, windows=2)
    roles, steps = Roles(source()), []

    def answer(cohort, *rest):
        steps.append(cohort.step)
        if steps == [1, 2]:
            raise KeyboardInterrupt
        unchanged(cohort, *rest)

    unchanged = federated.answer
    monkeypatch.setattr(federated, "answer", answer)
    with pytest.raises(KeyboardInterrupt):
        trained(setting, roles, tmp_path)
    result = trained(setting, roles, tmp_path)
    assert steps == [1, 2, 3]  # the second was paid for and is lost
    assert [step for step, _ in result["curve"]] == [0, 1, 3]
    if epsilon:
        assert result["spent"] == pytest.approx(plan_for(setting, 5).budget.epsilon, rel=1e-3)
    else:
        assert result["spent"] is None
