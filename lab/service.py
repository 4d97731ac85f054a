"""Ask pid 1 of a laboratory host: ``python -I service.py start|stop NAME`` on it; standard library only."""

from __future__ import annotations

import socket
import sys

SOCKET = "/run/init.sock"


def ask(text: str, path: str = SOCKET, limit_s: float = 15.0) -> str:
    """Its answer to one request. Raises ``OSError`` where it does not answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(limit_s)
        connection.connect(path)
        connection.sendall(text.encode() + b"\n")
        return connection.makefile().readline().strip()


if __name__ == "__main__":
    said = ask(f"{sys.argv[1]} {sys.argv[2]}")
    print(said)
    sys.exit(said not in ("started", "stopped"))
