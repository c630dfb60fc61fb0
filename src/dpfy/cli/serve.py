"""``dpfy serve``: private predictions over HTTP.

Tests: tests/cli/test_predict.py.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dpfy.cli._prediction import (
    AllDeltaOption,
    BoundsOption,
    CheckNoiseOption,
    ClassesOption,
    EpsilonOption,
    FormatOption,
    LedgerOption,
    NoiseOption,
    TeachersArgument,
    ThresholdOption,
    declared,
    spoken_budget,
)
from dpfy.errors import InvalidArgument


def serve(
    teachers: TeachersArgument,
    ledger: LedgerOption = None,
    classes: ClassesOption = None,
    bounds: BoundsOption = None,
    noise: NoiseOption = None,
    epsilon: EpsilonOption = None,
    delta: AllDeltaOption = None,
    threshold: ThresholdOption = None,
    check_noise: CheckNoiseOption = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="Shape of one input, such as 64 or 28x28. For a new ledger.", show_default=False
        ),
    ] = None,
    format: FormatOption = None,
    token: Annotated[
        Path | None,
        typer.Option(
            help="File with the hash of the bearer token; a new token is made and shown once if it "
            "does not exist. Default: token.sha256 in the folder.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at; the default is this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.")] = 8000,
    workers: Annotated[int, typer.Option(help="Processes that answer.")] = 2,
    body: Annotated[int, typer.Option(help="Most bytes of a request.")] = 2**20,
    rows: Annotated[int, typer.Option(help="Most inputs of a request.")] = 64,
    rate: Annotated[float, typer.Option(help="Most requests a minute.")] = 600.0,
) -> None:
    """Answer inputs over HTTP by the noisy votes of teachers, until the budget is empty.

    POST /predict takes {"inputs": [[…], …]}, with the bearer token. The options that declare a
    budget are for a new ledger; later calls go on with it. There is no encryption: put a proxy with
    TLS in front of it before others can reach it.

    Examples:
    dpfy serve runs/ensemble --classes 10 --noise 40 --epsilon 2.6 --delta 1e-5 --shape 64

    dpfy serve runs/ensemble --port 8080 --workers 4
    """
    from dpfy.ensembles.prediction_folder import open_predictor
    from dpfy.serving.server import Service, serve as listen
    from dpfy.web.limits import Limits
    from dpfy.web.tokens import create_token

    service = Service(
        folder=str(teachers.resolve()),
        ledger=None if ledger is None else str(ledger.resolve()),
        format=format,
        token=None if token is None else str(token.resolve()),
        host=host,
        port=port,
        workers=workers,
        limits=replace(Limits(), body=body, rows=rows, rate=rate),
    )
    settings = declared(
        classes=classes,
        bounds=bounds,
        noise=noise,
        epsilon=epsilon,
        delta=delta,
        threshold=threshold,
        check_noise=check_noise,
        shape=_shape(shape),
    )
    predictor = open_predictor(service.folder, service.ledger_file, format, settings)
    typer.echo(spoken_budget(predictor))
    if not service.token_file.exists():
        typer.echo(f"token, shown once: {create_token(service.token_file)}")
    typer.echo(f"listening at http://{host}:{port}")
    listen(service)


def _shape(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else tuple(int(each) for each in text.split("x"))
    except ValueError:
        raise InvalidArgument(f"Expected --shape such as 64 or 28x28, got {text!r}.") from None
