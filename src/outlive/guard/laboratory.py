"""The watchdog of a laboratory: a process outside of the host that cuts the host's power when it is not fed.

Hosts of a laboratory are made of namespaces on one machine and have no device of their own. ``--laboratory SOCKET``
names what takes its place. It does what a device does: it counts on when the guard dies, also through its end, and
only the word to stop stops it. It is believed only where nothing but a laboratory can be meant: the guard does not run
in the machine's own process namespace or beside systemd, no watchdog device is there, and the process that listens is
outside of the host, as the kernel says. What is armed with it is published as a laboratory's.

Protocol: ``start SECONDS`` is answered with ``active NAME`` where it ran already, ``idle NAME`` where not, or
``refused WHY``; a zero byte feeds; ``V`` stops.
"""

from __future__ import annotations

import math
import os
import socket
import struct
from pathlib import Path
from typing import Final

from outlive.guard.states import BAD_INPUT, NOT_FOUND, GuardError

MACHINE: Final = 0xEFFFFFFC
"""The inode of the pid namespace that a machine boots with (``PROC_PID_INIT_INO`` of Linux)."""
ANSWER_S: Final = 1.0
"""For its answer to ``start``; feeding never waits."""
REMEDY: Final = "name the machine's own watchdog with --watchdog"


def check_host(proc: str, dev: str, run: str) -> None:
    """``GuardError`` where this could be a machine that somebody relies upon."""
    try:
        inode = os.stat(f"{proc}/self/ns/pid").st_ino  # noqa: PTH116 - light
    except OSError:
        inode = MACHINE
    if inode == MACHINE:
        raise GuardError(f"--laboratory: this is a machine, not a host of a laboratory: {REMEDY}")
    if os.path.isdir(f"{run}/systemd/system"):  # noqa: PTH112 - as above
        raise GuardError(f"--laboratory: systemd runs here, so this is no host of a laboratory: {REMEDY}")
    device = next(iter(sorted(Path(dev).glob("watchdog*"))), None)
    if device is not None:
        raise GuardError(f"--laboratory: there is a watchdog, {device}: {REMEDY}")


class LaboratoryWatchdog:
    """A connection to it, with the words of ``watchdog.Watchdog``."""

    def __init__(self, path: str, *, proc: str = "/proc", dev: str = "/dev", run: str = "/run") -> None:
        self._path = path
        self._host = (proc, dev, run)
        self._connection: socket.socket | None = None
        self._ran = False
        self.hardware = False
        """Whether what runs resets the host."""

    @property
    def open(self) -> bool:
        """Whether it runs."""
        return self._connection is not None

    def start(self, watchdog_s: float) -> str:
        """Start it with that timeout, or give a running one another; returns what it calls itself."""
        check_host(*self._host)
        wanted = math.floor(watchdog_s)
        if wanted < 1:
            raise GuardError(f"{self._path} counts whole seconds: W {watchdog_s} s is below 1 s")
        fresh = self._connection is None
        connection = self._connection or self._connect()
        try:
            connection.settimeout(ANSWER_S)
            connection.sendall(f"start {wanted}\n".encode())
            word, _, name = connection.recv(256).decode("ascii", "replace").strip().partition(" ")
            if word not in ("active", "idle"):
                raise GuardError(f"{self._path}: {name or 'no answer'}; is it a laboratory's watchdog?")
        except (GuardError, OSError) as error:
            if fresh:
                connection.close()
            if isinstance(error, GuardError):
                raise
            raise GuardError(f"{self._path}: {error.strerror or error}; does the laboratory run?") from error
        connection.setblocking(False)
        self._ran = self._ran if not fresh else word == "active"
        self._connection, self.hardware = connection, True
        return f"laboratory: {name}"

    def feed(self) -> None:
        """Say that the host is well. Raises ``OSError``."""
        if self._connection is not None:
            self._connection.send(b"\0")

    def stop(self) -> None:
        """Stop it cleanly. Raises ``OSError``, and then it runs on."""
        connection, self._connection, self.hardware = self._connection, None, False
        if connection is not None:
            try:
                connection.send(b"V")
            finally:
                connection.close()

    def give_back(self) -> None:
        """Leave it as it was found: what a dead guard had started goes on. Raises ``OSError``."""
        if not self._ran:
            self.stop()
        elif self._connection is not None:
            self._connection.close()
            self._connection, self.hardware = None, False

    def _connect(self) -> socket.socket:
        """To somebody outside of this host."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(ANSWER_S)
            connection.connect(self._path)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except OSError as error:
            connection.close()
            missing = isinstance(error, FileNotFoundError)
            raise GuardError(
                f"{self._path}: {error.strerror or error}; does the laboratory run?",
                NOT_FOUND if missing else BAD_INPUT,
            ) from error
        if struct.unpack("iii", credentials)[0] != 0:
            connection.close()
            raise GuardError(f"{self._path}: its process is on this host, which it is to reset: it proves nothing")
        return connection
