"""What happened: a durable, append-only record of facts that needs neither torch nor numpy to be
read.
"""

# Facts are known by their tags once their module is.
from dpfy.ledger import (
    composite_events as composite_events,
    one_shot as one_shot,
    selection as selection,
    streams as streams,
)
from dpfy.ledger.guard import Guard, Unguarded
from dpfy.ledger.journal import Header
from dpfy.ledger.ledger import Ledger

__all__ = ["Guard", "Header", "Ledger", "Unguarded"]
