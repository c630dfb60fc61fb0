"""The table of components, row by row; and where the probe can tell, the two agree."""

import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import dpfy
from dpfy.checks.compatibility import COMPONENTS, Verdict, examine
from dpfy.data import Vocabulary
from dpfy.models import FrozenBatchNorm, PrivateBatchNorm

ROWS = {row.name: row for row in COMPONENTS}


def net(*layers):
    return nn.Sequential(nn.Linear(4, 3), *layers)


def old_style(reparametrise):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch prefers the new one; models in the world have both
        return net(reparametrise(nn.Linear(3, 2)))


def pruned():
    model = net()
    prune.l1_unstructured(model[0], "weight", 0.5)
    return model


def tied():
    model = net(nn.Linear(3, 4), nn.Linear(4, 3))
    model[2].weight = model[0].weight
    return model


def hooked():
    model = net()
    model[0].register_full_backward_hook(lambda *_: None)
    return model


def compiled_in_place():
    model = net()
    model.compile(backend="eager")
    return model


def stepped():
    model = net()
    opt = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    opt.step()
    return model, opt


def with_optimizer(kind, model=None):
    model = model or net()
    return model, kind(model.parameters())


def fake(name, base=object, home=__name__):
    """An object of a class that need not be installed here."""
    return type(name, (base,), {"__module__": home})()


def quantized():
    model = nn.Sequential(nn.Linear(4, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear})


def observed():
    return net(torch.ao.quantization.MinMaxObserver())


def attribute(value):
    model = net()
    model.helper = value
    return model


def scripted(how, *given):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: TorchScript has had its day
        return how(*given)


class KFAC(torch.optim.SGD):
    pass


def nt_xent_loss(x):
    return x


EMBEDDED = partial(nn.Embedding, 9, 3)
EXAMPLES = {
    "batch normalization": [
        lambda: net(nn.BatchNorm1d(3)),
        lambda: net(nn.SyncBatchNorm(3)),
        lambda: net(nn.BatchNorm1d(3, track_running_stats=False)).eval(),
    ],
    "batch normalization in eval mode": [lambda: net(nn.BatchNorm1d(3)).eval()],
    "private batch normalization": [lambda: net(PrivateBatchNorm(3))],
    "frozen batch normalization": [lambda: net(FrozenBatchNorm(3))],
    "instance normalization with running statistics": [
        lambda: net(nn.InstanceNorm1d(3, track_running_stats=True))
    ],
    "layer, group, instance or RMS normalization": [
        lambda: net(nn.LayerNorm(3)),
        lambda: net(nn.GroupNorm(3, 3)),
        lambda: net(nn.InstanceNorm1d(3)),
        lambda: net(nn.RMSNorm(3)),
        lambda: net(nn.LocalResponseNorm(2)),
    ],
    "weight normalization": [
        lambda: net(parametrizations.weight_norm(nn.Linear(3, 2))),
        lambda: old_style(nn.utils.weight_norm),
    ],
    "spectral normalization": [
        lambda: net(parametrizations.spectral_norm(nn.Linear(3, 2))),
        lambda: old_style(nn.utils.spectral_norm),
    ],
    "message passing on graphs": [
        lambda: net(fake("GCNConv", type("MessagePassing", (nn.Module,), {}))),
        lambda: net(fake("GraphConv", nn.Module, "dgl.nn.pytorch")),
    ],
    "embedding with max_norm": [
        lambda: nn.Sequential(EMBEDDED(max_norm=1.0)),
        lambda: nn.Sequential(nn.EmbeddingBag(9, 3, max_norm=1.0)),
    ],
    "sparse embedding": [lambda: nn.Sequential(EMBEDDED(sparse=True))],
    "recurrent layer": [lambda: nn.LSTM(4, 3), lambda: nn.GRUCell(4, 3)],
    "dropout": [lambda: net(nn.Dropout()), lambda: net(nn.AlphaDropout())],
    "tied weights": [tied],
    "model of transformers": [
        lambda: net(fake("BertModel", type("PreTrainedModel", (nn.Module,), {})))
    ],
    "compiled module": [lambda: torch.compile(net(), backend="eager"), compiled_in_place],
    "compiled function": [lambda: (net(), torch.compile(nn.functional.l1_loss, backend="eager"))],
    "TorchScript": [
        lambda: scripted(torch.jit.script, net()),
        lambda: net(scripted(torch.jit.trace, nn.Linear(3, 2), torch.ones(1, 3))),
    ],
    "wrapper for several devices": [
        lambda: nn.DataParallel(net()),
        lambda: net(fake("FullyShardedDataParallel", nn.Module)),
    ],
    "backward hooks": [hooked],
    "lazy layer": [lambda: net(nn.LazyLinear(2))],
    "complex parameters": [lambda: net(nn.Linear(2, 2, dtype=torch.complex64))],
    "frozen model": [lambda: net().requires_grad_(False)],
    "pruned layer": [pruned],
    "quantized layer": [quantized],
    "quantization observer": [observed],
    "first-order optimizer": [
        partial(with_optimizer, torch.optim.SGD),
        partial(with_optimizer, torch.optim.AdamW),
    ],
    "second-order optimizer": [
        partial(with_optimizer, torch.optim.LBFGS),
        partial(with_optimizer, KFAC),
    ],
    "optimizer for sparse gradients": [partial(with_optimizer, torch.optim.SparseAdam)],
    "optimizer that has taken steps": [stepped],
    "gradient scaler": [lambda: (net(), torch.amp.GradScaler("cpu"))],
    "averaged loss": [
        lambda: (net(), nn.CrossEntropyLoss()),
        lambda: (net(), nn.CTCLoss(reduction="sum")),
    ],
    "loss of one record": [lambda: (net(), nn.MSELoss(reduction="none"))],
    "connectionist temporal classification": [lambda: (net(), nn.CTCLoss(reduction="none"))],
    "loss of pairs or triplets": [
        lambda: (net(), nn.TripletMarginLoss(reduction="none")),
        lambda: (net(), nn.CosineEmbeddingLoss(reduction="none")),
    ],
    "contrastive loss over the batch": [
        lambda: (net(), fake("SupConLoss", nn.Module)),
        lambda: (net(), nt_xent_loss),
        lambda: (net(), fake("Any", nn.Module, "pytorch_metric_learning.losses")),
    ],
    "energy-based loss": [
        lambda: (net(), fake("ContrastiveDivergence", nn.Module)),
        lambda: net(fake("RBM", nn.Module)),
    ],
    "distillation": [lambda: (net(), fake("DistillationLoss", nn.Module))],
    "tokenizer": [
        lambda: (net(), fake("BertTokenizerFast")),
        lambda: attribute(fake("Tokenizer")),
        lambda: attribute(fake("SentencePieceProcessor")),
    ],
    "vocabulary trained on private text": [
        lambda: (net(), Vocabulary("private")),
        lambda: attribute(Vocabulary("private", "the patients' letters")),
    ],
    "vocabulary without private text": [
        lambda: (net(), Vocabulary("public", "trained on Wikipedia")),
        lambda: (net(), Vocabulary("fixed", "bytes")),
        lambda: attribute(Vocabulary("released", "words.dpl")),
    ],
}
CASES = [
    pytest.param(name, make, id=f"{name} {number}")
    for name, makes in EXAMPLES.items()
    for number, make in enumerate(makes)
]


def found_in(made):
    return {
        finding.component.name: finding
        for finding in examine(*(made if isinstance(made, tuple) else (made,)))
    }


def test_every_row_has_an_example_and_says_why_and_what_to_do():
    assert set(EXAMPLES) == set(ROWS) and len(ROWS) == len(COMPONENTS)
    for row in COMPONENTS:
        assert row.why.endswith(".") and (row.remedy.endswith(".") or row.verdict is Verdict.FINE)


@pytest.mark.parametrize(("name", "make"), CASES)
def test_a_component_is_recognised(name, make):
    assert name in found_in(make())


@pytest.mark.parametrize(("name", "make"), CASES)
def test_a_fine_component_is_not_taken_for_another_that_is_not(name, make):
    others = {other for other in found_in(make()) if not ROWS[other].verdict.allows_training}
    assert not ROWS[name].verdict.allows_training or not others


@pytest.mark.parametrize(
    "make",
    [
        net,
        lambda: net(nn.ReLU(), nn.Embedding(3, 3), nn.MultiheadAttention(4, 2), nn.Conv2d(1, 1, 1)),
        lambda: (net(), lambda x: x),
        lambda: net(fake("UnpairedHead", nn.Module)),
        lambda: net(fake("DistilBert", nn.Module)),
        lambda: net(parametrizations.orthogonal(nn.Linear(3, 3))),
    ],
    ids=["linear", "layers", "own loss", "unpaired", "distil", "orthogonal"],
)
def test_what_is_in_no_row_is_not_found(make):
    assert not found_in(make())


def test_places_are_named_and_a_component_is_listed_once():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.ModuleDict({"deep": nn.BatchNorm1d(3)}))
    model.tokenizer = fake("Tokenizer")
    finding = found_in(model)
    assert finding["batch normalization"].places == ("0", "1.deep") and finding[
        "tokenizer"
    ].places == ("tokenizer",)
    assert found_in(nn.BatchNorm1d(3))["batch normalization"].places == ("model",)
    assert found_in((net(), nn.MSELoss(), nt_xent_loss))[
        "contrastive loss over the batch"
    ].places == ("nt_xent_loss",)


def spectral():
    """A layer whose norm has not converged when it is made, as larger ones have not."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 40), parametrizations.spectral_norm(nn.Linear(40, 30)))


TOKENS, NUMBERS = torch.randint(9, (4, 5)), torch.rand(4, 4)
JUDGED = {  # what can be probed with one layer's worth of made-up input
    "batch normalization": (lambda: net(nn.BatchNorm1d(3)), NUMBERS),
    "batch normalization in eval mode": (lambda: net(nn.BatchNorm1d(3)).eval(), NUMBERS),
    "frozen batch normalization": (lambda: net(FrozenBatchNorm(3)), NUMBERS),
    "private batch normalization": (lambda: net(PrivateBatchNorm(3)), NUMBERS),
    "instance normalization with running statistics": (
        lambda: nn.Sequential(nn.InstanceNorm1d(4, affine=True, track_running_stats=True)),
        torch.rand(4, 4, 6),
    ),
    "weight normalization": (EXAMPLES["weight normalization"][0], NUMBERS),
    "spectral normalization": (spectral, NUMBERS),
    "embedding with max_norm": (EXAMPLES["embedding with max_norm"][0], TOKENS),
    "sparse embedding": (EXAMPLES["sparse embedding"][0], TOKENS),
    "dropout": (EXAMPLES["dropout"][0], NUMBERS),
    "tied weights": (tied, NUMBERS),
    "pruned layer": (pruned, NUMBERS),
    "quantization observer": (observed, NUMBERS),
}


@pytest.mark.parametrize("name", JUDGED)
def test_the_probe_agrees_with_the_table(name):
    # A row that calls a layer fine which the probe refuses, or the other way round, would mislead.
    make, batch = JUDGED[name]
    if ROWS[name].verdict.allows_training:
        dpfy.explain(make(), batch)
    else:
        with pytest.raises(dpfy.IsolationError):
            dpfy.explain(make(), batch)


def test_the_remedy_for_spectral_normalisation_works():
    model = spectral()
    model[1].eval()
    assert "spectral normalization" not in found_in(model)
    dpfy.explain(model, NUMBERS)
    before = model[1].parametrizations.weight[0]._u.clone()
    model[1].train()
    with torch.no_grad():
        model[1](torch.ones(1, 40))
    assert not torch.equal(before, model[1].parametrizations.weight[0]._u)
