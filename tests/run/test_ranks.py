"""Several processes give what one gives: the same sums, one noise, one ledger, and no rank is left
waiting.
"""

import hashlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import ranks as processes
import torch
import torch.nn.functional as F
from ranks import Group, scenario
from runs import Dot, Started
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import dpfy
import dpfy.run.ranks as distributed
from dpfy.accounting import GaussianFilter
from dpfy.ledger.individual import Individual
from dpfy.noise import SecureStream
from dpfy.run.checkpoint import FILE
from dpfy.run.ranks import Ranks

EYE = torch.eye(7)
DIMENSION = 20_000
GROUPS = dpfy.Plan(
    Individual(("strict", "open"), (0.2, 0.6), (0.5, 1.25), (0.5, 0.5)),
    dpfy.mechanisms.Query((dpfy.mechanisms.ClippedSum(1.0),)),
    steps=2,
    divisor=1,
    noise_multiplier=0.0,
)


def pytest_generate_tests(metafunc):
    if "group" in metafunc.fixturenames:
        sizes = [2, pytest.param(4, marks=pytest.mark.slow)]
        metafunc.parametrize(
            "group", sizes, indirect=True, ids=lambda size: f"{size} processes", scope="module"
        )


@pytest.fixture(scope="module")
def group(request, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    return Group(__file__, request.param, shared / f"ranks-{request.param}")


def refusal(act):
    """The kind and the text of the error that ``act`` raises."""
    try:
        act()
    except (dpfy.DpfyError, MemoryError) as error:
        return [type(error).__name__, str(error)]
    raise AssertionError("nothing was raised")


class Counted(Dataset):
    """Counts how often a record is read."""

    example_input = torch.zeros(1, 7)

    def __init__(self, rows):
        self.rows, self.reads = rows, 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        self.reads += 1
        return (self.rows[index],)


# The same as one process


def trained(
    rank,
    folder,
    engine="auto",
    sums=False,
    users=None,
    rule=None,
    labels=None,
    preset="dpsgd",
    **planned,
):
    """The parameters after three noisy steps on random samples, from a start that differs between
    the ranks.
    """
    generator = torch.Generator().manual_seed(5)
    data = TensorDataset(torch.randn(40, 6, generator=generator), torch.arange(40) % 3)
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    statistics = [
        dpfy.Statistic("x", bound=0.5, shape=(6,), every=2),
        dpfy.RecordNormsBelow(),
        dpfy.SampleSize(),
    ]
    options = (
        {"clip": dpfy.clip_groups(model, clip=0.7), "statistics": statistics}
        if sums
        else {"clip": 0.7}
    )
    plan = getattr(dpfy, preset)(
        records=40 if users is None else 20,
        batch_size=20 if users is None else 10,
        steps=3,
        noise_multiplier=0.5,
        unit="record" if users is None else "user",
        **options,
        **planned,
    )
    plan = plan if rule is None else plan.under(rule)
    released = []
    with dpfy.privatize(
        model,
        opt,
        data,
        plan,
        dpfy.Ledger.in_memory(),
        engine=engine,
        insecure_test_key=3,
        unit_of=users,
        group_of=labels,
    ) as run:
        for batch in run:
            opt.zero_grad()
            found = run.backward(
                lambda x, y: dpfy.Losses(F.cross_entropy(model(x), y, reduction="none"), {"x": x}),
                batch,
            )
            released += [value.flatten() for value in found.statistics.values()]
            released += [torch.as_tensor(each).flatten() for each in found.stddevs.values()]
            opt.step()
        parameters = torch.nn.utils.parameters_to_vector(model.parameters())
        return torch.cat([parameters.detach().double(), *released]).tolist(), run.engine


RECIPES = {
    "auto": {},
    "vmap": {"engine": "vmap"},
    "loop": {"engine": "loop"},
    "microbatches": {"microbatches": 5},
    "groups and statistics": {"sums": True},
    "users": {"users": [k // 2 for k in range(40)]},
    "clipped denominator": {"least_sample": 15.0},
    "quantile": {"controllers": [dpfy.QuantileClipping(share=0.2)]},
    "adaclip": {"controllers": [dpfy.AdaClip()]},
    "chosen noise": {
        "controllers": [dpfy.GradientNormNoise(share=0.2)],
        "rule": GaussianFilter(mu=20.0),
    },
    "shuffled": {"sampling": "shuffled", "relation": "zero_out"},
    "correlated": {"preset": "dpftrl", "strategy": "banded", "bands": 2},
    "correlated users": {"preset": "dpftrl", "users": [k // 2 for k in range(40)]},
    "cyclic poisson": {"preset": "dpftrl", "sampling": "cyclic_poisson", "bands": 2},
    "groups of records": {"sampling": GROUPS.sampling, "labels": [0, 1, -1, 1] * 10},
}


@scenario
def training(rank, size, folder):
    return {name: trained(rank, folder, **options) for name, options in RECIPES.items()}


@pytest.mark.parametrize("recipe", RECIPES)
def test_parameters_are_those_of_one_process(group, recipe, tmp_path):
    # Other samples, a share counted twice or left out, a mean in the place of the sum, noise once
    # per rank, or a start that was not shared: each moves the parameters by far more than rounding.
    expected, engine = trained(0, tmp_path, **RECIPES[recipe])
    alone = torch.tensor(expected, dtype=torch.float64)
    for found, used in (each[recipe] for each in group[training]):
        together = torch.tensor(found, dtype=torch.float64)
        assert used == engine
        assert (together - alone).norm() <= 1e-6 * alone.norm()
    assert (
        len({tuple(each[recipe][0]) for each in group[training]}) == 1
    )  # bit by bit the same everywhere


@scenario
def shares(rank, size, folder):
    data = Counted(EYE)
    started = Started(data, dimension=7, steps=2)
    started.release()  # looks at some records more, to compare them and to learn their shape
    data.reads = 0
    found = {
        "sum": started.release().tolist(),
        "reads": data.reads,
        "kept": started.run.context.buffer.vector.tolist(),
    }
    plan = dpfy.dpsgd(records=40, batch_size=40, steps=2, noise_multiplier=0.0)
    blocks = Started(TensorDataset(torch.eye(40)), dimension=40, plan=plan, max_physical_batch=3)
    chosen = blocks.run.context.engines.engine_for

    def odd(context, loss_fn):
        """An engine that takes another number of records at once on every rank."""
        engine = chosen(context, loss_fn)
        engine.records_at_once = 1 + rank
        return engine

    blocks.run.context.engines.engine_for = odd
    return {**found, "means": [blocks.release().tolist() for _ in range(2)]}


def test_every_record_is_read_by_one_rank_and_counted_once(group):
    assert [each["sum"] for each in group[shares]] == [[1.0] * 7] * group.size
    torch.testing.assert_close(
        torch.tensor([each["means"] for each in group[shares]]),
        torch.full((group.size, 2, 40), 1 / 40),
    )
    reads = [each["reads"] for each in group[shares]]
    assert sum(reads) == 7


def test_ranks_that_release_nothing_keep_nothing_of_their_sums(group):
    released, *others = [each["kept"] for each in group[shares]]
    assert any(released) and not any(map(any, others))


@scenario
def one_record(rank, size, folder):
    huge = Started(TensorDataset(torch.tensor([[3e4, 4e4, 0.0]])))
    first = huge.release().tolist()
    nobody = Started(TensorDataset(torch.ones(3, 3)), rate=0.0, noise_multiplier=1.0)
    return {
        "clipped": first,
        "noise": nobody.release().tolist(),
        "count": nobody.run.ledger.count if rank == 0 else None,
    }


def test_ranks_without_a_record_take_part_and_an_empty_sample_is_noised_and_recorded(group):
    for each in group[one_record]:
        assert each["clipped"] == pytest.approx([0.6, 0.8, 0.0])
        assert min(map(abs, each["noise"])) > 0
    assert group[one_record][0]["count"] == 1


@scenario
def ahead(rank, size, folder):
    found = []
    for prefetch in (0, 1):
        options = {"rate": 0.5, "noise_multiplier": 1.0, "num_workers": prefetch}
        started = Started(Counted(EYE), dimension=7, steps=4, prefetch=prefetch, **options)
        found.append([started.release().tolist() for _ in range(3)])
        started.run.close()
        found.append(started.run.ledger.count if rank == 0 else 3)
    return found


def test_ranks_that_are_one_step_ahead_release_and_spend_the_same(group):
    for releases, count, *same in group[ahead]:
        assert same == [releases, count] == [group[ahead][0][0], 3]


@scenario
def noise(rank, size, folder):
    started = Started(
        TensorDataset(torch.zeros(size, DIMENSION)),
        dimension=DIMENSION,
        noise_multiplier=1.5,
        clip=2.0,
    )
    released = started.release()
    return {
        "std": float(released.double().std()),
        "hash": hashlib.sha256(released.numpy().tobytes()).hexdigest(),
    }


def test_noise_is_added_once_and_at_full_scale(group):
    # The estimate has a relative standard deviation of 1/√(2·20 000) = 0.5 %: 5 % is ten of them.
    # Noise of every rank gives √2 with two of them, and noise divided among them 1/√2.
    for each in group[noise]:
        ratio = each["std"] / (1.5 * 2.0)
        assert abs(ratio - 1) < 0.05
        for wrong in (2 / 3, 3 / 2, 2**0.5, 0.5**0.5):
            assert abs(wrong * ratio - 1) > 0.05
    assert len({each["hash"] for each in group[noise]}) == 1


# Budget before data, one ledger


@scenario
def exhausted(rank, size, folder):
    plan = dpfy.dpsgd(rate=0.5, divisor=1, steps=2).calibrate(epsilon=2.0, delta=1e-5)
    data = Counted(EYE)
    started = Started(data, dimension=7, plan=replace(plan, steps=50))
    released = [started.release() for _ in range(2)]
    data.reads = 0
    return {"released": len(released), "refusal": refusal(started.release), "reads": data.reads}


def test_nobody_reads_for_a_step_that_the_guard_refuses(group):
    first, *others = group[exhausted]
    assert (first["released"], first["refusal"][0], first["reads"]) == (2, "BudgetExhausted", 0)
    assert others == [first] * (group.size - 1)


@scenario
def spending(rank, size, folder):
    started = Started(TensorDataset(EYE), dimension=7, noise_multiplier=1.0)
    started.release()
    if rank == 0:
        return started.run.spent(1e-5).upper == dpfy.account(started.ledger).epsilon(1e-5).upper > 0
    return refusal(lambda: started.run.spent(1e-5))


def test_what_was_spent_is_known_on_rank_0_and_asked_elsewhere_says_so(group):
    first, *others = group[spending]
    assert first is True
    assert all(kind == "LedgerError" and "rank 0" in text for kind, text in others)


# What is refused, everywhere at once


@scenario
def mistakes(rank, size, folder):
    def start(rows, **options):
        return Started(TensorDataset(rows), dimension=7, **options)

    odd = rank == size - 1
    return {
        "length": refusal(lambda: start(EYE[:6] if odd else EYE)),
        "plan": refusal(lambda: start(EYE, noise_multiplier=1.0 + odd)),
        "memory": refusal(lambda: start(EYE, max_physical_batch=2 + odd)),
        "order": refusal(start(EYE.flip(0) if odd else EYE).release),
        "model": refusal(lambda: Started(TensorDataset(EYE), dimension=7 + odd)),
        "wrapped": refusal(
            lambda: Started(TensorDataset(EYE), model=nn.parallel.DistributedDataParallel(Dot(7)))
        ),
        "groups": refusal(
            lambda: start(EYE, plan=GROUPS, group_of=[0] * 3 + [1] * (3 + odd) + [0] * (1 - odd))
        ),
        "labels": refusal(lambda: start(EYE, plan=GROUPS, group_of=([0, 1] * 4)[: 7 - odd])),
        "ledger": refusal(lambda: start(EYE, ledger=folder / "nowhere" / "run.dpl")),
        "loss": refusal(lambda: start(EYE).release(lambda x: x.sum())),
    }


@pytest.mark.parametrize(
    ("mistake", "kind", "says"),
    [
        ("length", "InvalidArgument", "another number of records"),
        ("plan", "InvalidArgument", "another plan"),
        ("memory", "InvalidArgument", "max_physical_batch"),
        ("order", "InvalidArgument", "another order of its records"),
        ("model", "InvalidArgument", "trained parameters"),
        ("wrapped", "InvalidArgument", ".module"),
        ("groups", "InvalidArgument", "another group_of than"),
        ("labels", "InvalidArgument", "6 labels do not fit"),
        ("ledger", "LedgerError", "does not exist"),
        ("loss", "LossError", ""),
    ],
)
def test_what_is_wrong_on_one_rank_is_refused_on_all(group, mistake, kind, says):
    found = [each[mistake] for each in group[mistakes]]
    assert found[0][0] == kind and says in found[0][1]
    assert found == [found[0]] * group.size


class Noisy(Dataset):
    """Records with random augmentation, from torch's generator or from the operating system."""

    def __init__(self, own):
        self.own = own

    def __len__(self):
        return 9

    def __getitem__(self, index):
        source = torch.Generator() if self.own else None
        if self.own:
            source.seed()
        return (EYE[0] * torch.rand(1, generator=source),)


@scenario
def augmentation(rank, size, folder):
    return [Started(Noisy(own), dimension=7).release().tolist() for own in (False, True)]


def test_random_augmentation_is_not_taken_for_another_data_set(group):
    for both in zip(*group[augmentation], strict=True):
        assert len({tuple(found) for found in both}) == 1 and 0 < both[0][0] < 9


@scenario
def failures(rank, size, folder):
    group = Ranks.present()

    def block(error):
        with group.together():
            if rank == size - 1:
                raise error

    def caught(error):
        try:
            block(error)
        except BaseException as found:
            return [type(found).__name__, str(found)]

    return [
        caught(error)
        for error in (dpfy.DataError("A sentence."), ValueError("secret 42"), KeyboardInterrupt())
    ]


def test_a_rank_that_fails_tells_the_others_and_quotes_nothing_but_our_own_texts(group):
    *others, last = group[failures]
    assert last == [
        ["DataError", "A sentence."],
        ["ValueError", "secret 42"],
        ["KeyboardInterrupt", ""],
    ]
    for told in others:
        assert told[0] == last[0]
        assert [kind for kind, _ in told[1:]] == ["RankFailed", "RankFailed"]
        assert "ValueError" in told[1][1] and "secret" not in told[1][1]


# What travels


@scenario
def noise_that_fails(rank, size, folder):
    """Rank 0 alone adds noise; what fails there must not leave the others waiting for what it
    releases.
    """
    started = Started(TensorDataset(EYE), dimension=7, steps=1)

    def failing(*_, **__):
        raise MemoryError

    started.run.context.noise.release = failing
    return refusal(started.release)


def test_noise_that_fails_on_rank_0_ends_the_step_on_all(group):
    first, *others = group[noise_that_fails]
    assert first[0] == "MemoryError" and all(kind == "RankFailed" for kind, _ in others)


@scenario
def tensors(rank, size, folder):
    def values(seed):
        generator = torch.Generator().manual_seed(seed)
        numbers = torch.randn(3, 4, generator=generator)
        return [
            numbers,
            numbers.double(),
            numbers.bfloat16(),
            numbers > 0,
            (100 * numbers).long(),
            numbers[0, 0],
            numbers.t(),
            torch.full((2,), float("nan") if seed == 0 else 1.0),
            torch.empty(0),
        ]

    mine, first = values(rank), values(0)
    Ranks.present().share(mine)
    return [
        torch.equal(a.nan_to_num(), b.nan_to_num()) and a.stride() == b.stride()
        for a, b in zip(mine, first, strict=True)
    ]


def test_tensors_of_every_kind_become_those_of_rank_0(group):
    assert group[tensors] == [[True] * 9] * group.size


@scenario
def secrets(rank, size, folder):
    keys, sent = [], []
    draw, exchange = os.urandom, distributed._exchange

    def drawn(count):
        keys.append(draw(count))
        return keys[-1]

    def carried(operation, tensor):
        sent.append(distributed._bytes(tensor).numpy().tobytes())
        exchange(operation, tensor)
        sent.append(distributed._bytes(tensor).numpy().tobytes())

    os.urandom, distributed._exchange = drawn, carried
    try:
        released = Started(
            TensorDataset(EYE), dimension=7, key=None, noise_multiplier=1.0
        ).release()
    finally:
        os.urandom, distributed._exchange = draw, exchange
    derived = [
        hashlib.sha256(f"dpfy {purpose}:".encode() + key).digest()
        for key in keys
        for purpose in ("noise", "sampling", "training")
    ]
    traffic = b"|".join(sent)
    return {
        "keys": [key.hex() for key in keys],
        "messages": len(sent),
        "released": released.tolist(),
        "leaked": any(key in traffic for key in keys + derived),
    }


def test_no_key_leaves_its_process_or_is_printed(group):
    found = group[secrets]
    assert not any(each["leaked"] for each in found) and all(each["messages"] > 4 for each in found)
    keys = [key for each in found for key in each["keys"]]
    assert (
        len(set(keys)) == len(keys) >= 3 * group.size
    )  # noise, sampling and dropout: every rank has its own
    assert not any(key in group.output or repr(bytes.fromhex(key)) in group.output for key in keys)
    assert len({tuple(each["released"]) for each in found}) == 1


def test_every_rank_has_its_own_dropout_also_under_a_test_key():
    words = {
        Ranks(rank, 3).own(SecureStream(7, purpose="training")).words(1).tobytes()
        for rank in range(3)
    }
    assert len(words) == 3


# Files


@scenario
def checkpoint(rank, size, folder):
    """Save after two of five steps, lose one, go on; only rank 0 can see the folder."""
    place = folder / "saved" if rank == 0 else folder / "nothing"
    ledger = folder / "saved.dpl"

    def begin(weight):
        model = Dot(7)
        nn.init.constant_(model.weight, weight)
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def take(run, model, opt, steps):
        for _ in range(steps):
            opt.zero_grad()
            run.backward(model, next(iter(run)))
            opt.step()

    plan = dpfy.dpsgd(rate=1.0, divisor=1, steps=5, noise_multiplier=1.0)
    model, opt = begin(1.0)
    with dpfy.privatize(model, opt, TensorDataset(EYE), plan, ledger) as run:
        take(run, model, opt, 2)
        run.save(place, extra={"note": "public"})
        saved, momentum = model.weight.tolist(), opt.state[model.weight]["momentum_buffer"].tolist()
        take(run, model, opt, 1)
    model, opt = begin(float(rank))
    with dpfy.resume(place, model, opt, TensorDataset(EYE)) as run:
        same = [
            model.weight.tolist() == saved,
            opt.state[model.weight]["momentum_buffer"].tolist() == momentum,
            run.restored["note"] == "public",
            (run.lost_steps, run.steps_left) == (1, 2),
        ]
        take(run, model, opt, run.steps_left)
    return {"same": same, "end": model.weight.tolist(), "file": (place / FILE).exists()}


def test_rank_0_saves_and_all_ranks_resume(group):
    found = group[checkpoint]
    assert [each["same"] for each in found] == [[True] * 4] * group.size
    assert len({tuple(each["end"]) for each in found}) == 1
    assert [each["file"] for each in found] == [True] + [False] * (group.size - 1)
    assert group.output.count("1 step after the checkpoint was paid for and is lost") == 1


@scenario
def trainer(rank, size, folder):
    class Told(dpfy.Callback):
        steps = 0

        def on_step(self, step):
            self.steps += 1

    generator = torch.Generator().manual_seed(1)
    y = torch.arange(200) % 2
    data = TensorDataset(torch.randn(200, 3, generator=generator) + 2.0 * y.unsqueeze(1), y)
    told = Told()
    settings = dpfy.TrainConfig(
        data="own",
        records=200,
        batch_size=50,
        epochs=2,
        learning_rate=0.5,
        delta=1e-3,
        ema=0.5,
        out=str(folder),
        name="trainer" if rank == 0 else "elsewhere",
    )

    def make():
        return dpfy.Trainer(
            settings, model=nn.Linear(3, 2), train=data, test=data, callbacks=[told]
        )

    result = make().fit()
    return {
        "claim": result.claim,
        "spent": result.spent,
        "folder": str(result.folder),
        "told": told.steps,
        "accuracy": [evaluation.accuracy for evaluation in result.evaluations],
        "again": refusal(lambda: make().fit()),
    }


def test_the_trainer_writes_one_folder_and_returns_the_same_on_every_rank(group):
    found = group[trainer]
    assert [each.pop("told") for each in found] == [8] + [0] * (group.size - 1)
    assert found == [found[0]] * group.size
    assert found[0]["claim"] <= 3.0 and len(found[0]["accuracy"]) == 2
    folder = Path(found[0]["folder"])
    assert folder.name == "trainer" and not (folder.parent / "elsewhere").exists()
    assert dpfy.Ledger.read(folder / "ledger.dpl").count == 8
    assert (folder / "report.html").exists() and found[0]["again"][0] == "InvalidArgument"


@scenario
def signalled(rank, size, folder):
    """SIGTERM reaches the last rank only, in the middle of step 3; then all ranks start again."""
    y = torch.arange(200) % 2
    data = TensorDataset(torch.eye(3)[torch.arange(200) % 3] + y.unsqueeze(1), y)
    settings = dpfy.TrainConfig(
        data="own",
        records=200,
        batch_size=50,
        epochs=2,
        learning_rate=0.5,
        delta=1e-3,
        out=str(folder),
        name="signalled",
    )

    def make():
        torch.manual_seed(rank)
        return dpfy.Trainer(settings, model=nn.Linear(3, 2), train=data, test=data)

    first, steps = make(), iter(range(1, 9))

    def arrive(*_):
        if next(steps) == 3 and rank == size - 1:
            signal.raise_signal(signal.SIGTERM)

    first.optimizer.register_step_pre_hook(arrive)
    try:
        first.fit(resume_if_exists=True)
    except dpfy.TrainingInterrupted as error:
        number, weights = error.signal, first.model.weight.tolist()
    again = make()
    again.fit(resume_if_exists=True)
    return {"signal": number, "saved": weights, "end": again.model.weight.tolist()}


def test_a_signal_to_one_rank_stops_all_after_the_same_step(group):
    found = group[signalled]
    assert [each["signal"] for each in found] == [signal.SIGTERM] * group.size
    assert found == [found[0]] * group.size
    ledger = Path(group.folder, "signalled", "ledger.dpl")
    assert dpfy.Ledger.read(ledger).count == 8  # three steps and five, none of them twice


# Processes that were not told about each other, and processes that die


def test_a_process_that_is_one_of_several_needs_a_group(monkeypatch):
    # Each of them would otherwise train on its own, with a ledger and a budget of its own.
    for name, value in {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(dpfy.InvalidArgument, match="init_process_group"):
        Started(TensorDataset(EYE), dimension=7)
    monkeypatch.setenv("WORLD_SIZE", "1")
    Started(TensorDataset(EYE), dimension=7).run.close()


class Fatal(Counted):
    """Ends the process without a word when it has read enough for some steps."""

    def __getitem__(self, index):
        if self.reads > 90:  # of which 42 are for checks
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def killed(victim, rank, folder):
    """Release until the victim dies while it reads a record; return what the others are told, and
    torch's reason.
    """
    data = Fatal(EYE) if rank == victim else Counted(EYE)
    started = Started(
        data, dimension=7, steps=100, noise_multiplier=1.0, key=None, ledger=folder / "run.dpl"
    )
    released = folder / f"released-{rank}"

    try:
        for step in range(1, 100):
            started.release()
            released.write_text(str(step))
    except dpfy.RankFailed as error:
        return [str(error), str(error.__cause__)]


@scenario
def killed_first(rank, size, folder):
    return killed(0, rank, folder)


@scenario
def killed_last(rank, size, folder):
    return killed(size - 1, rank, folder)


@pytest.mark.parametrize(
    ("function", "size"),
    [
        (killed_last, 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(killed_first, 2), (killed_first, 4), (killed_last, 4)]
        ),
    ],
)
def test_when_a_rank_is_killed_the_others_stop_and_the_ledger_counts_every_release(
    function, size, tmp_path
):
    victim = 0 if function is killed_first else size - 1
    ended = processes.finish(processes.start(__file__, [function.__name__], size, tmp_path))
    assert [code for code, _ in ended] == [
        -signal.SIGKILL if rank == victim else 0 for rank in range(size)
    ], ended
    survivors = [
        processes.result(tmp_path, rank)[function.__name__]
        for rank in range(size)
        if rank != victim
    ]
    assert all(
        "resume" in told and "onnection" in reason for told, reason in survivors
    )  # and not a time-out
    ledger = dpfy.Ledger.read(tmp_path / "run.dpl")
    released = [int((tmp_path / f"released-{rank}").read_text()) for rank in range(size)]
    assert ledger.verify() > 0 and 0 < max(released) <= ledger.count <= max(released) + 1


# The command line


SHORT = [
    "-m",
    "dpfy",
    "train",
    "--epochs",
    "1",
    "--batch-size",
    "500",
    "--delta",
    "1e-3",
    "--name",
    "a",
]


def torchrun(folder, *program):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    return subprocess.run(
        [*launcher, *program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_torchrun_trains_with_one_folder_and_one_voice(tmp_path):
    result = torchrun(tmp_path, *SHORT)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("-differential privacy") == result.stdout.count("report.html") == 1
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a"]
    ledger = dpfy.Ledger.read(tmp_path / "runs" / "a" / "ledger.dpl")
    assert ledger.count == 3 and dpfy.account(ledger).claim(1e-3) <= 3.0


@pytest.mark.slow
def test_torchrun_resumes_and_says_once_what_is_wrong(tmp_path):
    assert torchrun(tmp_path, *SHORT).returncode == 0
    again = torchrun(tmp_path, *SHORT)
    said = [
        line for line in again.stderr.splitlines() if line.startswith("Error: ")
    ]  # torchrun says its own besides
    assert again.returncode != 0 and len(said) == 1 and "--resume" in said[0]
    resumed = torchrun(tmp_path, "-m", "dpfy", "train", "--resume", "runs/a")
    assert resumed.returncode == 0 and resumed.stdout.count("-differential privacy") == 1


@pytest.mark.slow
def test_the_loop_of_the_documentation_runs_in_two_processes(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "how-to" / "distributed.md"
    program = re.search(
        r"^```python\n(# train\.py\n.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S
    )[1]
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    result = torchrun(tmp_path, "train.py")
    assert result.returncode == 0, result.stderr
    assert 3.9 < float(result.stdout) <= 4.0  # one number, of one rank
    assert dpfy.Ledger.read(tmp_path / "run.dpl").count == 10
