"""What leaves a private training in the loop of transformers, and what does not."""

import json
import logging
import math
import re
from dataclasses import replace

import pytest
import torch
import transformers as hf
from hf_trainers import (
    LENGTH,
    RECORDS,
    Sentences,
    arguments,
    small_model,
    small_plan,
    trainer,
    word_tokenizer,
)
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback

import dpfy
from dpfy.errors import DataError, InvalidArgument, UnreleasedGradient
from dpfy.integrations.huggingface import collate_to, private_loss
from dpfy.run.run import Run

RELEASED = {"grad_norm", "learning_rate", "epsilon", "epoch", "step"}


class Watch(TrainerCallback):
    """Keeps what callbacks are given."""

    def __init__(self):
        self.logs, self.rates, self.norms = [], [], []

    def on_log(self, args, state, control, logs=None, **objects):
        self.logs.append(dict(logs))

    def on_optimizer_step(self, args, state, control, optimizer=None, **objects):
        self.rates.append(optimizer.param_groups[0]["lr"])
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        self.norms.append(float(torch.nn.utils.get_total_norm(grads)))


@pytest.fixture
def told():
    """What transformers and the trainer log."""
    texts, handler = [], logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())
    loggers = [logging.getLogger(name) for name in ("transformers", "dpfy")]
    for each in loggers:
        each.addHandler(handler)
    yield texts
    hf.logging.set_verbosity_warning()
    for each in loggers:
        each.removeHandler(handler)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def own_loop(steps, autocast=None):
    """Train as the trainer should, in a loop over a run."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    collator = collate_to(word_tokenizer(), LENGTH, task="causal_lm")
    loss_fn = private_loss(model, "causal_lm", autocast=autocast)
    with dpfy.privatize(
        model,
        optimizer,
        Sentences(),
        small_plan(steps),
        dpfy.Ledger.in_memory(),
        collate_fn=collator,
        example_input=collator.example(),
        insecure_test_key=1,
    ) as run:
        for batch in run:
            optimizer.zero_grad()
            run.backward(loss_fn, batch)
            optimizer.step()
            scheduler.step()
    return weights(model)


def test_takes_the_steps_of_a_loop_over_a_run_by_the_schedule_as_written(tmp_path):
    watch = Watch()
    args = {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0}
    made = trainer(tmp_path, plan=small_plan(4), args=args, callbacks=[watch])
    made.train()
    assert torch.equal(weights(made.model), own_loop(4))
    assert watch.rates == pytest.approx([0.1, 0.075, 0.05, 0.025])
    assert made.run.optimizers == (made.optimizer.optimizer,)
    assert isinstance(made.run.optimizers[0], torch.optim.SGD)
    assert made.run.engine == "bookkeeping"


def test_neither_logs_nor_states_have_a_value_that_was_not_released(tmp_path):
    watch = Watch()
    made = trainer(tmp_path, plan=small_plan(2), callbacks=[watch])
    output = made.train()
    saved = json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())
    for logs in (*watch.logs, *saved["log_history"], *made.state.log_history):
        assert set(logs) <= RELEASED
    assert set(output.metrics) <= RELEASED
    assert math.isnan(output.training_loss)
    assert saved["total_flos"] == saved["num_input_tokens_seen"] == 0
    assert saved["best_metric"] is None


class Elsewhere(Sentences):
    """Other sentences, and fewer."""

    def __init__(self):
        super().__init__(23)

    def __getitem__(self, index):
        super().__getitem__(index)
        return {"text": "flew over the hill and then " * (1 + index % 2)}


def test_all_that_is_written_is_a_function_of_what_was_released(tmp_path, monkeypatch, capfd):
    """Where two data sets release the same, nothing else tells them apart."""
    release = Run.release

    def same(run, *given):
        released = release(run, *given)
        generator = torch.Generator().manual_seed(released.step)
        fixed = {
            name: torch.randn(each.shape, generator=generator)
            for name, each in released.gradients.items()
        }
        return replace(released, gradients=fixed)

    monkeypatch.setattr(Run, "release", same)
    found = []
    for data in (Sentences(), Elsewhere()):
        folder = tmp_path / type(data).__name__
        made = trainer(folder, plan=small_plan(3), data=data, args={"save_steps": 2, "seed": 3})
        output = made.train()
        assert data.read
        saved = {
            path.name: path.read_bytes()
            for path in (folder / "checkpoint-2").iterdir()
            if path.name not in ("dpfy.json", "training_args.bin")  # a hash with times, a folder
        }
        shown = re.sub(r"\d+\.\d+it/s", "", "".join(capfd.readouterr()))
        found.append((made.state.log_history, output.metrics, saved, shown))
    assert found[0] == found[1]
    assert {"model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"} <= set(
        found[0][2]
    )


def test_what_the_loop_takes_for_a_batch_has_no_record(tmp_path, monkeypatch):
    seen = []
    made = trainer(tmp_path, plan=small_plan(2))
    step = made.training_step
    monkeypatch.setattr(
        made, "training_step", lambda model, *given: (seen.append(given), step(model, *given))[1]
    )
    made.train()
    assert seen == [({"step": 0}, None), ({"step": 1}, None)]  # and no num_items_in_batch


def test_records_are_read_after_the_step_is_in_the_ledger(tmp_path):
    data = Sentences()
    made = trainer(tmp_path, plan=small_plan(2), data=data)
    assert data.read == []
    take = data.__class__.__getitem__

    class Late(Sentences):
        def __getitem__(self, index):
            assert dpfy.Ledger.read(tmp_path / "ledger.dpl").count > 0
            return take(self, index)

    made.train_dataset = late = Late()
    made.train()
    assert late.read


def test_private_metrics_log_the_released_loss_within_the_same_budget(tmp_path, monkeypatch):
    losses, backward = [], Run.backward

    def kept(run, *given):
        released = backward(run, *given)
        losses.append(float(released.statistics["loss"]))
        return released

    monkeypatch.setattr(Run, "backward", kept)
    plain = small_plan(3)
    made = trainer(tmp_path, plan=plain, private_metrics=True)
    output = made.train()
    logged = [each["loss"] for each in made.state.log_history if "loss" in each]
    assert logged == pytest.approx(losses, rel=1e-5)
    assert output.training_loss == pytest.approx(sum(losses) / 3, rel=1e-5)
    assert made.plan.noise_multiplier >= plain.noise_multiplier
    assert 3.9 < made.spent(1e-3).upper <= 4
    assert {query.name for query in made.plan.event.queries} == {"gradient", "loss"}


def test_a_plan_that_releases_the_loss_now_and_then_needs_no_setting(tmp_path):
    plan = small_plan(2, statistics=[dpfy.Statistic("loss", bound=4.0, every=2)])
    made = trainer(tmp_path, plan=plan, args={"logging_steps": 2})
    made.train()
    assert made.plan == plan
    (logged,) = [each["loss"] for each in made.state.log_history if "loss" in each]
    assert math.isfinite(logged) and logged != 0


class Stops(TrainerCallback):
    """Ends a training after two steps."""

    def on_step_end(self, args, state, control, **objects):
        control.should_training_stop = state.global_step == 2


def test_what_others_spent_on_the_ledger_counts(tmp_path):
    made = trainer(tmp_path, plan=small_plan(4), callbacks=[Stops()])
    made.train()
    before = made.spent(1e-3)
    guard = made.plan.guard()
    with dpfy.Ledger.open(tmp_path / "ledger.dpl", guard) as ledger:
        ledger.reserve(made.plan.event)
    assert made.spent(1e-3).upper > before.upper


def test_classifies_rows_of_a_table(tmp_path):
    """Records of ``datasets`` with more columns than the model takes."""
    import datasets

    rows = [Sentences()[index] | {"author": "somebody"} for index in range(40)]
    hf.set_seed(0)
    config = hf.BertConfig(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
    )
    made = trainer(
        tmp_path,
        model=hf.BertForSequenceClassification(config),
        plan=small_plan(2),
        data=datasets.Dataset.from_list(rows),
        eval_dataset=datasets.Dataset.from_list(rows[:3]),
        eval_is_public=True,
        data_collator=collate_to(word_tokenizer(), LENGTH),
        task="classification",
        private_metrics=True,
    )
    made.train()
    (statistic,) = made.plan.query.statistics
    assert statistic.bound == 4.0  # a guess between two labels has less
    assert made.evaluate()["eval_loss"] > 0


def test_the_norm_of_gradients_is_computed_without_writing(tmp_path):
    watch = Watch()
    made = trainer(tmp_path, plan=small_plan(2), args={"max_grad_norm": 0.0}, callbacks=[watch])
    made.train()  # the gate would refuse gradients that were multiplied, even by one
    logged = [each["grad_norm"] for each in made.state.log_history if "grad_norm" in each]
    assert [float(each) for each in logged] == pytest.approx(watch.norms)


def test_released_gradients_are_clipped_as_the_arguments_say_and_it_is_said_once(tmp_path, told):
    watch = Watch()
    made = trainer(tmp_path, plan=small_plan(3), args={"max_grad_norm": 0.5}, callbacks=[watch])
    made.train()
    assert watch.norms == pytest.approx([0.5] * 3, rel=1e-3)
    assert sum("max_grad_norm=0.5 clips the released gradient" in text for text in told) == 1


def test_a_gradient_that_was_not_released_is_refused(tmp_path):
    class Adds(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **objects):
            model.lm_head.weight.grad.add_(1.0)

    with pytest.raises(UnreleasedGradient):
        trainer(tmp_path, plan=small_plan(2), callbacks=[Adds()]).train()


def test_the_number_of_records_is_the_plans_and_not_the_datas(tmp_path, told):
    plan = small_plan(2, records=1000)
    trainer(tmp_path, plan=plan, data=Sentences(37), args={"log_level": "info"}).train()
    text = "\n".join(told)
    assert "Num examples = 1,000" in text
    assert "Total train batch size (w. parallel, distributed & accumulation) = 8" in text
    assert not re.search(r"\b37\b", text)


def test_callbacks_see_epsilon_grow_to_the_budget(tmp_path):
    watch = Watch()
    made = trainer(tmp_path, plan=small_plan(3), callbacks=[watch])
    made.train()
    seen = [each["epsilon"] for each in watch.logs]
    assert seen == sorted(seen)
    assert seen[-1] == made.spent(1e-3).upper <= 4.0


def test_training_stops_when_the_filter_has_no_room(tmp_path):
    plan = small_plan(50, controllers=[dpfy.ValidationDecay(factor=0.3, window=1)])
    made = trainer(
        tmp_path,
        plan=plan,
        eval_dataset=Sentences(4),
        eval_is_public=True,
        compute_metrics=lambda prediction: {"accuracy": 0.5},  # which does not rise
        args={
            "eval_strategy": "steps",
            "eval_steps": 1,
            "save_steps": 100,
            "metric_for_best_model": "accuracy",
            "greater_is_better": True,
        },
    )
    made.train()
    assert 0 < made.state.global_step < 50
    assert made.run.exhausted
    saved = tmp_path / f"checkpoint-{made.state.global_step}"
    assert (saved / "dpfy.json").exists() and (saved / "dpfy.safetensors").exists()


def test_a_report_is_written(tmp_path):
    made = trainer(
        tmp_path,
        plan=small_plan(2),
        eval_dataset=Sentences(4),
        eval_is_public=True,
        args={"eval_strategy": "steps", "eval_steps": 1},
    )
    with pytest.raises(InvalidArgument, match="no ledger"):
        made.spent(1e-3)
    made.train()
    written = json.loads((made.report(tmp_path / "report") / "report.json").read_text())
    facts = written["facts"]
    assert made.evaluate()["epsilon"] == made.spent(1e-3).upper  # also after the run
    assert facts["engine"] == "bookkeeping"
    assert [step for step, _ in facts["history"]] == [1, 2]
    assert facts["hyperparameters"]["learning_rate"] == 0.01
    assert written["guarantee"]["delta"] == 1e-3


def test_evaluates_public_data_between_steps_and_stops_early(tmp_path):
    made = trainer(
        tmp_path,
        plan=small_plan(6),
        eval_dataset=Sentences(4),
        eval_is_public=True,
        callbacks=[hf.EarlyStoppingCallback(1, 100.0)],  # nothing improves by that much
        args={
            "eval_strategy": "steps",
            "save_strategy": "steps",
            "eval_steps": 1,
            "save_steps": 1,
            "metric_for_best_model": "loss",
            "greater_is_better": False,
            "load_best_model_at_end": True,
        },
    )
    made.train()
    assert made.state.global_step == made.run.steps_taken == 2
    assert all("eval_loss" in each or set(each) <= RELEASED for each in made.state.log_history)


@pytest.mark.parametrize("act", ["evaluate", "predict"])
def test_data_is_not_evaluated_unless_it_is_said_to_be_public(tmp_path, act):
    data = Sentences(4)
    made = trainer(tmp_path, eval_dataset=data)
    given = () if act == "evaluate" else (data,)
    with pytest.raises(InvalidArgument, match="eval_is_public=True"):
        getattr(made, act)(*given)
    assert data.read == []


@pytest.mark.parametrize("act", ["evaluate", "predict"])
def test_the_data_of_the_training_is_never_evaluated(tmp_path, act):
    data = Sentences()
    made = trainer(tmp_path, data=data, eval_is_public=True)
    with pytest.raises(InvalidArgument, match="train_dataset, which is private"):
        getattr(made, act)(data)
    assert data.read == []


def test_searches_are_refused(tmp_path):
    made = trainer(tmp_path)
    with pytest.raises(InvalidArgument, match="dpfy tune"):
        made.hyperparameter_search()
    with pytest.raises(InvalidArgument, match="dpfy tune"):
        made.train(trial={"learning_rate": 1.0})


def test_a_loss_is_needed_and_it_is_one_per_record(tmp_path):
    with pytest.raises(InvalidArgument, match="either task="):
        trainer(tmp_path, task=None)
    with pytest.raises(InvalidArgument, match="one for each record"):
        trainer(tmp_path, compute_loss_func=lambda *given: 0)
    with pytest.raises(TypeError, match="tsk"):
        trainer(tmp_path, tsk="causal_lm")


def test_trains_by_a_loss_of_ones_own(tmp_path):
    model = small_model()
    by_task = private_loss(model, "causal_lm")
    made = trainer(
        tmp_path, model=model, plan=small_plan(2), task=None, loss_fn=lambda batch: by_task(batch)
    )
    made.train()
    other = trainer(tmp_path / "other", plan=small_plan(2))
    other.train()
    assert torch.equal(weights(made.model), weights(other.model))


def test_a_tensor_without_a_gradient_is_named_before_anything_is_spent(tmp_path):
    model = small_model()
    model.unused = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(InvalidArgument, match="unused"):
        trainer(tmp_path, model=model).train()
    assert not (tmp_path / "ledger.dpl").exists()


def test_so_it_is_where_the_data_declare_their_shape(tmp_path):
    class Declared(Sentences):
        example_input = collate_to(word_tokenizer(), LENGTH, task="causal_lm").example()

    model = small_model()
    model.unused = torch.nn.Parameter(torch.zeros(3))
    collator = collate_to(word_tokenizer(), LENGTH, task="causal_lm")
    with pytest.raises(InvalidArgument, match="unused"):
        trainer(
            tmp_path, model=model, data=Declared(), data_collator=lambda rows: collator(rows)
        ).train()


def test_a_shape_that_nobody_declares_is_asked_for(tmp_path):
    with pytest.raises(DataError, match="example_input="):
        trainer(tmp_path, data_collator=lambda rows: rows[0]).train()
    assert not (tmp_path / "ledger.dpl").exists()


@pytest.mark.parametrize("saving", [False, True], ids=["kept", "computed again"])
def test_adapters_alone_are_trained_each_of_them(tmp_path, saving):
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True)
    model = get_peft_model(small_model(), config)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    args = {"activation_checkpointing": saving}
    made = trainer(tmp_path, model=model, plan=small_plan(2), args=args)
    made.train()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if "lora_" in name}
    assert (tmp_path / "checkpoint-2" / "adapter_model.safetensors").exists()
    assert made.run.engine == "bookkeeping"


def test_bf16_is_autocast_inside_of_the_loss(tmp_path):
    args = {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0}
    made = trainer(tmp_path, plan=small_plan(2), args=args | {"bf16": True})
    made.train()
    assert torch.equal(weights(made.model), own_loop(2, autocast=torch.bfloat16))
    assert not torch.equal(weights(made.model), own_loop(2))
    assert "forward" not in vars(made.model)  # accelerate would have put one there
    assert made.accelerator.scaler is None
    assert {p.dtype for p in made.model.parameters()} == {torch.float32}


def test_activation_checkpointing_changes_nothing_but_memory(tmp_path):
    args = {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0}
    made = trainer(tmp_path, plan=small_plan(2), args=args | {"activation_checkpointing": True})
    made.train()
    assert made.model.is_activation_checkpointing
    assert made.run.engine == "bookkeeping"
    assert torch.allclose(weights(made.model), own_loop(2), atol=1e-6)


def test_no_model_is_wrapped_even_in_several_processes(tmp_path):
    made = trainer(tmp_path)
    model = small_model()
    found = made.accelerator.prepare_model(model)
    assert found is model
    assert not isinstance(found, DistributedDataParallel)
    assert made.accelerator.prepare_model.keywords == {"evaluation_mode": True}


def test_arguments_stay_as_they_are(tmp_path):
    args = arguments(tmp_path)
    before = args.to_dict()
    made = trainer(tmp_path)
    assert args.to_dict() == before
    assert made.args.max_steps == 6
    assert made.plan.records == RECORDS
