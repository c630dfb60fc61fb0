"""In Flower's own simulation the strategy does what a server by hand does, to the bit."""

import torch
from flower_nodes import NODES, app, fixed_model, trained
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

import dpfy
from dpfy.federated import federate
from dpfy.integrations.flower import PrivateFedAvg

ROUNDS, KEY = 3, 11


def planned():
    return dpfy.dpsgd(
        records=NODES,
        batch_size=6,
        steps=ROUNDS,
        clip=0.5,
        noise_multiplier=1.0,
        unit="user",
        controllers=[dpfy.QuantileClipping()],
    )


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)


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
            self.partitions[reply.metadata.src_node_id] = int(partition)
        return super().aggregate_train(server_round, replies)


def test_eight_nodes_and_three_rounds_equal_a_server_by_hand(tmp_path):
    done = {}
    server_app = ServerApp()

    @server_app.main()
    def main(grid, context):
        model = fixed_model()
        strategy = Watched(
            model, optimizer_of(model), planned(), tmp_path / "fl.dpl", insecure_test_key=KEY
        )
        while len([*grid.get_node_ids()]) < NODES:
            pass  # nodes connect while the simulation starts
        result = strategy.start(grid, strategy.arrays, num_rounds=ROUNDS + 1)
        done.update(strategy=strategy, arrays=result.arrays.to_torch_state_dict())
        strategy.server.close()

    run_simulation(
        server_app,
        app,
        num_supernodes=NODES,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}},
    )
    strategy = done["strategy"]
    assert len({tuple(nodes) for nodes in strategy.nodes}) == 1 and len(strategy.nodes[0]) == NODES

    model = fixed_model()
    server = federate(
        model,
        optimizer_of(model),
        planned(),
        dpfy.Ledger.in_memory(),
        clients=strategy.nodes[0],
        insecure_test_key=KEY,
    )
    asked = 0
    for cohort in server:
        for node in cohort.clients:
            cohort.add(node, cohort.update_of(trained(cohort.model(), strategy.partitions[node])))
            asked += 1
        server.step(cohort)
    assert asked > NODES
    for name, value in model.state_dict().items():
        assert torch.equal(value, done["arrays"][name]), name
    for name, value in fixed_model().named_parameters():
        assert not torch.equal(value, done["arrays"][name]), name
    read = dpfy.Ledger.read(tmp_path / "fl.dpl")
    assert read.count == ROUNDS
    assert server.spent(1e-3) == dpfy.account(read).epsilon(1e-3)
