"""``dpfy inspect-data`` names bad records and says that what it prints is private."""

import pytest

from dpfy.cli.app import main

MODULE = '''
import torch
records = [torch.ones(2), torch.tensor([1.0, float("nan")]), torch.ones(3)]

def load():
    return records
'''


@pytest.mark.parametrize("name", ["records", "load"])
def test_bad_records_are_listed_with_a_warning(tmp_path, monkeypatch, capsys, name):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"inspected_{name}.py").write_text(MODULE)
    with pytest.raises(SystemExit) as caught:
        main(["inspect-data", f"inspected_{name}:{name}", "--limit", "1"])
    output = capsys.readouterr()
    assert not caught.value.code
    assert "rivate facts" in output.err
    assert "record 1: holds NaN" in output.out and "2 findings in 3 records" in output.out
    assert "record 2" not in output.out
