"""A private, throw-away PostgreSQL: a data directory and a unix socket of its own, gone when the test ends."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SERVER_USER = "postgres"
"""PostgreSQL refuses to run as root; then it runs as this system user."""
STEP_LIMIT_S = 60
_SETTINGS = {
    "listen_addresses": "''",
    "shared_buffers": "16MB",
    "fsync": "off",
    "full_page_writes": "off",
}


class Postgres:
    """A running server; ``address`` is what SQLAlchemy takes."""

    def __init__(self, binaries: Path, directory: Path, connections: int) -> None:
        self._binaries = binaries
        self._connections = connections
        self._directory = directory
        self.socket = directory / "s"
        self.address = f"postgresql+psycopg://lab@/postgres?host={self.socket}"

    def create(self) -> None:
        """Make the data directory."""
        self._as_server([str(self._binaries / "initdb"), "-D", self._data, "-U", "lab", "-A", "trust", "--no-sync"])

    def start(self) -> None:
        """Start, and wait until it answers."""
        settings = {
            **_SETTINGS,
            "max_connections": str(self._connections),
            "unix_socket_directories": f"'{self.socket}'",
        }
        options = " ".join(f"-c {key}={value}" for key, value in settings.items())
        log = str(self._directory / "s" / "log")
        self._as_server([*self._ctl, "-w", "-t", str(STEP_LIMIT_S), "-l", log, "-o", options, "start"])

    def stop(self) -> None:
        """Stop at once; a server that is already gone is fine."""
        if self.pid is not None:
            self._as_server([*self._ctl, "-m", "immediate", "-w", "-t", str(STEP_LIMIT_S), "stop"], check=False)

    def kill(self) -> None:
        """Kill the server and all its sessions, as a crash would."""
        pid = self.pid
        assert pid is not None
        os.kill(pid, signal.SIGQUIT)

    @property
    def pid(self) -> int | None:
        """Process id of the server, ``None`` when it does not run."""
        try:
            return int((Path(self._data) / "postmaster.pid").read_text().splitlines()[0])
        except (OSError, IndexError):
            return None

    @property
    def _data(self) -> str:
        return str(self._directory / "data")

    @property
    def _ctl(self) -> list[str]:
        return [str(self._binaries / "pg_ctl"), "-D", self._data]

    def _as_server(self, command: Sequence[str], *, check: bool = True) -> None:
        """Run as the server's user, with nothing of the caller's environment."""
        if os.getuid() == 0:
            entry = pwd.getpwnam(SERVER_USER)
            command = [
                "setpriv",
                f"--reuid={entry.pw_uid}",
                f"--regid={entry.pw_gid}",
                "--clear-groups",
                "--",
                *command,
            ]
        environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        log = self._directory / "steps.log"
        with log.open("ab") as out:
            done = subprocess.run(
                command,
                env=environment,
                cwd=self._directory,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                timeout=2 * STEP_LIMIT_S,
                check=False,
            )
        if check and done.returncode != 0:
            raise RuntimeError(f"{command[-1]} failed: {log.read_text()[-2000:]}")


@contextmanager
def running(connections: int = 20) -> Iterator[Postgres]:
    """A server for as long as the block lasts."""
    directory = Path(tempfile.mkdtemp(prefix="opg"))
    server = Postgres(_binaries(), directory, connections)
    try:
        server.socket.mkdir()
        if os.getuid() == 0:
            for path in (directory, server.socket):
                shutil.chown(path, SERVER_USER)
        server.create()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _binaries() -> Path:
    found = shutil.which("pg_ctl")
    if found:
        return Path(found).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda p: int(p.parts[-3]))
    return versions[-1].parent
