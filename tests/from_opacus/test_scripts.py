"""Typical scripts for Opacus train privately after what the page says, and no more, is done."""

import re
import sys
import types

import pytest
import torch
from tests.from_opacus.scripts import NAMES, changes, rows, script, statements

import dpfy

NAMES_MODULE = """
LANGUAGES = ["Finnish", "Dutch"]
_STEMS = ["koski", "virta", "lahti", "van dijk", "de jong", "bakker"]
_PAIRS = [(_STEMS[n % 6] + "aeiou"[n % 5] * (n % 4), int(n % 6 > 2)) for n in range(400)]
TRAIN, TEST = _PAIRS[:300], _PAIRS[300:]
"""


def test_the_three_scripts_are_there() -> None:
    assert NAMES == ("bert", "lstm", "mnist")
    assert all("opacus" in script("before", name) for name in NAMES)
    assert not any(re.search("opacus", script("after", name), re.IGNORECASE) for name in NAMES)


def matches(patterns, line: str) -> bool:
    return any(pattern.search(line) for pattern in patterns)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_explains_every_line_that_changes(name: str) -> None:
    """Fails if a script needs a change that no row of the table is about."""
    removed = [line for old, _ in changes(name) for line in old]
    added = [line for _, new in changes(name) for line in new]
    # Rows about something else than a line, such as the end of training, may always be followed.
    followed = [
        new for old, new in rows() if not old or any(matches(old, line) for line in removed)
    ]
    assert not [line for line in removed if not any(matches(old, line) for old, _ in rows())]
    assert not [
        line
        for line in added
        if line not in removed and not any(matches(new, line) for new in followed)
    ]


def test_a_line_that_the_page_does_not_explain_is_noticed() -> None:
    assert not any(matches(old, "import wandb") for old, _ in rows())
    assert not any(matches(new, "scheduler = None") for _, new in rows())


@pytest.mark.parametrize("name", NAMES)
def test_what_the_page_does_not_name_stays(name: str) -> None:
    kept = set(statements(script("before", name))) & set(statements(script("after", name)))
    for line in ("optimizer.zero_grad()", "optimizer.step()", "model.train()", "right = 0"):
        assert (line in statements(script("before", name))) == (line in kept)


def small_torchvision() -> dict[str, types.ModuleType]:
    """Return modules in the place of torchvision, with 300 pictures of ten digits."""

    class MNIST(torch.utils.data.Dataset):
        def __init__(self, root, train=True, download=False, transform=None):
            self.size, self.transform = (300 if train else 100), transform

        def __len__(self):
            return self.size

        def __getitem__(self, index):
            label = index % 10
            picture = torch.zeros(28, 28)
            picture[2 * label : 2 * label + 8] = 1.0
            return self.transform(picture), label

    class Compose:
        def __init__(self, steps):
            self.steps = steps

        def __call__(self, value):
            for each in self.steps:
                value = each(value)
            return value

    transforms = types.ModuleType("torchvision.transforms")
    transforms.Compose = Compose
    transforms.ToTensor = lambda: lambda picture: picture.unsqueeze(0)
    transforms.Normalize = lambda mean, std: lambda picture: (picture - mean[0]) / std[0]
    datasets = types.ModuleType("torchvision.datasets")
    datasets.MNIST = MNIST
    package = types.ModuleType("torchvision")
    package.datasets, package.transforms = datasets, transforms
    return {"torchvision": package}


def trained(name: str, smaller: dict[str, str], monkeypatch, tmp_path) -> dict[str, object]:
    """Run a converted script on fewer records; return its names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    source = script("after", name)
    for old, new in smaller.items():
        assert old in source
        source = source.replace(old, new)
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(source, f"{name}.py", "exec"), names)
    return names


def require_private(names: dict[str, object], ledger: str, delta: float, most: float) -> None:
    """Check that all steps of the plan are on record, and within the budget."""
    read = dpfy.Ledger.read(ledger)
    assert read.count == names["plan"].steps and read.header.key_source == "operating system"
    assert 0 < dpfy.account(read).claim(delta) <= most


def test_the_cnn_on_mnist_trains(monkeypatch, tmp_path, capsys) -> None:
    for name, module in small_torchvision().items():
        monkeypatch.setitem(sys.modules, name, module)
    smaller = {
        "60_000": "300",
        "EPOCHS, BATCH_SIZE, DELTA = 10, 256, 1e-5": "EPOCHS, BATCH_SIZE, DELTA = 2, 100, 1e-3",
        "num_workers=2": "num_workers=0",
    }
    names = trained("mnist", smaller, monkeypatch, tmp_path)
    require_private(names, "mnist.dpl", 1e-3, 20.0)
    assert "conv1.weight" in torch.load("mnist.pt")
    assert "epoch 1: ε = " in capsys.readouterr().out


def test_the_lstm_on_names_trains(monkeypatch, tmp_path, capsys) -> None:
    (tmp_path / "names.py").write_text(NAMES_MODULE)
    monkeypatch.delitem(sys.modules, "names", raising=False)
    smaller = {"16_000": "300", "= 20, 400, 1e-4": "= 3, 100, 1e-3"}
    names = trained("lstm", smaller, monkeypatch, tmp_path)
    require_private(names, "lstm.dpl", 1e-3, 8.0)
    assert "noise multiplier" in capsys.readouterr().out
    assert names["run"].engine == "bookkeeping"
