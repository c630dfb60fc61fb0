"""Send what a run releases to MLflow or Weights & Biases, each an optional extra."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from dpfy._extras import require
from dpfy.errors import InvalidArgument
from dpfy.run.callbacks import REPORT, Logger


class MlflowLog(Logger):
    """Sends what a run releases to MLflow, an optional extra.

    Args:
        address: Where MLflow keeps runs, such as ``sqlite:///mlflow.db`` or the URL of a server.
        name: The name of the run there. Default: one that MLflow chooses.
        experiment: The experiment that the run belongs to; it is made if there is none.

    Raises:
        InvalidArgument: Nothing answers at the address.
        MissingExtra: MLflow is not installed.
    """

    def __init__(self, address: str, name: str | None = None, experiment: str = "dpfy") -> None:
        super().__init__()
        require("mlflow", "mlflow")
        from mlflow import MlflowClient

        self._name = name
        try:
            with _one_attempt():
                self._client: Any = MlflowClient(tracking_uri=address)
                found = self._client.get_experiment_by_name(experiment)
                self._experiment = (
                    found.experiment_id if found else self._client.create_experiment(experiment)
                )
        except Exception as error:  # MLflow raises whatever its stores raise
            raise InvalidArgument(
                f"MLflow does not answer at {address!r} ({' '.join(str(error).split())[:200]}). "
                "Check the address, or leave this logger out."
            ) from None

    def begin(self, step: int) -> None:
        """Begin a run; what is resumed becomes another one."""
        made = self._client.create_run(self._experiment, run_name=self._name)
        self._run: str = made.info.run_id

    def send(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        for name, value in values.items():
            self._client.log_metric(self._run, _mlflow_name(name), value, step=step)

    def attach(self, files: Sequence[Path]) -> None:
        """Keep the report as an artifact."""
        for file in files:
            self._client.log_artifact(self._run, str(file), REPORT)

    def end(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run)


class WandbLog(Logger):
    """Writes what a run releases for Weights & Biases, an optional extra, without a network.

    ``wandb sync`` sends the files later, if you want that. What the package would collect by itself
    (use of memory and processors, which follows the sizes of samples, console and code) is off.

    Args:
        folder: The folder in which the package makes its own, ``wandb``.
        name: The name of the run. Default: one that the package chooses.
        project: The project that the run belongs to.

    Raises:
        MissingExtra: The package ``wandb`` is not installed.
    """

    def __init__(self, folder: str | Path, name: str | None = None, project: str = "dpfy") -> None:
        super().__init__()
        require("wandb", "wandb")
        self._folder, self._name, self._project = Path(folder), name, project
        self._run: Any = None
        self._id: str | None = None

    def begin(self, step: int) -> None:
        """Begin a run."""
        import wandb

        self._folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=self._project,
            name=self._name,
            id=self._id,
            dir=str(self._folder),
            mode="offline",
            reinit="create_new",
            settings=wandb.Settings(silent=True, **_COLLECTED),
        )
        self._id = self._run.id

    def send(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        self._run.log(dict(values), step=step)

    def attach(self, files: Sequence[Path]) -> None:
        """Keep the report as an artifact."""
        import wandb

        ended = self._run is None
        if ended:
            self.begin(0)
        report = wandb.Artifact(f"privacy-report-{self._id}", type="privacy-report")
        for file in files:
            report.add_file(str(file))
        self._run.log_artifact(report)
        if ended:
            self.end()

    def end(self) -> None:
        """Finish the files."""
        if self._run is not None:
            self._run.finish()
            self._run = None


_COLLECTED: dict[str, Any] = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "save_code": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
}


@contextmanager
def _one_attempt() -> Iterator[None]:
    """Let MLflow ask a server once: by itself it tries for minutes where nobody answers."""
    wanted = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _mlflow_name(name: str) -> str:
    """Return a name that MLflow takes; no two names become one.

    >>> _mlflow_name("epsilon of strict"), _mlflow_name("a<b>")
    ('epsilon of strict', 'a_b_ 4e07dd')
    """
    plain = re.sub(r"[^\w .:-]", "_", name)[:200]
    if plain == name and name[:1] not in ("", "."):
        return name
    return f"{plain.strip('. ')} {sha256(name.encode()).hexdigest()[:6]}".strip()
