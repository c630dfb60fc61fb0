"""One private fit: calibrate its noise, register it on a ledger, then release it piece by piece."""

import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from dpfy import _validate
from dpfy.accounting import EnvelopeGuard, GaussianFilter, Guarantee, account
from dpfy.accounting.calibrate import calibrate_envelope, calibrate_noise
from dpfy.accounting.filtered import declared_filter
from dpfy.errors import InvalidArgument
from dpfy.ledger import Header, Ledger
from dpfy.ledger.basis import Ground
from dpfy.ledger.events import Envelope, Repeated
from dpfy.ledger.grant import Booking
from dpfy.ledger.guard import Guard
from dpfy.types import Budget, Relation

if TYPE_CHECKING:
    from dpfy.mechanisms.one_shot import Mechanism

RELATIONS = (Relation.ZERO_OUT.value, Relation.ADD_OR_REMOVE_ONE.value)
LARGEST_NORM = 1000.0
"""The largest ℓ2 norm of parameters at which rows are evaluated; beyond it they are projected."""

BLOCK = 2**16
"""The number of rows that are summed at once."""

_UNIT = 2.0**-53  # the largest relative error of one rounding in float64
_SECRET_KEYS = ("os", "operating system")

StrPath = str | os.PathLike[str]
_LedgerLike = Ledger | StrPath | Booking


@dataclass(frozen=True)
class Planned:
    """A mechanism that a fit will run, and the number of times.

    Args:
        mechanism: What is released, as :mod:`dpfy.mechanisms.one_shot` describes it.
        times: The number of releases, at least 1.
    """

    mechanism: "Mechanism[Any, Any]"
    times: int = 1


Plan = Callable[[float], Sequence[Planned]]
"""What a fit will release at a given noise multiplier."""


def gaussian(
    name: str, bound: float, noise_multiplier: float, times: int = 1, share: float = 1.0
) -> Planned:
    """Plan releases of one bounded vector with Gaussian noise.

    *Formal guarantee*: all ``times`` releases together are as private as one Gaussian sum of noise
    multiplier ``noise_multiplier``/√share. Vectors whose shares add up to 1 therefore cost one
    Gaussian sum of that multiplier together (Dong, Roth & Su 2022, Corollary 3.3).

    Args:
        name: The name of the vector in the ledger.
        bound: The most that one row moves the vector, as computed, in ℓ2 norm; see
            :func:`computed_bound`.
        noise_multiplier: The noise multiplier of the whole fit.
        times: The number of releases.
        share: The part of the fit's budget that they take, above 0 and at most 1.

    Returns:
        The plan of these releases.

    Raises:
        InvalidArgument: If an argument is out of its range.
    """
    from dpfy.mechanisms.one_shot import Gaussian

    share = _validate.real("share", share, 0, 1, open_low=True)
    stddev = noise_multiplier * bound * math.sqrt(_validate.count("times", times) / share)
    return Planned(Gaussian(bound, stddev, name), times)


def summed(function: Callable[..., Any], *arrays: NDArray[Any]) -> Any:
    """Return the sum of what a function returns for blocks of rows, of 2¹⁶ each.

    Args:
        function: A function of the same rows of all arrays, whose results can be added.
        *arrays: Arrays with one entry for each row.

    Returns:
        The sum; for no rows, what the function returns for none.
    """
    begins = range(0, max(len(arrays[0]), 1), BLOCK)
    return sum(
        (function(*(each[begin : begin + BLOCK] for each in arrays)) for begin in begins[1:]),
        start=function(*(each[:BLOCK] for each in arrays)),
    )


def computed_bound(bound: float, records: int, dimension: int) -> float:
    """Return the most that one row moves a sum over rows as float64 arithmetic computes it.

    *Formal guarantee*: for sums of at most 2·``records`` terms of an ℓ2 norm of at most ``bound``
    each, by :func:`summed` and matrix products in any order inside of its blocks. A term is a
    function of its own row, with derivatives of at most 1 in scores that are dot products of
    ``dimension`` terms with public parameters of a norm of at most :data:`LARGEST_NORM`
    (docs/proofs/estimators.md, Lemma 1).

    Args:
        bound: The bound in exact arithmetic.
        records: The public number of rows.
        dimension: The number of coordinates of a row's vector.

    Returns:
        The bound with an allowance for rounding.
    """
    rows = 2 * max(records, 1)
    additions = min(rows, BLOCK) + -(-rows // BLOCK) + 2
    scores = LARGEST_NORM * (dimension + 16)
    return bound + 2 * rows * (additions * bound + scores) * _UNIT


def default_delta(records: int) -> float:
    """Return the δ that ``delta="auto"`` stands for: n^-1.1, and 1e-5 for tables of few rows.

    Args:
        records: The public number of rows n.

    Returns:
        The smaller of 1e-5 and n^-1.1.

    >>> default_delta(100), round(default_delta(10**6), 9)
    (1e-05, 2.51e-07)
    """
    return min(1e-5, float(max(records, 1)) ** -1.1)


def shared_ledger(
    path: StrPath | None = None,
    *,
    epsilon: float,
    delta: float,
    relation: Relation | str = Relation.ZERO_OUT,
    insecure_test_key: bool = False,
) -> Ledger:
    """Open a ledger that several fits share, under one budget for all of them.

    A filter is declared when the ledger is created: fits may then be added after looking at
    earlier ones, and a fit that would exceed the budget is refused before a row is read.

    *Formal guarantee*: whatever the filter admits is (``epsilon``, ``delta``)-differentially
    private, however later fits were chosen (Smith & Thakurta 2022). It admits Gaussian releases
    only, which are all that these estimators make unless they say otherwise.

    Args:
        path: The file of the ledger; None for one in memory.
        epsilon: The ε of all fits together, above 0.
        delta: The δ of all fits together, in (0, 1).
        relation: The neighbouring relation of all fits.
        insecure_test_key: Whether fits on this ledger may use test keys, and are not private.

    Returns:
        The open ledger. Give it to estimators as ``ledger=``, and close it at the end.

    Raises:
        InvalidArgument: If an argument is out of its range.
        LedgerMismatch: If the file was begun for something else.

    >>> with shared_ledger(epsilon=1.0, delta=1e-5) as ledger:
    ...     round(account(ledger).claim(1e-5), 3)
    1.0
    """
    _validate.choice("relation", relation, RELATIONS)
    noise = calibrate_noise(epsilon=epsilon, delta=delta, rate=1.0, steps=1, relation=relation)
    rule = GaussianFilter(mu=1 / noise / (1 + 1e-8))  # the filter admits a billionth more
    header = Header(
        relation=Relation(relation),
        key_source="insecure test key" if insecure_test_key else "operating system",
        filter=rule.to_json(),
    )
    guard = rule.guard(relation)
    if path is None:
        return Ledger.in_memory(guard, header)
    if not os.path.exists(path):
        return Ledger.open(path, guard, header)
    ledger = Ledger.open(path, guard)  # plans of earlier fits are on record, so headers differ
    try:
        if ledger.header is None or ledger.header.filter != header.filter:
            ledger.register(guard, header)
    except BaseException:
        ledger.close()
        raise
    return ledger


@dataclass(frozen=True)
class Declared:
    """What is public about a fit before it begins.

    Args:
        estimator: The name of the estimator.
        parameters: Its public parameters, as plain JSON values.
        records: The public number of rows.
        epsilon: The ε of the fit.
        delta: The δ of the fit.
        relation: The neighbouring relation.
        grounds: What the guarantee rests on besides noise and accounting.
    """

    estimator: str
    parameters: dict[str, Any]
    records: int
    epsilon: float
    delta: float
    relation: Relation
    grounds: tuple[Ground, ...] = ()

    @property
    def budget(self) -> Budget:
        """The ε and δ that the fit may spend."""
        return Budget(self.epsilon, self.delta)


class Fit:
    """The releases of one fit, in the order in which they were planned.

    *Formal guarantee*: all planned events are registered on the ledger, within the budget, before
    the first row is read, and each is reserved durably before its own vector is computed.

    *Assumes* that rows are read by the functions given to :meth:`release` alone, and that what
    these return meets the bound of their mechanism.

    Args:
        declared: What is public about the fit.
        plan: What will be released at a given noise multiplier.
        ledger: An open ledger, the path of one, or None for one in memory.
        insecure_test_key: A key that makes the noise reproducible, and the fit not private.
    """

    def __init__(
        self,
        declared: Declared,
        plan: Plan,
        ledger: _LedgerLike | None,
        insecure_test_key: int | bytes | None = None,
    ) -> None:
        from dpfy.noise import SecureStream

        self.declared = declared
        self.noise_multiplier = calibrate_envelope(
            lambda noise: _envelope(plan(noise)),
            epsilon=declared.epsilon,
            delta=declared.delta,
            relation=declared.relation,
        )
        self.planned = tuple(plan(self.noise_multiplier))
        self._events = _envelope(self.planned)
        self._stream = SecureStream(insecure_test_key=insecure_test_key)
        self._given = ledger

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(self, *failure: object) -> None:
        if self.ledger is not self._given:
            self.ledger.close()

    def release(self, planned: Planned, compute: Callable[[], Any]) -> NDArray[np.float64]:
        """Reserve a planned release, then compute its vector, and return it with noise.

        Args:
            planned: One of ``self.planned``.
            compute: A function that reads the rows and returns the exact vector.

        Returns:
            The noisy vector, of the same shape.

        Raises:
            BudgetExhausted: If the ledger does not admit it; no row was read.
        """
        from dpfy.mechanisms.one_shot import release

        def silent() -> Any:
            # a warning about a row would be an output
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return compute()

        return np.asarray(release(planned.mechanism, self.ledger, silent, self._stream))

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of this fit alone, whatever else is on its ledger."""
        found = account(self._events, relation=self.declared.relation)
        source = replace(
            found.source,
            relation=self.declared.relation,
            private=self._stream.key_source in _SECRET_KEYS,
            durable=self.ledger.durable,
        )
        return replace(found, source=source)

    def _begin(self) -> None:
        """Open and register the ledger, and record what the guarantee rests on."""
        block = max((each.times for each in self.planned), default=1)
        if isinstance(self._given, Ledger):
            self.ledger = self._given
        elif self._given is None:
            self.ledger = Ledger.in_memory(block=block)
        else:
            self.ledger = Ledger.open(self._given, block=block)
        try:
            self._register()
            self.ledger.record_basis(
                {"grounds": [ground.to_json() for ground in self.declared.grounds]}
            )
        except BaseException:
            self.__exit__()
            raise

    def _register(self) -> None:
        declared, known = self.declared, self.ledger.header
        key_source = self._stream.key_source
        if known is not None and {known.key_source, key_source} <= set(_SECRET_KEYS):
            key_source = known.key_source  # two words for the same
        rule = None if known is None else known.filter
        header = Header(
            relation=declared.relation,
            plan={
                "estimator": declared.estimator,
                "records": declared.records,
                "parameters": declared.parameters,
            },
            envelope=self._events,
            key_source=key_source,
            filter=rule,
        )
        if rule is None:
            guard: Guard = EnvelopeGuard(self._events, declared.budget, declared.relation)
        else:
            guard = declared_filter(rule).guard(declared.relation)
            self._check_whole(declared_filter(rule).guard(declared.relation))
        self.ledger.register(guard, header)

    def _check_whole(self, guard: Guard) -> None:
        """Refuse a fit that a filter would stop half-way, before anything is spent on it."""
        for run in self.ledger.uses:
            guard.record(run.event, run.times)
        for run in self._events:
            guard.admit(run.event, run.times)
            guard.record(run.event, run.times)


def resolve_relation(relation: object, records: object, rows: int) -> tuple[Relation, int]:
    """Return the relation, and the number of rows that is public under it.

    Args:
        relation: "zero_out", which makes the number of rows public, or "add_or_remove_one".
        records: The declared number of rows, for the second.
        rows: The number of rows of the table, which the first makes public.

    Returns:
        The relation and the public number.

    Raises:
        InvalidArgument: If the declared number is missing, or given where it has no use.
    """
    found = Relation(_validate.choice("relation", str(relation), RELATIONS))
    if found is Relation.ZERO_OUT:
        if records is not None:
            raise InvalidArgument(
                "Expected no records= under relation='zero_out', where the number of rows is "
                "public. Leave it out, or declare relation='add_or_remove_one'."
            )
        return found, rows
    return found, _validate.count(
        "records",
        records,
        remedy="Under relation='add_or_remove_one' the number of rows is private: declare about "
        "how many there are, as records=10_000.",
    )


def _envelope(planned: Sequence[Planned]) -> Envelope:
    return tuple(Repeated(each.mechanism.event, each.times) for each in planned)
