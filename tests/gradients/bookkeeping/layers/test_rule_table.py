"""The open table of rules: layers of other libraries, rules of users, and wrong ones."""

import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import dpfy
from dpfy.gradients import Materialized, OuterProduct, register_layer_rule
from dpfy.gradients.bookkeeping.layers import RULES, rule_for
from dpfy.testing import check_layer_rule


def rows(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(4))


# Layers of transformers, which need not be installed: stand-ins with their names and arithmetic


class Conv1D(nn.Module):
    """A linear layer whose weight is transposed."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(0.3 * torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.randn(nf))

    def forward(self, x):
        size_out = (*x.size()[:-1], self.nf)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size_out)


class LlamaRMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(hidden_size) + 0.5)
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


class T5LayerNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(hidden_size) + 0.5)
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        if self.weight.dtype in [torch.float16, torch.bfloat16]:
            hidden_states = hidden_states.to(self.weight.dtype)
        return self.weight * hidden_states


HOMES = {
    Conv1D: "transformers.pytorch_utils",
    LlamaRMSNorm: "transformers.models.llama.modeling_llama",
    T5LayerNorm: "transformers.models.t5.modeling_t5",
}
OTHERS = {
    Conv1D: lambda: Conv1D(3, 4),
    LlamaRMSNorm: lambda: LlamaRMSNorm(4),
    T5LayerNorm: lambda: T5LayerNorm(4),
}


@pytest.fixture(autouse=True)
def named_as_in_transformers(monkeypatch):
    for kind, home in HOMES.items():
        monkeypatch.setattr(kind, "__module__", home)


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.__name__)
def test_layers_of_transformers_have_rules_by_name(kind):
    before = "transformers" in sys.modules  # which need not be there
    check_layer_rule(OTHERS[kind], rows(5, 4), rows(5, 3, 4))
    assert before == ("transformers" in sys.modules)


def test_the_weight_of_a_transposed_layer_is_not_written_out():
    model = nn.Sequential(Conv1D(64, 64), nn.Tanh(), nn.Linear(64, 2))
    found = dpfy.explain(model, rows(4, 64))
    assert found.engine == "bookkeeping" and [row.way for row in found.layers] == ["ghost"] * 2


def test_a_relative_with_another_forward_pass_has_no_rule():
    class Shifted(LlamaRMSNorm):
        def forward(self, x):
            return super().forward(x) + 1

    class Named(LlamaRMSNorm):
        pass

    assert rule_for(Shifted(4)) is None and rule_for(Named(4)) is not None
    elsewhere = types.new_class("LlamaRMSNorm", (nn.Module,))
    assert rule_for(elsewhere()) is None


# Rules of users


class Gate(nn.Module):
    """A scale for each feature and a matrix, as a user may have them in one layer."""

    def __init__(self, width=4):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.mix = nn.Parameter(torch.eye(width) + 0.1)

    def forward(self, x):
        return (self.scale * x) @ self.mix.T


def gate(module, recorder, layout, inputs):
    def scale(gradient, inputs):
        if recorder.trains(module.scale):
            found = layout.sequences(gradient * inputs, recorder.records).sum(1)
            recorder.add(module.scale, Materialized.of(found))

    def mix(gradient, scaled):
        if recorder.trains(module.mix):
            sequences = (layout.sequences(each, recorder.records) for each in (scaled, gradient))
            recorder.outer(module.mix, OuterProduct(*sequences))

    scaled = recorder.observed(module.scale * inputs, scale, inputs)
    return recorder.observed(scaled @ module.mix.T, mix, scaled)


def gate_that(**wrong):
    """A rule with one mistake."""

    def forward(module, recorder, layout, inputs):
        def scale(gradient, inputs):
            product = gradient if "input" in wrong else gradient * inputs
            found = layout.sequences(product, recorder.records)
            found = found[:, 0] if "first" in wrong else found.sum(1)
            if recorder.trains(module.scale):
                found = found.roll(1, 0) if "record" in wrong else found
                recorder.add(module.scale, Materialized.of(found))

        def mix(gradient, scaled):
            if recorder.trains(module.mix):
                a, b = (layout.sequences(each, recorder.records) for each in (scaled, gradient))
                recorder.outer(
                    module.mix, OuterProduct(b, a) if "turned" in wrong else OuterProduct(a, b)
                )

        scaled = recorder.observed(module.scale * inputs, scale, inputs)
        outputs = scaled @ module.mix.T
        return recorder.observed(2 * outputs if "forward" in wrong else outputs, mix, scaled)

    return forward


@pytest.fixture
def registered(monkeypatch):
    """Register a rule for this test alone."""

    def register(kind, forward, parameters=("scale", "mix")):
        monkeypatch.setattr("dpfy.gradients.bookkeeping.layers.RULES", dict(RULES))
        register_layer_rule(kind, forward, parameters)

    return register


def test_a_rule_of_the_user_passes_and_is_used(registered):
    registered(Gate, gate)
    check_layer_rule(Gate, rows(5, 4), rows(5, 3, 4))
    model = nn.Sequential(nn.Linear(4, 4), Gate(), nn.Linear(4, 2))
    found = dpfy.explain(model, rows(6, 4))
    assert found.engine == "bookkeeping" and not found.advice
    assert "vectorised" not in {row.way for row in found.layers}


WRONG = ("input", "first", "record", "turned", "forward")


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_rule_is_caught_by_the_suite_and_by_the_probe(registered, wrong):
    registered(Gate, gate_that(**{wrong: True}))
    with pytest.raises(AssertionError):
        check_layer_rule(Gate, rows(5, 3, 4))
    model = nn.Sequential(nn.Linear(4, 4), Gate(), nn.Linear(4, 2))
    assert dpfy.explain(model, rows(6, 3, 4)).engine not in ("bookkeeping", "ghost")


def test_without_a_rule_the_suite_says_so():
    with pytest.raises(AssertionError, match="no rule served Gate: there is none"):
        check_layer_rule(Gate, rows(5, 4))


def test_a_rule_is_for_the_parameters_that_it_names(registered):
    registered(Gate, gate, ("scale",))
    assert rule_for(Gate()) is None


@pytest.mark.parametrize(
    ("kind", "forward", "said"),
    [
        (nn.Linear, gate, "has a rule already"),
        ("transformers.pytorch_utils.Conv1D", gate, "has a rule already"),
        ("Conv1D", gate, "qualified name"),
        (Gate(), gate, "subclass of torch.nn.Module"),
        (Gate, None, "Expected forward"),
    ],
)
def test_what_cannot_be_registered_is_refused(kind, forward, said):
    with pytest.raises(dpfy.InvalidArgument, match=said):
        register_layer_rule(kind, forward)
    assert Gate not in RULES


def test_the_documentation_lists_every_rule():
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "layers.md").read_text("utf-8")
    names = {kind.rpartition(".")[2] if isinstance(kind, str) else kind.__name__ for kind in RULES}
    assert not {name for name in names if f"`{name}`" not in page}
