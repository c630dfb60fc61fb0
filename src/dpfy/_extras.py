"""Import packages that come with an extra of dpfy, or say which extra to install.

The library itself needs none of them, so each is imported where it is used.

Tests: tests/test_extras.py.
"""

from importlib import import_module

from dpfy.errors import MissingExtra


def require(package: str, extra: str) -> None:
    """Import a package that belongs to an extra.

    Args:
        package: The package to import, such as ``"matplotlib"``.
        extra: The extra of dpfy that installs it, such as ``"report"``.

    Raises:
        MissingExtra: The package is not installed; the message has the command that installs it.
    """
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package.partition(".")[0]:
            raise  # the package is there, and something that it needs itself is not
        raise MissingExtra(
            f"This needs the package {package}, which is not installed. Install it with: "
            f"pip install 'dpfy[{extra}]'"
        ) from None
