"""What is said about the cost of a model, and that nothing of it comes from elsewhere."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dpfy


class Scores(nn.Module):
    """A layer without a rule between two that have one, and a bare parameter."""

    def __init__(self):
        super().__init__()
        self.first, self.pair, self.last = (
            nn.Linear(600, 500),
            nn.Bilinear(500, 500, 3),
            nn.Linear(3, 2),
        )
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return self.last(self.pair(hidden, hidden)) * self.scale


def ways(found):
    return {layer.layer: layer.way for layer in found.layers}


def test_every_layer_has_the_way_that_its_shape_calls_for():
    found = dpfy.explain(Scores(), torch.rand(4, 600))
    assert found.engine == "bookkeeping"
    assert ways(found) == {
        "first": "ghost",
        "pair": "vectorised",
        "last": "ghost",
        "scale": "copies",
    }
    costs = {layer.layer: layer for layer in found.layers}
    assert costs["first"].inputs == (4, 600)
    assert (
        costs["first"].extra_multiplications < costs["pair"].extra_multiplications
    )  # the one writes nothing out
    assert costs["pair"].numbers_kept == 3 * 500 * 500 + 3
    assert [advice for advice in found.advice if "'pair' (Bilinear)" in advice]


def test_a_batch_may_be_a_dict_that_names_what_the_model_takes():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.last = nn.Embedding(10, 3), nn.Linear(3, 2)

        def forward(self, input_ids, attention_mask):
            return self.last((self.embed(input_ids) * attention_mask.unsqueeze(2)).sum(1))

    model = Named()
    batch = {"input_ids": torch.randint(10, (4, 5)), "attention_mask": torch.ones(4, 5)}
    assert ways(dpfy.explain(model, batch)) == {"embed": "rows", "last": "ghost"}
    labelled = {**batch, "labels": torch.tensor([0, 1, 1, 0])}

    def loss(fields):
        found = model(fields["input_ids"], fields["attention_mask"])
        return F.cross_entropy(found, fields["labels"], reduction="none")

    assert ways(dpfy.explain(model, labelled, loss)) == {"embed": "rows", "last": "ghost"}
    with pytest.raises(dpfy.errors.InvalidArgument, match="tuple or dict"):
        dpfy.explain(model, {"input_ids": []})


def test_the_table_shows_layers_totals_and_advice():
    shown = str(dpfy.explain(Scores(), torch.rand(4, 600))).splitlines()
    assert shown[0].startswith("engine 'bookkeeping', ")
    assert shown[1].split() == ["layer", "kind", "input", "way", "extra", "work", "numbers", "kept"]
    assert [line.split()[0] for line in shown[2:]] == [
        "first",
        "pair",
        "last",
        "scale",
        "total",
        "*",
    ]


def test_a_loss_with_targets_and_tied_weights():
    class TiedEmbedding(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(3000, 900), nn.Linear(900, 3000, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x))

    model = TiedEmbedding()
    batch = torch.randint(3000, (3, 2)), torch.randint(3000, (3, 2))
    found = dpfy.explain(
        model, batch, lambda x, y: F.cross_entropy(model(x).mT, y, reduction="none").sum(1)
    )
    assert ways(found) == {"embed": "rows, ghost", "head": "shared"}


def test_values_that_decide_are_named_as_the_reason():
    class Deciding(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(x) if bool((x < 2).all()) else -self.layer(x)

    found = dpfy.explain(Deciding(), torch.rand(4, 3))
    assert found.engine == "loop" and not found.layers
    assert "decide what is computed" in found.advice[0]


def test_the_model_is_as_it_was():
    model = Scores()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    dpfy.explain(model, torch.rand(4, 600, generator=torch.Generator().manual_seed(1)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("batch", [3, (), torch.tensor(1.0), (torch.rand(4, 3), torch.rand(5))])
def test_a_batch_that_is_none_is_refused(batch):
    with pytest.raises(dpfy.InvalidArgument, match="Expected batch"):
        dpfy.explain(nn.Linear(3, 2), batch)


def test_a_frozen_model_and_one_that_mixes_records_are_refused():
    with pytest.raises(dpfy.InvalidArgument, match="frozen"):
        dpfy.explain(nn.Linear(3, 2).requires_grad_(False), torch.rand(4, 3))
    with pytest.raises(dpfy.IsolationError, match="BatchNorm1d"):
        dpfy.explain(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), torch.rand(4, 3))
