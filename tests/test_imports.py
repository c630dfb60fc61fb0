"""The public names resolve, and those that need no torch do not load it."""

import subprocess
import sys

import pytest

import dpfy

WITHOUT_TORCH = ["Budget", "Guarantee", "Interval", "Ledger", "Plan", "Relation", "Unit", "account", "calibrate_noise",
                 "dpsgd", "DpfyError"]


def loaded_modules(code: str) -> set[str]:
    """Run ``code`` in a fresh interpreter and return the names of the modules it loaded."""
    script = f"{code}\nimport sys; print('\\nMODULES', *sys.modules)"
    run = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
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
    code = "import dpfy; dpfy.dpsgd(rate=0.1, divisor=10, steps=2).calibrate(epsilon=1.0, delta=1e-3)"
    assert "torch" not in loaded_modules(code)


def test_the_command_line_starts_without_torch() -> None:
    assert not {"torch", "matplotlib", "sklearn"} & loaded_modules("import dpfy.cli.app")


def test_import_alone_loads_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "scipy", "dp_accounting", "rich", "typer", "matplotlib", "sklearn", "cryptography"}
    assert not heavy & loaded_modules("import dpfy")
