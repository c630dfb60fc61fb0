"""What runs release, record and cost under fixed test keys, as it was when these files were
written.

Whoever moves or renames code runs this test after every step: it must pass unchanged. On the kind
of machine that wrote the file everything is compared bit by bit: what was released, the ledgers
(time, identity and environment aside), the intervals of ε and the JSON of plans. On others, whose
kernels round differently, numbers that depend on arithmetic are compared to a millionth of their
size; another draw, another order of draws or another scale is far more than that.

A change that is meant to change results writes the file anew: ``python
tests/golden/test_golden.py``."""

import hashlib
import json
import platform
import re
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import ranks
from ranks import scenario

import dpfy
from dpfy.accounting import GaussianFilter
from dpfy.mechanisms.controllers import Controller

FILE = Path(__file__).with_name("golden.json")
DELTA = 1e-3
N, WIDTH, CLASSES = 60, 5, 3


class Rows(Dataset):
    """Records of very different sizes, of which one is not a number and one cannot be read."""

    example_input = torch.zeros(1, WIDTH), torch.zeros(1, dtype=torch.long)

    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(N, WIDTH, generator=generator) * torch.logspace(-2, 1, N).unsqueeze(1)
        self.y = torch.randint(CLASSES, (N,), generator=generator)
        self.x[7] = torch.nan

    def __len__(self):
        return N

    def __getitem__(self, index):
        if index == 11:
            raise OSError("unreadable")
        return self.x[index], self.y[index]


def network(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, CLASSES))


def losses(model, stats=False):
    def loss_fn(x, y):
        values = F.cross_entropy(model(x), y, reduction="none")
        return dpfy.Losses(values, {"x": x}) if stats else values

    return loss_fn


def flat(released):
    """All that was released in one step, as one vector."""
    values = [*released.gradients.values(), *released.statistics.values()]
    return torch.cat([value.detach().double().flatten() for value in values])


def outcome(plan, ledger, released):
    """What is compared of a run."""
    numbers = torch.cat(released)
    epsilon = dpfy.account(ledger).epsilon(DELTA)
    return {
        "plan": plan.to_json(),
        "ledger": ledger_lines(ledger),
        "epsilon": [epsilon.lower, epsilon.upper],
        "released": [round_to_digits(value) for value in numbers.tolist()],
        "bits": hashlib.sha256(numbers.numpy().tobytes()).hexdigest(),
    }


def round_to_digits(value):
    return float(f"{value:.7g}")


def ledger_lines(ledger):
    """The lines of the ledger without the hashes, times, identities and environment that differ
    from run to run.
    """
    if ledger.path is None:
        return [[run.event.to_json(), run.times] for run in ledger.uses]
    lines = [
        json.loads(line) for line in Path(ledger.path).read_text(encoding="utf-8").splitlines()
    ]
    for line in lines:
        line.pop("hash")
        for part, names in (
            ("header", ("created", "identity", "library")),
            ("basis", ("environment",)),
        ):
            for name in names if part in line else ():
                line[part].pop(name)
    return lines


def trained(plan, folder, stats=False, steps=None, **options):
    """What a run of ``plan`` releases, with momentum between its steps."""
    model = network()
    opt = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
    ledger, released = Path(folder) / "run.dpl", []
    with dpfy.privatize(model, opt, Rows(), plan, ledger, insecure_test_key=5, **options) as run:
        for batch in run:
            opt.zero_grad()
            released.append(flat(run.backward(losses(model, stats), batch)))
            run.measured(0.5)
            opt.step()
            if batch.step == steps:
                break
    return outcome(plan, dpfy.Ledger.read(ledger), released)


def planned(**options):
    return dpfy.dpsgd(
        **{
            "records": N,
            "batch_size": 20,
            "steps": 4,
            "noise_multiplier": 0.8,
            "clip": 0.7,
            **options,
        }
    )


def engine(name):
    return lambda folder: trained(planned(), folder, engine=name)


def sampling(name, **options):
    relation = "add_or_remove_one" if name == "full" else "zero_out"
    return lambda folder: trained(planned(sampling=name, relation=relation, **options), folder)


def controlled(controller, rule=None):
    def run(folder):
        plan = planned(controllers=[controller])
        return trained(plan if rule is None else plan.under(rule), folder)

    return run


def groups_and_statistics(folder):
    statistics = [
        dpfy.Statistic("x", bound=0.5, shape=(WIDTH,), every=2),
        dpfy.NormsBelow(),
        dpfy.SampleSize(),
        dpfy.Contributing(),
    ]
    plan = planned(clip=dpfy.clip_groups(network(), clip=0.7), statistics=statistics)
    return trained(plan, folder, stats=True, max_physical_batch=4)


def automatic(folder):
    return trained(planned(clip=dpfy.clip_automatically(0.7)), folder)


def jointly(folder):
    return trained(
        planned(clip=dpfy.clip_jointly(network(), {"0.*": 1.0, "*": 2.0}, clip=0.7)), folder
    )


def users(folder):
    plan = planned(records=20, batch_size=7, unit="user")
    return trained(plan, folder, unit_of=[k // 3 for k in range(N)], rows_per_user=2)


def importance(folder):
    return trained(
        dpfy.dpis(records=N, batch_size=12, steps=7, clip=0.5, ratio=0.5, noise_multiplier=1.5),
        folder,
    )


def importance_released(folder):
    plan = dpfy.dpis(
        records=N,
        batch_size=12,
        steps=7,
        clip=0.5,
        ratio=0.5,
        norm_sum="released",
        clip_factor=1.0,
        size_noise=0.2,
    ).calibrate(epsilon=8.0, delta=DELTA)
    return trained(plan, folder)


def resumed(folder):
    """Three steps, a checkpoint, one step that is lost, and the rest, under another key."""
    plan, folder = planned(steps=6, controllers=[dpfy.QuantileClipping(share=0.1)]), Path(folder)
    model = network()
    opt = torch.optim.Adam(model.parameters(), lr=0.1)
    released = []

    def take(run, model, opt, steps):
        for batch, _ in zip(run, range(steps), strict=False):
            opt.zero_grad()
            released.append(flat(run.backward(losses(model), batch)))
            opt.step()

    with dpfy.privatize(model, opt, Rows(), plan, folder / "run.dpl", insecure_test_key=6) as run:
        take(run, model, opt, 3)
        run.save(folder)
        take(run, model, opt, 1)
    model = network(seed=2)
    opt = torch.optim.Adam(model.parameters(), lr=0.1)
    with dpfy.resume(folder, model, opt, Rows(), insecure_test_key=7) as run:
        assert run.lost_steps == 1
        take(run, model, opt, 9)
    return outcome(plan, dpfy.Ledger.read(folder / "run.dpl"), released)


def recipe(name, **options):
    def run(folder):
        recipes = import_module("dpfy.recipes" if find_spec("dpfy.recipes") else "dpfy.algorithms")
        plan = planned(
            sampling="full",
            noise_multiplier=None,
            steps=5,
            controllers=[Controller.from_json({"type": "directed"})],
        ).calibrate(epsilon=20.0, delta=DELTA)
        model = network()
        opt = torch.optim.SGD(model.parameters(), lr=1.0)
        with dpfy.privatize(
            model, opt, Rows(), plan, Path(folder) / "run.dpl", insecure_test_key=8
        ) as run:
            taken = list(getattr(recipes, name)(run, losses(model), **options))
        released = [
            torch.cat((flat(each.released), torch.tensor([each.step_size], dtype=torch.float64)))
            for each in taken
        ]
        return outcome(plan, dpfy.Ledger.read(Path(folder) / "run.dpl"), released)

    return run


RUNS = {
    **{f"engine {name}": engine(name) for name in ("auto", "bookkeeping", "ghost", "vmap", "loop")},
    **{
        f"sampling {name}": sampling(name)
        for name in ("full", "fixed_size", "shuffled", "cyclic", "balls_in_bins")
    },
    "sampling truncated_poisson": sampling("truncated_poisson", capacity=25),
    "controller quantile": controlled(dpfy.QuantileClipping(share=0.1)),
    "controller norm": controlled(dpfy.NormClipping()),
    "controller adaclip": controlled(dpfy.AdaClip()),
    "controller noise by norm": controlled(dpfy.NormNoise(share=0.2), GaussianFilter(mu=20.0)),
    "controller validation": controlled(dpfy.ValidationDecay(), GaussianFilter(mu=20.0)),
    "schedules": lambda folder: trained(
        planned(noise_schedule="exponential:0.3", clip_schedule="time:0.5"), folder
    ),
    "microbatches": lambda folder: trained(planned(microbatches=5), folder, max_physical_batch=2),
    "divided by the sample size": lambda folder: trained(planned(least_sample=15.0), folder),
    "groups and statistics": groups_and_statistics,
    "automatic clipping": automatic,
    "joint clipping": jointly,
    "users": users,
    "importance": importance,
    "importance, released norms": importance_released,
    "resumed": resumed,
    "noisy_max": recipe("noisy_max"),
    "line_search": recipe("line_search"),
}


def on_two_ranks(folder):
    """The first rank's outcome of a run that two processes share."""
    ended = ranks.finish(ranks.start(str(Path(__file__)), ["shared"], 2, Path(folder)))
    assert all(code == 0 for code, _ in ended), ended
    found = ranks.result(Path(folder), 0)["shared"]
    assert "failed" not in found, found
    return found


@scenario
def shared(rank, size, folder):
    plan, model = planned(controllers=[dpfy.QuantileClipping(share=0.1)]), network(seed=rank + 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.25)
    released = []
    with dpfy.privatize(model, opt, Rows(), plan, folder / "run.dpl", insecure_test_key=9) as run:
        for batch in run:
            opt.zero_grad()
            released.append(flat(run.backward(losses(model), batch)))
            opt.step()
    return outcome(plan, dpfy.Ledger.read(folder / "run.dpl"), released) if rank == 0 else {}


def machine():
    """What decides how torch rounds."""
    found = re.search(
        r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M
    )
    return [
        found.group(1).strip() if found else platform.processor(),
        torch.backends.cpu.get_cpu_capability(),
        torch.__version__,
        np.__version__,
    ]


def apart(ledger):
    """Return the real numbers of a ledger, and the rest with events named in their order."""
    numbers, names = [], {}

    def without_numbers(value, key=""):
        if isinstance(value, dict):
            return {name: without_numbers(each, name) for name, each in value.items()}
        if isinstance(value, list):
            return [without_numbers(each) for each in value]
        if isinstance(value, float):
            return numbers.append(value)
        return names.setdefault(value, len(names)) if key == "event" else value

    rest = without_numbers(ledger)
    return numbers, rest


def compare(found, expected, same_machine):
    """Every part of an outcome is as it was, up to the rounding of another machine."""
    found = json.loads(json.dumps(found))
    if same_machine:
        assert found == expected
    assert found["plan"] == expected["plan"]
    # transforms of vectors add in an order that the processor's registers decide
    assert found["epsilon"] == pytest.approx(expected["epsilon"], rel=1e-6, abs=0)
    # what controllers choose follows from what was released, and gives events their names
    numbers, rest = apart(found["ledger"])
    known_numbers, known_rest = apart(expected["ledger"])
    assert rest == known_rest
    assert numbers == pytest.approx(known_numbers, rel=1e-6, abs=0)
    assert found["released"] == pytest.approx(expected["released"], rel=1e-6, abs=1e-6)


@pytest.fixture(scope="module")
def golden():
    return json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture
def one_thread():
    """Products on several threads are added in an order that the number of cores decides."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_releases_records_and_costs_what_it_did(golden, one_thread, name, tmp_path):
    compare(RUNS[name](tmp_path), golden["runs"][name], golden["machine"] == machine())


def test_two_ranks_release_record_and_cost_what_they_did(golden, tmp_path):
    compare(on_two_ranks(tmp_path), golden["runs"]["two ranks"], golden["machine"] == machine())


def test_no_run_was_forgotten(golden):
    assert {*golden["runs"]} == {*RUNS, "two ranks"}


def write():
    """Write the file anew."""
    torch.set_num_threads(1)
    found = {}
    for name, run in {**RUNS, "two ranks": on_two_ranks}.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = run(folder)
    runs = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(run, separators=(',', ':'))}"
        for name, run in found.items()
    )
    FILE.write_text(
        f'{{"machine": {json.dumps(machine())},\n"runs": {{\n{runs}\n}}}}\n', encoding="utf-8"
    )


if __name__ == "__main__":
    write()
