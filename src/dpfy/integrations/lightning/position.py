"""Where in its ledger a checkpoint of Lightning was made.

Lightning writes the checkpoint and restores the weights; this ties it to what was paid for.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from dpfy.errors import CheckpointError
from dpfy.ledger import Ledger
from dpfy.plans import Plan
from dpfy.run.run import Run


@dataclass(frozen=True)
class Position:
    """A line of a ledger, and what a run has to know to go on after it. All of it is public.

    Args:
        plan: The plan, as JSON.
        lines: The number of lines of the ledger.
        hash: The hash of the last one.
        count: How many events they reserve.
        taken: How many steps of the plan were behind the run.
        controllers: States of the plan's controllers.
    """

    plan: Mapping[str, Any]
    lines: int
    hash: str
    count: int
    taken: int
    controllers: Mapping[str, Any]

    @classmethod
    def of(cls, run: Run) -> Self:
        """Return the position of a run, open or closed.

        Args:
            run: The run.

        Returns:
            Where it is.
        """
        ledger = run.ledger
        return cls(
            run.plan.to_json(),
            ledger.lines,
            ledger.head_hash,
            ledger.count,
            run.steps_taken,
            run.context.controllers.state_dict(),
        )

    def to_state(self) -> dict[str, Any]:
        """Return the position as a state for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the position that :meth:`to_state` wrote.

        Args:
            state: The state.

        Returns:
            The position.

        Raises:
            CheckpointError: The state is of another kind.
        """
        try:
            return cls(**state)
        except TypeError:
            raise CheckpointError(
                "The checkpoint's state of PrivateTraining is not of this version of dpfy. Read it "
                "with the version that wrote it."
            ) from None

    def check(self, ledger: Path, plan: Plan) -> None:
        """Refuse another plan, and a ledger without the line at which the checkpoint was made.

        Args:
            ledger: The file of the ledger.
            plan: The plan that is to go on.

        Raises:
            CheckpointError: They do not belong to the checkpoint.
        """
        if plan.to_json() != self.plan:
            raise CheckpointError(
                "The checkpoint was made under another plan. Give PrivateTraining the same plan; a "
                "new plan is a new run, with a ledger of its own."
            )
        if not ledger.exists():
            raise CheckpointError(
                f"The ledger {ledger} of this checkpoint is missing. Without it nobody knows what "
                "was spent; restore it."
            )
        found = Ledger.read(ledger).hash_at(self.lines)
        if found is None:
            raise CheckpointError(
                f"The checkpoint is newer than the ledger {ledger}: it was made after line "
                f"{self.lines}. Restore the latest ledger."
            )
        if found != self.hash:
            raise CheckpointError(
                f"The checkpoint belongs to another ledger than {ledger}. Give PrivateTraining its "
                "own."
            )

    def lost_by(self, run: Run) -> int:
        """Return how many steps were paid for after the checkpoint.

        Args:
            run: The run that goes on, before its first step.

        Returns:
            The number of steps; where an event is an epoch, what is left of the last one is lost.
        """
        plan = run.plan
        each_counts = plan.sampling.steps_per_event == 1 and not plan.extra_events
        return run.ledger.count - self.count if each_counts else run.steps_taken - self.taken
