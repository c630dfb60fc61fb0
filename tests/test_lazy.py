"""Names that are imported on first use."""

import pytest

from dpfy._lazy import exports


def test_a_name_is_looked_up_in_its_module_and_an_unknown_one_is_refused():
    get, names = exports("dpfy", {"types": ("Unit", "Budget"), "errors": ("DpfyError",)})
    assert names == ["Budget", "DpfyError", "Unit"]
    assert get("Unit").__module__ == "dpfy.types"
    with pytest.raises(AttributeError, match="module 'dpfy' has no attribute 'Nothing'"):
        get("Nothing")
