"""Attention, transformers, tied weights, adapters, parametrised and custom modules against one
record at a time.
"""

import pytest
import torch
import torch.nn.functional as F
from against_oracle import assert_agrees
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn.utils import parametrizations

from dpfy.gradients import Unsupported

SEEDS = st.integers(0, 2**32 - 1)
BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


@st.composite
def settings_of(draw):
    """Precision, grouping and chunking of one comparison."""
    return {
        "dtype": draw(st.sampled_from([torch.float64, torch.float32])),
        "grouped": draw(st.booleans()),
        "split": draw(st.integers(1, 3)),
    }


def floats(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(seed, high, *shape):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


# Attention


class Attending(nn.Module):
    """Attention of x to itself or to other sequences, whatever the order of its axes."""

    def __init__(self, heads, width, cross, mask, shown, batch_first, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(
            heads * width, heads, batch_first=batch_first, **options
        )
        self.heads, self.cross, self.mask, self.shown = heads, cross, mask, shown

    def masks(self, x, key, padding):
        if self.mask == "padding":
            return {"key_padding_mask": padding}
        if self.mask == "numbers":
            return {
                "key_padding_mask": padding.to(x.dtype) * -2,
                "attn_mask": torch.linspace(-1, 1, x.shape[1] * key.shape[1], dtype=x.dtype).view(
                    x.shape[1], -1
                ),
            }
        if self.mask == "causal":
            return {"attn_mask": torch.ones(x.shape[1], key.shape[1], dtype=torch.bool).triu(1)}
        if self.mask == "by head":
            return {
                "attn_mask": padding[:, None, :]
                .expand(-1, x.shape[1], -1)
                .repeat_interleave(self.heads, 0)
            }
        return {}

    def forward(self, x, key, value, padding):
        key, value = (key, value) if self.cross else (x, x)
        masks = self.masks(x, key, padding[:, : key.shape[1]])
        if self.attention.batch_first:
            found, weights = self.attention(x, key, value, need_weights=self.shown, **masks)
        else:
            turned = x.transpose(0, 1)
            others = (
                (key.transpose(0, 1), value.transpose(0, 1)) if self.cross else (turned, turned)
            )
            found, weights = self.attention(turned, *others, need_weights=self.shown, **masks)
            found = found.transpose(0, 1)
        return torch.cat([found.flatten(1), weights.flatten(1)], 1) if self.shown else found


@settings(max_examples=60)
@given(
    settings_of(),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["none", "padding", "numbers", "causal", "by head"]),
    SEEDS,
)
def test_attention(how, heads, width, cross, sizes, bias, shown, batch_first, mask, seed):
    inner, steps = heads * width, 3
    kdim, vdim = (4, 5) if cross and sizes else (inner, inner)
    padding = torch.zeros(4, 4, dtype=torch.bool)
    padding[1, 2:] = padding[3, 1:] = True
    fields = (
        floats(seed, 4, steps, inner),
        floats(seed + 1, 4, 4, kdim),
        floats(seed + 2, 4, 4, vdim),
        padding,
    )
    assert_agrees(
        lambda: Attending(
            heads, width, cross, mask, shown, batch_first, bias=bias, kdim=kdim, vdim=vdim
        ),
        fields,
        **how,
    )


class OwnAttention(nn.Module):
    """Written by hand around torch's function, with one layer for all three projections."""

    def __init__(self):
        super().__init__()
        self.project, self.out = nn.Linear(6, 18), nn.Linear(6, 6)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (2, 3)).transpose(1, 2) for part in self.project(x).chunk(3, -1)
        )
        return self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )


@BOTH
def test_the_attention_function_in_a_module_of_the_users(dtype):
    assert_agrees(OwnAttention, (floats(1, 4, 5, 6),), dtype=dtype)


# Transformers


class Encoding(nn.Module):
    def __init__(self, training, norm_first, layers=1, batch_first=True):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            6, 2, 7, dropout=0.0, norm_first=norm_first, batch_first=batch_first
        )
        self.encoder = (
            layer
            if layers == 1
            else nn.TransformerEncoder(layer, layers, nn.LayerNorm(6), enable_nested_tensor=False)
        )
        self.train(training)

    def forward(self, x, padding):
        if self.encoder_is_batch_first:
            return self.encoder(x, src_key_padding_mask=padding)
        return self.encoder(x.transpose(0, 1), src_key_padding_mask=padding).transpose(0, 1)

    @property
    def encoder_is_batch_first(self):
        return next(m for m in self.modules() if isinstance(m, nn.MultiheadAttention)).batch_first


def padded_sequences():
    padding = torch.zeros(4, 5, dtype=torch.bool)
    padding[0, 3:] = padding[2, 1:] = True
    return floats(1, 4, 5, 6), padding


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("norm_first", [True, False], ids=["norm first", "norm last"])
@pytest.mark.parametrize(("depth", "batch_first"), [(1, True), (1, False), (2, True)])
def test_transformer_encoders(training, norm_first, depth, batch_first):
    for dtype in (torch.float64, torch.float32):
        layers = assert_agrees(
            lambda: Encoding(training, norm_first, depth, batch_first),
            padded_sequences(),
            dtype=dtype,
        )
        assert len(layers) == 5 * depth + (
            depth > 1
        )  # attention, two linear layers and two norms each


class Decoding(nn.Module):
    def __init__(self, training):
        super().__init__()
        self.decoder = nn.TransformerDecoderLayer(
            6, 2, 7, dropout=0.0, batch_first=True, norm_first=True
        )
        self.train(training)

    def forward(self, x, memory):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.decoder(x, memory, tgt_mask=mask, tgt_is_causal=True)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_transformer_decoders(training):
    assert_agrees(lambda: Decoding(training), (floats(1, 4, 3, 6), floats(2, 4, 5, 6)))


# Tied weights


class TiedHead(nn.Module):
    """A language model whose head is its embedding, as a layer or as a function."""

    def __init__(self, vocabulary=7, width=4, padding=None, steps=1):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=padding)
        self.inner = nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.steps = steps

    def forward(self, places):
        hidden = self.embedding(places)
        for _ in range(self.steps):
            hidden = torch.tanh(self.inner(hidden))
        return self.head(hidden)


@settings(max_examples=25)
@given(
    settings_of(),
    st.integers(2, 9),
    st.integers(1, 4),
    st.integers(1, 5),
    st.booleans(),
    st.integers(1, 2),
    SEEDS,
)
def test_an_embedding_that_is_also_the_head(how, vocabulary, width, steps, padded, uses, seed):
    assert_agrees(
        lambda: TiedHead(vocabulary, width, 0 if padded else None, uses),
        (tokens(seed, vocabulary, 4, steps),),
        **how,
    )


# Adapters


class Adapted(nn.Module):
    """A frozen linear layer with a trained product of two narrow ones beside it, as PEFT's LoRA
    layer computes it.
    """

    def __init__(self, inputs, outputs, rank):
        super().__init__()
        self.base_layer = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_dropout = nn.ModuleDict({"default": nn.Identity()})
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, outputs, bias=False)})
        self.scaling = {"default": 0.5}

    def forward(self, x, *args, **kwargs):
        result = self.base_layer(x, *args, **kwargs)
        for name, narrow in self.lora_A.items():
            x = x.to(narrow.weight.dtype)
            result = (
                result + self.lora_B[name](narrow(self.lora_dropout[name](x))) * self.scaling[name]
            )
        return result


@settings(max_examples=15)
@given(
    settings_of(), st.integers(1, 5), st.integers(1, 5), st.integers(1, 3), st.integers(1, 4), SEEDS
)
def test_adapters_beside_frozen_layers(how, inputs, outputs, rank, steps, seed):
    def make():
        return nn.Sequential(
            Adapted(inputs, 4, rank),
            nn.Tanh(),
            nn.LayerNorm(4).requires_grad_(False),
            Adapted(4, outputs, rank),
        )

    layers = assert_agrees(make, (floats(seed, 4, steps, inputs),), **how)
    assert len(layers) == 4  # the frozen layers record nothing


class OwnAdapter(nn.Module):
    """An adapter whose two factors are bare parameters."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(5, 4).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, 5)), nn.Parameter(torch.zeros(4, 2))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.a), self.b)


@BOTH
def test_an_adapter_of_bare_parameters(dtype):
    assert_agrees(
        lambda: nn.Sequential(nn.Linear(5, 5), OwnAdapter()),
        (floats(1, 4, 3, 5),),
        dtype=dtype,
        rules=1,
    )


# Parametrised and custom modules: vectorised alone


def weight_norm(layer):
    return parametrizations.weight_norm(layer)


def old_weight_norm(layer):
    return nn.utils.weight_norm(layer)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "parametrised", [weight_norm, old_weight_norm, parametrizations.orthogonal]
)
def test_parametrised_layers(parametrised):
    assert_agrees(
        lambda: nn.Sequential(
            nn.Linear(4, 4), nn.Tanh(), parametrised(nn.Linear(4, 3)), nn.Linear(3, 2)
        ),
        (floats(1, 4, 4),),
        rules=2,
    )


class Listed(nn.Module):
    """Parameters in a list that nobody calls, keyword arguments in, a dict and a tuple out."""

    def __init__(self, width):
        super().__init__()
        self.scales = nn.ParameterList([torch.linspace(1, 2, width), torch.linspace(0, 1, width)])

    def forward(self, *, inputs, flags=(1.0,)):
        product = inputs * self.scales[0] * flags[0]
        return {"product": product, "others": (torch.sin(inputs + self.scales[1]), None)}


class Holder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.listed, self.last = (
            nn.Linear(width, width),
            Listed(width),
            nn.Linear(width, 2),
        )

    def forward(self, x):
        found = self.listed(inputs=self.first(x), flags=[0.5])
        return self.last(found["product"] + found["others"][0])


@settings(max_examples=15)
@given(settings_of(), st.integers(1, 4), st.lists(st.integers(1, 3), max_size=2), SEEDS)
def test_custom_modules_with_any_signature(how, width, axes, seed):
    assert_agrees(lambda: Holder(width), (floats(seed, 4, *axes, width),), rules=2, **how)


class Bilinear(nn.Module):
    """A kind of layer without a rule, with two inputs, time first."""

    def __init__(self):
        super().__init__()
        self.left, self.pair = nn.Linear(3, 3), nn.Bilinear(3, 2, 4)

    def forward(self, x, y):
        return self.pair(
            self.left(x).transpose(0, 1).contiguous(), y.transpose(0, 1).contiguous()
        ).transpose(0, 1)


@BOTH
def test_a_layer_without_a_rule_with_records_on_its_second_axis(dtype):
    assert_agrees(Bilinear, (floats(1, 4, 5, 3), floats(2, 4, 5, 2)), dtype=dtype, rules=1)


class Counted(nn.Linear):
    """Looks like a Linear and computes something else."""

    def forward(self, x):
        return super().forward(x) * self.weight.square().sum()


def test_a_subclass_with_a_forward_pass_of_its_own_is_not_taken_for_its_parent():
    assert_agrees(
        lambda: nn.Sequential(nn.Linear(3, 3), Counted(3, 2)), (floats(1, 4, 3),), rules=1
    )


class Bags(nn.Module):
    """All bags of a chunk as one list of tokens, with the places where they begin."""

    def __init__(self):
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(7, 4, mode="mean"), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.bag(x.flatten(), torch.arange(0, x.numel(), x.shape[1])))


class Longest(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(7, 4, mode="max"), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.bag(x))


class TimeFirstSlopes(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.slopes = nn.Linear(3, 3), nn.PReLU()

    def forward(self, x):
        return self.slopes(self.layer(x).transpose(0, 1)).transpose(0, 1)


@pytest.mark.parametrize(
    ("make", "x", "rules"),
    [
        (TimeFirstSlopes, floats(1, 4, 5, 3), [True, False]),
        (Longest, tokens(1, 7, 4, 3), [False, True]),
    ],
)
def test_uses_that_a_rule_does_not_know_are_vectorised_and_leave_the_others_alone(make, x, rules):
    layers = assert_agrees(make, (x,), rules=1)
    assert [layer.rule is not None for layer in layers] == rules


def test_bags_in_one_long_list_are_refused():
    with pytest.raises(Unsupported):
        assert_agrees(Bags, (tokens(1, 7, 4, 3),))


def test_frozen_parts_and_single_frozen_parameters():
    def make():
        model = nn.Sequential(
            nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2), nn.PReLU()
        )
        model[0].requires_grad_(False)
        model[2].weight.requires_grad_(False)
        model[4].bias.requires_grad_(False)
        return model

    assert len(assert_agrees(make, (floats(1, 4, 4),))) == 3


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Conv2d(2, 3, 2),
        lambda: nn.GroupNorm(2, 2),
        lambda: nn.InstanceNorm2d(2, affine=True),
        lambda: nn.LayerNorm([3, 3]),
        lambda: nn.ConvTranspose2d(2, 3, 2),
    ],
    ids=["conv", "group norm", "instance norm", "layer norm", "transposed"],
)
@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_one_frozen_parameter_of_a_layer(layer, frozen):
    def make():
        made = layer()
        getattr(made, frozen).requires_grad_(False)
        return made

    assert_agrees(make, (floats(1, 4, 2, 3, 3),))


def test_a_model_that_is_one_layer_of_scores():
    def cross_entropy(model):
        return lambda x, y: F.cross_entropy(model(x), y, reduction="none")

    assert_agrees(lambda: nn.Linear(4, 3), (floats(1, 4, 4), tokens(1, 3, 4)), loss=cross_entropy)
