"""``dpfy plan`` as a user runs it."""

import json
import subprocess
import sys

import pytest

from dpfy.cli.app import main
from dpfy.planning import solve

BUDGET = ["--epsilon", "3", "--delta", "1e-5"]
CORRELATED = ["plan", "correlated", "--records", "1000", "--batch-size", "100", "--epochs", "10"]
CONTOURS = ["plan", "--records", "60000", *BUDGET, "--epochs", "60", "--rates", "0.1:1"]


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return stopped.value.code or 0, output.out, output.err

    return call


def test_the_open_quantity_is_found(run):
    values = json.loads(
        run("plan", "--records", 1000, "--batch-size", 100, "--steps", 50, *BUDGET, "--json")[1]
    )
    found = solve(records=1000, batch_size=100, steps=50, epsilon=3.0, delta=1e-5)
    assert (
        values["solved"] == "noise_multiplier"
        and values["noise_multiplier"] == found.noise_multiplier
    )
    assert values["noise_in_mean"] == found.noise_multiplier / 100 and values["epochs"] == 5.0


def test_a_sentence_says_the_same(run):
    run_ = [
        "--records",
        1000,
        "--noise-multiplier",
        2,
        "--rate",
        0.1,
        "--steps",
        50,
        "--delta",
        1e-5,
    ]
    code, out, err = run("plan", *run_)
    assert (code, err) == (0, "") and out.startswith("epsilon: ")
    assert "50 steps at rate 0.1 (5 epochs, batches of 100 of 1,000 records)" in out


def test_contours_are_drawn(run, tmp_path):
    code, out, _ = run(*CONTOURS, "--plot", "contours.png")
    assert code == 0 and "Wrote contours" in out and "·√q" in out
    assert (tmp_path / "contours.png").read_bytes().startswith(b"\x89PNG")


def test_contours_as_json_are_one_object(run, tmp_path):
    code, out, err = run(*CONTOURS, "--plot", "contours.svg", "--json")
    (line,) = json.loads(out)["contours"]
    assert (
        code == 0
        and "Wrote" in err
        and "</svg>" in (tmp_path / "contours.svg").read_text(encoding="utf-8")
    )
    assert (
        line["rates"][0] == 0.1
        and line["rates"][-1] == 1.0
        and line["c"] == pytest.approx(11, abs=0.3)
    )


def test_batch_curves(run, tmp_path):
    code, out, _ = run(
        "plan",
        "--records",
        1000,
        *BUDGET,
        "--steps",
        20,
        "--batch-sizes",
        "10:1000",
        "--plot",
        "b.svg",
    )
    assert code == 0 and "σC/B" in out and (tmp_path / "b.svg").exists()


def test_the_page(run, tmp_path):
    assert run("plan", "--records", 1000, "--plot", "plan.html")[0] == 0
    assert 'id="records"' in (tmp_path / "plan.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rates", "1:0.1", *BUDGET, "--epochs", "1"], "LOW:HIGH"),
        (["--rates", "x", *BUDGET, "--epochs", "1"], "LOW:HIGH"),
        (["--rates", "0.1:1", *BUDGET], "--epochs"),
        (["--rates", "0.1:1", "--batch-sizes", "1:2"], "not both"),
        (["--plot", "a.png", *BUDGET], "needs --rates"),
        ([*CONTOURS[1:], "--plot", "a.gif"], "end in"),
        (["--epsilon", "1", *BUDGET], "one --epsilon"),
        (BUDGET, "left open"),
        (["strategy", "luck"], "one of clip-search"),
        (["strategy", "compute", "--public", "digits"], "--records and --batch-size"),
        (["strategy", "accuracy", "--public", "digits"], "for example, --records 60000."),
        (["strategy"], "clip-search, grid"),
        (["resources"], "package.module:name"),
        (
            [
                "advise",
                "--sees",
                "x",
                "--sampling",
                "fixed",
                "--one-each",
                "yes",
                "--labels-only",
                "no",
            ],
            "one of",
        ),
    ],
)
def test_what_is_asked_wrongly_is_one_sentence(run, arguments, words):
    code, _, err = run("plan", *arguments)
    assert code == 2 and words in err and err.startswith("Error: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "add"),
    [
        (["--epsilon", "3"], "--delta 1e-5 --rate 0.1 --steps 600"),
        (["--epsilon", "3", "--rate", "0.1", "--steps", "600"], "--delta 1e-5"),
        (["--batch-size", "10", *BUDGET, "--steps", "5"], "--records 60000"),
        (["--rates", "0.1:1", "--delta", "1e-5", "--epochs", "1"], "--epsilon 3"),
        (["--rates", "0.1:1", "--epsilon", "3", "--epochs", "1"], "--delta 1e-5"),
        (["--rates", "0.1:1", *BUDGET], "--epochs 60"),
        (["--batch-sizes", "10:100", *BUDGET, "--steps", "20"], "--records 60000"),
        (["--batch-sizes", "10:100", *BUDGET, "--records", "1000"], "--steps 600"),
        (["--plot", "a.png", *BUDGET], "--rates 0.001:1"),
        (["--epsilon", "1", *BUDGET, "--rate", "0.1"], "--rates 0.001:1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_missing_can_be_copied_from_the_error(run, arguments, add):
    code, _, err = run("plan", *arguments)
    assert code == 2 and f"dd, for example, {add}" in err
    if "--epsilon, got" not in err:  # several budgets need a range and the rest of a curve
        code, _, after = run("plan", *arguments, *add.split())
        assert code == 0 or after != err


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        (["--rate", "0.1", "--records", "10", "--batch-size", "1"], "--rate or --batch-size"),
        (["--steps", "10", "--epochs", "1"], "--steps or --epochs"),
        ([*BUDGET, "--noise-multiplier", "1", "--rate", "0.1", "--epochs", "1"], "--epochs out"),
        (["--rates", "0.1:1", "--batch-sizes", "1:2"], "Leave one of them out"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_too_much_is_named(run, arguments, out):
    code, _, err = run("plan", *arguments)
    assert code == 2 and out in err and "eave" in err


@pytest.mark.parametrize("name", ["clip-search", "grid", "compute", "small-batch", "accuracy"])
def test_a_strategy_without_data_prints_its_steps_and_reasons(run, name):
    code, out, _ = run("plan", "strategy", name)
    assert (
        code == 0 and out.startswith("1. ") and out.count("  why: ") >= 1 and "QuantileClip" in out
    )


def test_a_strategy_is_carried_out_on_public_data(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "plan_public.py").write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\n"
        "x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))\n"
        "def load():\n    data = TensorDataset(x, (x[:, 0] > 0).long())\n    return data, data\n"
        "def make():\n    return torch.nn.Linear(2, 2)\n"
    )
    code, out, _ = run(
        "plan",
        "strategy",
        "small-batch",
        "--public",
        "plan_public:load",
        "--model",
        "plan_public:make",
        "--records",
        1000,
        "--batch-size",
        100,
        "--small-batch",
        20,
        "--steps",
        3,
    )
    assert (
        code == 0
        and out.count("  found: ") == 5
        and "dpfy train --records 1000 --batch-size 100" in out
    )


def test_advice_by_options_and_by_questions(run, monkeypatch):
    answers = [
        "--sees",
        "model",
        "--sampling",
        "poisson",
        "--one-each",
        "yes",
        "--labels-only",
        "no",
    ]
    code, out, _ = run("plan", "advise", *answers)
    assert code == 0 and "begin with: dpfy train --sampling poisson" in out
    asked = []
    monkeypatch.setattr("typer.prompt", lambda text, default, err: asked.append(default) or default)
    assert out in run("plan", "advise")[1] and asked == ["model", "poisson", "yes", "no"]
    assert json.loads(run("plan", "advise", *answers, "--json")[1])["unit"] == "record"


def test_resources_of_a_model(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "plan_model.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(4, 3)\n"
    )
    code, out, _ = run(
        "plan",
        "resources",
        "plan_model:make",
        "--example",
        "float32[4],int64[]",
        "--batch-size",
        16,
        "--records",
        100,
        "--memory",
        64,
    )
    assert (
        code == 0
        and "engine 'bookkeeping'" in out
        and "epochs fit into 1 h" in out
        and "max_physical_batch" in out
    )


@pytest.mark.parametrize(
    "command", [[], ["advise"], ["strategy"], ["resources"], ["correlated"]], ids=" ".join
)
def test_every_command_shows_how_it_is_called(run, command):
    code, out, err = run("plan", *command, "--help")
    assert (
        (code, err) == (0, "")
        and "Examples:" in out
        and f"dpfy {' '.join(['plan', *command])}" in out
    )


def test_what_needs_no_model_does_not_load_torch(tmp_path):
    commands = [
        ["plan", "--rate", "0.1", "--steps", "5", *BUDGET],
        ["plan", "strategy", "compute"],
        [*CORRELATED[:-1], "1", *BUDGET],
        ["plan", "--plot", "page.html"],
        ["plan", "strategy", "compute", "--public", "digits"],
        [
            "plan",
            "advise",
            "--sees",
            "data",
            "--sampling",
            "stream",
            "--one-each",
            "no",
            "--labels-only",
            "no",
        ],
    ]
    code = (
        "import sys\nfrom dpfy.cli.app import main\nended = []\n"
        f"for command in {commands!r}:\n    try: main(command)\n"
        "    except SystemExit as stop: ended.append(stop.code or 0)\n"
        "print(ended, {'torch', 'matplotlib'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert (
        done.stdout.splitlines()[-1] == "[0, 0, 0, 0, 2, 0] set()"
    )  # the fifth lacks what describes the run


def test_correlated_noise_is_compared_with_dpsgd(run):
    code, out, _ = run(*CORRELATED, "--epsilon", "8", "--delta", "1e-5")
    assert code == 0
    assert "DP-SGD" in out and "10 bands" in out and "4 buffers" in out
    assert "If their order is fixed, take 10 bands, fixed order" in out
    assert "If records can be drawn at random, take" in out


def test_correlated_noise_as_json_is_one_object(run):
    code, out, _ = run(*CORRELATED, "--epsilon", "8", "--delta", "1e-5", "--buffers", "1", "--json")
    found = json.loads(out)
    assert code == 0 and found["steps"] == 100
    assert found["best_in_fixed_order"] in found["choices"]
    assert {choice["sampling"] for choice in found["choices"]} == {
        "poisson",
        "cyclic",
        "cyclic_poisson",
    }


@pytest.mark.parametrize(
    "wrong",
    [
        ["--relation", "add_or_remove_one"],
        ["--objective", "median"],
        ["--buffers", "9"],
        ["--momentum", "1"],
        ["--batch-size", "1001"],
        ["--epochs", "0"],
    ],
)
def test_bad_values_for_correlated_noise_are_told(run, wrong):
    code, out, err = run(*CORRELATED, "--epsilon", "8", "--delta", "1e-5", *wrong)
    assert code != 0 and out == "" and "Expected" in err
