"""Hear from the trainer: callbacks see declared constants and released or public values."""

import math

import torch

import dpfy
from dpfy.data import digits
from dpfy.models import digits_mlp

torch.manual_seed(0)  # the initial weights; noise and samples come from a generator of their own
source = digits()
model = digits_mlp()


class Say(dpfy.Callback):
    """Print every second evaluation on public data."""

    def on_evaluation(self, evaluation):
        if round(evaluation.epoch) % 2 == 0:
            epoch, spent = round(evaluation.epoch), evaluation.epsilon
            print(f"epoch {epoch}: accuracy {evaluation.accuracy:.1%}, epsilon {spent:.2f}")


config = dpfy.TrainConfig(data="digits", epsilon=3.0, epochs=8, batch_size=512, learning_rate=0.25)
result = dpfy.Trainer(config, model=model, callbacks=[Say()]).fit()

epsilon = math.ceil(result.claim * 1000) / 1000  # a claim is rounded up
x, y = source.test.tensors  # public records
with torch.no_grad():
    accuracy = (model(x).argmax(1) == y).float().mean()
print(f"report in {result.folder}, epsilon {epsilon:.3f}, public accuracy {accuracy:.1%}")
