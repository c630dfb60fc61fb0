"""What Flower's own differential privacy does, beside the server of dpfy, row by row.

``.venv-flower/bin/python -m benchmarks.flower_dp`` prints all rows, and a name such as ``nan`` one
of them; `make test-flower` makes that environment. The rows are the table of docs/how-to/flower.md.
"""

import contextlib
import io
import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import nn

import dpfy
from dpfy.federated import Server, federate

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import (
        DifferentialPrivacyServerSideAdaptiveClipping,
        DifferentialPrivacyServerSideFixedClipping,
        FedAvg,
    )
    from flwr.supercore.privacy_accounting import (
        GaussianPrivacyEvent,
        NeighboringRelation,
        PrivacyConfig,
        SamplingMethod,
    )
    from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant
    from flwr.supercore.task_identity import TaskIdentity

CLIENTS, SIZE = 20, 1000


def reply(node: int, values: np.ndarray, examples: float) -> Message:
    """Return what a node replies to Flower's server."""
    asked = Message(content=RecordDict(), message_type="train", dst_node_id=node)
    content = RecordDict(
        {
            "arrays": ArrayRecord([values]),
            "metrics": MetricRecord({"num-examples": examples}),
        }
    )
    return Message(content=content, reply_to=asked)


class Grid:
    """Knows the nodes that are connected."""

    def get_node_ids(self) -> Iterable[int]:
        return range(1, CLIENTS + 1)


def flowers_change(strategy: object, replies: list[Message], size: int = SIZE) -> np.ndarray:
    """Return how a round of a strategy of Flower changes a model of zeros."""
    zeros = ArrayRecord([np.zeros(size, dtype=np.float32)])
    strategy.configure_train(1, zeros, ConfigRecord(), Grid())  # type: ignore[attr-defined]
    arrays, _ = strategy.aggregate_train(1, replies)  # type: ignore[attr-defined]
    return arrays.to_numpy_ndarrays()[0]


def fixed(noise: float = 1.0) -> object:
    """Return Flower's fixed clipping to a bound of 1."""
    return DifferentialPrivacyServerSideFixedClipping(
        FedAvg(min_available_nodes=CLIENTS), noise, 1.0, CLIENTS
    )


def ours(noise: float = 1.0, **options: object) -> Server:
    """Return a server of dpfy with the same bound, noise and number of clients."""
    model = nn.ParameterDict({"0": torch.zeros(SIZE)})
    plan = dpfy.dpsgd(
        records=CLIENTS, batch_size=CLIENTS, steps=1, noise_multiplier=noise, unit="user"
    )
    return federate(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        plan,
        dpfy.Ledger.in_memory(),
        clients=range(CLIENTS),
        **options,  # type: ignore[arg-type]
    )


def our_change(updates: list[np.ndarray], weights: list[float], **options: object) -> np.ndarray:
    """Return how a round of dpfy without noise changes a model of zeros."""
    server = ours(0.0, **options)
    cohort = next(iter(server))
    for client, (update, weight) in enumerate(zip(updates, weights, strict=True)):
        cohort.add(client, {"0": update}, weight=weight)
    server.step(cohort)
    return next(server.model.parameters()).detach().numpy().copy()


def one(value: float) -> np.ndarray:
    """Return an update with one coordinate that is not zero."""
    return np.array([value] + [0.0] * (SIZE - 1), dtype=np.float32)


def bound() -> None:
    """Where the clip bound goes: norms are log-normal around 1, and it should come to 1."""
    for start in (0.1, 3.0):
        chance, bounds = np.random.default_rng(0), {}
        strategy = DifferentialPrivacyServerSideAdaptiveClipping(
            FedAvg(min_available_nodes=CLIENTS), 1.0, CLIENTS, start
        )
        for number in range(1, 61):
            sent = [one(chance.lognormal(0, 0.3)) for _ in range(CLIENTS)]
            flowers_change(strategy, [reply(n + 1, each, 1) for n, each in enumerate(sent)])
            if number in (10, 30, 60):
                bounds[number] = round(strategy.clipping_norm, 5)
        print(f"  from {start}: Flower {bounds}, dpfy {our_bound(start):.3f} after 60 rounds")


def our_bound(start: float) -> float:
    """Return the bound of dpfy after 60 rounds."""
    chance = np.random.default_rng(0)
    model = nn.ParameterDict({"0": torch.zeros(SIZE)})
    plan = dpfy.dpsgd(
        records=CLIENTS,
        batch_size=CLIENTS,
        steps=60,
        clip=start,
        noise_multiplier=1.0,
        unit="user",
        controllers=[dpfy.QuantileClipping(share=0.05)],
    )
    server = federate(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        plan,
        dpfy.Ledger.in_memory(),
        clients=range(CLIENTS),
    )
    for cohort in server:
        for client in cohort.clients:
            cohort.add(client, {"0": one(chance.lognormal(0, 0.3))})
        released = server.step(cohort)
    return released.bounds["gradient"]


def nan() -> None:
    """How far a client gets whose update has a NaN in one place and a million in another."""
    sent = one(math.nan)
    sent[1] = 1e6
    flower = flowers_change(fixed(0.0), [reply(n + 1, sent, 1) for n in range(CLIENTS)])
    us = our_change([sent] * CLIENTS, [1.0] * CLIENTS)
    print(f"  Flower moves to {flower[:2]}, dpfy to {us[:2]}")


def zero() -> None:
    """What happens if a client has nothing to change."""
    nothing = np.zeros(SIZE, dtype=np.float32)
    try:
        with np.errstate(all="ignore"):
            flowers_change(fixed(0.0), [reply(n + 1, nothing, 1) for n in range(CLIENTS)])
        flower = "goes on"
    except ZeroDivisionError:
        flower = "stops with ZeroDivisionError"
    us = our_change([nothing] * CLIENTS, [1.0] * CLIENTS)
    print(f"  Flower {flower}, dpfy moves by {abs(us).max():g}")


def weight() -> None:
    """How far one client moves the mean by saying that it has a million examples."""
    sent = [one(1.0), *([one(0.0)] * (CLIENTS - 1))]
    sent = [each + 1e-9 for each in sent]  # a zero would stop Flower
    weights = [1e6, *([1.0] * (CLIENTS - 1))]
    replies = [reply(n + 1, *each) for n, each in enumerate(zip(sent, weights, strict=True))]
    flower = flowers_change(fixed(0.0), replies)[0]
    us = our_change(sent, weights, largest_weight=1.0)[0]
    print(f"  Flower {flower:.3f}, dpfy {us:.3f}; the noise of both is {1 / CLIENTS:g}")


def missing() -> None:
    """How far one client moves the mean if two of twenty answer."""
    sent = [one(1.0), one(1e-9)]
    flower = flowers_change(fixed(0.0), [reply(n + 1, each, 1) for n, each in enumerate(sent)])[0]
    us = our_change(sent, [1.0, 1.0])[0]
    print(f"  Flower {flower:.3f}, dpfy {us:.3f}; the noise of both is {1 / CLIENTS:g}")


def epsilon() -> None:
    """What is claimed for rounds of sampled clients."""
    for noise, rate, rounds, delta in ((1.0, 0.05, 200, 1e-4), (1.0, 0.01, 1000, 1e-5)):
        population = round(CLIENTS / rate)
        config = PrivacyConfig(
            target_delta=delta,
            population_size=population,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=SamplingMethod.NO_AMPLIFICATION,
        )
        accountant = RdpAccountant(config)
        accountant.compose(GaussianPrivacyEvent(noise, CLIENTS, population), rounds)
        plan = dpfy.dpsgd(rate=rate, divisor=1, steps=rounds, noise_multiplier=noise, unit="user")
        us = dpfy.account(list(plan.envelope)).epsilon(delta).upper
        print(
            f"  z {noise:g}, rate {rate:g}, {rounds} rounds, δ {delta:g}: Flower "
            f"{accountant.get_epsilon(delta):.1f}, dpfy {us:.3f}"
        )


def generator() -> None:
    """Whether the noise of a round can be drawn again by whoever knows a seed of 32 bits."""
    sent = [reply(n + 1, one(1.0), 1) for n in range(CLIENTS)]
    twice = []
    for _ in range(2):
        np.random.seed(1)
        twice.append(flowers_change(fixed(), sent))
    released = []
    for _ in range(2):
        np.random.seed(1)
        torch.manual_seed(1)
        server = ours()
        server.step(next(iter(server)))
        released.append(next(server.model.parameters()).detach().clone())
    same = np.array_equal(*twice), torch.equal(*released)
    print(f"  the same noise twice: Flower {same[0]}, dpfy {same[1]}")


ROWS: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (bound, nan, zero, weight, missing, epsilon, generator)
}


def main(names: list[str]) -> None:
    """Print the rows with these names, or all of them."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    for name in names or ROWS:
        print(f"{name}: {(ROWS[name].__doc__ or '').strip()}")
        with contextlib.redirect_stderr(io.StringIO()):
            ROWS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
