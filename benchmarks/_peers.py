"""Fits models of other libraries, inside of their own environments: no dpfy, no torch.

``python _peers.py REQUEST.json`` prints a list of measurements, one for each seed. The request
names the model, ε, the seeds, and a file of arrays that :mod:`benchmarks.estimators` wrote."""

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = [0, 1]


def logistic(data: Any, epsilon: float, seed: int, C: float = 1.0) -> Any:
    from diffprivlib.models import LogisticRegression

    return LogisticRegression(epsilon=epsilon, data_norm=1.0, C=C, random_state=seed)


def forest(data: Any, epsilon: float, seed: int) -> Any:
    from diffprivlib.models import RandomForestClassifier

    return RandomForestClassifier(
        epsilon=epsilon, bounds=tuple(data["bounds"]), classes=CLASSES, random_state=seed
    )


def naive_bayes(data: Any, epsilon: float, seed: int) -> Any:
    from diffprivlib.models import GaussianNB

    return GaussianNB(epsilon=epsilon, bounds=tuple(data["bounds"]), random_state=seed)


def linear(data: Any, epsilon: float, seed: int) -> Any:
    from diffprivlib.models import LinearRegression

    return LinearRegression(
        epsilon=epsilon,
        bounds_X=tuple(data["bounds"]),
        bounds_y=tuple(data["target_bounds"]),
        random_state=seed,
    )


def clusters(data: Any, epsilon: float, seed: int) -> Any:
    from diffprivlib.models import KMeans

    return KMeans(10, epsilon=epsilon, bounds=tuple(data["bounds"]), random_state=seed)


def boosting(data: Any, epsilon: float, seed: int) -> Any:
    from interpret.privacy import DPExplainableBoostingClassifier

    kinds = ["continuous" if number else "nominal" for number in data["is_number"]]
    bounds = {
        place: (low, high)
        for place, (low, high) in enumerate(zip(*data["column_bounds"], strict=True))
        if kinds[place] == "continuous"
    }
    return DPExplainableBoostingClassifier(
        feature_types=kinds,
        epsilon=epsilon,
        delta=float(data["delta"]),
        privacy_bounds=bounds,
        random_state=seed,
        n_jobs=1,
    )


MODELS = {
    "LogisticRegression": logistic,
    "RandomForestClassifier": forest,
    "GaussianNB": naive_bayes,
    "LinearRegression": linear,
    "KMeans": clusters,
    "DPExplainableBoostingClassifier": boosting,
}


def measured(model: Any, data: Any, task: str) -> dict[str, float]:
    """Fit a model, and return its CPU seconds and what it reaches on the test rows."""
    start = time.process_time()
    model.fit(*([data["x"]] if task == "digits" else [data["x"], data["y"]]))
    seconds = time.process_time() - start
    return {"seconds": seconds, **reached(model, task, data)}


def reached(model: Any, task: str, data: Any) -> dict[str, float]:
    """Return the figures of a task: accuracy and AUC, R², or inertia."""
    if task == "digits":
        distances = ((data["x"][:, None] - np.asarray(model.cluster_centers_)[None]) ** 2).sum(-1)
        return {"inertia": float(distances.min(axis=1).sum())}
    if task == "houses":
        return {"r2": float(model.score(data["x_test"], data["y_test"]))}
    from sklearn.metrics import roc_auc_score

    odds = np.nan_to_num(model.predict_proba(data["x_test"])[:, 1])
    return {
        "accuracy": 100 * float(np.mean(model.predict(data["x_test"]) == data["y_test"])),
        "auc": float(roc_auc_score(data["y_test"], odds)),
    }


def main(request: dict[str, Any]) -> list[dict[str, float]]:
    """Measure one model at one ε with several seeds."""
    with np.load(request["data"], allow_pickle=False) as file:
        data = dict(file)
    warnings.simplefilter("ignore")
    make = MODELS[request["model"]]
    return [
        measured(make(data, request["epsilon"], seed, **request["settings"]), data, request["task"])
        for seed in request["seeds"]
    ]


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
