"""Train with clients that compute updates themselves, and protect all that a client has."""

from dpfy.federated.cohort import Cohort
from dpfy.federated.federate import federate, resume
from dpfy.federated.server import Server
from dpfy.federated.simulation import Simulation

__all__ = ["Cohort", "Server", "Simulation", "federate", "resume"]
