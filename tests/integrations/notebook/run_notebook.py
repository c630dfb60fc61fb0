"""Run a notebook in a kernel of this Python: ``run_notebook.py GIVEN EXECUTED``.

It is a program of its own, as the client leaves sockets to the end of its process.
"""

import sys
from tempfile import TemporaryDirectory

import nbformat
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpec
from nbclient import NotebookClient

_SOON = 600  # seconds for a cell, which ends as soon as it has run


def main(given: str, target: str) -> None:
    notebook = nbformat.read(given, as_version=4)
    with TemporaryDirectory(prefix="k") as channels:  # whose path is short enough for a socket
        manager = KernelManager(transport="ipc", ip=f"{channels}/c")
        manager._kernel_spec = KernelSpec(
            argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            display_name="this Python",
            language="python",
        )
        client = NotebookClient(notebook, km=manager, timeout=_SOON, startup_timeout=_SOON)
        nbformat.write(client.execute(), target)


if __name__ == "__main__":
    main(*sys.argv[1:])
