"""The support matrix in the documentation is the one of the rule tables."""

import importlib.util
from pathlib import Path

from dpfy.accounting import supported

DOCS = Path(__file__).parents[2] / "docs"


def test_support_matrix_is_up_to_date():
    spec = importlib.util.spec_from_file_location("support_matrix", DOCS / "figures" / "support_matrix.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (DOCS / "reference" / "support-matrix.md").read_text(encoding="utf-8")
    assert written == module.page(), "run docs/figures/support_matrix.py"
    for row in supported():
        assert row.reference[1:] in written
