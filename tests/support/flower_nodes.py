"""A small model, and what Flower's nodes do with it: the same in a simulation and by hand."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

import dpfy

NODES = 8


class Model(nn.Module):
    """A network with a buffer, which nodes change and the server keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.last = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)).relu())


def fixed_model() -> Model:
    """A model whose weights are the same in every process."""
    model = Model()
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=chance))
    return model


def trained(model: nn.Module, partition: int) -> nn.Module:
    """Train in place on the rows of a partition."""
    chance = torch.Generator().manual_seed(100 + partition)
    x, y = torch.randn(12, 4, generator=chance), torch.arange(12) % 2
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def planned(rounds: int) -> dpfy.Plan:
    """A plan that draws six of the nodes in a round, on average."""
    return dpfy.dpsgd(
        records=NODES,
        batch_size=6,
        steps=rounds,
        clip=0.5,
        noise_multiplier=1.0,
        unit="user",
        controllers=[dpfy.QuantileClipping()],
    )


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of the server."""
    return torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)


app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train what the server sent, and reply the model; a metric says which partition it was."""
    torch.set_num_threads(1)
    model, partition = Model(), int(context.node_config["partition-id"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    content = RecordDict(
        {
            "arrays": ArrayRecord(trained(model, partition).state_dict()),
            "metrics": MetricRecord({"partition": partition, "num-examples": 12}),
        }
    )
    return Message(content=content, reply_to=message)
