"""What happened: a durable, append-only record of facts, readable without torch and numpy."""

# Importing a module registers its facts by their tags.
from dpfy.ledger import (
    composite_events as composite_events,
    individual as individual,
    one_shot as one_shot,
    perturbation as perturbation,
    selection as selection,
    streams as streams,
)
from dpfy.ledger.guard import Guard, Unguarded
from dpfy.ledger.journal import Header
from dpfy.ledger.ledger import Ledger

__all__ = ["Guard", "Header", "Ledger", "Unguarded"]
