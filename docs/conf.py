"""Sphinx settings: MyST pages, reference from the docstrings."""

from dpfy import __version__

project = "dpfy"
author = "the dpfy authors"
copyright = "the dpfy authors, Apache-2.0"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
napoleon_numpy_docstring = False  # Args, Returns and Raises are in Google's form
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Imported names are documented where they are public, in the order of their source, with their
# types in place.
autodoc_member_order = "bysource"
autodoc_mock_imports = [
    "accelerate",
    "flwr",
    "lightning",
    "transformers",
]  # the documentation needs none of them
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}

exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"dpfy {version}"
html_static_path = ["_static"]
html_css_files = ["filter-table.css"]
html_js_files = ["filter-table.js"]  # for tables in a container of the class filterable
nitpicky = False
