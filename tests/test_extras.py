"""Packages of an extra are imported where they are used, or the extra is named."""

import os
import subprocess
import sys

import pytest

import dpfy
import dpfy.data
from dpfy._extras import require
from dpfy.cli.app import main
from dpfy.errors import DpfyError, MissingExtra
from dpfy.planning.plots import draw_contours
from dpfy.reporting import report
from dpfy.run.callbacks import TensorBoardLog
from dpfy.run.loggers import MlflowLog, WandbLog


@pytest.fixture
def without(monkeypatch):
    """Take packages away, with everything that was imported from them."""

    def remove(*packages):
        for name in list(sys.modules):
            if name.partition(".")[0] in packages:
                monkeypatch.setitem(sys.modules, name, None)
        for package in packages:
            monkeypatch.setitem(sys.modules, package, None)

    return remove


def names(extra):
    return pytest.raises(MissingExtra, match=rf"pip install 'dpfy\[{extra}\]'")


def test_a_package_that_is_there_is_imported():
    require("json", "nothing")


def test_a_missing_package_names_its_extra(without):
    without("yaml")
    with names("yaml") as caught:
        require("yaml", "yaml")
    assert isinstance(caught.value, DpfyError) and isinstance(caught.value, ImportError)


def test_a_package_that_is_broken_is_not_called_missing(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "half_installed.py").write_text("import a_module_that_nobody_has")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_nobody_has"):
        require("half_installed", "nothing")


def test_the_embedded_digits_need_scikit_learn(without):
    without("sklearn")
    with names("demo"):
        dpfy.Trainer()


@pytest.mark.parametrize("module", ["dpfy.estimators", "dpfy.tabular.encoder"])
def test_estimators_need_scikit_learn(module):
    """In a process of its own, where no other test has imported them."""
    code = f"import sys; sys.modules['sklearn'] = None; import dpfy.tabular.schema, {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "pip install 'dpfy[estimators]'" in done.stderr


def test_curves_need_matplotlib(without, tmp_path):
    without("matplotlib")
    with names("report"):
        draw_contours(tmp_path / "a.png", [], delta=1e-5, epochs=1)


def test_yaml_needs_pyyaml(without, tmp_path):
    without("yaml")
    (tmp_path / "a.yaml").write_text("epochs: 1")
    with names("yaml"):
        dpfy.TrainConfig.from_file(tmp_path / "a.yaml")


def test_tensorboard_needs_its_extra(without):
    without("tensorboard")
    with names("tensorboard"):
        TensorBoardLog.check()


def test_trackers_need_their_extras(without, tmp_path):
    without("mlflow", "wandb")
    with names("mlflow"):
        MlflowLog("sqlite:///mlflow.db")
    with names("wandb"):
        WandbLog(tmp_path)


def test_scattering_needs_rich_only_for_its_progress_bar(without):
    import torch

    from dpfy.models.scattering import scattering_features

    without("rich")
    images = torch.zeros(2, 1, 16, 16)
    scattering_features(images)
    with names("cli"):
        scattering_features(images, progress=True)


def test_a_report_is_written_without_figures(without):
    """The numbers do not need matplotlib; a note says how the figures are had."""
    without("matplotlib")
    plan = dpfy.dpsgd(records=10, batch_size=5, steps=3, noise_multiplier=2.0)
    with dpfy.Ledger.in_memory() as ledger:
        for _ in range(3):
            ledger.reserve(plan.event)
        page = report(ledger, 1e-3).to_html()
    assert "There are no figures." in page and "dpfy[report]" in page and "<svg" not in page


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_the_command_without_its_extra_is_one_sentence(package):
    """In a process of its own, as after ``pip install dpfy``."""
    code = f"import sys; sys.modules[{package!r}] = None; from dpfy.cli.app import main; main([])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1
    assert f"{package}, which is not installed" in done.stderr and "'dpfy[cli]'" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["plan", "--epsilon", "3", "--rates", "0.1:1", "--plot", "a.png"],
        ["audit", "--epochs", "1"],
    ],
    ids=" ".join,
)
def test_a_command_that_draws_says_so_before_it_computes(
    without, tmp_path, monkeypatch, capsys, command
):
    without("matplotlib")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(command)
    err = capsys.readouterr().err
    assert stopped.value.code == 1 and "'dpfy[report]'" in err and err.count("\n") == 1


def test_synthetic_tables_need_mbi_before_anything_is_spent(without, tmp_path):
    from dpfy.tabular import Column, Schema

    without("mbi")
    synthesizer = dpfy.Synthesizer("mst", Schema((Column("x", bounds=(0, 1)),)), epsilon=1.0)
    with names("synth"):
        synthesizer.fit({"x": [0.5]}, tmp_path / "t.dpl")
    assert not list(tmp_path.iterdir())


def test_rows_of_arrow_files_need_pyarrow(without, tmp_path):
    without("pyarrow")
    with names("arrow"):
        dpfy.data.ArrowRecords(tmp_path / "train.arrow", ["x"])


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_the_page_needs_its_packages(package):
    code = (
        f"import sys; sys.modules['{package}'] = None; "
        "from dpfy.cli.app import main; main(['page'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "pip install 'dpfy[page]'" in done.stderr


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_the_service_needs_its_packages(package):
    code = f"import sys; sys.modules['{package}'] = None; import dpfy.ensembles, dpfy.serving"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "pip install 'dpfy[service]'" in done.stderr


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_the_service_of_a_book_needs_its_packages(package):
    code = f"import sys; sys.modules['{package}'] = None; import dpfy.budgets.service"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "pip install 'dpfy[service]'" in done.stderr


def test_a_client_of_a_book_needs_no_database():
    code = """
import sys
for name in ("sqlalchemy", "starlette", "uvicorn"):
    sys.modules[name] = None
import dpfy
for address in ("https://budget.example", "sqlite:///team.db"):
    try:
        dpfy.BudgetBook.open(address)
    except dpfy.errors.DpfyError as error:
        print(error)
"""
    clean = {name: value for name, value in os.environ.items() if name != "DPFY_BUDGET_TOKEN"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean)
    asked, refused = done.stdout.splitlines()
    assert "DPFY_BUDGET_TOKEN" in asked and "pip install 'dpfy[budget]'" in refused, done.stderr
