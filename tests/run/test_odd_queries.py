"""Users in a fixed order, groups that are frozen as a whole, scales that are no scales."""

import pytest
import torch
from runs import Dot
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.errors import DpfyError
from dpfy.gradients import ENGINES
from dpfy.mechanisms.clipping import Clipping
from dpfy.run.release_layout import ReleaseLayout


def epoch(users, values):
    """The noiseless sums of the batches of one epoch of users in cyclic order."""
    model = Dot(1)
    plan = dpfy.dpsgd(
        records=len(values),
        batch_size=2,
        epochs=1,
        noise_multiplier=0.0,
        sampling="cyclic",
        unit="user",
        relation="replace_one",
    )
    run = dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(torch.tensor(values)),
        plan,
        dpfy.Ledger.in_memory(),
        insecure_test_key=1,
        unit_of=list(users),
    )
    (name,) = dict(model.named_parameters())
    return torch.cat(
        [2 * run.release(lambda x: model(x), batch).gradients[name].flatten() for batch in run]
    )


def test_another_user_in_the_place_of_one_moves_a_cyclic_epoch_by_two_bounds():
    """Users are in the order of their ids: a new id moves everybody between the old and the new one
    by a place, and every batch of the epoch changes, where the rule charges for one.
    """
    values = [[-1.0], [-1.0], [1.0], [1.0], [-1.0], [-1.0], [1.0], [1.0]]
    try:
        moved = float((epoch("bcdefghi", values) - epoch("zcdefghi", values)).norm())
    except DpfyError:
        return  # refused
    assert moved <= 2 + 1e-3


@pytest.mark.parametrize("engine", ENGINES)
def test_freezing_the_last_group_leaves_the_others_their_gradients(engine):
    """With fewer columns of norms than bounds every record would raise, silently, and only noise be
    released.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    groups = dpfy.clip_groups(model, "layer")
    model[2].requires_grad_(False)
    plan = dpfy.dpsgd(rate=1.0, divisor=20, steps=1, noise_multiplier=0.0, clip=groups)
    run = dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(torch.rand(20, 3)),
        plan,
        dpfy.Ledger.in_memory(),
        insecure_test_key=1,
        engine=engine,
    )
    found = run.release(lambda x: model(x).squeeze(1), next(iter(run)))
    assert all(gradient.abs().sum() > 0 for gradient in found.gradients.values())


def test_scales_whose_squares_are_no_numbers_are_refused_or_work():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    try:
        plan = dpfy.dpsgd(
            rate=1.0,
            divisor=20,
            steps=1,
            noise_multiplier=0.0,
            clip=dpfy.clip_jointly(model, {"0.*": 1e160, "*": 1.0}),
        )
        run = dpfy.privatize(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            TensorDataset(torch.rand(20, 3)),
            plan,
            dpfy.Ledger.in_memory(),
            insecure_test_key=1,
        )
    except DpfyError:
        return
    found = run.release(lambda x: model(x).squeeze(1), next(iter(run)))
    assert found.gradients["1.bias"].abs().sum() > 0


def test_an_interrupted_draw_is_a_step_that_was_taken(monkeypatch):
    """Were it forgotten, the next step would release other sums than its event says, or be refused
    for ever.
    """
    model = Dot(3)
    plan = dpfy.dpsgd(
        rate=1.0, divisor=1, steps=4, noise_multiplier=1.0, statistics=[dpfy.SampleSize(every=2)]
    )
    run = dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(torch.rand(5, 3)),
        plan,
        dpfy.Ledger.in_memory(),
        insecure_test_key=1,
    )
    with monkeypatch.context() as broken:
        broken.setattr(run.context.sampling.sampler, "draw", lambda n: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run.release(lambda x: model(x), next(iter(run)))
    assert [set(run.release(lambda x: model(x), batch).statistics) for batch in run] == [
        set(),
        {"sample size"},
        set(),
    ]


def test_what_is_left_of_an_epoch_is_lost_on_resuming(tmp_path, capsys):
    def start(run_of):
        model = Dot(20)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        return run_of(model, opt, TensorDataset(torch.eye(20)))

    plan = dpfy.dpsgd(
        records=20,
        batch_size=5,
        epochs=3,
        sampling="shuffled",
        relation="zero_out",
        noise_multiplier=1.0,
    )
    with start(
        lambda model, opt, data: dpfy.privatize(model, opt, data, plan, tmp_path / "run.dpl")
    ) as run:
        for _ in range(6):
            run.release(lambda x: run.model(x), next(iter(run)))
        run.save(tmp_path)
    with start(lambda model, opt, data: dpfy.resume(tmp_path, model, opt, data)) as again:
        assert (again.lost_steps, again.steps_left, again.ledger.count) == (2, 4, 2)
    assert "2 steps after the checkpoint" in capsys.readouterr().out


def test_what_fails_for_every_record_is_told_before_the_first_one(monkeypatch):
    """In a step it would be silenced, record by record, and nothing but noise be released."""
    model = Dot(3)
    plan = dpfy.dpsgd(rate=1.0, divisor=1, steps=1, noise_multiplier=1.0)
    run = dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(torch.rand(5, 3)),
        plan,
        dpfy.Ledger.in_memory(),
        insecure_test_key=1,
    )
    monkeypatch.setattr(
        ReleaseLayout, "clipping", lambda self, grid: Clipping(lambda norms: 1 / 0, grid, (0,))
    )
    with pytest.raises(ZeroDivisionError):
        run.release(lambda x: model(x), next(iter(run)))
