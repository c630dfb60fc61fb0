"""Read what a run wrote about its progress; whatever is odd in the file is left out."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = "progress.jsonl"
_LARGEST = 8 * 2**20  # bytes; a run writes about 100 kB
_LONGEST = 200  # characters of a name
_NAMES = 20  # metrics of one run
Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Progress:
    """The progress that a run wrote down.

    Args:
        ended: Whether the run said that it ended, after the last time that it went on.
        lost: The number of steps that were paid for, and lost when the run went on.
        epsilons: ε after the steps at which it was computed.
        public: Each metric on public data, by name.
        released: Each metric that steps released with noise, by name.
        notices: What the trainer said.
    """

    ended: bool = False
    lost: int = 0
    epsilons: Points = ()
    public: dict[str, Points] = field(default_factory=dict)
    released: dict[str, Points] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    @property
    def metric(self) -> tuple[str, float] | None:
        """The metric on public data that was measured last, with its value."""
        last = max(self.public.items(), key=lambda item: item[1][-1][0], default=None)
        return None if last is None else (last[0], last[1][-1][1])


def read_progress(path: Path) -> Progress:
    """Return the progress in a file; nothing if there is none, or if it cannot be read."""
    try:
        with path.open("rb") as file:
            return parse(file.read(_LARGEST).splitlines())
    except OSError:
        return Progress()


def declared_history(facts: object) -> dict[str, Points]:
    """Return the metric that a report declares, for runs that wrote no progress.

    >>> declared_history({"metric": "accuracy on public data", "history": [[2, 0.5]]})
    {'accuracy': ((2, 0.5),)}
    """
    found: dict[str, dict[int, float]] = {}
    if isinstance(facts, dict) and isinstance(facts.get("history"), list):
        metric = str(facts.get("metric")).removesuffix(" on public data")
        for pair in facts["history"]:
            if isinstance(pair, list) and len(pair) == 2 and _whole(pair[0]) is not None:
                _add(found, metric, pair[0], pair[1])
    return _curves(found)


def parse(lines: Iterable[bytes]) -> Progress:
    """Return the progress that lines tell of.

    >>> parse([b'{"kind": "evaluation", "step": 2, "metric": "accuracy", "value": 0.5}']).metric
    ('accuracy', 0.5)
    >>> parse([b"torn", b'{"kind": "step", "step": "two"}']) == Progress()
    True
    """
    ended, lost = False, 0
    epsilons: dict[int, float] = {}
    public: dict[str, dict[int, float]] = {}
    released: dict[str, dict[int, float]] = {}
    notices: dict[str, None] = {}
    for line in lines:
        entry = _entry(line)
        kind, step = entry.get("kind"), _whole(entry.get("step"))
        if kind == "start":
            ended, lost = False, lost + (_whole(entry.get("lost")) or 0)
        elif kind == "end":
            ended = True
        elif kind == "notice" and isinstance(entry.get("text"), str):
            notices[entry["text"][: 10 * _LONGEST]] = None
        if step is None:
            continue
        if (
            kind in ("step", "evaluation")
            and (epsilon := _number(entry.get("epsilon"))) is not None
        ):
            epsilons[step] = epsilon
        if kind == "evaluation":
            _add(public, entry.get("metric"), step, entry.get("value"))
        metrics = entry.get("metrics")
        if kind == "step" and isinstance(metrics, dict):
            for name, value in metrics.items():
                _add(released, name, step, value)
    return Progress(
        ended, lost, _points(epsilons), _curves(public), _curves(released), tuple(notices)[-5:]
    )


def _entry(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _whole(value: object) -> int | None:
    """Return a number of steps, or None if it is none."""
    return value if type(value) is int and 0 <= value < 2**53 else None


def _number(value: object) -> float | None:
    if type(value) not in (int, float) or not abs(value) < 1e300:  # type: ignore[arg-type]
        return None
    return float(value)  # type: ignore[arg-type]


def _add(curves: dict[str, dict[int, float]], name: object, step: int, value: object) -> None:
    number = _number(value)
    if isinstance(name, str) and number is not None and math.isfinite(number):
        name = name[:_LONGEST]
        if name in curves or len(curves) < _NAMES:
            curves.setdefault(name, {})[step] = number


def _curves(curves: dict[str, dict[int, float]]) -> dict[str, Points]:
    return {name: _points(points) for name, points in curves.items()}


def _points(points: dict[int, float]) -> Points:
    return tuple(sorted(points.items()))
