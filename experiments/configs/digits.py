"""The embedded digits: no files are needed, and a result takes seconds."""

from experiments.cell import Cell

CELLS = tuple(
    Cell(
        "digits",
        "digits",
        epsilon=epsilon,
        network="digits-mlp",
        rate=2 / 3,
        steps=60,
        clip=1.0,
        learning_rate=rate,
        schedule="linear",
        found="The settings that dpfy.models.recommended holds for digits; the learning rate in "
        "proportion to the ε, by hand and without a search.",
    )
    for epsilon, rate in ((1.0, 0.1), (3.0, 0.25))
)
