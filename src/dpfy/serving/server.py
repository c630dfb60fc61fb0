"""Run the service in several processes, which have the teachers each and the ledger in turn."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dpfy import _validate
from dpfy.ensembles.prediction_folder import LEDGER, open_predictor, plan_of
from dpfy.web.limits import Limits

TOKEN = "token.sha256"
_SETTINGS = "DPFY_SERVICE"  # the environment variable by which workers know what to serve


@dataclass(frozen=True)
class Service:
    """What is served, and how.

    Args:
        folder: The folder of the teachers.
        ledger: The file of the ledger; by default ``predictions.dpl`` in the folder.
        format: How teachers are kept, as ``module:name`` of a format; by default linear ones.
        token: The file with the hash of the bearer token; by default ``token.sha256`` in the
            folder.
        host: The address to listen at; the default is reached from this machine alone.
        port: The port to listen at.
        workers: The number of processes.
        limits: The limits of requests.

    Raises:
        InvalidArgument: If a number is out of its range.

    >>> Service("runs/ensemble").ledger_file.name
    'predictions.dpl'
    """

    folder: str
    ledger: str | None = None
    format: str | None = None
    token: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 2
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        _validate.count("workers", self.workers)
        _validate.real("port", self.port, 0, 65535)

    @property
    def ledger_file(self) -> Path:
        """The file of the ledger."""
        return Path(self.ledger) if self.ledger is not None else Path(self.folder) / LEDGER

    @property
    def token_file(self) -> Path:
        """The file with the hash of the bearer token."""
        return Path(self.token) if self.token is not None else Path(self.folder) / TOKEN


def serve(service: Service) -> None:
    """Listen and answer until interrupted.

    Args:
        service: What to serve; its ledger and the hash of its token exist.

    Raises:
        InvalidArgument: If there is no ledger or token.
    """
    import uvicorn

    from dpfy.web.tokens import read_digest

    read_digest(service.token_file)
    plan_of(service.ledger_file)
    os.environ[_SETTINGS] = json.dumps(asdict(service))
    uvicorn.run(
        "dpfy.serving.server:worker_app",
        factory=True,
        host=service.host,
        port=service.port,
        workers=service.workers,
        log_level="warning",
        access_log=False,
        server_header=False,
    )


def worker_app() -> Any:
    """Return the application of one process, from what the first one left in the environment."""
    from dpfy.serving.app import make_app
    from dpfy.web.tokens import read_digest

    values = json.loads(os.environ[_SETTINGS])
    service = Service(**{**values, "limits": Limits(**values["limits"])})
    digest = read_digest(service.token_file)
    predictor = open_predictor(service.folder, service.ledger_file, service.format)
    return make_app(predictor, digest, service.limits, service.workers)
