"""Whole synthetic tables by mbi: both methods find what the private table says, at its price."""

import numpy as np
import pytest
from tests.support.synthetic import SCHEMA, people

from dpfy import Synthesizer, account
from dpfy.cli.app import main
from dpfy.synthesis.quality import compare
from dpfy.tabular import read_table


@pytest.mark.parametrize(("method", "target"), [("mst", None), ("mst", "sex"), ("aim", None)])
def test_pairs_of_columns_go_together_as_in_the_table(method, target, tmp_path):
    table = people(6000)
    synthesizer = Synthesizer(
        method, SCHEMA, 4.0, 1e-6, target=target, bins=10, whole=["age"], insecure_test_key=11
    )
    synthesizer.fit(table, tmp_path / "t.dpl")
    assert 3.99 < account(tmp_path / "t.dpl").claim(1e-6) <= 4.0
    drawn = synthesizer.sample(6000, seed=1)
    for low, high, job in ((0, 38, "cook"), (42, 68, "nurse"), (72, 100, "pilot")):
        inside = (drawn["age"] >= low) & (drawn["age"] < high)
        assert np.mean(drawn["job"][inside] == job) > 0.85
    pilots = np.mean(drawn["sex"][drawn["job"] == "pilot"] == "M")
    others = np.mean(drawn["sex"][drawn["job"] == "cook"] == "M")
    assert pilots > 0.8 and others < 0.3  # 0.9 and 0.2 in the table
    near = compare(synthesizer.fitted, drawn)
    assert all(each.distance < 3 * each.noise + 0.05 for each in near)


def test_the_command_draws_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.toml").write_text(SCHEMA.to_toml())
    table = people(500)
    rows = "\n".join(",".join(map(str, row)) for row in zip(*table.values(), strict=True))
    (tmp_path / "people.csv").write_text(f"{','.join(table)}\n{rows}\n")
    with pytest.raises(SystemExit) as ended:
        main(["synth", "people.csv", "--schema", "people.toml", "--epsilon", "2", "--out", "s.csv"])
    assert not ended.value.code
    said = capsys.readouterr()
    assert said.out.startswith("s.csv: ") and "mbi" not in said.err and "jax" not in said.err
    drawn = read_table(tmp_path / "s.csv")
    assert abs(len(drawn["age"]) - 500) < 250 and set(drawn["job"]) <= {
        "cook",
        "nurse",
        "pilot",
        "",
    }
