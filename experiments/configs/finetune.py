"""A public language model on film reviews at ε 3: two upper layers trained, or a linear head alone.

Dropout is off. The readout starts at zero. Learning rates fall linearly."""

from experiments.cell import Cell


def _cell(experiment: str, network: str, **settings: object) -> Cell:
    return Cell(
        experiment,
        "imdb",
        epsilon=3.0,
        network=network,
        features="minilm",
        schedule="linear",
        **settings,  # type: ignore[arg-type]
    )


CELLS = (
    _cell(
        "finetune-imdb-linear",
        "minilm-linear",
        rate=0.1,
        steps=100,
        clip=0.3,
        learning_rate=20.0,
        found="As softmax regression on other features of this folder.",
    ),
    _cell(
        "finetune-imdb-upper",
        "minilm-upper",
        method="adam",
        rate=0.08,
        steps=30,
        clip=0.5,
        learning_rate=1e-3,
        target=80.0,
        found="On a sixth of the training records.",
    ),
)
