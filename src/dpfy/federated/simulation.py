"""Simulate clients on central data, each with a part of the rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.federated.cohort import Cohort
from dpfy.noise import SecureStream
from dpfy.records.example import declared_example
from dpfy.records.users import Users, drawn_rows
from dpfy.sandbox.rng_isolation import isolated_rng

Train = Callable[[nn.Module, Any], Mapping[str, Any] | None]
"""Local training: it is given a model and the rows of one client, and trains the model in place."""

_SEED = 4  # words of 64 bits, from which the rows of a client are drawn


class Simulation:
    """Answer for the clients of a cohort, from rows that are all in one place.

    *Formal guarantee*: each client trains a copy of the released model, under fresh secret
    randomness, and a client whose training fails contributes zero, silently. So what a client
    contributes depends on its own rows, the released model and public values alone.

    *Assumes*: ``train`` keeps nothing from one call to the next, and gives what it sees to nobody;
    which rows a client has depends on no other client.

    Args:
        data: A map-style data set with the rows of all clients.
        train: Trains a model on the rows of one client, in place, by any loop: it is called as
            ``train(model, rows)``, where ``rows`` is a data set. It may return rows of the plan's
            statistics, by name.
        unit_of: Whose the rows are: one id for each row, a function from a row's index to its id,
            or :class:`dpfy.Users`. Groups of rows that belong to nobody make virtual clients; a
            group is then all that is protected.
        rows_per_client: The most rows of a client in a round, drawn for each round; by default all.
        example: A data set with the rows of one synthetic client, on which ``train`` is tried
            before any client is asked. By default a row of zeros, for stacked tensors.
        insecure_test_key: Fixes the randomness of clients, for tests. By default the operating
            system draws a key.

    Raises:
        InvalidArgument: If the ids are not those of the rows.
        DataError: If there is no example, and the data set declares no shape.

    >>> data = TensorDataset(torch.ones(6, 2))
    >>> simulation = Simulation(data, lambda model, rows: None, unit_of=[0, 0, 1, 1, 2, 2])
    >>> simulation.clients
    range(0, 3)
    """

    def __init__(
        self,
        data: Any,
        train: Train,
        *,
        unit_of: Any,
        rows_per_client: int | None = None,
        example: Any = None,
        insecure_test_key: int | bytes | None = None,
    ) -> None:
        self._data, self._train = data, train
        self._users = unit_of if isinstance(unit_of, Users) else Users.of(unit_of, len(data))
        self._most = rows_per_client
        if rows_per_client is not None:
            _validate.count("rows_per_client", rows_per_client)
        self._example = _zeros(data) if example is None else example
        self._stream = SecureStream(insecure_test_key, purpose="training")
        self._tried = False

    @property
    def clients(self) -> Sequence[int]:
        """The ids of all clients, for :func:`dpfy.federate`."""
        return range(len(self._users))

    def answer(self, cohort: Cohort) -> None:
        """Let every client of a cohort train, and add its update; its weight is its rows' number.

        Args:
            cohort: What iterating over a server of these clients yielded.

        Raises:
            InvalidArgument: If training fails on the synthetic example, or yields no update that
                fits the model.
        """
        if not self._tried:
            self._try(cohort)
            self._tried = True
        self._stream.refresh()
        for client in cohort.clients:
            assert isinstance(client, int)  # one of ``clients``
            with isolated_rng(self._stream):
                try:
                    rows = self._rows_of(client)
                    update, statistics = self._answer_of(cohort, rows)
                except Exception:  # a message would tell of the client's rows
                    continue
                cohort.add(client, update, weight=float(len(rows)), statistics=statistics)

    def _rows_of(self, client: int) -> Subset[Any]:
        """Return the rows with which a client takes part in a round."""
        rows = self._users.rows_of(client).tolist()
        if self._most is not None and len(rows) > self._most:
            seed = self._stream.words(_SEED).tobytes()
            rows = [rows[place] for place in drawn_rows(len(rows), self._most, seed)]
        return Subset(self._data, rows)

    def _answer_of(
        self, cohort: Cohort, rows: Any
    ) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
        """Return what training on some rows changes, or its gradient, and the statistics."""
        model = cohort.model()
        with torch.enable_grad():
            statistics = self._train(model, rows)
        return cohort.update_of(model), statistics

    def _try(self, cohort: Cohort) -> None:
        """Refuse a training that would fail for every client, which would pass for silence."""
        with isolated_rng(self._stream):
            try:
                update, statistics = self._answer_of(cohort, self._example)
            except Exception as error:
                raise InvalidArgument(
                    f"train fails on the synthetic example ({type(error).__name__}: {error}). No "
                    "client was asked. Mend it, or give example= that it can be tried on."
                ) from error
        if not isinstance(statistics, Mapping | None):
            raise InvalidArgument(
                "Expected train to return nothing, or rows of the plan's statistics by name, got "
                f"{type(statistics).__name__}. No client was asked."
            )
        if not cohort.fits(update):
            raise InvalidArgument(
                "train yields no finite update of every trained parameter on the synthetic "
                "example. No client was asked. It has to train the model that it is given, in "
                "place, or with local='fedsgd' to leave gradients."
            )


def _zeros(data: Any) -> TensorDataset:
    """Return a synthetic row for a data set whose shape is declared."""
    fields = declared_example(data, None).chunk.arguments
    if not all(isinstance(field, torch.Tensor) for field in fields):
        raise InvalidArgument(
            "Expected example=, a data set with the rows of one synthetic client: rows of this "
            "data set are not tensors."
        )
    return TensorDataset(*fields)
