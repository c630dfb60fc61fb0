"""``dpfy schema`` and ``dpfy fit``: from a file to a report, and no cell in any text."""

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from dpfy.accounting import account
from dpfy.cli.app import main
from dpfy.cli.fit import MODELS
from dpfy.ledger import Ledger
from dpfy.tabular import Schema

SCHEMA = """
[columns]
age = { bounds = [0, 100], knots = [30, 60] }
"job title" = { categories = ["cook", "nurse"] }
income = { categories = ["low", "high"] }
rent = { bounds = [0, 10] }
"""


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    age, job = rng.uniform(0, 120, 2000), rng.choice(["cook", "nurse", "secret-agent"], 2000)
    income = np.where(age + 40 * (job == "nurse") > 80, "high", "low")
    rent = np.clip(age / 10 + rng.normal(size=2000), 0, 12)
    rows = zip(age, job, income, rent, strict=True)
    lines = ["age,job title,income,rent", *(",".join(map(str, row)) for row in rows), "secret,,,"]
    (tmp_path / "people.csv").write_text("\n".join(lines), encoding="utf-8")
    table = {"age": age, "job title": job, "income": income, "rent": rent}
    parquet.write_table(pa.table(table), tmp_path / "people.parquet")
    (tmp_path / "people.toml").write_text(SCHEMA, encoding="utf-8")

    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        assert "secret" not in output.out + output.err
        return stopped.value.code or 0, output.out, output.err

    return call


@pytest.mark.parametrize("file", ["people.csv", "people.parquet"])
def test_a_model_is_fitted_scored_and_reported(run, file, tmp_path):
    code, out, err = run(
        *("fit", "logistic", file, "--schema", "people.toml", "--target", "income"),
        *("--epsilon", 3, "--test", file, "--out", "runs/a"),
    )
    assert (code, err) == (0, "")
    score = float(out.split("public data: ")[1].split("\n")[0])
    claim = float(out.split("(")[1].split(",")[0])
    assert score > 0.9 and 2.99 < claim <= 3 and "1e-05)-differential privacy" in out
    folder = tmp_path / "runs" / "a"
    model = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    assert len(model["fitted"]["coef_"][0]) == 4 + 3 + 2
    assert model["fitted"]["classes_"] == ["high", "low"] and model["guarantee"]["epsilon"] <= 3
    assert account(folder / "ledger.dpl").claim(1e-5) <= 3
    assert Schema.read(folder / "schema.toml") == Schema.from_toml(SCHEMA)
    for name in ("report.md", "report.json", "report.html", "model.json"):
        assert "secret-agent" not in (folder / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_fitted_from_the_command_line(run, model, tmp_path):
    target = {"classes": "income", "target_bounds": "rent", "": None}[MODELS[model].target]
    schema = SCHEMA.replace('"job title"', "#") if model in ("gaussian-nb", "kmeans") else SCHEMA
    if target == "income":
        schema = schema.replace("rent", "#")
    elif target == "rent" or model == "kmeans":
        schema = schema.replace("income", "#")
    (tmp_path / "own.toml").write_text(schema, encoding="utf-8")
    options = ("--target", target) if target else ()
    code, out, err = run("fit", model, "people.csv", "--schema", "own.toml", "--out", "a", *options)
    assert (code, err) == (0, "") and "(1.0000, 1e-05)-differential privacy" in out


def test_settings_reach_the_model(run, tmp_path):
    code, _, err = run(
        *("fit", "ridge", "people.csv", "--schema", "people.toml", "--target", "rent"),
        *("--option", "alpha=7", "--option", "solver=adassp", "--records", 2500, "--out", "a"),
        *("--delta", "1e-3"),
    )
    assert err.startswith("Note: δ = 1e-3 is not below 1/2500") and err.count("\n") == 1
    model = json.loads((tmp_path / "a" / "model.json").read_text(encoding="utf-8"))
    assert code == 0 and model["parameters"]["alpha"] == 7
    assert model["fitted"]["n_records_"] == 2500 and model["guarantee"]["delta"] == 1e-3
    assert Ledger.read(tmp_path / "a" / "ledger.dpl").header.relation == "add_or_remove_one"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["magic", "people.csv", "--target", "income"], "Expected a model among logistic"),
        (["logistic", "people.csv"], "needs --target"),
        (["pca", "people.csv", "--target", "income"], "takes no --target"),
        (["pca", "people.csv", "--test", "people.csv"], "has no score"),
        (["logistic", "people.csv", "--target", "rent"], "no categories for the target 'rent'"),
        (["linear", "people.csv", "--target", "income"], "no bounds for the target 'income'"),
        (["logistic", "people.csv", "--target", "height"], "got 'height'"),
        (["logistic", "none.csv", "--target", "income"], "No such file"),
        (["logistic", "people.csv", "--target", "income", "--option", "a"], "name=value"),
        (["logistic", "people.csv", "--target", "income", "--option", "a=1"], "no setting 'a'"),
        (["logistic", "people.csv", "--target", "income", "--epsilon", "0"], "epsilon=0"),
        (["logistic", "people.csv", "--target", "income", "--delta", "tiny"], "delta='tiny'"),
        (["logistic", "thin.csv", "--target", "income"], "no column 'age'"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing_behind(run, arguments, says, tmp_path):
    (tmp_path / "thin.csv").write_text("income\nhigh\n", encoding="utf-8")
    code, out, err = run("fit", *arguments, "--schema", "people.toml", "--out", "a")
    assert code != 0 and out == "" and err.count("\n") == 1 and says in err
    assert not (tmp_path / "a").exists()


def test_a_folder_is_not_written_over(run, tmp_path):
    (tmp_path / "a").mkdir()
    code, _, err = run(
        *("fit", "logistic", "people.csv", "--schema", "people.toml"),
        *("--target", "income", "--out", "a"),
    )
    assert code != 0 and "a exists" in err


@pytest.mark.parametrize("file", ["people.csv", "people.parquet"])
def test_a_template_has_names_and_nothing_else(run, file, tmp_path):
    code, out, _ = run("schema", "init", file, "--out", "new.toml")
    text = (tmp_path / "new.toml").read_text(encoding="utf-8")
    assert code == 0 and "dpfy fit" in out and "nurse" not in text
    for name in ("age", '"job title"', "income", "rent"):
        assert f"# {name} = {{ bounds = [0, 100] }}" in text
    assert text.count("= {") == 8
    assert run("schema", "init", file, "--out", "new.toml")[0] != 0
    assert run("schema", "init", file, "--out", "new.toml", "--force")[0] == 0


def test_public_data_fills_a_schema(run, tmp_path):
    (tmp_path / "public.csv").write_text(
        "age,job title,income,extra\n10,cook,low,1\n20,nurse,high,2\n?,cook,low,3\n60,,low,4\n",
        encoding="utf-8",
    )
    assert run("schema", "init", "people.csv", "--from-public", "public.csv")[0] != 0  # it exists
    code, _, _ = run(
        "schema", "init", "people.csv", "--from-public", "public.csv", "--out", "b.toml"
    )
    schema = Schema.read(tmp_path / "b.toml")
    assert code == 0 and schema.names == ("age", "job title", "income")
    assert schema["age"].bounds == (10, 60) and schema["income"].categories == ("high", "low")


@pytest.mark.parametrize("options", [(), ("--option", "insecure_test_key=5")])
def test_a_fit_with_a_test_key_is_not_called_private(run, options, tmp_path):
    code, out, _ = run(
        *("fit", "logistic", "people.csv", "--schema", "people.toml", "--target", "income"),
        *("--out", "runs/a", *options),
    )
    model = json.loads((tmp_path / "runs/a/model.json").read_text(encoding="utf-8"))
    assert code == 0 and ("NOT PRIVATE" in out) == bool(options)
    assert model["guarantee"]["private"] is not bool(options)
