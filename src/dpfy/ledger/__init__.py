"""What happened: a durable, append-only record of facts that needs neither torch nor numpy to be read."""

from dpfy.ledger.guard import Guard, Unguarded
from dpfy.ledger.journal import Header
from dpfy.ledger.ledger import Ledger

__all__ = ["Guard", "Header", "Ledger", "Unguarded"]
