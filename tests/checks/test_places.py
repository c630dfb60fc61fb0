"""A refusal names the line that caused it, and quotes no value."""

import importlib.util

import pytest
import torch
from torch import nn

import dpfy
from dpfy.checks import places, probe
from dpfy.checks.check import check
from dpfy.checks.probe import Probe
from dpfy.gradients import BookkeepingEngine
from dpfy.gradients.chunk import Chunk

MASKS = """
import torch


def causal_mask(padding_mask):
    if padding_mask.all():
        return None
    return padding_mask


def centred(rows):
    return rows - rows.mean(0)
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A library whose masks depend on the batch, in a file of its own."""
    (tmp_path / "lib_of_masks.py").write_text(MASKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.spec_from_file_location("lib_of_masks", tmp_path / "lib_of_masks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Masked(nn.Module):
    def __init__(self, library):
        super().__init__()
        self.layer, self.library = nn.Linear(4, 2), library

    def forward(self, x):
        mask = self.library.causal_mask(x > 0)
        return self.layer(x if mask is None else x * mask)


LINE = "lib_of_masks.py:6, in causal_mask: if padding_mask.all():"


def test_explain_and_check_name_the_line_that_tracing_stopped_at(library):
    model = Masked(library)
    advice = dpfy.explain(model, torch.rand(4, 4)).advice
    assert len(advice) == 1 and f"(at {LINE})" in advice[0] and "Records are computed" in advice[0]
    probed = check(model, [("float32", (4,))]).probed
    assert any(LINE in each for each in probed.explanation.advice)
    assert all(LINE in str(each) for each in probed.parity if each.engine != "vmap")


def test_an_engine_that_is_asked_for_by_name_is_refused_with_the_line(library):
    model, rows = Masked(library), torch.rand(4, 4)
    trained = dict(model.named_parameters())
    judge = Probe(model, trained, lambda x: model(x).sum(1), Chunk((rows,), 4), declared=True)
    with pytest.raises(dpfy.IsolationError) as refused:
        judge.choose("bookkeeping")
    assert LINE in str(refused.value)


def test_a_mix_of_records_names_the_line_that_uses_it(library):
    """Losses do not show it: the mean of the batch is computed, and multiplied by zero."""
    model = nn.Linear(4, 2)
    loss = lambda x: model(x + 0 * library.centred(x)).sum(1)  # noqa: E731
    advice = dpfy.explain(model, torch.rand(4, 4), loss).advice
    assert "lib_of_masks.py:12, in centred: return rows - rows.mean(0)" in advice[0]


def test_a_loss_that_fails_names_its_line(library):
    model = nn.Linear(4, 2)

    def loss(x):
        library.causal_mask(x > 0)
        return model(x).sum(1) + nowhere  # noqa: F821

    with pytest.raises(dpfy.LossError, match=r"in loss: return model\(x\)\.sum\(1\) \+ nowhere"):
        dpfy.explain(model, torch.rand(4, 4), loss)


def test_no_value_is_shown():
    """The text of an error may quote numbers; the place has source text alone."""
    secret = 0.123456789
    try:
        raise ValueError(f"{secret}")
    except ValueError as error:
        place = places.stopped_at(error)
    assert str(secret) not in str(place) and place.function == "test_no_value_is_shown"
    assert place.text == 'raise ValueError(f"{secret}")'


def test_code_without_a_file_has_a_place_without_text():
    namespace = {}
    exec(compile("def f(x):\n    return x.nothing", "<made up>", "exec"), namespace)
    try:
        namespace["f"](1)
    except AttributeError as error:
        assert str(places.stopped_at(error)) == "<made up>:2, in f"
    assert places.at(None) == ""


def test_tracing_is_given_synthetic_records_only(library, monkeypatch):
    """Of an example that was not declared public it sees the shape and nothing else."""
    model, seen = Masked(library), []
    original = probe.refuses_tracing
    monkeypatch.setattr(
        probe, "refuses_tracing", lambda *given: seen.append(given[2]) or original(*given)
    )
    rows = Chunk((torch.full((4, 4), 77.0),), 4)
    trained = dict(model.named_parameters())
    doubt = Probe(model, trained, lambda x: model(x).sum(1), rows, declared=False).doubts()
    assert LINE in doubt(BookkeepingEngine(model, trained))
    assert seen and not any(bool((chunk.arguments[0] == 77.0).any()) for chunk in seen)
