"""The watchdogs of a laboratory's hosts: ``watchdog.py STATE COUNT`` resets a host that does not feed its own in time.

One process outside of all hosts, with a socket in each host's folder; the protocol is the guard's
(``outlive.guard.laboratory``). As with a device, closing the connection feeds once more and stops nothing, and power
off or a boot stops it.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from lab.hosts import Host, Switch, hosts  # noqa: E402

FILE = "watchdog.sock"


class Watchdog:
    """Of one host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.seconds = 0
        self.due = 0.0
        """When it resets the host (monotonic); 0: it does not run."""
        self._boot = ""
        host.folder.mkdir(parents=True, exist_ok=True)
        path = host.folder / FILE
        path.unlink(missing_ok=True)
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(path))
        self.listening.listen(4)

    def heard(self, connection: socket.socket, data: bytes) -> None:
        """What a guard says; nothing means that it has gone."""
        if data.startswith(b"start "):
            answer = f"{'active' if self._runs() else 'idle'} watchdog of {self.host.name}\n"
            self.seconds, self._boot = int(data.split()[1]), self.host.boot_id
            connection.sendall(answer.encode())
            say(f"{self.host.name}: runs with {self.seconds} s")
        elif data.endswith(b"V"):
            self.due = 0.0
            say(f"{self.host.name}: stopped")
            return
        elif not data and self._runs():
            say(f"{self.host.name}: its guard has gone; {self.seconds} s are left")
        if self.due or data.startswith(b"start "):
            self.due = time.monotonic() + self.seconds

    def look(self, now: float) -> None:
        """Reset the host where it is time."""
        if self.due and now >= self.due:
            if self._runs():
                say(f"{self.host.name}: not fed for {self.seconds} s: reset")
                power = [sys.executable, "-S", str(PROJECT / "lab/power.py")]
                subprocess.Popen([*power, str(self.host.switch.state), self.host.name, "reset"])
            self.due = 0.0

    def _runs(self) -> bool:
        """Whether it counts for the boot that runs."""
        return bool(self.due) and self.host.on and self.host.boot_id == self._boot


def say(text: str) -> None:
    """One line of the log, with the time by the machine's clock."""
    print(f"{time.time():.3f} {text}", flush=True)


def main() -> None:
    """Serve until killed."""
    every = [Watchdog(host) for host in hosts(Switch(Path(sys.argv[1])), int(sys.argv[2]))]
    selector = selectors.DefaultSelector()
    for watchdog in every:
        selector.register(watchdog.listening, selectors.EVENT_READ, watchdog)
    while True:
        due = min((watchdog.due for watchdog in every if watchdog.due), default=0.0)
        for key, _ in selector.select(max(0.0, due - time.monotonic()) if due else None):
            whose: Watchdog = key.data
            if key.fileobj is whose.listening:
                selector.register(whose.listening.accept()[0], selectors.EVENT_READ, whose)
                continue
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            try:
                data = connection.recv(256)
            except OSError:
                data = b""
            if not data:
                selector.unregister(connection)
                connection.close()
            try:
                whose.heard(connection, data)
            except (OSError, ValueError, IndexError) as error:
                say(f"{whose.host.name}: {error}")
        now = time.monotonic()
        for watchdog in every:
            watchdog.look(now)
        while True:  # what was started above, and has ended
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                break


if __name__ == "__main__":
    main()
