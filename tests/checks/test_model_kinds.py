"""Models and records that are refused say what was given and what to pass in its place."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence
from torch.utils.data import Dataset, TensorDataset

import dpfy

X, Y = torch.rand(8, 5), torch.arange(8) % 3


def frozen_lazy():
    return nn.Sequential(
        nn.Linear(5, 4), nn.LazyBatchNorm1d(affine=False)
    ).eval()  # its buffers alone are lazy


def scripted(how, *given):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        return how(*given)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: nn.Sequential(nn.Linear(5, 4), nn.LazyLinear(3)),
            r"module '1' \(LazyLinear\) .* model\(example\)",
        ),
        (frozen_lazy, r"module '1' \(LazyBatchNorm1d\) .* model\(example\)"),
        (
            lambda: scripted(torch.jit.script, nn.Linear(5, 3)),
            "TorchScript.* Pass the Python module",
        ),
        (
            lambda: scripted(torch.jit.trace, nn.Linear(5, 3), X),
            "TorchScript.* Pass the Python module",
        ),
        (
            lambda: nn.Sequential(scripted(torch.jit.script, nn.Linear(5, 3))),
            r"module '0' .* TorchScript",
        ),
    ],
    ids=["lazy", "lazy buffers", "scripted", "traced", "scripted inside"],
)
def test_models_without_python_modules_or_weights_are_refused_before_there_is_a_ledger(
    make, says, tmp_path
):
    """torch's own errors came from the first step, which was paid for by then."""
    model = make()
    opt = torch.optim.SGD([p for p in model.parameters() if not nn.parameter.is_lazy(p)], lr=0.1)
    plan = dpfy.dpsgd(rate=0.5, divisor=4, steps=1, noise_multiplier=1.0)
    with pytest.raises(dpfy.InvalidArgument, match=says):
        dpfy.privatize(model, opt, TensorDataset(X, Y), plan, tmp_path / "run.dpl")
    assert not list(tmp_path.iterdir())
    with pytest.raises(dpfy.InvalidArgument, match=says):
        dpfy.explain(model, X)


class Sentences(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return X[: index + 1]


def test_packed_records_are_refused_with_what_to_give_instead():
    """The text spoke of rows that a user never made."""
    model = nn.GRU(5, 3)
    with pytest.raises(dpfy.DpfyError, match=r"a PackedSequence, .* pad to a public length"):
        dpfy.privatize(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            Sentences(),
            dpfy.dpsgd(rate=1.0, divisor=4, steps=1, noise_multiplier=1.0),
            dpfy.Ledger.in_memory(),
            collate_fn=pack_sequence,
            example_input=pack_sequence([X[:2], X[:1]]),
        )


def test_what_is_packed_in_the_model_is_computed_one_record_at_a_time():
    model = nn.GRU(5, 3, batch_first=True)

    def loss(x, lengths):
        return model(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[1][
            0
        ].sum(1)

    data = TensorDataset(torch.rand(6, 7, 5), torch.arange(1, 7))
    opt, plan = (
        torch.optim.SGD(model.parameters(), lr=0.1),
        dpfy.dpsgd(rate=1.0, divisor=6, steps=1, noise_multiplier=0.0),
    )
    with (
        dpfy.privatize(model, opt, data, plan, dpfy.Ledger.in_memory()) as run,
        pytest.raises(dpfy.LossError, match=r"lengths of sequences\), pass example_input="),
    ):
        run.release(loss, next(iter(run)))
    example = torch.rand(2, 7, 5), torch.tensor([7, 2])
    with dpfy.privatize(
        model, opt, data, plan, dpfy.Ledger.in_memory(), example_input=example
    ) as run:
        assert any(
            gradient.any() for gradient in run.release(loss, next(iter(run))).gradients.values()
        )
        assert run.engine == "loop"
