"""No test sees the data folder of the machine unless it asks for it."""

import pytest


@pytest.fixture(autouse=True)
def no_data_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real" not in request.node.name:
        monkeypatch.delenv("DPFY_DATA", raising=False)
