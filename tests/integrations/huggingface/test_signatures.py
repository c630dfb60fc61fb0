"""What the trainer overrides and relies on is there, in this transformers and in an earlier one.

An override that a framework stops calling would train without privacy, or not at all. The earlier
version is read and not imported; its wheel is downloaded once into the cache of pip's user.
"""

import ast
import inspect
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import transformers

from dpfy.integrations.huggingface import DPTrainer

EARLIER = "5.22.2"
OVERRIDDEN = {
    "train": ["resume_from_checkpoint", "trial", "ignore_keys_for_eval"],
    "training_step": ["model", "inputs", "num_items_in_batch"],
    "get_train_dataloader": [],
    "create_accelerator_and_postprocess": [],
    "_build_accelerator_args": ["kwargs"],
    "autocast_smart_context_manager": ["cache_enabled"],
    "num_examples": ["dataloader"],
    "get_total_train_batch_size": ["args"],
    "log": ["logs", "start_time"],
    "evaluate": ["eval_dataset", "ignore_keys", "metric_key_prefix"],
    "predict": ["test_dataset", "ignore_keys", "metric_key_prefix"],
    "_clip_grad_norm": ["model"],
    "_get_grad_norm": ["model", "grad_norm"],
    "_save_checkpoint": ["model", "trial"],
}
CALLED = {"_get_collator_with_removed_columns": 1, "_get_output_dir": 1}
REPLACED = {"hyperparameter_search"}  # by a refusal, whatever it is given
FIRST = ["model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class"]


def earlier():
    """Return the file of an earlier Trainer."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dpfy" / "wheels"
    wheel = cache / f"transformers-{EARLIER}-py3-none-any.whl"
    if not wheel.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(cache)]
        got = subprocess.run([*pip, f"transformers=={EARLIER}"], capture_output=True, text=True)
        assert not got.returncode, f"transformers {EARLIER} cannot be downloaded: {got.stderr}"
    with zipfile.ZipFile(wheel) as archive:
        return archive.read("transformers/trainer.py").decode()


def installed():
    """Return the file of the installed Trainer."""
    return inspect.getsource(sys.modules[transformers.Trainer.__module__])


def methods(text):
    """Return the parameters of each method of Trainer, and the names that its code calls."""
    (trainer,) = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name == "Trainer"
    ]
    found = {node.name: node for node in trainer.body if isinstance(node, ast.FunctionDef)}
    called = {
        node.func.attr
        for node in ast.walk(trainer)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    return {name: parameters(node.args) for name, node in found.items()}, called


def parameters(args):
    names = [each.arg for each in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return [*names[1:], *(each.arg for each in (args.vararg, args.kwarg) if each is not None)]


@pytest.fixture(params=[installed, earlier], ids=["installed", EARLIER], scope="module")
def theirs(request):
    return methods(request.param())


def test_every_override_is_listed_here():
    own = {
        name
        for name in vars(DPTrainer)
        if hasattr(transformers.Trainer, name) and not name.startswith("__")
    }
    assert own == OVERRIDDEN.keys() | REPLACED


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_overridden_methods_have_the_parameters_of_ours(theirs, name):
    found, _ = theirs
    assert found[name] == OVERRIDDEN[name]
    assert [*inspect.signature(getattr(DPTrainer, name)).parameters][1:] == OVERRIDDEN[name]


def test_the_loop_still_calls_them(theirs):
    _, called = theirs
    assert OVERRIDDEN.keys() - {"train", "predict"} <= called


def test_methods_that_are_called_are_there(theirs):
    found, _ = theirs
    for name, given in CALLED.items():
        assert len(found[name]) >= given


def test_the_first_arguments_are_in_the_same_order(theirs):
    found, _ = theirs
    assert found["__init__"][: len(FIRST)] == FIRST
    assert [*inspect.signature(DPTrainer).parameters][: len(FIRST)] == FIRST


def test_loops_ask_callbacks_before_the_first_step_and_after_each(theirs):
    """The run begins in ``on_train_begin``, and ends in ``on_step_end``."""
    _, called = theirs
    assert {"on_train_begin", "on_step_end"} <= called
