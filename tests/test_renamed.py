"""Names of earlier versions: valid, with a warning that says what they are called now."""

import subprocess
import sys
from importlib import import_module

import pytest

import dpfy
from dpfy import _renamed


@pytest.mark.parametrize(("old", "new"), _renamed.NAMES.items())
def test_a_renamed_public_name_is_the_same_object(old, new):
    with pytest.warns(DeprecationWarning, match=f"dpfy.{old} is now called dpfy.{new}"):
        assert getattr(dpfy, old) is getattr(dpfy, new)
    assert old not in dpfy.__all__ and new in dpfy.__all__


def test_every_moved_module_is_found_by_its_former_name():
    """In a process of its own, where no module was imported before."""
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from importlib import import_module\n"
        "from dpfy._renamed import MODULES\n"
        "for old, new in MODULES.items():\n"
        "    assert import_module(old) is import_module(new), old\n"
        "    assert import_module(new).__spec__.name == new, old\n"
        "from dpfy.plan import Plan\n"
        "from dpfy.training.engines import LoopEngine\n"
        "import dpfy; assert Plan is dpfy.Plan\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_a_moved_module_says_where_it_is_now():
    sys.modules.pop("dpfy.algorithms", None)
    with pytest.warns(DeprecationWarning, match=r"dpfy\.algorithms is now called dpfy\.recipes"):
        import_module("dpfy.algorithms")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError):
        import_module("dpfy.training.nothing")
