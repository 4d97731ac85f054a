"""Those who are connected: reads their lines and answers them, and never waits for one of them.

A client that sends what is no request is answered so a few times and then let go; one that does not read its answers
is let go at once; and when there are too many, the one that was silent longest, so that connections that somebody
forgot never keep the daemon out.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
from collections.abc import Callable
from typing import Final

from outlive.guard.messages import MESSAGE_BYTES, GuardRequest, MalformedMessage, encode_refusal, parse_request

CLIENTS: Final = 16
"""Connections at once."""
BAD_LINES: Final = 8
"""Lines that are no request, after which a client is let go."""
LINES_A_TURN: Final = 64
"""Lines of one client between two looks at the clock."""

Handler = Callable[[GuardRequest], bytes]
Note = Callable[..., None]


class Client:
    """One connection."""

    def __init__(self, connection: socket.socket, turn: int) -> None:
        self.connection = connection
        self.heard = turn
        """The turn in which it was last heard."""
        self.bad = 0
        self.buffer = b""
        self.pid = _peer_credentials(connection)[0]


class Clients:
    """All connections of a listening socket, by a selector that the process waits on."""

    def __init__(self, listening: socket.socket, selector: selectors.BaseSelector, note: Note) -> None:
        self._listening = listening
        self._selector = selector
        self._note = note
        self._clients: dict[int, Client] = {}
        self._turn = 0
        selector.register(listening, selectors.EVENT_READ)

    def serve(self, ready: list[int], handle: Handler) -> bool:
        """Read from those that are ready and answer; whether there are whole lines left for the next turn."""
        self._turn += 1
        if self._listening.fileno() in ready:
            for _ in range(CLIENTS):
                if not self._accept():
                    break
        behind = [fd for fd, client in self._clients.items() if b"\n" in client.buffer]
        for fd in dict.fromkeys([*ready, *behind]):
            client = self._clients.get(fd)
            if client is not None:
                self._read(client, handle, fd in ready)
        return any(b"\n" in client.buffer for client in self._clients.values())

    def close(self) -> None:
        """Let everybody go."""
        for client in list(self._clients.values()):
            self._let_go(client)

    def _accept(self) -> bool:
        """Whether somebody was waiting."""
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return False
        connection.setblocking(False)
        if not _is_trusted(connection):
            connection.close()
            return True
        if len(self._clients) >= CLIENTS:
            oldest = min(self._clients.values(), key=lambda client: client.heard)
            self._note("guard.client-evicted", pid=oldest.pid, clients=len(self._clients))
            self._let_go(oldest)
        self._clients[connection.fileno()] = Client(connection, self._turn)
        self._selector.register(connection, selectors.EVENT_READ)
        return True

    def _read(self, client: Client, handle: Handler, readable: bool) -> None:
        """What arrived, and the answers to at most ``LINES_A_TURN`` of it."""
        if readable and len(client.buffer) <= MESSAGE_BYTES:
            try:
                chunk = client.connection.recv(4 * MESSAGE_BYTES)
            except BlockingIOError:
                chunk = None
            except OSError:
                chunk = b""
            if chunk == b"":
                self._let_go(client)
                return
            client.buffer += chunk or b""
        client.heard = self._turn
        for _ in range(LINES_A_TURN):
            line, end, rest = client.buffer.partition(b"\n")
            if not end:
                break
            client.buffer = rest
            if not self._answer(client, line, handle):
                return
        if b"\n" not in client.buffer and len(client.buffer) > MESSAGE_BYTES:
            self._reject_line(client, f"a request has at most {MESSAGE_BYTES} bytes")
            self._let_go(client)

    def _answer(self, client: Client, line: bytes, handle: Handler) -> bool:
        """Whether the client is still there after it."""
        if len(line) > MESSAGE_BYTES:
            return self._reject_line(client, f"a request has at most {MESSAGE_BYTES} bytes")
        try:
            request = parse_request(line)
        except MalformedMessage as error:
            return self._reject_line(client, str(error))
        return self._send(client, handle(request))

    def _reject_line(self, client: Client, why: str) -> bool:
        client.bad += 1
        self._note("guard.bad-request", pid=client.pid, why=why[:200], bad=client.bad)
        if not self._send(client, encode_refusal(0, "malformed", why)):
            return False
        if client.bad >= BAD_LINES:
            self._let_go(client)
            return False
        return True

    def _send(self, client: Client, answer: bytes) -> bool:
        try:
            if client.connection.send(answer) == len(answer):
                return True
        except OSError:
            pass
        self._note("guard.client-lost", pid=client.pid, why="it does not take its answers")
        self._let_go(client)
        return False

    def _let_go(self, client: Client) -> None:
        fd = client.connection.fileno()
        if self._clients.pop(fd, None) is None:
            return
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(client.connection)
        client.connection.close()


def _peer_credentials(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return 0, -1
    pid, user, _ = struct.unpack("3i", raw)
    return pid, user


def _is_trusted(connection: socket.socket) -> bool:
    """Root or the guard's own user; the mode of the socket says the same, this holds should somebody change it."""
    return _peer_credentials(connection)[1] in (0, os.geteuid())
