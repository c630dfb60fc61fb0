"""Read settings from a TOML or YAML file.

Tests: tests/trainer/test_config.py.
"""

import tomllib
from pathlib import Path
from typing import Any

from dpfy._extras import require
from dpfy.errors import InvalidArgument


def read_settings(path: Path) -> dict[str, Any]:
    """Return the values in a TOML file, or in a YAML file if PyYAML is installed."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidArgument(f"There is no file {path}. `dpfy init` writes a template.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read as text: {error}.") from None
    if path.suffix in (".yaml", ".yml"):
        return _read_yaml(path, text)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{path} is not valid TOML: {error}.") from None


def _read_yaml(path: Path, text: str) -> dict[str, Any]:
    require("yaml", "yaml")
    import yaml  # type: ignore[import-untyped]

    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidArgument(
            f"{path} is not valid YAML: {' '.join(str(error).split())}."
        ) from None
    if not isinstance(values, dict | None):
        raise InvalidArgument(f"Expected {path} to map names to values.")
    return values or {}
