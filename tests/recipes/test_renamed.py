"""The former name of a class of recipes stays importable."""

import pytest

import dpfy.recipes


def test_directed_is_the_former_name_of_recipe_controlled():
    with pytest.warns(DeprecationWarning, match=r"dpfy\.recipes\.RecipeControlled"):
        from dpfy.recipes import Directed
    assert Directed is dpfy.recipes.RecipeControlled


def test_other_names_are_unknown():
    with pytest.raises(AttributeError, match="no attribute 'undirected'"):
        _ = dpfy.recipes.undirected
