"""Both ways in which noise is drawn."""

import pytest

from dpfy.noise.native import kernels as module


@pytest.fixture(params=["numpy", "C"])
def kernels(request, monkeypatch):
    """Kernels of one kind, which vectors of all sizes are drawn with while the test runs."""
    chosen = module.IN_NUMPY if request.param == "numpy" else module.compiled()
    if chosen is None:
        pytest.skip("there is no C compiler")
    monkeypatch.setattr(module, "LARGE", 1 << 62 if request.param == "numpy" else 0)
    return chosen
