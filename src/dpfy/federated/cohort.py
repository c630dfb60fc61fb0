"""Collect the updates of the clients of one round, each bounded by itself."""

import math
import threading
from collections.abc import Hashable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from dpfy.federated.contribution import Terms, contribution_of
from dpfy.gradients.base import set_to_zero


class Cohort:
    """Take the answers of the clients of one round. Sensitive: who is in it is a secret.

    Iterating over a :class:`Server` yields cohorts. Whoever does not answer, answers twice or after
    the round, is not in the cohort, or sends an update with other names or shapes or a number that
    is not finite, contributes zero. Nothing tells the caller, since this would say something of a
    client; :class:`dpfy.Contributing` releases the noisy share of clients that did contribute.

    Args:
        terms: How updates are bounded and summed in this round.
        model: A copy of the model as it was released last, which clients start from; nobody else
            has it.
        clients: The ids of the clients that were drawn.
        step: The round, counted from 1.
    """

    def __init__(
        self, terms: Terms, model: nn.Module, clients: tuple[Hashable, ...], step: int
    ) -> None:
        self.step = step
        self._model = model
        self._clients = clients
        self._waiting = set(clients)
        self._terms = terms
        self._sums = torch.zeros(terms.layout.size, dtype=torch.float64, device=terms.device)
        self._open = True
        self._lock = threading.Lock()  # servers hear several clients at once

    @property
    def clients(self) -> tuple[Hashable, ...]:
        """The ids of the clients to ask. Sensitive: that others took part is not to be known."""
        return self._clients

    def model(self) -> nn.Module:
        """Return a copy of the released model, for one client to train.

        Returns:
            The copy; what happens to it reaches no other client.
        """
        copy = deepcopy(self._model)
        copy.zero_grad()
        return copy

    def update_of(self, trained: nn.Module | Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Return what a client sends, given its copy of the model after local training.

        Args:
            trained: A copy of :meth:`model`, trained in place, or its state dictionary.

        Returns:
            The change of each trained parameter, or its gradient where the server was made with
            ``local="fedsgd"``, which needs the model.
        """
        found: Mapping[str, torch.Tensor]
        found = dict(trained.named_parameters()) if isinstance(trained, nn.Module) else trained
        names, released = self._terms.layout.parameters, dict(self._model.named_parameters())
        if self._terms.local == "fedsgd":
            return {name: found[name].grad for name in names}
        return {name: _change(found[name].detach(), released[name].detach()) for name in names}

    def add(
        self,
        client: Hashable,
        update: Mapping[str, Any],
        *,
        weight: float = 1.0,
        statistics: Mapping[str, Any] | None = None,
    ) -> None:
        """Clip an update and add it to the sum of the round, once for each client of the cohort.

        *Formal guarantee*: all that a client sends moves the sums of the round by at most the
        sensitivity that the noise is scaled for, whatever it is, and leaves what other clients
        contribute as it is, to the bit.

        Args:
            client: The client's id. That it is really this client is for the caller to know.
            update: A tensor for each trained parameter: what local training added to it, or its
                gradient where the server was made with ``local="fedsgd"``. Other names are ignored.
            weight: Counts if the server has a ``largest_weight``, and up to that.
            statistics: A row for each of the plan's statistics, by name; one that is missing or has
                another shape counts as zero.
        """
        with self._lock:
            if not self._open or not _is_in(client, self._waiting):
                return
            self._waiting.discard(client)
            found = contribution_of(self._terms, update, weight, statistics)
            if found is not None:
                self._sums += found

    def fits(self, update: Mapping[str, Any]) -> bool:
        """Tell whether an update has the names, the shapes and the finite numbers that are taken.

        It is for updates from synthetic data: what it says of a client's update is private.

        Args:
            update: As for :meth:`add`.

        Returns:
            Whether the update would contribute.
        """
        return contribution_of(self._terms, update, math.inf, None) is not None

    def close(self) -> None:
        """End the round without a release; the sums are overwritten."""
        with self._lock:
            self._open = False
            set_to_zero(self._sums)

    def _taken(self) -> torch.Tensor:
        """Return the sums, to which nothing is added any more. Sensitive."""
        with self._lock:
            self._open = False
            return self._sums

    def __repr__(self) -> str:
        return f"Cohort(step={self.step}, sensitive)"


def _change(trained: torch.Tensor, released: torch.Tensor) -> torch.Tensor:
    """Return what training added to a parameter; what clients send may be on another device."""
    return trained.to(released.device) - released.expand(trained.shape)


def _is_in(client: Any, waiting: set[Hashable]) -> bool:
    """Whether a client is still waited for; what is no id is not."""
    try:
        return client in waiting
    except TypeError:
        return False
