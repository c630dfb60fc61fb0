"""Run Flower's simulation with the private strategy, and write down what came out.

``python flower_simulation.py FOLDER``: the ledger, and ``result.safetensors`` with the model after
the last round, the nodes that were connected in each round, and the partition of each node.
"""

import sys
import time
from pathlib import Path

import torch
from flower_nodes import NODES, app, fixed_model, optimizer_of, planned
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from dpfy.integrations.flower import PrivateFedAvg
from dpfy.run.state_file import write_state

ROUNDS, KEY = 3, 11


class Watched(PrivateFedAvg):
    """Notes which node has which partition, and who was connected."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.partitions, self.nodes = {}, []

    def configure_train(self, server_round, arrays, config, grid):
        self.nodes.append(sorted(grid.get_node_ids()))
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = [*replies]
        for reply in replies:
            partition = reply.content["metrics"]["partition"]
            self.partitions[str(reply.metadata.src_node_id)] = int(partition)
        return super().aggregate_train(server_round, replies)


def main(folder: Path) -> None:
    """Simulate one round more than the plan has."""
    server_app = ServerApp()

    @server_app.main()
    def serve(grid, context):
        model = fixed_model()
        strategy = Watched(
            model, optimizer_of(model), planned(ROUNDS), folder / "fl.dpl", insecure_test_key=KEY
        )
        while len([*grid.get_node_ids()]) < NODES:
            time.sleep(0.05)  # nodes connect one after the other
        result = strategy.start(grid, strategy.arrays, num_rounds=ROUNDS + 1)
        strategy.server.close()
        write_state(
            folder / "result.safetensors",
            {
                "model": dict(result.arrays.to_torch_state_dict()),
                "nodes": strategy.nodes,
                "partitions": strategy.partitions,
            },
        )

    run_simulation(
        server_app,
        app,
        num_supernodes=NODES,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}},
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
