"""A search: what is released, what is counted, and what stays secret."""

import json
import math
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
import dpfy.tuning.folder
import dpfy.tuning.search as searching
from dpfy.accounting import EnvelopeGuard
from dpfy.errors import (
    InvalidArgument,
    LedgerMismatch,
    LedgerWriteFailed,
    MissingExtra,
    TrainingInterrupted,
)
from dpfy.ledger.composite_events import Composed
from dpfy.ledger.events import NonPrivate
from dpfy.ledger.selection import Selected
from dpfy.reporting.numbers import epsilon_text
from dpfy.tuning import Choice, Space, TuneConfig, Uniform, resume_tuning, tune
from dpfy.tuning.trial import Outcome

SPACE = Space({"learning_rate": Uniform(0.05, 2.0, log=True), "clip": Choice((0.5, 1.0))})


def blobs(n, seed):
    """Two classes that a line separates."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=generator)
    return TensorDataset(torch.randn(n, 4, generator=generator) + 2.0 * y.unsqueeze(1), y)


DATA = {"train": blobs(200, 1), "test": blobs(200, 2)}


def line():
    return nn.Linear(4, 2)


def config(folder, name="a", base=None, **values):
    settings = dpfy.TrainConfig(
        **{
            "out": str(folder),
            "name": name,
            "records": 200,
            "batch_size": 100,
            "epochs": 1,
            "data": "blobs",
            "delta": 1e-3,
            "sampling": "full",
            **(base or {}),
        }
    )
    return TuneConfig(**{"base": settings, "space": SPACE, "epsilon": 3.0, "trials": 3, **values})


class Words:
    """A report that says nothing, in the place of one that takes seconds."""

    class costs:
        class headline:
            interval = None

    def write(self, folder):
        pass


@pytest.fixture
def quick(monkeypatch):
    """Selections of a known number of trials, with a given noise and without a report."""
    monkeypatch.setattr(searching, "calibrate_envelope", lambda *_, **__: 3.0)
    monkeypatch.setattr(
        searching, "EnvelopeGuard", lambda all, _, relation: EnvelopeGuard(all, None, relation)
    )
    monkeypatch.setattr(dpfy.tuning.folder, "report", lambda *_: Words())
    return lambda number: monkeypatch.setattr(searching, "draw_trials", lambda law, stream: number)


@pytest.fixture(scope="module")
def selected(tmp_path_factory):
    """A whole selection, calibrated and reported."""
    told = []
    found = tune(
        config(tmp_path_factory.mktemp("selection")),
        model=line,
        **DATA,
        tell=lambda *now: told.append(now),
    )
    assert not told  # a bar that moved would count trials
    return found


def test_the_claim_covers_the_search_and_uses_the_budget(selected):
    ledger = dpfy.Ledger.read(selected.folder / "ledger.dpl")
    assert selected.with_tuning == dpfy.account(ledger).claim(1e-3)
    assert 2.95 < selected.with_tuning <= 3.0
    (use,) = ledger.uses
    assert isinstance(use.event, Selected) and selected.final_run == dpfy.account(
        use.event.run
    ).claim(1e-3)
    assert selected.final_run < selected.with_tuning


def test_the_report_says_what_is_covered(selected):
    text = (selected.folder / "report.md").read_text()
    assert "secret number of independent trials" in text and "The final run only" in text
    assert "The choice is covered" in text and f"({epsilon_text(selected.final_run)}, 1e-3)" in text
    covers = [
        each["covers"]
        for each in json.loads((selected.folder / "tuning.json").read_text())["guarantees"]
    ]
    assert covers[0].startswith("the search") and covers[1].startswith("the final run only")
    assert json.loads((selected.folder / "tuning.json").read_text())["trials"] is None


def test_the_number_of_trials_leaves_no_trace(tmp_path, quick, capfd):
    """Fails if a trial prints, writes a file or a line, or if the result tells how many there
    were.
    """
    traces = []
    for number in (1, 4):
        quick(number)
        found = tune(config(tmp_path, f"of-{number}"), model=line, **DATA)
        ledger = dpfy.Ledger.read(found.folder / "ledger.dpl")
        result = json.loads((found.folder / "tuning.json").read_text())
        assert set(result["settings"]) == set(SPACE.settings)
        traces.append(
            (
                sorted(path.name for path in found.folder.iterdir()),
                ledger.lines,
                ledger.uses,
                sorted(result),
                result["guarantees"],
            )
        )
    assert traces[0] == traces[1]
    assert capfd.readouterr() == ("", "")


def test_a_failed_trial_is_an_outcome_that_is_not_drawn_again(tmp_path, quick):
    quick(4)
    calls = []

    def sometimes():
        calls.append(1)
        if len(calls) in (2, 3):  # the first is the check before the search
            raise RuntimeError("of one record")
        return line()

    found = tune(config(tmp_path), model=sometimes, **DATA)
    assert len(calls) == 1 + 4 and found.failure is None
    assert (found.folder / "model.safetensors").exists()


def test_if_all_fail_the_failure_is_what_is_released(tmp_path, quick):
    quick(2)
    made = []

    def once():
        made.append(1)
        if len(made) > 1:
            raise RuntimeError("of one record")
        return line()

    found = tune(config(tmp_path), model=once, **DATA)
    assert found.failure == "RuntimeError" and set(found.settings) == set(SPACE.settings)
    assert not (found.folder / "model.safetensors").exists()
    assert "of one record" not in "".join(path.read_text() for path in found.folder.glob("*.json"))


def test_no_trial_releases_nothing(tmp_path, quick):
    quick(0)
    found = tune(config(tmp_path, law="poisson"), model=line, **DATA)
    assert found.settings is None and not (found.folder / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("scores", "best"), [((0.2, 0.9, 0.4), 1), ((0.5, 0.5, 0.1), 0), ((-math.inf, 0.1, 0.0), 1)]
)
def test_the_best_trial_is_released_and_of_equals_the_first(
    tmp_path, quick, monkeypatch, scores, best
):
    quick(len(scores))
    models = [line() for _ in scores]
    outcomes = iter(
        [
            Outcome({"clip": place + 1.0}, score, model)
            for place, (score, model) in enumerate(zip(scores, models, strict=True))
        ]
    )
    monkeypatch.setattr(searching, "try_settings", lambda *_: next(outcomes))
    found = tune(config(tmp_path, space=Space({"clip": Choice((1.0,))})), model=line, **DATA)
    assert found.settings == {"clip": best + 1.0}
    assert torch.equal(load_file(found.folder / "model.safetensors")["weight"], models[best].weight)


def test_an_interrupted_selection_charges_every_trial_and_cannot_go_on(
    tmp_path, quick, monkeypatch
):
    quick(5)

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(searching, "try_settings", stop)
    with pytest.raises(TrainingInterrupted, match="Every trial is charged"):
        tune(config(tmp_path), model=line, **DATA)
    _, charge = dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl").uses
    assert isinstance(charge.event, Composed) and charge.event.times == (5,)
    with pytest.raises(InvalidArgument, match="cannot go on"):
        resume_tuning(tmp_path / "a", model=line, **DATA)


def test_a_selection_whose_process_was_lost_is_charged_when_it_is_asked_to_go_on(
    tmp_path, quick, monkeypatch
):
    """Fails if nobody can get from a ledger that claims nothing to one that says what holds."""
    quick(3)
    with monkeypatch.context() as patched:
        patched.setattr(
            searching, "try_settings", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        patched.setattr(
            searching.Selection, "__exit__", lambda *_: None
        )  # as if it had been killed
        with pytest.raises(TrainingInterrupted):
            tune(config(tmp_path), model=line, **DATA)
    lost = dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl").uses
    assert isinstance(lost[-1].event, NonPrivate) and list((tmp_path / "a").glob("*.sealed"))
    with pytest.raises(InvalidArgument, match="says what holds"):
        resume_tuning(tmp_path / "a", model=line, **DATA)
    _, charge = dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl").uses
    assert charge.event.times == (3,) and not list((tmp_path / "a").glob("*.sealed"))


def test_what_goes_wrong_with_the_ledger_is_no_outcome(tmp_path, quick, monkeypatch):
    """Fails if a trial that could not be recorded were scored like any other."""
    quick(2)
    error = LedgerWriteFailed("no space left")
    monkeypatch.setattr(
        "dpfy.tuning.trial.privatize", lambda *_, **__: (_ for _ in ()).throw(error)
    )
    with pytest.raises(LedgerWriteFailed):
        tune(config(tmp_path), model=line, **DATA)


def test_trials_take_the_noise_of_the_search_and_calibrate_none(tmp_path, quick, monkeypatch):
    """Fails if each trial computes a noise of its own, which takes seconds and is thrown away."""
    quick(3)
    calls, calibrate = [], dpfy.Plan.calibrate
    monkeypatch.setattr(
        dpfy.Plan,
        "calibrate",
        lambda *given, **named: calls.append(1) or calibrate(*given, **named),
    )
    found = tune(config(tmp_path), model=line, **DATA)
    assert len(calls) == 1  # before the search, which settles delta
    assert found.failure is None and (found.folder / "model.safetensors").exists()


def test_a_trial_with_less_noise_than_declared_is_refused(tmp_path, quick, monkeypatch):
    quick(1)
    tried = searching.try_settings
    monkeypatch.setattr(
        searching,
        "try_settings",
        lambda base, settings, noise, *rest: tried(base, settings, noise / 2, *rest),
    )
    with pytest.raises(LedgerMismatch, match="declared"):
        tune(config(tmp_path), model=line, **DATA)


def test_a_composition_goes_on_after_an_interruption(tmp_path, monkeypatch):
    """Fails if the lost trial is repeated for free, if a kept one is forgotten, or if the claim
    leaves trials out.
    """
    tried, begun = searching.try_settings, []

    def interrupted(*arguments):
        begun.append(1)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return tried(*arguments)

    monkeypatch.setattr(searching, "try_settings", interrupted)
    declared = config(tmp_path, accounting="compose", trials=4)
    with pytest.raises(TrainingInterrupted, match="--resume"):
        tune(declared, model=line, **DATA)
    told = []
    found = resume_tuning(tmp_path / "a", model=line, **DATA, tell=lambda *now: told.append(now))
    assert told == [(2, 4), (3, 4), (4, 4)]
    assert [trial["trial"] for trial in found.trials] == [1, 3, 4]
    best = max(found.trials, key=lambda trial: trial["score"])
    assert found.settings == best["settings"] and found.accuracy == best["score"]
    (use,) = dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl").uses
    assert use.times == 4 and 2.95 < found.with_tuning <= 3.0
    assert not list(found.folder.glob("trial-*"))
    with pytest.raises(InvalidArgument, match="has ended"):
        resume_tuning(tmp_path / "a", model=line, **DATA)


def test_the_best_model_survives_an_interruption(tmp_path, quick, monkeypatch):
    models = [line(), line()]
    outcomes = iter(
        [
            Outcome({"clip": 1.0}, 0.9, models[0]),
            KeyboardInterrupt,
            Outcome({"clip": 0.5}, 0.2, models[1]),
        ]
    )

    def next_outcome(*_):
        found = next(outcomes)
        if found is KeyboardInterrupt:
            raise found
        return found

    monkeypatch.setattr(searching, "try_settings", next_outcome)
    with pytest.raises(TrainingInterrupted):
        tune(config(tmp_path, accounting="compose"), model=line, **DATA)
    found = resume_tuning(tmp_path / "a", model=line, **DATA)
    assert found.settings == {"clip": 1.0}
    assert torch.equal(load_file(found.folder / "model.safetensors")["weight"], models[0].weight)


def test_private_scores_are_part_of_what_a_trial_pays_for(tmp_path, quick):
    """Fails if a score looks at records outside of a release: there is no public data here, and the
    events say more.
    """
    quick(2)
    with pytest.raises(InvalidArgument, match="score='private'"):
        tune(config(tmp_path), model=line, train=DATA["train"])
    tune(config(tmp_path, "private", score="private"), model=line, train=DATA["train"])
    tune(config(tmp_path, "public"), model=line, **DATA)
    private, public = (
        dpfy.Ledger.read(tmp_path / name / "ledger.dpl").uses[0].event.run
        for name in ("private", "public")
    )
    assert len(private.events[0].queries) == len(public.events[0].queries) + 2


def test_plans_that_choose_their_noise_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="declared before they run"):
        tune(
            config(tmp_path, base={"noise_schedule": "validation:0.9", "sampling": "poisson"}),
            model=line,
            **DATA,
        )
    assert not list(tmp_path.iterdir())


def test_delta_by_the_number_of_records_is_settled_once(tmp_path, quick, capfd):
    quick(3)
    found = tune(
        replace(declared := config(tmp_path), base=replace(declared.base, delta="auto")),
        model=line,
        **DATA,
    )
    assert found.delta == pytest.approx(200**-1.1)
    assert capfd.readouterr().out.count("delta=") == 1  # not once for each trial


def test_bayesian_proposals_need_their_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"dpfy\[tune\]"):
        tune(config(tmp_path, accounting="compose", proposals="bayesian"), model=line, **DATA)
    assert not list(tmp_path.iterdir())


def test_bayesian_proposals_learn_from_trials_of_an_earlier_process():
    pytest.importorskip("optuna")
    from dpfy.tuning.proposals import Bayesian

    proposals = Bayesian(Space({"momentum": Uniform(0.0, 0.9)}), seed=1, storage=None, name="a")
    for place in range(40):
        proposals.learn(
            {"momentum": place / 50}, -abs(place / 50 - 0.4) if place % 10 else -math.inf
        )
    found = []
    for _ in range(20):
        settings = proposals.propose()
        found.append(settings["momentum"])
        proposals.learn(settings, -abs(settings["momentum"] - 0.4))
    assert (
        abs(sorted(found)[10] - 0.4) < 0.15
    )  # the median of uniform draws is 0.45, half of them farther than 0.22


def test_a_search_of_version_0_1_is_resumed(tmp_path, quick, monkeypatch):
    """Its folder and its ledger have the old names of settings, and nobody is told about them."""
    tried, begun = searching.try_settings, []

    def interrupted(*arguments):
        begun.append(1)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return tried(*arguments)

    monkeypatch.setattr(searching, "try_settings", interrupted)
    with pytest.warns(DeprecationWarning, match="the setting schedule"):
        space = Space({"schedule": Choice(("cosine", "linear"))})
    with pytest.raises(TrainingInterrupted):
        tune(config(tmp_path, accounting="compose", space=space), model=line, **DATA)
    file = tmp_path / "a" / "search.json"
    saved = json.loads(file.read_text())
    base = saved["search"]["base"]
    base |= {"schedule": base.pop("lr_schedule"), **base.pop("importance")}
    file.write_text(json.dumps(saved))
    found = resume_tuning(tmp_path / "a", model=line, **DATA)
    settings = json.loads((tmp_path / "a" / "settings.json").read_text())
    assert found.failure is None and settings["lr_schedule"] == found.settings["schedule"]
