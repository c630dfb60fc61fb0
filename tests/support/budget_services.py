"""The service of a book as its command runs it: a process of its own, on a port that is free."""

import os
import re
import signal
import subprocess
import sys


class Served:
    """`dpfy budget serve` for a book; it ends with this process, or before."""

    def __init__(self, book, *options):
        arguments = ["budget", "serve", "--book", book, "--port", "0", *map(str, options)]
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", "dpfy", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        told = self.process.stdout.readline()
        found = re.fullmatch(r"listening at (https?://\S+)\n", told)
        if not found:
            raise AssertionError(told + self.close()[1])
        self.url = found[1]

    def close(self):
        """End the service as an operator would; return its status and what it complained of."""
        self.process.send_signal(signal.SIGTERM)
        _, complaints = self.process.communicate(timeout=300)
        return self.process.returncode, complaints


def command(*arguments, **environment):
    """Run a command of `dpfy budget` in a process of its own, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "dpfy", "budget", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=300,
    )
    assert not done.returncode, done.stderr
    return done.stdout
