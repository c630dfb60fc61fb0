"""What the hunt draws: descriptions of a private step and of a neighbouring data set, small enough
to read.
"""

import random
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from hunt_models import LOSSES, MODELS


@contextmanager
def _set(get, put, value):
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def _flush_denormal():
    return _set(lambda: False, torch.set_flush_denormal, True)


@contextmanager
def _hooked():
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: None
    )
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


AMBIENT = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "float64": lambda: _set(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "medium matmul": lambda: _set(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    "deterministic": lambda: _set(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "flush denormal": _flush_denormal,
    "two threads": lambda: _set(torch.get_num_threads, torch.set_num_threads, 2),
    "seeded": _seeded,
    "no mkldnn": lambda: _set(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, False),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "global hook": _hooked,
    "saved on cpu": torch.autograd.graph.save_on_cpu,
    "numpy raises": lambda: np.errstate(all="raise"),
    "default device": lambda: torch.device("cpu"),
}
"""What a user may have set around a step. Privacy must not depend on it."""

HAZARDS = (
    "mixup",
    "batch mean",
    "batch size",
    "centred scores",
    "spike",
    "python branch",
    "changing number",
    "changing global",
    "running mean",
    "seeding",
)
"""What a loss must not do. It is refused, or computed one record at a time and within the bound."""

ODD = (
    "ordinary",
    "large",
    "huge",
    "nan",
    "inf",
    "tiny",
    "zeros",
    "duplicate",
    "opposite",
    "raises",
    "none",
    "longer",
    "bad label",
    "float64",
    "requires grad",
)
"""Kinds of the record that is added, removed, or put in the place of another one."""

SAMPLING = tuple(
    (policy, relation)
    for relation in ("add_or_remove_one", "zero_out", "replace_one")
    for policy in (
        "full",
        "poisson",
        "fixed_size",
        "truncated_poisson",
        "shuffled",
        "cyclic",
        "balls_in_bins",
    )
    if relation != "add_or_remove_one" or policy in ("full", "poisson")
)
CLIPS = (
    "flat",
    "layers",
    "tensors",
    "small scales",
    "large scales",
    "mixed scales",
    "automatic",
    "small groups",
    "microbatches",
    "least sample",
)
STATISTICS = ("", "sample size", "loss", "norms")
ENGINES = ("auto", "bookkeeping", "ghost", "vmap", "loop")


@dataclass(frozen=True, repr=False)
class Case:
    """One private step, or two, and its neighbour. It prints as what differs from the
    simplest one.
    """

    model: str = "mlp"
    loss: str = "cross entropy"
    scale: float = 1.0
    half: bool = False
    hazard: str = ""
    ambient: tuple[str, ...] = ()
    throughout: bool = False  # the ambient state holds while the run is made, too
    engine: str = "auto"
    sampling: tuple[str, str] = SAMPLING[0]
    rows: int = 1  # of a user; 1 for records as the unit
    clip: str = "flat"
    bound: float = 0.1
    statistics: str = ""
    chunk: int | None = None
    odd: str = "large"
    position: int = 0
    size: int = 8
    double: bool = False
    training: bool = False  # the mode of the model: dropout is on
    collate: bool = False
    steps: int = 1
    seed: int = 0

    def __repr__(self) -> str:
        plain = Case()
        changed = (
            f"{field.name}={value!r}"
            for field in fields(self)
            if (value := getattr(self, field.name)) != getattr(plain, field.name)
        )
        return f"Case({', '.join(changed)})"

    @property
    def random(self) -> bool:
        """Whether the loss draws masks, so that two runs are not to be compared number by
        number.
        """
        return self.training and self.model == "dropout mlp"

    @property
    def benign(self) -> bool:
        """Whether a refusal would be an annoyance."""
        return not self.hazard

    def surroundings(self) -> ExitStack:
        """Return the ambient state as a context."""
        stack = ExitStack()
        for name in self.ambient:
            stack.enter_context(AMBIENT[name]())
        return stack


CHOICES = {
    "model": tuple(MODELS),
    "loss": LOSSES,
    "scale": (1.0, 1.0, 1.0, 1e3, 1e6, 1e-6),
    "half": (False, False, False, True),
    "hazard": ("",) * 5 * len(HAZARDS) + HAZARDS,
    "throughout": (False, True),
    "engine": ENGINES,
    "sampling": SAMPLING + 3 * SAMPLING[:1],
    "rows": (1, 1, 2, 5),
    "clip": CLIPS,
    "bound": (0.01, 0.1, 1.0, 50.0),
    "statistics": STATISTICS,
    "chunk": (None, None, 1, 3, 7),
    "odd": ODD + 2 * ("ordinary", "large", "opposite"),
    "position": (0, 1, -1),
    "size": (2, 5, 8, 8, 8, 24, 24, 300),
    "double": (False, False, False, True),
    "training": (False, True),
    "collate": (False, True),
    "steps": (1, 2),
}
"""What each field of a case may be; what is named twice comes twice as often."""


def drawn(number: int) -> Case:
    """Return the case of this number, the same on every machine: the simplest one with some of its
    fields drawn.

    A leak shows best where all else is simple, and some show only where several things meet: a
    quarter of the fields are drawn, or half of them, or all. They are uniform and independent,
    which hypothesis does not give: it varies what it drew before, and of 200 of its cases 75
    differed in model, engine, clipping or sampling, instead of 195."""
    generator = random.Random(number)
    boldness = generator.choice((0.25, 0.5, 1.0))
    values = {
        name: generator.choice(choices)
        for name, choices in CHOICES.items()
        if generator.random() < boldness
    }
    ambient = tuple(generator.sample(tuple(AMBIENT), generator.choice((0, 0, 1, 1, 2))))
    return possible(Case(**values, ambient=ambient, seed=number))


def possible(case: Case) -> Case:
    """Return the case without what cannot be planned, and with what its hazard needs to show."""
    if case.half:
        case = replace(case, double=False)  # autocast leaves float64 as it is
    if case.model in (
        "lstm",
        "gru",
    ):  # torch has no half precision for them here; two threads take it minutes
        case = replace(
            case,
            half=False,
            ambient=tuple(
                name
                for name in case.ambient
                if not name.startswith("autocast") and name != "two threads"
            ),
        )
    if case.engine == "loop" or case.rows > 1 or case.chunk is not None:
        case = replace(
            case, size=min(case.size, 24 if case.engine != "loop" else 8)
        )  # of many, one by one is slow
    if case.clip == "microbatches" and case.statistics != "sample size":
        case = replace(case, statistics="")
    if case.sampling == ("cyclic", "replace_one"):
        case = replace(case, rows=1)
    if case.hazard in ("changing number", "changing global", "running mean"):
        case = replace(case, steps=2)
    if case.hazard == "seeding":
        case = replace(case, model="dropout mlp", training=True)
    if "inference_mode" in case.ambient:
        case = replace(
            case, throughout=False
        )  # torch itself does not train a model that was made there
    return case


def shrunk(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Return a case that still fails and has as few fields as possible that differ from the
    simplest one.
    """
    simplest = Case()
    while True:
        simpler = [
            replace(case, **{field.name: getattr(simplest, field.name)}) for field in fields(case)
        ]
        simpler += [replace(case, ambient=(name,)) for name in case.ambient]
        found = next(
            (each for each in map(possible, simpler) if each != case and fails(each)), None
        )
        if found is None:
            return case
        case = found
