"""The public names resolve, and those that need no torch do not load it."""

import subprocess
import sys
from pathlib import Path

import pytest

import dpfy

WITHOUT_TORCH = [
    "Budget",
    "Guarantee",
    "Interval",
    "Ledger",
    "Plan",
    "Relation",
    "Unit",
    "account",
    "calibrate_noise",
    "dpis",
    "dpsgd",
    "DpfyError",
]


def loaded_modules(code: str) -> set[str]:
    """Run ``code`` in a fresh interpreter and return the names of the modules it loaded."""
    script = f"{code}\nimport sys; print('\\nMODULES', *sys.modules)"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.rsplit("MODULES", 1)[1].split())


@pytest.mark.parametrize("name", dpfy.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(dpfy, name).__doc__, f"dpfy.{name} has no docstring"


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        dpfy.no_such_name  # noqa: B018


def test_reading_and_accounting_do_not_load_torch() -> None:
    names = "; ".join(f"dpfy.{name}" for name in WITHOUT_TORCH)
    assert "torch" not in loaded_modules(f"import dpfy; {names}")


def test_a_plan_is_calibrated_without_torch() -> None:
    code = (
        "import dpfy; dpfy.dpsgd(rate=0.1, divisor=10, steps=2).calibrate(epsilon=1.0, delta=1e-3)"
    )
    assert "torch" not in loaded_modules(code)


def test_estimators_load_torch_when_they_are_fitted_and_not_before() -> None:
    code = (
        "import dpfy.estimators as e, dpfy.tabular as t; "
        "[getattr(e, name) for name in e.__all__], [getattr(t, name) for name in t.__all__]"
    )
    assert "torch" not in loaded_modules(code)


def test_the_command_line_starts_without_torch() -> None:
    assert not {"torch", "matplotlib", "sklearn"} & loaded_modules("import dpfy.cli.commands")


@pytest.mark.parametrize(
    "commands",
    [
        ["--help", "train --help", "inspect-data --help", "check --help", "init template.toml"],
        # a mistake is told before anything is loaded
        ["train --epsilon 0", "train missing.toml", "train template.yaml", "check a:b --example x"],
        [
            "calibrate --epsilon 3 --delta 1e-5 --rate 0.1 --steps 5",
            "ledger verify run.dpl",
            "ledger show run.dpl",
            "account run.dpl --delta 1e-5",
            "convert run.dpl --delta 1e-5",
            "report run.dpl --delta 1e-5",
            "report run.dpl --delta 1e-5 --out report",
        ],
    ],
    ids=["help", "mistakes", "ledgers"],
)
def test_commands_that_need_no_torch_do_not_load_it(
    commands: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = dpfy.dpsgd(records=100, batch_size=50, steps=2, noise_multiplier=2.0)
    with dpfy.Ledger.open("run.dpl") as ledger:
        ledger.reserve(plan.event)
    code = "\n".join(
        [
            "from dpfy.cli.app import main",
            *(
                f"try: main({command.split()!r})\nexcept SystemExit as stop: assert stop.code in "
                f"(0, None, 2), {command!r}"
                for command in commands
            ),
        ]
    )
    assert "torch" not in loaded_modules(code)


def test_import_alone_loads_nothing_heavy() -> None:
    heavy = {
        "torch",
        "numpy",
        "scipy",
        "dp_accounting",
        "rich",
        "typer",
        "matplotlib",
        "sklearn",
        "cryptography",
    }
    assert not heavy & loaded_modules("import dpfy")
