"""Whatever is in a file of progress, what is read of it are finite numbers under names."""

import json
import math

from hypothesis import given, strategies as st

from dpfy.page.progress import Progress, declared_history, parse, read_progress
from dpfy.run.callbacks import Evaluation, Step
from dpfy.run.step_log import StepLog

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
KINDS = st.sampled_from(["start", "step", "evaluation", "notice", "end", "other"])
ENTRIES = st.fixed_dictionaries(
    {"kind": KINDS},
    optional={
        name: VALUES
        for name in ("step", "steps", "lost", "epsilon", "metric", "value", "metrics", "text")
    },
)


@given(st.lists(ENTRIES.map(lambda entry: json.dumps(entry).encode()) | st.binary(), max_size=8))
def test_odd_lines_are_left_out(lines):
    found = parse(lines)
    curves = [found.epsilons, *found.public.values(), *found.released.values()]
    for points in curves:
        assert points == tuple(sorted(points))
        assert all(type(step) is int and math.isfinite(value) for step, value in points)
    assert found.lost >= 0 and all(isinstance(name, str) for name in found.public)


@given(VALUES)
def test_odd_facts_have_no_history(facts):
    assert all(points for points in declared_history(facts).values())


def test_what_a_log_writes_is_read(tmp_path):
    log = StepLog(tmp_path / "progress.jsonl", lost=4)
    log.on_start(3, 0)
    for step, epsilon in ((1, 0.0), (2, 0.5), (3, 0.5)):
        log.on_step(Step(step, 3, 0.1, epsilon, {"loss": float(step), "odd": math.nan}))
    log.on_evaluation(Evaluation(3, 0.3, 0.7, 0.9, metric="accuracy"))
    log.on_notice("slow")
    assert read_progress(log.path) == Progress(
        ended=False,
        lost=4,
        epsilons=((2, 0.5), (3, 0.7)),
        public={"accuracy": ((3, 0.9),)},
        released={"loss": ((1, 1.0), (2, 2.0), (3, 3.0))},
        notices=("slow",),
    )
    log.on_end()
    assert read_progress(log.path).ended


def test_the_metric_of_the_last_step_is_the_one_in_short(tmp_path):
    lines = [
        {"kind": "evaluation", "step": step, "metric": name, "value": value}
        for step, name, value in ((1, "a", 1.0), (3, "b", 2.0), (2, "a", 3.0))
    ]
    assert parse(json.dumps(line).encode() for line in lines).metric == ("b", 2.0)
    assert read_progress(tmp_path / "missing").metric is None
