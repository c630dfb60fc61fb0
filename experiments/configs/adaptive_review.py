"""A review of adaptive DP-SGD (2024), §6.1: noise, clip bounds and learning rates that adapt, for
MNIST at ε = 1 and, as in its Figure 12, for CIFAR-10 at ε = 2 and 3.

All methods have the network, the rate and the steps of one well-tuned DP-SGD, so that a difference
is the method's. The review's own baseline reaches 86 % with σ = 2 or 8 throughout. Noise falls to a
third or a half of what it is at first in every schedule. A method is an experiment of its own,
because a table has one method. CIFAR-10 is classified by softmax regression on the features of
configs.dpis; of Figure 12 the text gives the numbers of adaptive learning rates alone."""

from experiments.cell import Cell

_REFERENCE = "review of adaptive DP-SGD 2024, §6.1 and Table 8"
_FOUND = (
    "Clip and rate by rule from other small CNNs; steps and learning rate from two tries of the "
    "time schedule on held-out records (120 steps and 4: 91.4 %, 200 and 6: 94.7 %), and taken "
    "over for all methods; the numbers of schedules so that noise falls to a third or a half, by "
    "hand."
)
_STEPS, _RATE = 200, 0.03  # 6 epochs


def _cell(
    name: str,
    target: float,
    method: str,
    epsilon: float = 1.0,
    learning_rate: float = 6.0,
    momentum: float = 0.9,
) -> Cell:
    return Cell(
        f"adaptive-review-{name}",
        "mnist",
        epsilon=epsilon,
        network="mnist-cnn",
        rate=_RATE,
        steps=_STEPS,
        clip=0.1,
        learning_rate=learning_rate,
        momentum=momentum,
        schedule="linear",
        method=method,
        target=target,
        reference=_REFERENCE,
        found=_FOUND,
    )


def _cifar(
    name: str,
    method: str,
    targets: dict[float, float | None],
    found: str,
    learning_rates: tuple[float, float] = (100.0, 120.0),
) -> tuple[Cell, ...]:
    """Return the cells of a method at the two ε, with a learning rate for each."""
    return tuple(
        Cell(
            f"adaptive-review-cifar-10-{name}",
            "cifar-10",
            epsilon=epsilon,
            network="photo-linear",
            features="photo-patches",
            rate=0.1,
            steps=250,
            clip=0.3,
            learning_rate=learning_rate,
            momentum=0.0,
            schedule="linear",
            method=method,
            target=target,
            reference="review of adaptive DP-SGD 2024, Figure 12",
            found=found,
        )
        for (epsilon, target), learning_rate in zip(targets.items(), learning_rates, strict=True)
    )


_NO_TARGETS: dict[float, float | None] = {2.0: None, 3.0: None}
_AS_DPIS = "As for `dpis-cifar-10-dpsgd`."
_TAKEN_OVER = "Those of DP-SGD; the method's own numbers by hand, as for MNIST."
_ADADP = (
    "Those of DP-SGD. On a sixth of the training records at ε 2: first learning rates of 30, 100 "
    "and 300 with a tolerance of 1 (63.9, 63.2 and 62.9 %), then tolerances of 0.3, 3 and 8 with "
    "100 (58.5, 68.8 and 71.4 %)."
)

CELLS = (
    _cell("dpsgd", 86.0, "dp-sgd"),
    _cell("quantile", 85.4, "quantile:0.5", epsilon=0.83),
    _cell("adadp", 91.9, "adadp", learning_rate=20.0, momentum=0.0),
    _cell("time", 91.5, "time:0.3"),
    _cell("exponential", 89.0, "exponential:0.12"),
    _cell("polynomial", 90.7, "polynomial:1:6:0.5"),
    *_cifar("dpsgd", "dp-sgd", _NO_TARGETS, _AS_DPIS),
    *_cifar("quantile", "quantile:0.5", _NO_TARGETS, _TAKEN_OVER),
    *_cifar("adadp", "adadp:8", {2.0: 62.5, 3.0: 65.0}, _ADADP),
    *_cifar("exponential", "exponential:0.03", _NO_TARGETS, _TAKEN_OVER),
)
