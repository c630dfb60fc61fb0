"""A PostgreSQL server for tests, from the Debian package, in a folder and a socket of its own."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import programs

PATIENCE = 300  # seconds until a server that does not start or end is a failure
_OWNER = "postgres"  # as whom the server runs where the tests run as root, which it refuses to be
_SETTINGS = {"listen_addresses": "", "max_connections": "64", "shared_buffers": "32MB"}


class PostgreSQL:
    """A server that listens at a Unix socket alone, and ends with the process that started it.

    Data are kept with fsync on, as a team would keep them; only `initdb` goes without.
    """

    def __init__(self) -> None:
        # Not pytest's folder: the path of a socket has at most 107 bytes, and the server's user has
        # to reach it.
        self.folder = Path(tempfile.mkdtemp(prefix="dpfy-postgresql-"))
        self._server: subprocess.Popen | None = None
        self._databases = 0
        if not os.geteuid():
            shutil.chown(self.folder, _OWNER, _OWNER)
        try:
            self._run("initdb", "--auth=trust", "--no-sync", f"--username={_OWNER}", *self._at)
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def _at(self) -> tuple[str, str]:
        return "-D", str(self.folder / "data")

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        settings = _SETTINGS | {"unix_socket_directories": str(self.folder)}
        options = [option for pair in settings.items() for option in ("-c", "=".join(pair))]
        with (self.folder / "log").open("a") as log:
            self._server = subprocess.Popen(
                self._command("postgres", *self._at, *options),
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        for _ in range(10 * PATIENCE):
            with contextlib.suppress(Exception):
                return self._execute("SELECT 1")
            if self._server.poll() is not None:
                break
            time.sleep(0.1)
        raise AssertionError(f"PostgreSQL did not start: {self.log()}")

    def new_database(self) -> str:
        """Return the URL of a new, empty database."""
        self._databases += 1
        name = f"test_{self._databases}"
        self._execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, name: str = _OWNER) -> str:
        """Return the URL of a database, as SQLAlchemy writes it."""
        return f"postgresql+psycopg://{_OWNER}@/{name}?host={self.folder}"

    def kill(self) -> None:
        """End the server at once, as a loss of power would: it recovers when it is started."""
        self._stop(signal.SIGQUIT)

    def close(self) -> None:
        """End the server, and remove its folder."""
        self._stop(signal.SIGINT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        """Return what the server has told."""
        log = self.folder / "log"
        return log.read_text(errors="replace") if log.exists() else ""

    def _stop(self, how: signal.Signals) -> None:
        if self._server is not None:
            self._server.send_signal(how)
            self._server.wait(timeout=PATIENCE)
            self._server = None

    def _execute(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(
            host=str(self.folder), user=_OWNER, dbname=_OWNER, autocommit=True
        ) as connection:
            connection.execute(statement)

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            self._command(*command),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert not done.returncode, done.stdout + done.stderr

    def _command(self, program: str, *arguments: str) -> list[str]:
        """Return a command that ends with this process, and runs as somebody other than root."""
        found = shutil.which(program, path=programs.PATH)
        owner = () if os.geteuid() else ("--reuid", _OWNER, "--regid", _OWNER, "--clear-groups")
        return ["setpriv", "--pdeathsig", "QUIT", *owner, "--", str(found), *arguments]
