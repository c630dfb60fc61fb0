"""Nine architectures, trained whole or by adapters: the fast engine, and the right gradients."""

import pytest
import torch
from against_oracle import Strict, Subject, assert_agrees, shaken, trained_of
from hf_models import ARCHITECTURES, Records, with_lora

from dpfy.gradients import LoopEngine
from dpfy.integrations.huggingface import private_loss, require_gradients
from dpfy.mechanisms.clipping import clip_to

FORMS = ("full", "LoRA", "LoRA with dropout")
CASES = [(name, form) for name in ARCHITECTURES for form in FORMS]


def made(name, form, **settings):
    architecture = ARCHITECTURES[name]
    model = architecture.make(**settings)
    if form == "full":
        return model
    return with_lora(architecture, model, dropout=0.1 if "dropout" in form else 0.0)


def positional(names, task, **options):
    """The loss as a function of fields, for helpers that know no dicts."""

    def loss_of(model):
        loss = private_loss(model, task, **options)
        return lambda *fields: loss(dict(zip(names, fields, strict=True)))

    return loss_of


@pytest.mark.parametrize("name, form", CASES)
def test_auto_chooses_the_fast_engine(started, name, form):
    """In training mode, with dropout in the model and in its attention."""
    model, architecture = made(name, form), ARCHITECTURES[name]
    batch, loss = architecture.batch(), private_loss(model, architecture.task)
    s = started(Records(batch), model=model)
    released = s.run.release(loss, next(iter(s.run)))
    # T5 looks its relative positions up once for all records, for which there is no rule
    assert s.run.engine == ("vmap" if (name, form) == ("t5", "full") else "bookkeeping")
    assert set(released.gradients) == set(trained_of(model))
    require_gradients(model, loss, batch)


@pytest.mark.parametrize(
    "name, form", [case for case in CASES if case[1] != FORMS[2] and case != ("t5", "full")]
)
def test_sums_are_those_of_one_record_at_a_time(name, form):
    """Without dropout, which the engines would draw in another order."""
    architecture = ARCHITECTURES[name]
    batch = architecture.batch()
    fields = tuple(each.double() if each.is_floating_point() else each for each in batch.values())
    assert_agrees(
        lambda: made(name, form).eval(),
        fields,
        dtype=torch.float32,
        loss=positional([*batch], architecture.task),
    )


WITHOUT_DROPOUT = {
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}


def sums(engine, model, batch, loss):
    """Clipped sums as one vector; every record is clipped."""
    fields = tuple(batch.values())
    subject = (
        Subject.prepared(model, fields, engine=engine, loss=loss)
        if engine is Strict
        else Subject(engine(model, trained_of(model)), loss(model))
    )
    return torch.cat([total.flatten() for total in subject.sums(fields, clip_to(1e-2))])


@pytest.mark.parametrize("form", FORMS[:2])
@pytest.mark.parametrize("name", WITHOUT_DROPOUT)
def test_short_floats_inside_the_loss(name, form):
    model = shaken(made(name, form, **WITHOUT_DROPOUT[name]))
    batch, task = ARCHITECTURES[name].batch(), ARCHITECTURES[name].task
    loss = positional([*batch], task, autocast=torch.bfloat16)
    assert loss(model)(*batch.values()).dtype == torch.float32
    found, expected = (sums(engine, model, batch, loss) for engine in (Strict, LoopEngine))
    wide = sums(LoopEngine, model, batch, positional([*batch], task))
    assert (expected - wide).norm() > 0  # it did compute in short floats
    assert (found - expected).norm() <= 0.04 * expected.norm()


@pytest.mark.parametrize("form", FORMS[:2])
@pytest.mark.parametrize("name", WITHOUT_DROPOUT)
def test_activations_that_are_computed_again(name, form, monkeypatch):
    model = shaken(made(name, form, **WITHOUT_DROPOUT[name]))
    batch = ARCHITECTURES[name].batch()
    loss = positional([*batch], ARCHITECTURES[name].task)
    calls, attention = [], torch.nn.functional.scaled_dot_product_attention

    def counted(*args, **kwargs):
        calls.append(1)
        return attention(*args, **kwargs)

    before = sums(Strict, model, batch, loss)
    model.gradient_checkpointing_enable()
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    loss(model)(*batch.values()).sum().backward()
    assert len(calls) == 2 * 2  # two layers, twice each
    torch.testing.assert_close(sums(Strict, model, batch, loss), before, rtol=1e-5, atol=1e-8)
    oracle = sums(LoopEngine, model, batch, loss)
    assert (before - oracle).norm() <= 1e-4 * oracle.norm()
