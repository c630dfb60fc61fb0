"""Looking a model over: what is found in a tuple, and which loss the probe is given."""

import queue
import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dpfy
from dpfy.checks.check import check
from dpfy.gradients import ENGINES, VmapEngine
from dpfy.run.step_cost import expected

FIELDS = [("float32", (4,)), ("int64", ())]


def net():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


class Mixing(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


@pytest.mark.parametrize(
    "loss_for",
    [
        lambda model: nn.CrossEntropyLoss(reduction="none"),
        lambda model: F.cross_entropy,
        lambda model: lambda x, y: F.cross_entropy(model(x), y, reduction="none"),
    ],
    ids=["module", "function of torch", "function of the fields"],
)
def test_any_kind_of_loss_is_probed_with_the_model_it_belongs_to(loss_for):
    model = net()
    found = check((model, torch.optim.SGD(model.parameters(), lr=0.1), loss_for(model)), FIELDS)
    assert found.trainable and found.probed.explanation.engine == "bookkeeping"
    assert [row.layer for row in found.probed.explanation.layers] == ["0", "2"]


class Named(nn.Module):
    """A model that takes its inputs by name and returns a mapping, as those of transformers do."""

    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, x=None, mask=None, labels=None):
        assert labels is None, "a label is for the loss"
        return {"loss": None, "logits": self.inner(x if mask is None else x * mask)}


def losses(batch):
    assert set(batch) == {"mask", "x", "labels"}
    return (batch["labels"] + 1) * batch["mask"].sum(1)


@pytest.mark.parametrize(
    "loss_for",
    [
        lambda model: (),
        lambda model: (nn.CrossEntropyLoss(reduction="none"),),
        lambda model: (F.cross_entropy,),
        lambda model: (lambda batch: losses(batch) * model.inner(batch["x"]).sum(1),),
    ],
    ids=["none", "module", "function of torch", "function of one mapping"],
)
def test_fields_with_names_are_given_by_name(loss_for):
    """The labels stand first, so fails if they are looked for by their place."""
    model = Named()
    fields = {"labels": FIELDS[1], "x": FIELDS[0], "mask": FIELDS[0]}
    found = check((model, *loss_for(model)), fields)
    assert found.trainable and found.probed.explanation.engine == "bookkeeping"


def test_a_model_that_returns_no_tensor_is_told():
    class Nothing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4))

        def forward(self, x):
            return "nothing"

    found = check(Nothing(), FIELDS[:1])
    assert not found.trainable and "returns no tensor" in found.probed.reason


def test_without_fields_nothing_is_probed_and_with_findings_the_probe_waits():
    assert check(net()).probed is None and check(net()).trainable
    found = check(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), FIELDS[:1])
    assert found.probed is None and not found.trainable


@pytest.mark.parametrize(
    ("made", "fields", "reason"),
    [
        (
            nn.Sequential(nn.Linear(4, 3), Mixing()),
            FIELDS[:1],
            r"IsolationError: The module '1' \(Mixing\)",
        ),
        ((net(), lambda x, y: x.sum()), FIELDS, "LossError: .* reduction='none'"),
        (net(), [*FIELDS, FIELDS[1]], "LossError: loss_fn fails on synthetic input"),
        (
            (net(), torch.optim.SGD(net().parameters(), lr=0.1)),
            FIELDS[:1],
            "InvalidArgument: The optimizer holds",
        ),
    ],
    ids=["mixes", "scalar loss", "fields that nothing takes", "another model's optimizer"],
)
def test_what_the_probe_refuses_is_told(made, fields, reason):
    found = check(made, fields)
    assert not found.trainable and re.search(reason, found.probed.reason)


class CallableTokenizer:
    def __call__(self, *fields):
        raise AssertionError("it is no loss")


def test_tokenizer_is_not_taken_for_the_loss():
    model = net()
    for made in ((model, CallableTokenizer()), (model, CallableTokenizer(), F.cross_entropy)):
        found = check(made, FIELDS)
        assert found.trainable and found.probed.passed
        assert "tokenizer" in {finding.component.name for finding in found.findings}


class Frames(nn.Module):
    """Log-probabilities of four letters, as CTC takes them."""

    def __init__(self):
        super().__init__()
        self.letters = nn.Linear(5, 4)

    def forward(self, x):
        return self.letters(x).log_softmax(-1).transpose(0, 1)


def test_what_types_and_shapes_cannot_make_up_is_said_with_the_way_out():
    """Made-up lengths are 0 and 1, for which no target fits; a batch of one's own is judged."""
    model, criterion = Frames(), nn.CTCLoss(reduction="none")
    found = check(
        (model, criterion), [("float32", (12, 5)), ("int64", (4,)), ("int64", ()), ("int64", ())]
    )
    assert (
        "lengths that leave room" in found.probed.reason
        and "dpfy.explain(model, batch" in found.probed.reason
    )
    batch = (
        torch.randn(3, 12, 5),
        torch.randint(1, 4, (3, 4)),
        torch.full((3,), 12),
        torch.tensor([1, 2, 4]),
    )
    assert (
        dpfy.explain(model, batch, lambda x, *rest: criterion(model(x), *rest)).engine
        == "bookkeeping"
    )


def test_several_optimizers_and_json():
    model = net()
    optimizers = [
        torch.optim.SGD(model[0].parameters(), lr=0.1),
        torch.optim.LBFGS(model[2].parameters()),
    ]
    found = check((model, optimizers)).to_json()
    assert found["trainable"] is False and found["probe"] is None
    assert [row["component"] for row in found["components"]] == [
        "first-order optimizer",
        "second-order optimizer",
    ]
    probed = check(model, FIELDS[:1]).to_json()["probe"]
    assert probed["passed"] and probed["explanation"]["engine"] == "bookkeeping"


@pytest.mark.parametrize("made", [3, (), (torch.ones(2), net())])
def test_what_is_no_model_is_refused(made):
    with pytest.raises(dpfy.InvalidArgument, match=r"torch\.nn\.Module"):
        check(made)


def test_engines_are_compared_with_one_record_at_a_time():
    """Fails if gradients are compared after clipping, whose bounds of norms differ by 1e-5, or not
    at all.
    """
    found = check((net(), F.cross_entropy), FIELDS).probed
    assert [each.engine for each in found.parity] == [
        "bookkeeping",
        "ghost",
        "vmap",
    ] and not found.buffers
    assert all(each.agrees and each.error < 1e-6 and "agrees" in str(each) for each in found.parity)


class Exchanging(VmapEngine):
    """An engine that takes one record for another; the sum of all gradients stays what it was."""

    def bounded_sums(self, loss_fn, chunk, clipping):
        weigh = clipping.weigh
        return super().bounded_sums(
            loss_fn, chunk, replace(clipping, weigh=lambda norms: weigh(norms).flip(0))
        )


def test_an_engine_that_differs_is_named_with_the_place(monkeypatch):
    monkeypatch.setitem(ENGINES, "vmap", Exchanging)
    *_, wrong = check((net(), F.cross_entropy), FIELDS).probed.parity
    assert not wrong.agrees and wrong.error > 1e-3
    assert "differs by" in str(wrong) and wrong.parameter in (
        "0.weight",
        "2.weight",
        "0.bias",
        "2.bias",
    )


class Deciding(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2)
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x):
        return self.inner(x) * self.scale if bool((x > -1).all()) else self.inner(-x)


def test_engines_that_cannot_be_used_say_why_and_buffers_are_named():
    found = check((Deciding(), F.cross_entropy), FIELDS).probed
    assert found.passed and found.buffers == ("scale",) and found.explanation.engine == "loop"
    assert [each.error for each in found.parity] == [None] * 3
    assert "values of the input" in str(found.parity[0]) and "cannot serve this model" in str(
        found.parity[2]
    )


def test_what_a_step_takes_is_measured_and_leaves_the_model_alone():
    """Fails if plain steps move parameters, leave gradients, or count other numbers of records than
    private ones.
    """
    model, seen = (
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3).eval(), nn.Linear(3, 2)),
        queue.SimpleQueue(),
    )

    def loss(x, y):
        seen.put(len(x))  # where no reading looks
        return F.cross_entropy(model(x), y, reduction="none")

    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = expected(model, (torch.rand(4, 4), torch.arange(4) % 2), loss, batch_size=100)
    assert found.resources.batch_size == 100 and found.plain_seconds > 0 and found.slowdown > 0
    sizes = [seen.get() for _ in range(seen.qsize())]
    assert sum(sizes[-4 * -(-100 // found.resources.records_at_once) :]) == 400
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert "times a plain one" in str(found) and found.to_json()["slowdown"] == found.slowdown
