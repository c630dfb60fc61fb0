"""A sharded run goes on with another number of processes, to the bit, and a save that is killed
leaves the one before it."""

import os
import shutil
import signal
import time

import pytest
import torch
import torch.distributed as dist
from ranks import Group, scenario
from safetensors.torch import load_file
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import dpfy
from dpfy.run.sharded_checkpoint import INDEX

DATA = torch.randn(20, 5, generator=torch.Generator().manual_seed(1))
PLAN = dpfy.dpsgd(records=20, batch_size=10, steps=6, noise_multiplier=1.0)


class Net(nn.Module):
    """A part that is whole and frozen, tied weights, and rows that nothing divides."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.first, self.second = nn.Linear(5, 7), nn.Linear(7, 5)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x):
        return self.second(torch.tanh(self.first(self.frozen(x) * self.scale)))


def made(seed, sharded=True):
    torch.manual_seed(seed)
    model = Net()
    if sharded:
        fully_shard(model.first)
        fully_shard(model, ignored_params=set(model.frozen.parameters()))
    trained = [p for p in model.parameters() if p.requires_grad]
    return model, torch.optim.AdamW(trained, lr=0.01)


def step(run, model, optimizer):
    batch = next(iter(run))
    optimizer.zero_grad()
    run.backward(lambda x: model(x).square().sum(1), batch)
    optimizer.step()


def state(model, optimizer):
    whole = [
        each.full_tensor() if hasattr(each, "full_tensor") else each
        for each in (
            *model.state_dict().values(),
            *(value for known in optimizer.state.values() for value in known.values()),
        )
    ]
    return torch.cat([each.detach().double().flatten() for each in whole]).tolist()


def begun(folder, steps=2):
    model, optimizer = made(0)
    run = dpfy.privatize(
        model, optimizer, TensorDataset(DATA), PLAN, folder / "run.dpl", announce=False
    )
    for _ in range(steps):
        step(run, model, optimizer)
    return run, model, optimizer


@scenario
def saved(rank, size, folder):
    run, model, optimizer = begun(folder)
    run.save(folder / "point", extra={"note": [1, 2.5]})
    kept = state(model, optimizer)
    run.close()
    dpfy.export(model, folder / "model.safetensors")
    again, twice = made(1)
    with dpfy.resume(folder / "point", again, twice, TensorDataset(DATA)) as run:
        found = state(again, twice)
        step(run, again, twice)
        note = run.restored["note"]
    return {"kept": kept, "found": found, "note": note}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    return Group(__file__, 2, shared / "sharded-saves")


def test_two_processes_go_on_to_the_bit(pair):
    for each in pair[saved]:
        assert each["found"] == each["kept"] and each["note"] == [1, 2.5]


def test_one_process_goes_on_to_the_bit(pair):
    expected = pair[saved][0]["kept"]
    model, optimizer = made(2, sharded=False)
    with dpfy.resume(pair.folder / "point", model, optimizer, TensorDataset(DATA)) as run:
        assert state(model, optimizer) == expected
        assert run.steps_left <= 4
    whole = load_file(pair.folder / "model.safetensors")
    assert {name: each.shape for name, each in whole.items()} == {
        name: each.shape for name, each in model.state_dict().items()
    }
    for name, each in model.state_dict().items():
        assert torch.equal(whole[name], each)


def test_the_last_save_counts_whether_the_model_was_sharded_or_whole(pair, tmp_path):
    shutil.copytree(pair.folder, tmp_path / "copy")
    folder = tmp_path / "copy" / "point"
    model, optimizer = made(2, sharded=False)
    with dpfy.resume(folder, model, optimizer, TensorDataset(DATA)) as run:
        step(run, model, optimizer)
        run.save(folder)
        kept, taken = state(model, optimizer), run.steps_taken
    model, optimizer = made(3, sharded=False)
    with dpfy.resume(folder, model, optimizer, TensorDataset(DATA)) as run:
        assert state(model, optimizer) == kept and run.steps_taken == taken
    assert [each.name for each in folder.iterdir()] == ["checkpoint.safetensors"]


def test_files_are_those_that_the_index_names_and_no_pickle(pair):
    files = sorted(each.name for each in (pair.folder / "point").iterdir())
    assert files[0] == INDEX and len(files) == 4
    assert all(name.endswith(".safetensors") for name in files[1:])
    for file in (pair.folder / "point").iterdir():
        assert b"pickle" not in file.read_bytes()


def test_a_folder_without_its_index_is_no_checkpoint(pair, tmp_path):
    model, optimizer = made(2, sharded=False)
    for file in (pair.folder / "point").glob("rows-*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(dpfy.errors.CheckpointError):
        dpfy.resume(tmp_path, model, optimizer, TensorDataset(DATA))


@scenario
def killed_in_save(rank, size, folder):
    """Save again and again; rank 1 ends itself by a signal in the middle of some save."""
    run, _, _ = begun(folder, steps=1)
    run.save(folder / "point")
    if rank == 1:
        delay = float(os.environ["DPFY_TEST_DELAY"])
        import threading

        timer = threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGKILL))
        timer.start()
    begin = time.monotonic()
    try:
        while time.monotonic() - begin < 60:
            run.save(folder / "point")
    except dpfy.errors.RankFailed:
        return "lost"
    return "nobody was lost"


@pytest.mark.slow
@pytest.mark.parametrize("number", range(100))
def test_a_save_that_is_killed_leaves_a_whole_checkpoint(number, tmp_path, monkeypatch):
    import ranks

    monkeypatch.setenv("DPFY_TEST_DELAY", str(number * 0.002))
    ended = ranks.finish(ranks.start(__file__, ["killed_in_save"], 2, tmp_path))
    assert ended[1][0] == -signal.SIGKILL, ended
    model, optimizer = made(2, sharded=False)
    with dpfy.resume(tmp_path / "point", model, optimizer, TensorDataset(DATA)) as run:
        assert run.steps_taken >= 1


@scenario
def killed_in_a_step(rank, size, folder):
    """Train until rank 1 ends itself by a signal in the middle of some message."""
    if rank == 1:
        left = [int(os.environ["DPFY_TEST_MESSAGES"])]
        sent = dist.all_to_all_single

        def counted(*args, **options):
            left[0] -= 1
            if left[0] <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return sent(*args, **options)

        dist.all_to_all_single = counted
    count = 0
    try:
        run, model, optimizer = begun(folder, steps=0)
        for _ in range(6):
            step(run, model, optimizer)
            count += 1
    except dpfy.errors.RankFailed:
        if rank == 0:
            return [count, run.ledger.count]
    return [count, -1]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 7))
def test_a_rank_that_is_killed_ends_the_run_and_nothing_is_under_counted(
    number, tmp_path, monkeypatch
):
    import ranks

    monkeypatch.setenv("DPFY_TEST_MESSAGES", str(number))
    ended = ranks.finish(ranks.start(__file__, ["killed_in_a_step"], 2, tmp_path))
    assert ended[1][0] == -signal.SIGKILL, ended
    released, counted = ranks.result(tmp_path, 0)["killed_in_a_step"]
    assert counted >= released
