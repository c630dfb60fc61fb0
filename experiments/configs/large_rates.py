"""Dörmann, Frisk, Andersen and Pedersen 2021, "Not All Noise Is Accounted Equally", Table 2: end-to-end tanh CNNs.

The rates q are those of the table. It gives no number of steps: these are the most that its σ allows at its ε and
δ = 1e-5 by RDP, the paper's accountant. With as many steps PLD needs 6 to 8 % less noise for the same ε. Batches are
large, and what is published about clipping and momentum for these networks (clip 0.1, momentum 0.9) is kept. CIFAR-10
has the network that Tramèr and Boneh corrected, as in the paper.
"""

from experiments.cell import Cell

_REFERENCE = "Dörmann et al. 2021, Table 2"
_START = ("Rate from the paper's Table 2, steps from its rate, noise and ε by RDP, clip and momentum as usual for tanh "
          "networks; the learning rate is a starting point that no search has confirmed yet.")


def _cell(data: str, epsilon: float, target: float, rate: float, steps: int, learning_rate: float) -> Cell:
    return Cell(f"large-rates-{data}", data, epsilon=epsilon, network="mnist-cnn", rate=rate, steps=steps, clip=0.1,
                learning_rate=learning_rate, target=target, reference=_REFERENCE, found=_START)


def _cifar(epsilon: float, target: float, rate: float, steps: int) -> Cell:
    return Cell("large-rates-cifar-10", "cifar-10", epsilon=epsilon, network="cifar-cnn", rate=rate, steps=steps,
                clip=0.1, learning_rate=2.0, target=target, reference=_REFERENCE, seeds=(0,),
                found="Rate from the paper's Table 2; no more than 30 epochs of steps, where the paper's noise would "
                      "allow 50 to 114, for want of a GPU; the learning rate is a starting point without a search.")


CELLS = (
    _cell("mnist", 0.98, 97.0, rate=0.14, steps=418, learning_rate=2.0),
    _cell("mnist", 1.95, 97.6, rate=0.17, steps=385, learning_rate=4.0),
    _cell("mnist", 2.93, 98.1, rate=0.17, steps=303, learning_rate=4.0),
    _cell("fashion-mnist", 0.97, 83.7, rate=0.14, steps=410, learning_rate=2.0),
    _cell("fashion-mnist", 1.79, 86.1, rate=0.17, steps=513, learning_rate=4.0),
    _cell("fashion-mnist", 2.40, 86.8, rate=0.17, steps=369, learning_rate=4.0),
    _cifar(1.93, 58.6, rate=0.17, steps=176),
    _cifar(4.21, 66.2, rate=0.20, steps=150),
    _cifar(7.42, 70.1, rate=0.17, steps=176),
)
