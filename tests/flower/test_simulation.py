"""In Flower's own simulation the strategy does what a server by hand does, to the bit."""

import subprocess
import sys
from pathlib import Path

import flower_simulation
import torch
from flower_nodes import NODES, fixed_model, optimizer_of, planned, trained

import dpfy
from dpfy.federated import federate
from dpfy.run.state_file import read_state


def test_eight_nodes_and_three_rounds_equal_a_server_by_hand(tmp_path):
    script = Path(flower_simulation.__file__)
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=script.parent)
    assert done.returncode == 0, done.stderr
    found = read_state(tmp_path / "result.safetensors")
    nodes = found["nodes"][0]
    assert len(nodes) == NODES and all(each == nodes for each in found["nodes"])

    model = fixed_model()
    server = federate(
        model,
        optimizer_of(model),
        planned(flower_simulation.ROUNDS),
        dpfy.Ledger.in_memory(),
        clients=nodes,
        insecure_test_key=flower_simulation.KEY,
    )
    asked = 0
    for cohort in server:
        for node in cohort.clients:
            partition = found["partitions"][str(node)]
            cohort.add(node, cohort.update_of(trained(cohort.model(), partition)))
            asked += 1
        server.step(cohort)
    assert asked > NODES
    for name, value in model.state_dict().items():
        assert torch.equal(value, found["model"][name]), name
    for name, value in fixed_model().named_parameters():
        assert not torch.equal(value, found["model"][name]), name
    read = dpfy.Ledger.read(tmp_path / "fl.dpl")
    assert read.count == flower_simulation.ROUNDS
    assert server.spent(1e-3) == dpfy.account(read).epsilon(1e-3)
