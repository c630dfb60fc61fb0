"""Small networks that suit DP-SGD: few parameters, bounded activations, no mixing of examples.

All but the recurrent one, whose kernels torch cannot vectorise, run under ``torch.func.vmap``. None
has BatchNorm or any other state that examples share. Bounded activations keep gradients near the
clip bound, where clipping loses least (Papernot et al. 2021, "Tempered Sigmoid Activations for Deep
Learning with Differential Privacy", §3).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from dpfy import _validate
from dpfy.errors import InvalidArgument

Activation = Callable[[], nn.Module]


class TemperedSigmoid(nn.Module):
    """The activation s·σ(T·x) − o with scale s, temperature T and offset o; by default it is tanh.

    A smaller scale bounds activations, and with them gradients, more tightly.

    Args:
        scale: s, the distance between the two bounds of the activation; greater than 0.
        temperature: T, the factor of the input; greater than 0.
        offset: o, which is subtracted: activations lie between −o and s − o.

    Raises:
        InvalidArgument: The scale or the temperature is not positive.

    >>> TemperedSigmoid()(torch.tensor([-9.0, 0.0, 1.0]))
    tensor([-1.0000,  0.0000,  0.7616])

    Reference: N. Papernot et al., Tempered Sigmoid Activations for Deep Learning with Differential
    Privacy, 2021.
    """

    def __init__(self, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0) -> None:
        super().__init__()
        self.scale, self.offset = _validate.positive("scale", scale), offset
        self.temperature = _validate.positive("temperature", temperature)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return activations of the same shape, between −offset and scale − offset."""
        return self.scale * torch.sigmoid(self.temperature * x) - self.offset

    def extra_repr(self) -> str:
        """Return the arguments, for ``print(model)``."""
        return f"{self.scale}, {self.temperature}, {self.offset}"


class Normalize(nn.Module):
    """Subtract a constant and scale each example to a fixed L2 norm.

    Each example is normalised by itself; no statistics of other examples are used. Equal input
    norms let one learning rate and one clip bound suit every example.

    Args:
        norm: The L2 norm of every example after scaling, over all its dimensions. An example that
            equals ``center`` everywhere stays zero.
        center: A public constant to subtract from every number first.

    >>> Normalize(norm=4.0)(torch.tensor([[3.0, 0.0], [0.0, 0.5]]))
    tensor([[4., 0.],
            [0., 4.]])
    """

    def __init__(self, norm: float, center: float = 0.0) -> None:
        super().__init__()
        self.norm, self.center = norm, center

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalised inputs, in the same shape."""
        return F.normalize((x - self.center).flatten(1), dim=1).view_as(x) * self.norm


def mlp(features: int, classes: int, hidden: int = 64) -> nn.Sequential:
    """Return a network with one hidden layer and tanh, for flat inputs.

    Args:
        features: Numbers of an input.
        classes: Outputs.
        hidden: Units of the hidden layer.

    Returns:
        A module that maps (records, features) to (records, classes).

    >>> mlp(features=112, classes=2)(torch.zeros(5, 112)).shape
    torch.Size([5, 2])
    """
    return nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, classes))


def digits_mlp(classes: int = 10) -> nn.Sequential:
    """Return the network for 8×8 digits: normalised pixels and one hidden layer.

    Args:
        classes: Outputs.

    Returns:
        A module that maps (records, 1, 8, 8) to (records, classes).

    >>> digits_mlp()(torch.rand(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """
    return nn.Sequential(Normalize(norm=8.0, center=0.3), nn.Flatten(), *mlp(64, classes))


def mnist_cnn(classes: int = 10, activation: Activation = nn.Tanh) -> nn.Sequential:
    """Return the CNN for 28×28 grey images (Papernot et al. 2021, Table 1).

    Args:
        classes: Outputs.
        activation: Makes each activation, such as ``nn.ReLU``; default: tanh.

    Returns:
        A module that maps (records, 1, 28, 28) to (records, classes).

    >>> mnist_cnn()(torch.rand(5, 1, 28, 28)).shape
    torch.Size([5, 10])
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=2),
        activation(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        activation(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        activation(),
        nn.Linear(32, classes),
    )


def cifar_cnn(
    classes: int = 10, activation: Activation = nn.Tanh, readout: str = "mean"
) -> nn.Sequential:
    """Return the CNN for 32×32 RGB images.

    Args:
        classes: Outputs.
        activation: Makes each activation, such as ``nn.ReLU``; default: tanh.
        readout: ``"mean"`` has average pooling, two more convolutions and the mean over what is
            left of the image (Papernot et al. 2021, Table 2). ``"linear"`` has max pooling and two
            linear layers: the form that Tramèr and Boneh 2021 (Table 7) corrected it to, and that
            Dörmann et al. 2021 report results for.

    Returns:
        A module that maps (records, 3, 32, 32) to (records, classes).

    Raises:
        InvalidArgument: ``readout`` is neither of the two.

    >>> cifar_cnn(readout="linear")(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    mean = _validate.choice("readout", readout, ("mean", "linear")) == "mean"
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        layers += [
            nn.Conv2d(channels, width, 3, padding=1),
            activation(),
            nn.Conv2d(width, width, 3, padding=1),
            activation(),
            nn.AvgPool2d(2) if mean else nn.MaxPool2d(2),
        ]
        channels = width
    if mean:
        return nn.Sequential(
            *layers,
            nn.Conv2d(128, 256, 3, padding=1),
            activation(),
            nn.Conv2d(256, classes, 3, padding=1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(128 * 4 * 4, 128), activation(), nn.Linear(128, classes)
    )


class FrozenEmbedding(nn.Module):
    """Map each token to a fixed vector; that of padding, token 0, is zero.

    The table is a buffer and not a parameter: it is saved with the model, and no gradient or noise
    reaches it.

    Args:
        table: One public vector per token, of shape (vocabulary, dimension). It is copied.

    Raises:
        InvalidArgument: The table has another shape, or no floating-point numbers.

    >>> FrozenEmbedding(torch.eye(2))(torch.tensor([[0, 1]]))
    tensor([[[0., 0.],
             [0., 1.]]])
    """

    table: torch.Tensor

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        if table.ndim != 2 or not table.is_floating_point():
            raise InvalidArgument(
                "Expected a table of shape (vocabulary, dimension) with floating-point numbers, "
                f"got shape {tuple(table.shape)} and {table.dtype}."
            )
        table = table.clone()
        table[0] = 0
        self.register_buffer("table", table)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return one vector per token."""
        return F.embedding(tokens, self.table)


class MeanEmbedding(FrozenEmbedding):
    """Map each example to the mean of its tokens' fixed vectors, without padding (token 0).

    Args:
        table: One public vector per token, of shape (vocabulary, dimension). It is copied.

    Raises:
        InvalidArgument: The table has another shape, or no floating-point numbers.

    >>> MeanEmbedding(torch.eye(4))(torch.tensor([[0, 0, 1, 3], [0, 0, 0, 0]]))
    tensor([[0.0000, 0.5000, 0.0000, 0.5000],
            [0.0000, 0.0000, 0.0000, 0.0000]])
    """

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return one vector per row of tokens."""
        words = (tokens != 0).sum(dim=-1, keepdim=True)
        return super().forward(tokens).sum(dim=-2) / words.clamp(min=1)  # padding adds nothing


def review_classifier(table: torch.Tensor, classes: int = 2, hidden: int = 64) -> nn.Sequential:
    """Return a classifier of reviews: the mean of fixed word vectors, and one hidden layer.

    The vectors are standardised over the table, which is public: they share a large common part,
    which would otherwise take up most of each example's norm and carry no information.

    Args:
        table: Public word vectors of shape (vocabulary, dimension), such as
            :func:`dpfy.data.glove` reads.
        classes: Outputs.
        hidden: Units of the hidden layer.

    Returns:
        A module that maps (records, length) tokens to (records, classes).

    >>> review_classifier(torch.randn(1000, 100))(torch.ones(5, 256, dtype=torch.int64)).shape
    torch.Size([5, 2])
    """
    return nn.Sequential(
        MeanEmbedding(_standardized(table)),
        Normalize(norm=8.0),
        *mlp(table.shape[1], classes, hidden),
    )


class LastStates(nn.Module):
    """A bidirectional LSTM layer that returns the last hidden states of both directions.

    It is initialised as in Keras: orthogonal recurrent weights, Glorot's for the inputs, and open
    forget gates. Torch has two biases of which only the sum matters. One of them stays zero and is
    not trained, because it would take noise without any use.

    Args:
        features: Numbers of a sequence at each time.
        units: Hidden units of each direction.

    >>> LastStates(features=8, units=4)(torch.zeros(5, 80, 8)).shape
    torch.Size([5, 8])
    """

    def __init__(self, features: int, units: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, units, batch_first=True, bidirectional=True)
        for name, parameter in self.lstm.named_parameters():
            if name.startswith("weight_ih"):
                nn.init.xavier_uniform_(parameter)
            elif name.startswith("weight_hh"):
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter).requires_grad_(name.startswith("bias_ih"))
                if parameter.requires_grad:
                    nn.init.ones_(
                        parameter.detach()[units : 2 * units]
                    )  # of the forget gate: the second of four

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        """Return 2·units numbers per sequence of shape (time, features)."""
        _, (hidden, _) = self.lstm(sequences)
        return hidden.transpose(0, 1).flatten(1)


def review_lstm(
    table: torch.Tensor, classes: int = 2, activation: Activation = nn.ReLU
) -> nn.Sequential:
    """Return the recurrent network for reviews of Wei et al. 2022.

    Fixed word vectors are followed by layers of 32, 2×32 (LSTM), 16 and ``classes`` units. The
    paper's reviews have 80 tokens from a vocabulary of 20 000
    (``dpfy.data.imdb(vocabulary=20_000, length=80)``) and GloVe's vectors of 100 numbers; it takes
    ReLU for DPIS and DP-SGD and tanh beside tempered sigmoids.

    Args:
        table: Public word vectors of shape (vocabulary, dimension).
        classes: Outputs.
        activation: Makes the activation of the two linear layers; default: ReLU.

    Returns:
        A module that maps (records, length) tokens to (records, classes).

    >>> review_lstm(torch.randn(1000, 100))(torch.ones(5, 80, dtype=torch.int64)).shape
    torch.Size([5, 2])

    Reference: J. Wei et al., DPIS: An Enhanced Mechanism for Differentially Private SGD with
    Importance Sampling, 2022, Table 1.
    """
    return nn.Sequential(
        FrozenEmbedding(table),
        nn.Linear(table.shape[1], 32),
        activation(),
        LastStates(32, 32),
        nn.Linear(64, 16),
        activation(),
        nn.Linear(16, classes),
    )


def _standardized(table: torch.Tensor) -> torch.Tensor:
    """Return vectors of mean 0 and variance 1 in every dimension; words without one stay zero."""
    known = table.any(dim=1)
    vectors = table[known]
    scaled = torch.zeros_like(table)
    scaled[known] = (vectors - vectors.mean(0)) / vectors.std(0).clamp(min=1e-6)
    return scaled
