"""A server that is killed at any instant has paid for every round that it released."""

import os
import random
import signal

import pytest
import torch
from federations import Two, planned, update

import dpfy
from dpfy.federated import federate, resume

ROUNDS = 100_000  # more than any killed server gets to
PLAN = planned(steps=ROUNDS, noise_multiplier=1.0, clip=0.5)


def serve(folder, pipe):
    """Take rounds until killed, and tell the parent of every instant; releases are written down."""
    torch.set_num_threads(1)
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    if (folder / "checkpoint.safetensors").exists():
        server = resume(folder, model, optimizer, clients=range(10))
    else:
        server = federate(model, optimizer, PLAN, folder / "fl.dpl", clients=range(10))
    done = os.open(folder / "released", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    for cohort in server:
        os.write(pipe, b"d")
        for client in cohort.clients:
            cohort.add(client, update(0.5, 0.0, 0.0))
        os.write(pipe, b"a")
        server.step(cohort)
        os.write(done, b"r")
        os.write(pipe, b"s")
        if cohort.step % 3 == 0:
            server.save(folder)
            os.write(pipe, b"c")


def killed_at(folder, instant):
    """Let a child serve, and kill it when it has told of so many instants."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            serve(folder, write)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb", buffering=0) as pipe:
        for _ in range(instant):
            assert pipe.read(1), "the server ended by itself"
        os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_servers_never_count_fewer_rounds_than_they_released(kills, tmp_path):
    chance = random.Random(kills)
    before = 0
    for _ in range(kills):
        killed_at(tmp_path, chance.randint(1, 20))
        ledger = dpfy.Ledger.read(tmp_path / "fl.dpl")
        released = (tmp_path / "released").stat().st_size
        # Each child has at most one round that is paid for and not written down.
        assert released <= ledger.count and before <= ledger.count
        before = ledger.count
    assert released > kills and ledger.count <= released + kills
