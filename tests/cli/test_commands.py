"""The commands, as a user runs them."""

import json
import re
import subprocess
import sys

import pytest

from dpfy import __version__
from dpfy.accounting import account
from dpfy.cli.app import main
from dpfy.cli.commands import command, walk
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import NonPrivate, Poisson, Repeated, Sampled, SumQuery
from dpfy.ledger.individual import Individual
from dpfy.trainer.config import all_settings

EPSILON = [
    "epsilon",
    "--rate",
    "0.1",
    "--noise-multiplier",
    "1.0",
    "--steps",
    "20",
    "--delta",
    "1e-5",
]
CALIBRATE = ["calibrate", "--epsilon", "3", "--delta", "1e-5", "--rate", "0.1", "--steps", "20"]
STEP = Sampled(Poisson(0.1), (SumQuery(1.0, 1.0),))
KEYS = {
    "epsilon",
    "epsilon_lower",
    "delta",
    "method",
    "noise_multiplier",
    "rate",
    "steps",
    "relation",
    "unit",
}


@pytest.fixture
def run(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return stopped.value.code or 0, output.out, output.err

    return call


def strict(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not strict JSON")

    return json.loads(text, parse_constant=refuse)


def book(path, steps, **header):
    with Ledger.open(path, header=Header(envelope=(Repeated(STEP, 30),), **header)) as ledger:
        for _ in range(steps):
            ledger.reserve(STEP)
    return path


def test_epsilon_as_json(run):
    code, out, err = run(*EPSILON, "--json")
    values = strict(out)
    assert (code, err) == (0, "") and values.keys() >= KEYS
    lower, upper = account(Repeated(STEP, 20)).epsilon(1e-5)
    assert (values["epsilon"], values["epsilon_lower"]) == (upper, lower)
    expected = {
        "delta": 1e-5,
        "method": "pld",
        "noise_multiplier": 1.0,
        "rate": 0.1,
        "steps": 20,
        "relation": "add_or_remove_one",
        "unit": "record",
    }
    assert {name: values[name] for name in expected} == expected


def test_epsilon_as_a_sentence_rounds_the_claim_up(run):
    _, out, _ = run(*EPSILON)
    claim = account(Repeated(STEP, 20)).claim(1e-5)
    printed = float(out.split("(")[1].split(",")[0])
    assert claim <= printed < claim + 1e-4
    assert "adding or removing one record" in out and out.count("\n") == 1


@pytest.mark.parametrize("option", [("--method", "rdp"), ("--relation", "replace_one")])
def test_epsilon_passes_its_options_on(run, option):
    values = strict(run(*EPSILON, *option, "--json")[1])
    assert values[option[0].strip("-")] == option[1]
    assert values["epsilon"] == account(
        Repeated(STEP, 20), **{option[0].strip("-"): option[1]}
    ).claim(1e-5)


def test_infinity_is_strict_json(run):
    bare = replaced(EPSILON, "--noise-multiplier", "0")
    code, out, _ = run(*bare, "--json")
    assert code == 0 and strict(out)["epsilon"] == "inf"
    assert "no finite epsilon" in run(*bare)[1]


def test_a_free_run_still_reports_what_was_asked(run):
    values = strict(
        run(
            "epsilon", "--rate", 0, "--noise-multiplier", 2, "--steps", 0, "--delta", 1e-5, "--json"
        )[1]
    )
    assert (values["epsilon"], values["rate"], values["noise_multiplier"], values["steps"]) == (
        0,
        0,
        2,
        0,
    )


def test_calibrate_prints_what_epsilon_confirms(run):
    noise = strict(run(*CALIBRATE, "--json")[1])["noise_multiplier"]
    values = strict(
        run(
            "epsilon",
            "--rate",
            0.1,
            "--noise-multiplier",
            repr(noise),
            "--steps",
            20,
            "--delta",
            1e-5,
            "--json",
        )[1]
    )
    assert 2.99 < values["epsilon"] <= 3.0
    assert repr(noise) in run(*CALIBRATE)[1]


def test_account_shows_spent_and_registered(run, tmp_path):
    path = book(tmp_path / "run.dpl", 20)
    values = strict(run("account", path, "--delta", 1e-5, "--json")[1])
    assert values.keys() >= KEYS | {"private", "durable", "envelope"}
    assert values["epsilon"] == account(Repeated(STEP, 20)).claim(1e-5)
    assert values["envelope"] == {"epsilon": account(Repeated(STEP, 30)).claim(1e-5), "steps": 30}
    assert values["private"] is True and values["durable"] is True
    out = run("account", path, "--delta", 1e-5)[1]
    assert "stopped after looking" in out and "NOT PRIVATE" not in out


def test_account_says_that_a_test_key_is_not_private(run, tmp_path):
    path = book(tmp_path / "run.dpl", 1, key_source="insecure test key")
    assert "NOT PRIVATE: insecure test key" in run("account", path, "--delta", 1e-5)[1]
    assert strict(run("account", path, "--delta", 1e-5, "--json")[1])["private"] is False


def test_account_reads_a_list_of_different_events(run, tmp_path):
    path = tmp_path / "events.json"
    other = Sampled(Poisson(0.2), (SumQuery(1.0, 3.0),))
    path.write_text(json.dumps([Repeated(STEP, 3).to_json(), other.to_json()]))
    values = strict(run("account", path, "--delta", 1e-5, "--json")[1])
    assert values["rate"] is None and values["noise_multiplier"] is None and values["steps"] == 4
    assert values["envelope"] is None and values["durable"] is None
    path.write_text(json.dumps([NonPrivate("x").to_json()]))
    assert strict(run("account", path, "--delta", 1e-5, "--json")[1])["epsilon"] == "inf"


def test_account_takes_queries_that_are_answered_once(run, tmp_path):
    path = tmp_path / "events.json"
    choice = {"type": "noisy_max", "sensitivity": 1.0, "scale": 4.0}
    event = {"type": "sampled", "policy": {"type": "poisson", "rate": 1.0}, "queries": [choice]}
    path.write_text(json.dumps([Repeated(STEP, 3).to_json(), event]))
    values = strict(run("account", path, "--delta", 1e-5, "--json")[1])
    alone = account(Repeated(STEP, 3)).claim(1e-5)
    assert alone < values["epsilon"] <= alone + 0.5 + 1e-9 and values["noise_multiplier"] is None


def test_account_has_a_row_for_each_group_of_records(run, tmp_path):
    groups = Individual(("strict", "open"), (0.02, 0.1), (0.5, 1.5), (0.5, 0.5))
    step = Sampled(groups, (SumQuery(1.0, 2.0),))
    with Ledger.open(tmp_path / "run.dpl", header=Header(envelope=(Repeated(step, 30),))) as ledger:
        ledger.reserve(step)
    values = json.loads(run("account", tmp_path / "run.dpl", "--delta", "1e-5", "--json")[1])
    found = account(ledger)
    assert values["epsilon"] == found.claim(1e-5)
    for name, rate, noise in (("strict", 0.02, 4.0), ("open", 0.1, 2 / 1.5)):
        each = values["groups"][name]
        assert each["epsilon"] == found.groups[name].claim(1e-5)
        assert (each["rate"], each["noise_multiplier"]) == (rate, pytest.approx(noise))
        registered = found.envelope.groups[name].claim(1e-5)
        assert values["envelope"]["groups"][name]["epsilon"] == registered
    code, out, err = run("account", tmp_path / "run.dpl", "--delta", "1e-5")
    assert (code, err) == (0, "")
    assert "group 'open', the weakest of 2" in out
    assert out.count("\n  strict  epsilon ") == out.count("\n  open    epsilon ") == 2


def test_version(run):
    assert run("--version") == (0, f"dpfy {__version__}\n", "")


@pytest.mark.parametrize("command", ["epsilon", "calibrate", "account"])
def test_help_has_examples(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0 and f"dpfy {command}" in out and "Examples" in out


def replaced(arguments, option, value):
    place = arguments.index(option) + 1
    return [*arguments[:place], value, *arguments[place + 1 :]]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (replaced(EPSILON, "--rate", "1.4"), 2),
        (replaced(EPSILON, "--rate", "many"), 2),
        (replaced(EPSILON, "--noise-multiplier", "-1"), 2),
        (replaced(EPSILON, "--noise-multiplier", "nan"), 2),
        (replaced(EPSILON, "--noise-multiplier", "inf"), 2),
        (replaced(EPSILON, "--steps", "-3"), 2),
        (replaced(EPSILON, "--steps", "1.5"), 2),
        (replaced(EPSILON, "--delta", "0"), 2),
        (replaced(EPSILON, "--delta", "1"), 2),
        (replaced(EPSILON, "--delta", "auto"), 2),
        (EPSILON[:-2], 2),
        ([*EPSILON, "--method", "gdp"], 2),
        ([*EPSILON, "--relation", "shuffle"], 2),
        ([*EPSILON, "--colour"], 2),
        ([*EPSILON, "--method", "rdp", "--relation", "replace_one"], 1),
        (replaced(CALIBRATE, "--epsilon", "0"), 2),
        (replaced(CALIBRATE, "--epsilon", "nan"), 2),
        (replaced(CALIBRATE, "--delta", "7"), 2),
        (replaced(CALIBRATE, "--rate", "-0.1"), 2),
        (["account", "/nowhere/run.dpl", "--delta", "1e-5"], 1),
        (["account"], 2),
        (["fly"], 2),
    ],
)
def test_every_failure_is_one_sentence_on_stderr(run, arguments, code):
    got, out, err = run(*arguments)
    assert got == code
    assert out == "" and err.startswith("Error: ") and err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "content", ["", "[", "[1]", '[{"type": "sampled"}]', "{}", "not a ledger\n", '["\ud800"]']
)
def test_files_that_are_neither_ledger_nor_events_are_one_sentence(run, tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    code, out, err = run("account", path, "--delta", "1e-5")
    assert code in (1, 2) and out == "" and err.startswith("Error: ") and err.count("\n") == 1


def test_a_damaged_ledger_is_one_sentence(run, tmp_path):
    path = book(tmp_path / "run.dpl", 3)
    path.write_bytes(path.read_bytes()[:-40])
    code, out, err = run("account", path, "--delta", "1e-5")
    assert code == 1 and out == "" and err.count("\n") == 1


def test_debug_shows_the_traceback():
    from dpfy.errors import InvalidArgument

    with pytest.raises(InvalidArgument):
        main(["--debug", *replaced(EPSILON, "--rate", "1.4")])


def test_sub_commands_of_other_rooms_are_mounted(run, tmp_path):
    path = book(tmp_path / "run.dpl", 2)
    assert run("ledger", "verify", path)[0] == 0
    assert run("ledger", "verify", tmp_path / "none")[0] == 1
    assert "inspect-data" in run("--help")[1]


@pytest.mark.parametrize(
    "code",
    [
        "import dpfy",
        "import dpfy; dpfy.account; dpfy.calibrate_noise",
        f"from dpfy.cli.app import main\ntry: main({EPSILON!r})\nexcept SystemExit as stop: assert "
        "not stop.code",
        "from dpfy.cli.app import main\ntry: main(['--version'])\nexcept SystemExit as stop: "
        "assert not stop.code",
    ],
)
def test_nothing_that_reads_facts_loads_torch(code):
    done = subprocess.run(
        [sys.executable, "-c", code + "\nimport sys; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
    )
    assert done.stdout.endswith("False\n"), done.stderr


def test_the_module_is_the_command():
    words = [sys.executable, "-m", "dpfy", *replaced(EPSILON, "--rate", "2")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == "Error: Expected rate=2.0 in [0, 1].\n"


OPTIONS = [
    pytest.param(each, parameter, id=" ".join((*path, parameter.opts[0])))
    for path, each in walk(command())
    for parameter in each.params
]


@pytest.mark.parametrize(("owner", "parameter"), OPTIONS)
def test_the_help_of_an_option_is_a_sentence_with_its_default(owner, parameter):
    help = parameter.help
    assert re.match(r"[A-Z].*[.]$", help), help
    assert "made-up" not in help and "in the place of" not in help
    if parameter.default is not None and not isinstance(parameter.default, bool):
        assert help.endswith(f"Default: {parameter.default}.") and not parameter.show_default


def test_the_help_of_a_setting_names_its_default():
    train = command().commands["train"]
    helps = {each.name: each.help for each in train.params if not each.hidden}
    for setting in all_settings():
        assert helps.pop(setting.flag) == setting.description
        assert setting.description.endswith(f" Default: {setting.default_text}.")
    assert set(helps) == {"config", "config_file", "resume", "resume_if_exists", "help"} & set(
        helps
    )


@pytest.mark.parametrize(
    ("path", "each"), [pytest.param(*found, id=" ".join(found[0])) for found in walk(command())]
)
def test_the_help_of_a_command_begins_with_one_sentence(path, each):
    first = each.help.split("\n\n")[0]
    assert re.match(r"[A-Z].*[.]$", first) and "\n" not in first, first


def test_the_help_shows_everything_that_was_written(run, monkeypatch):
    """Fails if square brackets are taken for markup, or a default is printed twice."""
    monkeypatch.setenv("COLUMNS", "300")
    shown = " ".join(run("check", "--help")[1].split())
    assert "'float32[3,32,32],int64[]'" in shown
    assert shown.count("Default: 256.") == 1 and "default: 256" not in shown
    assert "in [0, 1)." in " ".join(run("train", "--help")[1].split())
