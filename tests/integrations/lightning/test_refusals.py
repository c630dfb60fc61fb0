"""Every setting that would change what a step is, is refused with what to do instead."""

import pytest
import torch
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
)
from lightning.pytorch.plugins.precision import MixedPrecision
from tests.integrations.lightning.classifiers import Classifier, plan, records

import dpfy
from dpfy.errors import InvalidArgument
from dpfy.integrations.lightning import PrivateTraining

SCALED = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"gradient_clip_val": 1.0}, r"callback\.run\.postprocessing"),
        ({"accumulate_grad_batches": 2}, "max_physical_batch="),
        ({"strategy": "ddp", "devices": 1}, "devices=1"),
        ({"plugins": SCALED}, "'32-true' or 'bf16-mixed'"),
        ({"precision": "bf16-true"}, "'32-true' or 'bf16-mixed'"),
        ({"precision": "64-true"}, "'32-true' or 'bf16-mixed'"),
        ({"callbacks": LearningRateFinder()}, "dpfy tune"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_setting_is_refused_before_a_record_is_read(tmp_path, trainer, options, remedy) -> None:
    callback = PrivateTraining(plan(), tmp_path / "run.dpl", records())
    options = dict(options)
    more = [options.pop("callbacks")] if "callbacks" in options else []
    with pytest.raises(InvalidArgument, match=remedy):
        trainer(callback, *more, **options).fit(Classifier(), callback.steps)
    assert not (tmp_path / "run.dpl").exists()


def test_accumulation_that_a_callback_turns_on_is_refused(tmp_path, trainer) -> None:
    callback = PrivateTraining(plan(), tmp_path / "run.dpl", records())
    later = GradientAccumulationScheduler({0: 1, 1: 2})
    with pytest.raises(InvalidArgument, match="accumulate_grad_batches"):
        trainer(callback, later).fit(Classifier(), callback.steps)
    assert dpfy.Ledger.read(tmp_path / "run.dpl").count == 4  # the first epoch


def test_finder_of_a_batch_size_is_refused(tmp_path, trainer) -> None:
    class WithSteps(Classifier):  # Lightning itself refuses the finder beside a loader of fit's
        batch_size = 4

        def train_dataloader(self):
            return callback.steps

    callback = PrivateTraining(plan(), tmp_path / "run.dpl", records())
    with pytest.raises(InvalidArgument, match="dpfy tune"):
        trainer(callback, BatchSizeFinder()).fit(WithSteps())
