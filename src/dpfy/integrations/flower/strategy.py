"""A Flower strategy whose rounds are those of a :class:`dpfy.federated.Server`.

Tests: tests/flower/test_strategy.py, tests/flower/test_simulation.py.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from logging import INFO
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import nn

from dpfy.errors import InvalidArgument
from dpfy.federated import Cohort, Server, federate
from dpfy.federated.contribution import Local
from dpfy.federated.federate import Optimizers
from dpfy.ledger import Ledger
from dpfy.plans import Plan

_NO_ROUND = "dpfy: all rounds of the plan were taken; the model stays as it is"


class PrivateFedAvg(Strategy):
    """Average the updates of Flower's nodes with differential privacy for each node.

    In place of ``FedAvg`` in a ``ServerApp``; client apps stay as they are. Each round reserves its
    event in the ledger, draws nodes at random, clips each node's update, adds noise, divides by the
    plan's public divisor and applies the result with ``server_optimizer``.

    *Formal guarantee*: that of :func:`dpfy.federate` for all models, and released statistics, that
    leave the server: the unit is a node. Of what nodes reply, their arrays and the plan's
    statistics count; other metrics are dropped, and nothing that a node replies is logged or
    raises. Nodes are never asked for evaluation, whose answers would be released without noise;
    give ``start`` an ``evaluate_fn`` on public data.

    *Assumes*: what :class:`dpfy.federated.Server` assumes. Flower's own servers, their logs and
    databases hold raw updates, and are trusted.

    Args:
        model: The model to train; give ``start`` its arrays, :attr:`arrays`.
        server_optimizer: One or several optimizers over the model's parameters. SGD with a learning
            rate of 1 adds the mean update to the model, as FedAvg does.
        plan: What will run, with ``unit="user"``; ``records`` is the declared number of nodes.
        ledger: The file of the ledger, or an open one.
        nodes: The ids of all nodes, in an order that does not change. By default those that are
            connected when a round begins, which needs Poisson sampling.
        local: ``"fedavg"`` if nodes reply the trained model, ``"fedsgd"`` if its gradients.
        largest_weight: The weight at which an update counts in full; by default all count the same.
        weighted_by_key: The metric of a reply that is its weight.
        arrayrecord_key: Where messages have the arrays.
        configrecord_key: Where messages have the configuration.
        insecure_test_key: Fixes all randomness, for tests; nothing is private then.

    Raises:
        InvalidArgument: If the model, the optimizer, the plan and the nodes do not fit each other.
        LedgerError: If the ledger cannot be opened or belongs to another plan.
    """

    def __init__(
        self,
        model: nn.Module,
        server_optimizer: Optimizers,
        plan: Plan,
        ledger: str | Path | Ledger = "run.dpl",
        *,
        nodes: Sequence[int] | None = None,
        local: Local = "fedavg",
        largest_weight: float | None = None,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        insecure_test_key: int | bytes | None = None,
    ) -> None:
        self._connected: list[int] = []
        self._local = local
        self._weight, self._arrays, self._config = (
            weighted_by_key,
            arrayrecord_key,
            configrecord_key,
        )
        self.server: Server = federate(
            model,
            server_optimizer,
            plan,
            ledger,
            clients=(lambda: self._connected) if nodes is None else nodes,
            local=local,
            largest_weight=largest_weight,
            insecure_test_key=insecure_test_key,
        )
        self._rounds = iter(self.server)
        self._cohort: Cohort | None = None

    @property
    def arrays(self) -> ArrayRecord:
        """The model as it was released last, for ``start(initial_arrays=…)``."""
        return ArrayRecord(self.server.model.state_dict())

    def summary(self) -> None:
        """Log what was planned."""
        log(INFO, "\t└──> %r", self.server.plan)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Reserve the next round, draw its nodes, and return the messages that ask them to train.

        Args:
            server_round: Flower's number of the round, which nodes are told.
            arrays: The model that Flower believes to be current.
            config: The configuration that nodes are given.
            grid: Knows which nodes are connected.

        Returns:
            One message for each node that was drawn; none once all rounds of the plan were taken.

        Raises:
            InvalidArgument: If the arrays are not those of the server's model.
        """
        _check_same(arrays, self.server.model)
        self._connected = sorted(grid.get_node_ids())  # in no order that depends on who came first
        self._cohort = next(self._rounds, None)
        if self._cohort is None:
            log(INFO, _NO_ROUND)
            return []
        config["server-round"] = server_round
        content = RecordDict({self._arrays: self.arrays, self._config: config})
        return [
            Message(content=content, message_type=MessageType.TRAIN, dst_node_id=_id(node))
            for node in self._cohort.clients
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> "tuple[ArrayRecord | None, MetricRecord | None]":
        """Add what nodes replied, release the round, and return the new model.

        Args:
            server_round: Flower's number of the round.
            replies: What nodes replied; errors and whatever else is odd contribute zero.

        Returns:
            The model, and the statistics that were released; nothing if there was no round.
        """
        cohort, self._cohort = self._cohort, None
        if cohort is None:
            return None, None
        for reply in replies:
            self._add(cohort, reply)
        released = self.server.step(cohort)
        metrics = {
            name: float(value) if not value.ndim else value.flatten().tolist()
            for name, value in released.statistics.items()
        }
        return self.arrays, MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask no node: what nodes measure on their data is released as a statistic or not at all.

        Args:
            server_round: Flower's number of the round.
            arrays: The model.
            config: The configuration.
            grid: Knows which nodes are connected.

        Returns:
            No messages.
        """
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> "MetricRecord | None":
        """Return nothing, since no node was asked.

        Args:
            server_round: Flower's number of the round.
            replies: Ignored.

        Returns:
            None.
        """
        return None

    def _add(self, cohort: Cohort, reply: Message) -> None:
        """Add the reply of a node to its cohort; one that is odd contributes zero."""
        with suppress(Exception):  # whose text would tell of the node
            content = reply.content
            arrays = content.array_records[self._arrays].to_torch_state_dict()
            metrics: dict[str, Any] = {}
            for record in content.metric_records.values():
                metrics.update(record)
            cohort.add(
                reply.metadata.src_node_id,
                arrays if self._local == "fedsgd" else cohort.update_of(arrays),
                weight=metrics.get(self._weight, 1.0),
                statistics={name: torch.tensor(value) for name, value in metrics.items()},
            )


def _id(node: Any) -> int:
    """Return the id of a node."""
    assert isinstance(node, int)
    return node


def _check_same(arrays: ArrayRecord, model: nn.Module) -> None:
    """Refuse arrays that are not the model's: nodes would train another one than is averaged."""
    own, given = model.state_dict(), arrays.to_torch_state_dict()
    if own.keys() != given.keys() or not all(
        torch.equal(value.cpu(), given[name]) for name, value in own.items()
    ):
        raise InvalidArgument(
            "Flower's arrays are not those of the strategy's model. Give start "
            "initial_arrays=strategy.arrays, and load what you want to begin with into the model "
            "before the strategy is made."
        )
