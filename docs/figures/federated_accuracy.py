"""Draw docs/_static/federated-accuracy.svg: the next character by round, by role of a play."""

from pathlib import Path

import matplotlib

from experiments.federated import ROUNDS, Setting, label, read

matplotlib.use("svg")
from matplotlib import pyplot as plt

STATIC = Path(__file__).parents[1] / "_static"
STYLES = {ROUNDS[0]: "-", ROUNDS[1]: "--"}
COLOURS = {8.0: "#0072b2", None: "#009e73"}


def main() -> None:
    matplotlib.rcParams.update({"svg.hashsalt": "dpfy", "svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    found, named = read(), set()
    for curve in found["curves"]:
        setting = Setting(**curve["setting"])
        rounds, accuracies = zip(*curve["curve"][1:], strict=True)
        name = None if label(setting) in named else label(setting)
        named.add(label(setting))
        axes.plot(
            rounds, accuracies, STYLES[setting.rounds], color=COLOURS[setting.epsilon], label=name
        )
    axes.axhline(found["unigram"], color="#7a7a7a", linewidth=0.8)
    axes.annotate("most frequent character", (0, found["unigram"]), (0, 3), va="bottom",
                  textcoords="offset points", fontsize=8, color="#4a4a4a")  # fmt: skip
    axes.set(xlabel="round", ylabel="accuracy on held-out text")
    axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0, 0))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(STATIC / "federated-accuracy.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
