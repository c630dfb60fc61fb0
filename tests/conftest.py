"""Settings that hold for every test: one thread per worker, and examples that repeat from run to
run.
"""

import os

import hypothesis
import pytest

# Two workers share two cores; OpenMP reads this when torch is first imported, here and in child
# processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Derandomised and without deadlines: a test that fails, fails again, on any machine at any load.
hypothesis.settings.register_profile("dpfy", deadline=None, derandomize=True, max_examples=100)
hypothesis.settings.load_profile("dpfy")


# A device starts threads of autograd, and then no test of the same process may fork and go on.
collect_ignore = [] if "DPFY_TEST_DEVICE" in os.environ else ["device", "support/pretend.py"]
if "DPFY_TEST_INTEGRATIONS" not in os.environ:  # which needs other frameworks
    collect_ignore += ["integrations", "support/hf_models.py", "support/hf_trainers.py"]
if "DPFY_TEST_FLOWER" not in os.environ:  # which needs an environment of its own
    collect_ignore += ["flower", "support/flower_nodes.py", "support/flower_simulation.py"]


def pytest_collection_modifyitems(items):
    """Leave out what is for the CPU where another device is tested."""
    if os.environ.get("DPFY_TEST_DEVICE", "cpu") != "cpu":
        for item in items:
            if "cpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="for the CPU"))


@pytest.fixture
def device() -> str:
    """The device that ``DPFY_TEST_DEVICE`` names."""
    from runs import chosen_device  # after the number of threads was set

    return chosen_device()


@pytest.fixture
def started():
    """Start a run over rows of numbers (or any data set) and close it afterwards."""
    import torch  # after the number of threads was set
    from runs import Started
    from torch.utils.data import TensorDataset

    runs = []

    def start(data, **options):
        if isinstance(data, torch.Tensor):
            data = TensorDataset(data)
        runs.append(Started(data, **options))
        return runs[-1]

    yield start
    for each in runs:
        each.run.close()
