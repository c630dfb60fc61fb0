"""A log has what was computed and released, and never more of a run than its plan fixes."""

import json

import pytest
import torch

from dpfy.run.callbacks import Evaluation, Step
from dpfy.run.step_log import LINES, StepLog


def entries(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def told(path, steps, epsilon_of=lambda step: 0.0):
    log = StepLog(path)
    log.on_start(steps, 0)
    for step in range(1, steps + 1):
        log.on_step(Step(step, steps, 0.1, epsilon_of(step)))
    return [entry for entry in entries(path) if entry["kind"] == "step"]


def test_which_steps_are_written_follows_from_their_numbers(tmp_path):
    # By a clock, slow steps would be told more often: those with large private samples.
    found = [entry["step"] for entry in told(tmp_path / "log", 10 * LINES)]
    assert found == list(range(10, 10 * LINES + 1, 10))


def test_epsilon_is_written_only_where_it_was_computed(tmp_path):
    # A trainer tells the ε of its last reading with every step: at others it is too small.
    found = told(tmp_path / "log", 30, lambda step: float(step // 10))
    assert {each["step"]: each["epsilon"] for each in found if "epsilon" in each} == {
        10: 1.0,
        20: 2.0,
        30: 3.0,
    }


def test_numbers_that_json_does_not_have_are_null(tmp_path):
    log = StepLog(tmp_path / "log")
    log.on_evaluation(Evaluation(1, 0.1, float("inf"), float("nan"), metric="loss"))
    (found,) = entries(log.path)
    assert found["epsilon"] is None and found["value"] is None


def test_a_line_that_was_cut_does_not_take_the_next_one_with_it(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b'{"kind": "step", "st')
    StepLog(path).on_end()
    assert path.read_bytes().splitlines()[1:] == [b'{"kind": "end", "step": 0}']


def test_a_file_that_cannot_be_written_ends_the_log_and_not_the_run(tmp_path, capsys):
    log = StepLog(tmp_path)  # a folder
    log.on_start(2, 0)
    log.on_end()
    assert capsys.readouterr().err.count("cannot be written") == 1


def test_a_run_in_a_loop_of_ones_own_is_logged(tmp_path, started):
    begun = started(torch.ones(2, 3), steps=3, noise_multiplier=2.0)
    begun.run.listen(StepLog(tmp_path / "log"), delta=1e-5)
    for batch in begun.run:
        begun.run.backward(begun.loss, batch)
        begun.opt.step()
    begun.run.close()
    kinds = [entry["kind"] for entry in entries(tmp_path / "log")]
    assert kinds[0] == "start" and kinds.count("step") == 3 and kinds[-1] == "end"


@pytest.mark.parametrize("steps", [1, LINES, LINES + 1, 7 * LINES + 3])
def test_the_last_step_is_written_and_few_lines_are(tmp_path, steps):
    found = told(tmp_path / "log", steps)
    assert found[-1]["step"] == steps and len(found) <= LINES + 1
