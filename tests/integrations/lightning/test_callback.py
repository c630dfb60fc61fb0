"""Lightning's loop takes the steps of a plan, and sees nothing else of the records."""

import math
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from tests.integrations.lightning.classifiers import Classifier, Validated, plan, records, weights
from torch.utils.data import DataLoader, TensorDataset

import dpfy
from dpfy.checks.loss_state import Reader
from dpfy.errors import BatchAlreadyReleased, InvalidArgument, LossError, UnreleasedGradient
from dpfy.integrations.lightning import PrivateTraining

KEY = 11


def plain_loop(ledger: Path, module: Classifier, loss=None, **options) -> Classifier:
    """Train the module without Lightning, by the loop of the documentation."""
    made = module.configure_optimizers()
    opt, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
    with dpfy.privatize(
        module, opt, records(), plan(), ledger, insecure_test_key=KEY, **options
    ) as run:
        for batch in run:
            opt.zero_grad()
            run.backward(loss or module.per_example_loss, batch)
            opt.step()
            schedule.step()
    return module


def private(folder: Path, name: str = "run.dpl", **options) -> PrivateTraining:
    options = {"plan": plan(), "data": records(), **options}
    return PrivateTraining(options.pop("plan"), folder / name, options.pop("data"), **options)


def test_weights_and_schedule_are_those_of_the_plain_loop(tmp_path, trainer) -> None:
    expected = weights(plain_loop(tmp_path / "plain.dpl", Classifier()))
    module, callback = Classifier(), private(tmp_path, insecure_test_key=KEY)
    initial, rates = weights(module), []

    class Rates(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            rates.append(module.optimizers().param_groups[0]["lr"])

    fit = trainer(callback, Rates())
    fit.fit(module, callback.steps)
    for name, value in weights(module).items():
        assert not torch.equal(value, initial[name])
        assert torch.equal(value, expected[name]), name
    assert fit.global_step == 9
    assert callback.run.engine == "bookkeeping"  # what changes in a trainer is not probed again
    assert rates == pytest.approx([0.5 - 0.05 * step for step in range(1, 10)])


def test_bf16_of_the_trainer_is_autocast_around_the_loss(tmp_path, trainer) -> None:
    module, callback = Classifier(), private(tmp_path, insecure_test_key=KEY)

    reference = Classifier()

    def loss(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return reference.per_example_loss(x, y)

    expected = weights(plain_loop(tmp_path / "plain.dpl", reference, loss))
    in_float32 = weights(plain_loop(tmp_path / "float32.dpl", Classifier()))
    trainer(callback, precision="bf16-mixed").fit(module, callback.steps)
    found = weights(module)
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert any(not torch.equal(found[name], in_float32[name]) for name in found)


FACTOR = 1.0


def test_loss_under_autocast_is_judged_again_when_what_it_reads_changes(tmp_path, trainer) -> None:
    class Scaled(Classifier):
        def per_example_loss(self, x, y):
            return super().per_example_loss(x, y) * FACTOR

    module, callback = Scaled(), private(tmp_path)
    fit = trainer(callback, max_steps=1, precision="bf16-mixed")
    losses = []

    class Keeps(pl.Callback):
        def on_train_start(self, trainer, module):
            losses.append(callback._loss)

    fit.callbacks.append(Keeps())
    fit.fit(module, callback.steps)
    assert any("FACTOR" in way for way in Reader(module).read(losses[0]))


def test_module_is_its_own_again_after_the_fit(tmp_path, trainer) -> None:
    module, callback = Classifier(), private(tmp_path)
    before = set(vars(module))
    trainer(callback).fit(module, callback.steps)
    assert not {"training_step", "backward", "log", "log_dict"} & set(vars(module))
    assert before - set(vars(module)) == set()
    opt = torch.optim.SGD(module.parameters(), lr=0.1)
    module.zero_grad()
    module.per_example_loss(*records(4).tensors).mean().backward()
    opt.step()  # the gate is gone


def test_module_is_its_own_again_after_an_error(tmp_path, trainer) -> None:
    class Fails(Classifier):
        def on_train_batch_end(self, outputs, batch, index):
            raise RuntimeError("stop here")

    module, callback = Fails(), private(tmp_path)
    with pytest.raises(RuntimeError, match="stop here"):
        trainer(callback).fit(module, callback.steps)
    assert "training_step" not in vars(module)
    assert dpfy.Ledger.read(tmp_path / "run.dpl").count == 1


def test_training_stops_where_the_plan_ends(tmp_path, trainer) -> None:
    callback = private(tmp_path, plan=plan(steps=6))  # in the middle of the second epoch
    fit = trainer(callback, max_epochs=100)
    fit.fit(Classifier(), callback.steps)
    assert (fit.global_step, fit.current_epoch) == (6, 2)
    assert dpfy.Ledger.read(tmp_path / "run.dpl").count == 6
    assert callback.run.steps_left == 0
    assert callback.spent(1e-5) == pytest.approx(dpfy.account(plan(steps=6)).claim(1e-5))


def test_training_stops_where_the_filter_has_no_more_room(tmp_path, trainer) -> None:
    adaptive = dpfy.dpsgd(
        records=120, batch_size=30, steps=12, controllers=[dpfy.ValidationDecay(factor=0.5)]
    ).calibrate(epsilon=3.0, delta=1e-5)

    class Measures(Classifier):
        def on_train_batch_end(self, outputs, batch, index):
            callback.run.measured(0.5)  # never rises, so that the noise falls and falls

    callback = private(tmp_path, plan=adaptive)
    fit = trainer(callback)
    fit.fit(Measures(), callback.steps)
    assert 0 < fit.global_step < 12
    assert callback.run.exhausted
    assert dpfy.Ledger.read(tmp_path / "run.dpl").count == fit.global_step


def test_a_shorter_fit_leaves_the_rest_of_the_plan(tmp_path, trainer) -> None:
    callback = private(tmp_path)
    trainer(callback, max_steps=2).fit(Classifier(), callback.steps)
    assert callback.run.steps_left == 7
    assert dpfy.Ledger.read(tmp_path / "run.dpl").count == 2


def test_more_steps_than_the_plan_has_are_refused(tmp_path, trainer) -> None:
    callback = private(tmp_path, plan=plan(steps=2))
    with pytest.raises(InvalidArgument, match=r"plan of 2 steps has none left.*min_steps"):
        trainer(callback, min_steps=5).fit(Classifier(), callback.steps)
    assert dpfy.Ledger.read(tmp_path / "run.dpl").count == 2


class Manual(Classifier):
    """Two optimizers, stepped by hand: one release fills the gradients of both."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.releases = 1

    def configure_optimizers(self):
        return (
            torch.optim.SGD(self.body.parameters(), lr=0.5),
            torch.optim.Adam(self.head.parameters(), lr=0.05),
        )

    def training_step(self, step, index):
        self.zero_grad()
        for _ in range(self.releases):
            step.backward()
        for optimizer in self.optimizers():
            optimizer.step()


def test_two_optimizers_are_stepped_by_hand(tmp_path, trainer) -> None:
    reference = Manual()
    first, second = reference.configure_optimizers()
    with dpfy.privatize(
        reference, [first, second], records(), plan(), tmp_path / "plain", insecure_test_key=KEY
    ) as run:
        for batch in run:
            reference.zero_grad()
            run.backward(reference.per_example_loss, batch)
            first.step()
            second.step()
    module, callback = Manual(), private(tmp_path, insecure_test_key=KEY)
    fit = trainer(callback)
    fit.fit(module, callback.steps)
    assert dpfy.Ledger.read(tmp_path / "run.dpl").count == 9
    expected, found = weights(reference), weights(module)
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_a_step_is_released_once(tmp_path, trainer) -> None:
    module, callback = Manual(), private(tmp_path)
    module.releases = 2
    with pytest.raises(BatchAlreadyReleased):
        trainer(callback).fit(module, callback.steps)


def test_a_gradient_of_the_modules_own_is_refused(tmp_path, trainer) -> None:
    class Raw(Manual):
        def training_step(self, step, index):
            self.zero_grad()
            self.per_example_loss(*records(4).tensors).mean().backward()
            self.optimizers()[0].step()

    callback = private(tmp_path)
    with pytest.raises(UnreleasedGradient):
        trainer(callback).fit(Raw(), callback.steps)


def test_released_gradients_may_be_clipped_in_the_open(tmp_path, trainer) -> None:
    norms = []

    class Clipped(Classifier):
        def configure_gradient_clipping(self, optimizer, **options):
            with callback.run.postprocessing():
                torch.nn.utils.clip_grad_norm_(self.parameters(), 1e-3)
            norms.append(math.hypot(*(float(p.grad.norm()) for p in self.parameters())))

    module, callback = Clipped(), private(tmp_path)
    trainer(callback).fit(module, callback.steps)
    assert len(norms) == 9 and max(norms) < 1.01e-3


def test_users_are_the_unit(tmp_path, trainer) -> None:
    by_user = dpfy.dpsgd(records=40, batch_size=10, steps=4, noise_multiplier=1.0, unit="user")
    callback = private(tmp_path, plan=by_user, unit_of=[i % 40 for i in range(120)])
    trainer(callback).fit(Classifier(), callback.steps)
    assert dpfy.Ledger.read(tmp_path / "run.dpl").header.unit == "user"


# Nothing private gets out


class Spy(pl.Callback):
    """Keeps all that the trainer hands to a callback in a step."""

    def __init__(self) -> None:
        self.outputs, self.batches, self.losses = [], [], []

    def on_before_backward(self, trainer, module, loss):
        self.losses.append(float(loss))

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.outputs.append(outputs)
        self.batches.append(batch)


def everything(module, callback, fit, folder) -> tuple[list[str], list[float]]:
    """Train with loggers, a progress bar, checkpoints and a spy; return what all of them saw."""
    spy = Spy()
    folder.mkdir()
    bar = TQDMProgressBar()
    saved = ModelCheckpoint(folder / "saved", every_n_train_steps=3, save_top_k=-1)
    made = fit(
        callback,
        spy,
        bar,
        saved,
        logger=CSVLogger(folder),
        log_every_n_steps=1,
        enable_checkpointing=True,
        enable_progress_bar=True,
    )
    made.fit(module, callback.steps)
    names = sorted({*made.logged_metrics, *made.callback_metrics, *made.progress_bar_metrics})
    names += sorted(set(bar.get_metrics(made, module)) - {"v_num"})  # the logger's version
    assert all(batch.__dict__.keys() <= {"_callback", "_batch"} for batch in spy.batches)
    outputs = [float(value) for each in spy.outputs for value in each.values()]
    return names, outputs + spy.losses


def test_trainer_loggers_and_callbacks_see_nothing_of_the_records(tmp_path, trainer) -> None:
    names, numbers = everything(Classifier(), private(tmp_path), trainer, tmp_path / "logs")
    assert names == []
    assert set(numbers) == {0.0}


def test_checkpoints_hold_the_same_whatever_the_records_are(tmp_path, trainer) -> None:
    # Everything but released values: with noise of scale 0 these would differ, so take none of it.
    first = records()
    second = TensorDataset(first.tensors[0] * 3, 1 - first.tensors[1])
    found = []
    for number, data in enumerate((first, second)):
        folder = tmp_path / str(number)
        folder.mkdir()
        callback = private(folder, data=data)
        everything(Classifier(), callback, trainer, folder / "logs")
        file = max((folder / "logs" / "saved").glob("*.ckpt"))
        saved = torch.load(file, weights_only=True)
        for released in ("state_dict", "optimizer_states"):
            del saved[released]
        position = saved["callbacks"]["PrivateTraining"]
        assert len(position["ledger"].pop("hash")) == 64
        for state in [each for each in saved["callbacks"] if each.startswith("ModelCheckpoint")]:
            del saved["callbacks"][state]  # names of files, in folders of this test
        found.append(saved)
    assert str(found[0]) == str(found[1])


def test_loss_that_logs_is_refused(tmp_path, trainer) -> None:
    class Logs(Classifier):
        def per_example_loss(self, x, y):
            loss = super().per_example_loss(x, y)
            self.log("loss", loss.mean())
            return loss

    callback = private(tmp_path)
    with pytest.raises(LossError, match="must not log: what it sees is private"):
        trainer(callback).fit(Logs(), callback.steps)


def test_loss_that_logs_later_is_not_heard_and_still_trains(tmp_path, trainer) -> None:
    class Later(Classifier):
        late = False

        def on_train_batch_end(self, outputs, batch, index):
            self.late = index == 2

        def per_example_loss(self, x, y):
            loss = super().per_example_loss(x, y)
            if self.late:
                self.log("loss", loss.mean())
                self.log_dict({"other": loss.sum()})
            return loss

    expected = weights(plain_loop(tmp_path / "plain.dpl", Classifier()))
    module, callback = Later(), private(tmp_path, insecure_test_key=KEY)
    names, _ = everything(module, callback, trainer, tmp_path / "logs")
    assert names == []
    found = weights(module)
    assert all(torch.allclose(found[name], expected[name]) for name in found)


def test_validation_must_be_called_public(tmp_path, trainer) -> None:
    loader = DataLoader(records(20), batch_size=10)
    for options in ({}, {"num_sanity_val_steps": 0}):
        callback = private(tmp_path, f"{len(options)}.dpl")
        with pytest.raises(InvalidArgument, match="validation_is_public=True"):
            trainer(callback, **options).fit(Validated(), callback.steps, loader)
    callback = private(tmp_path, validation_is_public=True)
    fit = trainer(callback)
    fit.fit(Validated(), callback.steps, loader)
    assert fit.callback_metrics["seen"] > 0


def test_trainer_is_given_no_records(tmp_path, trainer) -> None:
    callback = private(tmp_path)
    with pytest.raises(InvalidArgument, match=r"given a DataLoader.*callback\.steps"):
        trainer(callback).fit(Classifier(), DataLoader(records(), batch_size=30))
    assert dpfy.Ledger.read(tmp_path / "run.dpl").count == 0


def test_nothing_was_spent_before_a_fit(tmp_path) -> None:
    with pytest.raises(InvalidArgument, match="call trainer"):
        private(tmp_path).spent(1e-5)


def test_a_step_outside_of_a_fit_is_refused(tmp_path, trainer) -> None:
    callback = private(tmp_path)
    assert list(callback.steps) == []
    trainer(callback, max_steps=1).fit(Classifier(), callback.steps)
    with pytest.raises(InvalidArgument, match=r"inside of trainer\.fit"):
        next(iter(callback.steps)).backward()


def test_module_without_the_loss_is_refused(tmp_path, trainer) -> None:
    class Without(Classifier):
        per_example_loss = None

    callback = private(tmp_path)
    with pytest.raises(InvalidArgument, match="Without has no method per_example_loss"):
        trainer(callback).fit(Without(), callback.steps)
    assert not (tmp_path / "run.dpl").exists()
