"""Canaries that are records: they find what they should, leave the honest run alone, and touch no
private record.
"""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import dpfy
from dpfy.auditing import MadeUp, audit_run, crafted, mislabelled
from dpfy.auditing.audit import audit_settings
from dpfy.auditing.canaries import GradientCanaries, coins
from dpfy.auditing.inputs import gradients_of, vectorised_gradients
from dpfy.auditing.mutants import MUTANTS, _replaced, releasing
from dpfy.auditing.page import render
from dpfy.cli.app import main
from dpfy.errors import InvalidArgument
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.controllers import QuantileClipping

SIZE, CLASSES, CLIP = 256, 10, 2.0
SILENT = {
    "noise missing": lambda: _replaced(releasing(lambda self, total, noise: total)),
    **MUTANTS,
}


class Halves(nn.Module):
    """A linear model in two tensors of one size: the mutant that forgets one of them forgets half
    of the numbers.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(SIZE // 2, CLASSES, bias=False)
        self.second = nn.Linear(SIZE // 2, CLASSES, bias=False)

    def forward(self, x):
        first, second = x.chunk(2, -1)
        return self.first(first) + self.second(second)


def setup():
    torch.manual_seed(0)
    model = Halves()

    def loss(x, y):
        return nn.functional.cross_entropy(model(x), y, reduction="none")

    return model, loss, mislabelled(loss, (SIZE,), CLASSES, 120)


def audited(key, mutant="none", kind="mislabelled", attack="white-box"):
    model, loss, planted = setup()
    if kind == "crafted":
        planted = crafted(model, loss, planted, CLIP)
    start = [p.detach().clone() for p in model.parameters()]
    plan = dpfy.dpsgd(rate=0.5, records=100, steps=20, clip=CLIP, noise_multiplier=8.0)
    with SILENT[mutant]():
        found = audit_run(
            model,
            torch.optim.SGD(model.parameters(), lr=0.5),
            MadeUp((SIZE,), CLASSES, 20),
            plan,
            loss,
            1e-5,
            canaries=planted,
            guesses=60,
            key=key,
            attack=attack,
            public=True,
        )
    assert all(bool((p == old).all()) for p, old in zip(model.parameters(), start, strict=True))
    assert (
        found.trials is None and found.mu_trials == found.epsilon_trials == 0
    )  # they are not independent
    return found


@pytest.mark.parametrize(
    ("kind", "attack", "mutant"),
    [
        ("mislabelled", "white-box", "noise missing"),
        ("mislabelled", "white-box", "noise missing on one tensor"),
        ("mislabelled", "black-box", "noise missing"),
        ("crafted", "white-box", "noise missing on one tensor"),
    ],
)
def test_a_run_without_its_noise_is_refuted(kind, attack, mutant):
    """Fails if scores are not those of the canaries, have the wrong sign, or are taken too late."""
    found = audited(3, mutant, kind, attack)
    assert found.refuted and found.epsilon_lower > found.epsilon_claimed
    assert attack.replace("-", " ") in found.setting
    if kind == "mislabelled" and mutant == "noise missing":  # canaries share parameters
        shown = render(found)
        assert "There is no confidence band" in shown and "confidence</text>" not in shown


@pytest.mark.parametrize(
    ("kind", "attack"),
    [
        ("mislabelled", "white-box"),
        ("mislabelled", "black-box"),
        pytest.param("crafted", "white-box", marks=pytest.mark.slow),
        pytest.param("crafted", "black-box", marks=pytest.mark.slow),
    ],
)
def test_an_honest_run_is_not_refuted(kind, attack):
    """Each is refuted with a probability below 1e-6; fails if guesses know the coins otherwise than
    by the run.
    """
    assert not any(audited(key, kind=kind, attack=attack).refuted for key in (0, 10))


def test_crafted_gradients_are_long_and_do_not_overlap():
    model, loss, planted = setup()
    torch.manual_seed(1)
    squares = []
    planted = planted[:40]
    for records in (planted, crafted(model, loss, planted, clip=4.0)):
        found = vectorised_gradients(
            model, loss, *torch.utils.data.default_collate(records)
        ).detach()
        alike = nn.functional.normalize(found) @ nn.functional.normalize(found).T
        squares.append(float(alike.square().sum()) / len(found) - 1)
        norms = found.norm(dim=1)
    assert squares[1] < squares[0] / 3
    assert bool((norms > 4.0).all())


def test_gradients_one_by_one_are_those_of_all_at_once():
    """A layer that cannot be vectorised must give the same scores."""
    model, loss, planted = setup()
    chunk = Chunk.of(torch.utils.data.default_collate(planted[:5]), 5)
    expected = vectorised_gradients(model, loss, *chunk.arguments)

    def stubborn(x, y):
        if not bool((x == x).all()):  # a decision by values, which vmap refuses
            raise AssertionError
        return loss(x, y)

    with pytest.raises(RuntimeError):
        vectorised_gradients(model, stubborn, *chunk.arguments)
    torch.testing.assert_close(gradients_of(model, stubborn, chunk), expected)


class Private:
    """Records that may be counted and whose shape is declared, and no more."""

    example_input = torch.zeros(1, SIZE), torch.zeros(1, dtype=torch.long)

    def __init__(self):
        self.read = set()

    def __len__(self):
        return 300

    def __getitem__(self, index):
        self.read.add(index)
        return torch.full((SIZE,), torch.nan), 1


def test_private_records_are_not_beside_canaries_that_are_records(monkeypatch):
    model, loss, planted = setup()
    data, plan = Private(), dpfy.dpsgd(rate=0.5, records=100, steps=2, noise_multiplier=8.0)
    with pytest.raises(InvalidArgument, match="public or synthetic"):
        audit_run(
            model,
            torch.optim.SGD(model.parameters(), lr=0.5),
            data,
            plan,
            loss,
            1e-5,
            canaries=planted,
        )
    with pytest.raises(
        InvalidArgument, match="Expected confidence"
    ):  # before the run, not after it
        audit_run(
            model,
            torch.optim.SGD(model.parameters(), lr=0.5),
            data,
            plan,
            loss,
            1e-5,
            confidence=1.5,
        )
    assert not data.read
    config = dpfy.TrainConfig(
        data="own",
        records=300,
        batch_size=150,
        epochs=1,
        learning_rate=0.1,
        clip=1.0,
        epsilon=3.0,
        delta=1e-3,
    )
    trainer = dpfy.Trainer(config, model=model, train=data)
    monkeypatch.setattr("dpfy.auditing.audit.Trainer", lambda settings: trainer)
    found = audit_settings(config, kind="mislabelled", canaries=60)
    assert not data.read and not found.refuted and found.canaries == 60


def test_kinds_and_attacks_that_do_not_exist_are_refused():
    model, loss, _ = setup()
    plan = dpfy.dpsgd(rate=0.5, records=100, steps=2, noise_multiplier=8.0)
    with pytest.raises(InvalidArgument, match="no loss of the model shows them"):
        audit_run(
            model,
            torch.optim.SGD(model.parameters(), lr=0.5),
            MadeUp((SIZE,), CLASSES, 20),
            plan,
            loss,
            1e-5,
            canaries=60,
            attack="black-box",
        )
    with pytest.raises(InvalidArgument, match="attack='grey-box'"):
        audit_run(
            model,
            torch.optim.SGD(model.parameters(), lr=0.5),
            MadeUp((SIZE,), CLASSES, 20),
            plan,
            loss,
            1e-5,
            canaries=60,
            attack="grey-box",
        )
    with pytest.raises(InvalidArgument, match="kind='blank'"):
        audit_settings(dpfy.TrainConfig(epochs=1), kind="blank")
    with pytest.raises(InvalidArgument, match="at least 50 canaries"):
        audit_settings(dpfy.TrainConfig(epochs=1), kind="crafted", canaries=10)


@pytest.mark.parametrize(
    ("settings", "kind", "says"),
    [
        ({"clipping": "quantile"}, "gradient", "no ledger would say so"),
        ({"noise_schedule": "norm"}, "gradient", "norm_noise"),
        ({"algorithm": "line_search"}, "crafted", "algorithm='dpsgd'"),
        ({"groups": "layer"}, "gradient", "groups='flat'"),
        ({"private_metrics": True}, "gradient", "private_metrics"),
    ],
)
def test_settings_of_which_an_audit_would_show_too_much_are_refused(
    settings, kind, says, monkeypatch
):
    """Fails if a bound that follows private records steers what canaries show, or if other steps
    are audited.
    """
    config = dpfy.TrainConfig(
        data="own",
        records=300,
        batch_size=150,
        epochs=1,
        learning_rate=0.1,
        clip=1.0,
        epsilon=3.0,
        delta=1e-3,
        **settings,
    )
    trainer = dpfy.Trainer(config, model=setup()[0], train=Private())
    monkeypatch.setattr("dpfy.auditing.audit.Trainer", lambda settings: trainer)
    with pytest.raises(InvalidArgument, match=says):
        audit_settings(config, kind=kind, canaries=60)


def test_canaries_that_share_a_bound_which_follows_them_are_no_trials():
    fixed = dpfy.dpsgd(rate=0.5, records=100, steps=2, noise_multiplier=8.0)
    follows = replace(fixed, controllers=(QuantileClipping(),))
    canaries = GradientCanaries(coins(60, key=1))
    assert canaries.threshold(fixed) == 1 / 100 and canaries.threshold(follows) is None


def test_a_plan_under_a_filter_is_audited_with_canaries_alone(monkeypatch):
    config = dpfy.TrainConfig(
        data="own",
        records=300,
        batch_size=30,
        epochs=0.5,
        learning_rate=0.1,
        clip=1.0,
        epsilon=3.0,
        delta=1e-3,
        sampling="importance",
        importance={"norm_sum": "released"},
    )
    trainer = dpfy.Trainer(config, model=setup()[0], train=Private())
    monkeypatch.setattr("dpfy.auditing.audit.Trainer", lambda settings: trainer)
    found = audit_settings(config, kind="mislabelled", canaries=60)
    assert not found.refuted and 0 < found.epsilon_claimed <= 3.0 and found.delta == 1e-3


def test_patterns_that_cannot_be_made_up_are_told():
    from dpfy.auditing.inputs import shape_of

    assert shape_of((torch.zeros(3, 2), 1)) == (3, 2)
    for record in ((torch.zeros(3, dtype=torch.int64), 1), torch.zeros(3), ("text", 1)):
        with pytest.raises(InvalidArgument, match="Give audit_run your own"):
            shape_of(record)


def test_kind_and_attack_reach_the_run_from_the_command_line(tmp_path, capfd):
    """Fails if a flag is dropped on the way, or if the page shows bounds that such canaries do not
    have.
    """
    with pytest.raises(SystemExit) as stopped:
        main(
            [
                "audit",
                "--kind",
                "mislabelled",
                "--attack",
                "black-box",
                "--epochs",
                "1",
                "--canaries",
                "60",
                "--out",
                str(tmp_path),
            ]
        )
    out = capfd.readouterr().out
    assert (
        not stopped.value.code
        and "attack: input canaries, black box" in out
        and "trials" not in out
    )
    page = (tmp_path / "audit.html").read_text()
    assert page.count("<svg") == 2 and "Clopper" not in page
    assert json.loads((tmp_path / "audit.json").read_text())["canaries"] == 60
