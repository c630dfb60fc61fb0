"""Private synthetic tables: declare, fit once, and draw as many rows as one likes."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from dpfy import _validate
from dpfy.accounting import Guarantee
from dpfy.errors import InvalidArgument
from dpfy.ledger import Ledger
from dpfy.synthesis.aim import Aim
from dpfy.synthesis.cells import Domain
from dpfy.synthesis.estimate import require_mbi
from dpfy.synthesis.measurements import Measured, Merged
from dpfy.synthesis.mst import Mst
from dpfy.synthesis.releases import Declared, Releases, StrPath
from dpfy.synthesis.synthetic_table import SyntheticTable
from dpfy.synthesis.tree_model import TreeModel
from dpfy.synthesis.work import Rows, Tell, Work
from dpfy.tabular.schema import Schema
from dpfy.tabular.tables import require_columns
from dpfy.types import Budget

METHODS = ("mst", "aim")
DELTA = 1e-9
"""The default δ, which is below one over the number of rows of any table that this is for."""

MOST_BINS = 1000


@dataclass(frozen=True)
class Fitted:
    """What is known after the releases: all of it is public.

    Args:
        domain: The cells of the columns.
        merged: The groups of cells of each column.
        model: The estimated distribution of groups.
        measured: The noisy marginals that were released, in their order.
        total: The estimated number of rows.
        guarantee: The guarantee.
        ledger: The ledger, or the path of one.
    """

    domain: Domain
    merged: tuple[Merged, ...]
    model: TreeModel
    measured: tuple[Measured, ...]
    total: float
    guarantee: Guarantee
    ledger: Ledger | StrPath


class Synthesizer:
    """Release a synthetic table: noisy marginals of a private one, and rows drawn from them.

    ``"mst"`` measures every column and a tree of pairs, which are chosen privately: fast, and best
    where few rows or a small ε allow no more. ``"aim"`` goes on to measure the pair that the model
    misses most, round by round: slower, and closer to the table.

    Numbers are counted in cells between the bounds and knots of the schema, and drawn uniformly
    within a cell. What is none of the declared categories is a category of its own, and an empty
    cell in the synthetic table. Missing numbers are the ``fill`` of their column.

    *Formal guarantee*: (``epsilon``, ``delta``)-differential privacy for adding or removing one
    row, of all noisy marginals together, and hence of every table that is drawn
    (docs/proofs/synthesis.md, Theorems 1 and 2).

    *Assumes* that the schema and the settings are public, and fewer than 2³² rows.

    Args:
        method: ``"mst"`` or ``"aim"``.
        schema: The declared columns.
        epsilon: The ε of the table, above 0.
        delta: The δ of the table, between 0 and 1.
        target: A column whose pair with every other one is measured, such as the one that a model
            will predict; for ``"mst"`` only.
        bins: About the number of cells of a column of numbers, at most 1000; there are equally many
            between two knots.
        whole: Columns of whole numbers.
        insecure_test_key: A key that makes the noise reproducible, and the table not private; the
            ``seed`` of :meth:`sample` makes the rows so.

    Raises:
        InvalidArgument: If an argument is out of its range.

    Reference: McKenna, Miklau & Sheldon 2021 (MST); McKenna, Mullins, Sheldon & Miklau 2022 (AIM).

    >>> from dpfy.tabular import Column
    >>> schema = Schema((Column("age", bounds=(0, 100)), Column("sex", categories=("F", "M"))))
    >>> Synthesizer("mst", schema, epsilon=1.0, whole=["age"])
    Synthesizer('mst', 2 columns, epsilon=1.0, delta=1e-09)
    """

    def __init__(
        self,
        method: str,
        schema: Schema,
        epsilon: float,
        delta: float = DELTA,
        *,
        target: str | None = None,
        bins: int = 32,
        whole: Sequence[str] = (),
        insecure_test_key: int | bytes | None = None,
    ) -> None:
        self.method = _validate.choice("method", method, METHODS)
        if not isinstance(schema, Schema):
            raise InvalidArgument(
                f"Expected schema to be a dpfy.tabular.Schema, got {type(schema).__name__}. Read "
                "one with Schema.read, or write one with `dpfy schema init`."
            )
        if isinstance(whole, str):
            raise InvalidArgument(f"Expected whole={whole!r} to be a list of names of columns.")
        if target is not None and method != "mst":
            raise InvalidArgument(
                f"Method {method!r} chooses what it measures, and takes no target. Leave it out, "
                "or use 'mst'."
            )
        self.schema, self.target = schema, target
        self.budget = Budget(epsilon, delta)
        self.bins = int(_validate.real("bins", _validate.count("bins", bins), 1, MOST_BINS))
        self.whole = tuple(whole)
        self._place = None if target is None else schema.names.index(schema[target].name)
        self._domain = Domain.of(schema, self.bins, self.whole)
        self._key = insecure_test_key
        self._fitted: Fitted | None = None

    def __repr__(self) -> str:
        return (
            f"Synthesizer({self.method!r}, {len(self.schema)} columns, "
            f"epsilon={self.budget.epsilon}, delta={self.budget.delta})"
        )

    def fit(
        self,
        table: Any,
        ledger: Ledger | StrPath | None = None,
        *,
        tell: Tell = lambda what, done, total: None,
    ) -> Self:
        """Release noisy marginals of a private table, and estimate a distribution from them.

        Args:
            table: The table, as :func:`~dpfy.tabular.columns_of` takes it.
            ledger: An open ledger or the path of one, for this table alone; None for one in memory.
            tell: Is told what is done, how much of it, and of how much.

        Returns:
            The synthesizer itself.

        Raises:
            InvalidArgument: If the table lacks a column; nothing was spent.
            MissingExtra: If the package mbi is not installed; nothing was spent.
            LedgerMismatch: If the ledger has paid for anything; nothing more was spent.
        """
        require_mbi()
        require_columns(table, self.schema.names)
        columns = len(self.schema)
        plan = (
            Mst.calibrated(columns, self._place, self.budget)
            if self.method == "mst"
            else Aim.calibrated(columns, self.budget)
        )
        declared = Declared(
            self.method,
            self.parameters,
            self.budget,
            plan.envelope if isinstance(plan, Mst) else (),
            plan.filter.to_json() if isinstance(plan, Aim) else None,
        )
        with Releases(declared, ledger, self._key) as releases:
            work = Work(releases, self._domain, Rows(table, self._domain), tell)
            model = plan.run(work)
        self._fitted = Fitted(
            self._domain,
            tuple(work.merged),
            model,
            tuple(work.measured),
            work.total,
            releases.guarantee,
            releases.ledger if ledger is None else ledger,
        )
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """The public parameters, as plain JSON values."""
        return {
            "schema": self.schema.to_json(),
            "target": self.target,
            "bins": self.bins,
            "whole": list(self.whole),
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
        }

    @property
    def fitted(self) -> Fitted:
        """All that was released, and what was estimated from it.

        Raises:
            InvalidArgument: If nothing was fitted.
        """
        if self._fitted is None:
            raise InvalidArgument(
                "This synthesizer is not fitted. Call fit(table, ledger=…) first."
            )
        return self._fitted

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of everything that is drawn.

        Raises:
            InvalidArgument: If nothing was fitted.
        """
        return self.fitted.guarantee

    def sample(self, rows: int | None = None, *, seed: int | None = None) -> SyntheticTable:
        """Draw a synthetic table; this costs nothing, however often it is done.

        Args:
            rows: The number of rows, which is public; by default as many as noisy counts tell.
            seed: A number that makes the draw reproducible; it adds no noise and takes none away.

        Returns:
            The table.

        Raises:
            InvalidArgument: If nothing was fitted, or ``rows`` is below 1.
        """
        fitted = self.fitted
        count = round(fitted.total) if rows is None else _validate.count("rows", rows)
        rng = np.random.default_rng(seed)
        groups = fitted.model.draw(count, rng)
        found = {}
        for cells, merged, each in zip(fitted.domain.cells, fitted.merged, groups, strict=True):
            found[cells.column.name] = cells.draw(merged.split(each, rng), rng)
        return SyntheticTable(found)

    def report(
        self, folder: str | os.PathLike[str], table: SyntheticTable | None = None
    ) -> tuple[Path, ...]:
        """Write the privacy report, and a page on the quality of a synthetic table beside it.

        The page compares the table with the noisy marginals that were released, and with nothing
        else: a comparison with the private table would be one more release.

        Args:
            folder: The folder; it is created if it does not exist.
            table: The synthetic table; by default one is drawn.

        Returns:
            The paths of the report in Markdown, JSON and HTML, and of ``quality.html``.

        Raises:
            InvalidArgument: If nothing was fitted, or ``table`` was not drawn by :meth:`sample`.
        """
        from dpfy.reporting import RunFacts, report
        from dpfy.synthesis.quality import quality_page

        fitted = self.fitted
        if not isinstance(table, SyntheticTable | None):
            raise InvalidArgument(
                f"Expected table to be one that sample() returned, got {type(table).__name__}. A "
                "page about a private table would be a release that nothing pays for."
            )
        scalars = {
            name: value if isinstance(value, int | float | None) else str(value)[:200]
            for name, value in self.parameters.items()
        }
        facts = RunFacts(
            name=f"Synthetic table by {self.method.upper()}",
            record="one row of the table",
            released="the synthetic table and the noisy marginals that it was drawn from",
            model=f"{self.method.upper()}, estimated by mbi",
            engine="numpy",
            isolation="each row is put into its cells by itself",
            hyperparameters={"method": self.method, **scalars},
        )
        written = report(fitted.ledger, self.budget.delta, facts).write(folder)
        page = Path(folder) / "quality.html"
        shown = self.sample() if table is None else table
        page.write_text(quality_page(self, shown), encoding="utf-8")
        return (*written, page)
