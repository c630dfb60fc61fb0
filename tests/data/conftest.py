"""Only the tests of the real files see the data folder of the machine."""

import pytest


@pytest.fixture(autouse=True)
def no_data_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.name != "test_real.py":
        monkeypatch.delenv("DPFY_DATA", raising=False)
