"""Draw docs/_static/accuracy*.svg from the results of the experiments."""

from pathlib import Path

from experiments import shakespeare
from experiments.plots import draw_accuracy, draw_noise, draw_perplexity, draw_spending
from experiments.results import Place

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "docs" / "_static"


def main() -> None:
    """Draw accuracy over ε, accuracy as ε is spent, noise over the sampling rate, and perplexity
    over steps.
    """
    place = Place(ROOT / "experiments")
    draw_spending(place, STATIC / "accuracy-spending.svg")
    draw_noise(STATIC / "accuracy-noise.svg")
    draw_perplexity(shakespeare.read(), STATIC / "accuracy-shakespeare.svg")
    draw_accuracy(place, STATIC / "accuracy.svg")


if __name__ == "__main__":
    main()
