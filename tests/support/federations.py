"""Small federations whose updates are known."""

import torch
from torch import nn

import dpfy
from dpfy.federated import federate


class Two(nn.Module):
    """Two parameters, of ``dimension`` and two coordinates, that start at zero."""

    def __init__(self, dimension: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dimension))
        self.bias = nn.Parameter(torch.zeros(2))


def planned(**changes):
    """Return a plan without noise in which all of ten clients take part in three rounds."""
    given = {"records": 10, "batch_size": 10, "steps": 3, "noise_multiplier": 0.0, "unit": "user"}
    return dpfy.dpsgd(**{**given, **changes})


def served(plan=None, *, dimension=3, clients=range(10), ledger=None, key=1, **options):
    """Return a server over :class:`Two`, with a learning rate of 1 and a test key."""
    model = options.pop("model", None) or Two(dimension)
    return federate(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        plan or planned(),
        ledger or dpfy.Ledger.in_memory(),
        clients=clients,
        insecure_test_key=key,
        **options,
    )


def update(*weight, bias=(0.0, 0.0)):
    """Return the update with these coordinates."""
    return {"weight": torch.tensor(weight), "bias": torch.tensor(bias)}


def change(server, cohort):
    """Step, and return how the model changed."""
    before = [p.detach().clone() for p in server.model.parameters()]
    server.step(cohort)
    return torch.cat(
        [p.detach() - q for p, q in zip(server.model.parameters(), before, strict=True)]
    )
