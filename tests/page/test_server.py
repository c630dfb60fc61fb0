"""The page as `dpfy page` serves it."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from run_folders import begun
from served_pages import PATIENCE

from dpfy.errors import InvalidArgument
from dpfy.page import serve

COMMAND = [sys.executable, "-m", "dpfy", "page"]


def test_the_command_says_where_the_page_is_and_ends_on_a_signal(tmp_path):
    begun(tmp_path, "first")
    started = subprocess.Popen(
        [*COMMAND, str(tmp_path), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        port = int(re.match(r"http://127\.0\.0\.1:(\d+)/", started.stdout.readline())[1])
        stream = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        stream.request("GET", "/events?topic=runs&since=")  # an open page must not keep it alive
        assert stream.getresponse().status == 200
        # From other addresses of this machine it cannot be reached.
        with (
            pytest.raises(OSError),
            socket.create_connection(("127.0.0.2", port), timeout=PATIENCE),
        ):
            pass
        started.send_signal(signal.SIGINT)
        _, errors = started.communicate(timeout=PATIENCE)
        assert "Traceback" not in errors
        stream.close()
    finally:
        started.kill()
        started.wait()


def test_the_page_needs_no_torch(tmp_path):
    code = (
        "import sys; from pathlib import Path; from dpfy.page.planner import answer; "
        "from dpfy.page.app import make_app; "
        f"make_app(Path({str(tmp_path)!r})); print(answer({{}}), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "3.53324" in done.stdout and done.stdout.endswith("False\n"), (
        done
    )


def test_a_taken_port_is_refused_with_a_remedy(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidArgument, match="--port 0"):
            serve(tmp_path, port=taken.getsockname()[1])


def test_a_file_is_no_folder_of_runs(tmp_path):
    with pytest.raises(InvalidArgument, match="folder of runs"):
        serve(begun(tmp_path, "first"), port=0)
