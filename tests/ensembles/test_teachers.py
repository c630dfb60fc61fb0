"""Teachers see their own part alone, fail in silence, and are kept without pickles."""

import errno
import os
import random
import stat
import warnings
from tempfile import mkstemp

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from dpfy import Teachers
from dpfy.ensembles import FittedAttributes, LinearPredictor, ModuleState, train_linear
from dpfy.ensembles.folder import Folder
from dpfy.errors import CheckpointError, InvalidArgument
from dpfy.labels import label_teacher
from dpfy.types import Unit

X = np.random.default_rng(0).normal(size=(120, 2))
Y = (X[:, 0] > 0).astype(np.int64)


class Constant:
    """A predictor with one answer."""

    def __init__(self, label):
        self.label = label

    def predict(self, x):
        return np.full(len(x), self.label)


def seen(data=None, **options) -> list[set[float]]:
    """Return the records that each teacher was given."""
    found = {}

    def train_one(subset, seed):
        found[seed] = set(subset[0][:, 0].tolist())
        return Constant(0)

    teachers = Teachers.fit(train_one, data or (X, Y), 8, insecure_test_key=5, **options)
    return [found.get(part, set()) for part in range(teachers.parts)]


def test_every_record_is_with_one_teacher():
    divided = seen()
    assert set.union(*divided) == set(X[:, 0].tolist())
    assert sum(map(len, divided)) == len(X)


def test_one_record_more_or_other_changes_one_teacher():
    before, after = seen((X[:-1], Y[:-1])), seen()
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
    replaced = X.copy()
    replaced[60] = 9.0
    other = seen((replaced, Y))
    assert sum(a != b for a, b in zip(other, after, strict=True)) == 1


def test_records_of_one_unit_stay_together():
    units = np.arange(len(X)) // 10
    for rows in seen(unit_of=units):
        assert len(rows) % 10 == 0


def raising(subset, seed):
    raise RuntimeError(f"{len(subset[0])} records")


def leaving(subset, seed):
    raise SystemExit(3)


def no_predictor(subset, seed):
    return None


@pytest.mark.parametrize("train_one", [raising, leaving, no_predictor])
def test_a_part_without_a_teacher_is_silent(train_one, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        teachers = Teachers.fit(train_one, (X, Y), 4)
    assert np.isnan(teachers.answers(X[:3])).all()
    assert capsys.readouterr() == ("", "")


def killed(subset, seed):
    if seed == 2:
        os._exit(1)
    print("size", len(subset[0]))
    return Constant(float(seed))


def test_processes_give_what_one_process_does_and_may_die(capfd):
    told = []
    teachers = Teachers.fit(
        killed, (X, Y), 5, workers=2, progress=lambda *done: told.append(done), insecure_test_key=1
    )
    assert teachers.answers(X[:1])[:, 0].tolist() == pytest.approx(
        [0, 1, np.nan, 3, 4], nan_ok=True
    )
    assert told == [(done, 5) for done in range(6)]
    assert capfd.readouterr() == ("", "")


class Loud:
    """A predictor that prints, warns, draws and tries to change what others are asked."""

    def __init__(self, does):
        self.does = does

    def predict(self, x):
        return self.does(x)


def scribble(x):
    x[:] = 7.0
    return np.zeros(len(x))


def chatty(x):
    print("votes")
    warnings.warn("votes", stacklevel=1)
    return np.zeros(len(x))


@pytest.mark.parametrize("inputs", [X[:3], torch.from_numpy(X[:3])], ids=["array", "tensor"])
def test_no_teacher_changes_what_another_answers(inputs, capsys):
    kept = inputs.tolist()
    draw = Loud(
        lambda x: np.full(len(x), random.random() + np.random.random() + torch.rand(()).item())
    )
    alone = Teachers([Constant(0), draw]).answers(inputs)
    behind = Teachers([Loud(scribble), draw]).answers(inputs)
    state = random.getstate()
    spent = Teachers([draw, draw, Loud(chatty)]).answers(inputs)
    assert alone[1].tolist() == behind[1].tolist() == spent[1].tolist()
    assert random.getstate() == state and capsys.readouterr() == ("", "")
    assert inputs.tolist() == kept


def through_torch(x):
    torch.as_tensor(x).sub_(9.0)
    return np.zeros(len(x))


def past_the_flag(x):
    x.flags.writeable = True
    return scribble(x)


def inside_objects(x):
    x[0][0] -= 9.0
    return np.zeros(len(x))


@pytest.mark.parametrize("write", [through_torch, past_the_flag, inside_objects])
def test_no_way_to_write_reaches_another_teacher(write):
    inputs = X[:3].copy()
    if write is inside_objects:
        inputs = np.empty(1, dtype=object)
        inputs[0] = [0.5]
    first = Loud(lambda x: np.array([each[0] for each in x], dtype=float))
    (alone,) = Teachers([first]).answers(inputs)
    assert Teachers([Loud(write), first]).answers(inputs)[1].tolist() == alone.tolist()
    assert Teachers([first]).answers(inputs)[0].tolist() == alone.tolist()


def test_a_teacher_that_empties_its_inputs_has_no_answer():
    emptied = Loud(lambda x: np.zeros(x.clear() or len(x)))
    found = Teachers([emptied, Constant(1)]).answers([1.0, 2.0])
    assert np.isnan(found[0]).all() and (found[1] == 1).all()


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: np.zeros(len(x) + 1),
        lambda x: np.zeros((len(x), 2)),
        lambda x: 0.0,
        lambda x: ["cat"] * len(x),
        lambda x: 1 / 0,
        lambda x: np.full(len(x), np.inf),
        lambda x: None,
        lambda x: (_ for _ in ()).throw(SystemExit),
    ],
)
def test_what_is_no_answer_is_nan(answer):
    found = Teachers([Constant(1), Loud(answer), None]).answers(X[:3])
    assert (found[0] == 1).all() and np.isnan(found[1:]).all()


def module(subset=None, seed=0):
    return nn.Linear(2, 2).double()


@pytest.mark.parametrize(
    ("train_one", "format"),
    [
        (lambda s, seed: LogisticRegression().fit(*s), FittedAttributes(LogisticRegression)),
        (module, ModuleState(module)),
        (train_linear(2), None),
    ],
    ids=["sklearn", "torch", "linear"],
)
def test_interrupted_training_goes_on_with_the_same_parts(train_one, format, tmp_path):
    options = {"folder": tmp_path / "teachers", "format": format}
    trained = []

    def once(subset, seed):
        if len(trained) == 3:
            raise KeyboardInterrupt
        trained.append(seed)
        return train_one(subset, seed)

    with pytest.raises(KeyboardInterrupt):
        Teachers.fit(once, (X, Y), 5, **options)
    with pytest.raises(CheckpointError, match="2 of 5 teachers"):
        Teachers.load(tmp_path / "teachers", format)
    again = Teachers.fit(train_one, (X, Y), 5, **options)
    loaded = Teachers.load(tmp_path / "teachers", format)
    assert loaded.answers(X).tolist() == again.answers(X).tolist()
    assert not np.isnan(again.answers(X)).any()
    assert (
        Teachers.fit(raising, (X, Y), 5, **options).answers(X).tolist() == again.answers(X).tolist()
    )
    with pytest.raises(CheckpointError, match="other parts or seeds"):
        Teachers.fit(train_one, (X, Y), 6, **options)
    loaded.save(tmp_path / "copy", format)
    copy = Teachers.load(tmp_path / "copy", format)
    assert copy.answers(X).tolist() == again.answers(X).tolist()


def test_a_failed_part_stays_failed_on_disk(tmp_path):
    Teachers.fit(raising, (X, Y), 2, folder=tmp_path)
    assert np.isnan(Teachers.load(tmp_path).answers(X[:1])).all()
    with pytest.raises(CheckpointError, match="no teachers in"):
        Teachers.load(tmp_path / "elsewhere")


class Plain:
    """A format that keeps what a teacher has."""

    def state(self, predictor):
        return dict(vars(predictor))

    def restore(self, state):
        return Constant(**state)


class Closed(Plain):
    """A format that fails for some teachers, in one of its two directions."""

    def __init__(self, fails):
        self.fails = fails

    def state(self, predictor):
        return self._checked("state", super().state(predictor))

    def restore(self, state):
        return super().restore(self._checked("restore", state))

    def _checked(self, direction, state):
        if direction == self.fails and state["label"] == 1:
            print(state)
            raise SystemExit(f"label {state['label']}")
        return state


@pytest.mark.parametrize(
    ("format", "label"), [(Plain(), {1}), (Closed("state"), 1), (Closed("restore"), 1)]
)
@pytest.mark.parametrize("way", ["fit", "workers", "save"])
def test_a_teacher_that_cannot_be_kept_is_a_missing_one(format, label, way, tmp_path, capfd):
    def train_one(subset, seed):
        return Constant(label if seed == 1 else 0)

    folder, options = tmp_path / "kept", {"insecure_test_key": 1}
    if way == "save":
        Teachers.fit(train_one, (X, Y), 3, **options).save(folder, format)
    else:
        options |= {"folder": folder, "format": format, "workers": int(way == "workers")}
        found = Teachers.fit(train_one, (X, Y), 3, **options).answers(X[:1])
        assert np.isnan(found[:, 0]).tolist() == [False, True, False]
    found = Teachers.load(folder, format).answers(X[:1])
    assert np.isnan(found[:, 0]).tolist() == [False, True, False]
    assert capfd.readouterr() == ("", "")


class Unreadable(Constant):
    """A predictor that does not come back from another process."""

    def __setstate__(self, state):
        raise SystemExit(f"label {state}")


def test_a_teacher_that_does_not_come_back_is_a_missing_one():
    def train_one(subset, seed):
        return Unreadable(0) if seed == 1 else Constant(0)

    found = Teachers.fit(train_one, (X, Y), 3, workers=1, insecure_test_key=1).answers(X[:1])
    assert np.isnan(found[:, 0]).tolist() == [False, True, False]


def test_an_interrupt_has_no_text():
    def interrupted(x):
        raise KeyboardInterrupt(f"{x}")

    with pytest.raises(KeyboardInterrupt) as caught:
        Teachers([Loud(interrupted)]).answers(X[:1])
    assert caught.value.args == () and caught.value.__suppress_context__


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    Teachers.fit(train_linear(2), (X, Y), 2, folder=tmp_path / "begun")
    (tmp_path / "begun" / "teacher-00001.safetensors").unlink()
    monkeypatch.setattr(os, "fsync", full)
    for folder in ("begun", "new"):
        with pytest.raises(CheckpointError, match="No space left"):
            Teachers.fit(train_linear(2), (X, Y), 2, folder=tmp_path / folder)


def test_teachers_of_two_runs_are_never_in_one_folder(tmp_path):
    options = {"parts": 2, "folder": tmp_path / "kept"}
    teachers = Teachers.fit(train_linear(2), (X, Y), **options)
    with pytest.raises(CheckpointError, match="holds teachers already"):
        teachers.save(tmp_path / "kept")
    with pytest.raises(CheckpointError, match="another number of records") as caught:
        Teachers.fit(train_linear(2), (X[1:], Y[1:]), **options)
    assert "119" not in str(caught.value) and "120" not in str(caught.value)
    (tmp_path / "kept" / "teachers.json").unlink()
    with pytest.raises(CheckpointError, match=r"but not teachers\.json"):
        Teachers.fit(train_linear(2), (X, Y), **options)
    with pytest.raises(CheckpointError, match=r"but not teachers\.json"):
        teachers.save(tmp_path / "kept")


def test_the_first_of_two_processes_declares_the_parts(tmp_path, monkeypatch):
    kept, declared = Folder(tmp_path / "kept", Plain()), {"seeds": [0]}

    def slower(*args, **options):
        monkeypatch.undo()
        assert Folder(tmp_path / "kept", Plain()).begin(declared, b"first") == b"first"
        return mkstemp(*args, **options)

    monkeypatch.setattr("tempfile.mkstemp", slower)
    assert kept.begin(declared, b"second") == b"first"
    assert [each.name for each in (tmp_path / "kept").iterdir()] == ["teachers.json"]


def test_nobody_else_may_read_the_folder(tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o755)
    Teachers.fit(train_linear(2), (X, Y), 2, folder=folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {0o600}


def test_a_rehearsal_on_public_records_shows_mistakes(tmp_path):
    with pytest.raises(RuntimeError, match="2 records"):
        Teachers.fit(raising, (X, Y), 2, rehearsal=(X[:2], Y[:2]))
    with pytest.raises(InvalidArgument, match="predict"):
        Teachers.fit(no_predictor, (X, Y), 2, rehearsal=(X[:2], Y[:2]))
    with pytest.raises(CheckpointError, match="holds a set"):
        Teachers.fit(
            lambda subset, seed: Constant({1}), (X, Y), 2,
            folder=tmp_path, format=Plain(), rehearsal=(X[:2], Y[:2]),
        )  # fmt: skip
    trees = FittedAttributes(DecisionTreeClassifier)
    with pytest.raises(InvalidArgument, match="tree_"):
        trees.state(DecisionTreeClassifier().fit(X, Y))


@pytest.mark.parametrize(
    ("records", "kind"),
    [
        (torch.utils.data.TensorDataset(torch.from_numpy(X)), torch.utils.data.Subset),
        (torch.from_numpy(X), torch.Tensor),
        (list(X), list),
    ],
)
def test_records_keep_their_form(records, kind):
    kinds = set()

    def train_one(subset, seed):
        kinds.add(isinstance(subset, kind) and len(subset) > 0)
        return Constant(0)

    Teachers.fit(train_one, records, 3)
    assert kinds == {True}


def test_what_does_not_fit_is_refused():
    with pytest.raises(InvalidArgument, match="one public seed"):
        Teachers.fit(raising, (X, Y), 2, seeds=[1])
    with pytest.raises(InvalidArgument, match="one length"):
        Teachers.fit(raising, (X, Y[1:]), 2)
    with pytest.raises(InvalidArgument, match="one predictor for each of 3"):
        Teachers([None], 3)


def test_linear_teachers_learn_and_leave_out_unknown_labels():
    labels = Y.copy()
    labels[::7] = 9
    found = train_linear(2)((X, labels), 0)
    assert isinstance(found, LinearPredictor)
    assert (found.predict(X).numpy() == Y).mean() > 0.95


def test_teachers_of_labels_have_all_features_and_move_by_one_label():
    """PATE-FM: a changed label changes the teacher of its part alone, and the unit is a label."""

    def semi_supervised(x, labels, seed):
        known = labels >= 0
        return Constant(float((labels[known] * (known.nonzero()[:, 0] + 1)).sum()))

    def answers(y):
        teacher = label_teacher(semi_supervised, torch.from_numpy(X), classes=2)
        data = (np.arange(len(X)), y)
        teachers = Teachers.fit(teacher, data, 8, unit="label", insecure_test_key=5)
        assert teachers.unit is Unit.LABEL
        return teachers.answers(X[:1])[:, 0]

    other = Y.copy()
    other[7] = 1 - other[7]
    assert (answers(Y) != answers(other)).sum() == 1


def test_users_are_named_if_and_only_if_they_are_the_unit():
    for options in ({"unit": "user"}, {"unit": "label", "unit_of": list(range(len(X)))}):
        with pytest.raises(InvalidArgument, match="unit_of= with unit='user'"):
            Teachers.fit(train_linear(2), (X, Y), 8, **options)
