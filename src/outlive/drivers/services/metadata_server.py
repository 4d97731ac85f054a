"""``MetadataPort``: an HTTP server with one listening socket for each bridge.

A socket that is bound to a device takes only what arrives there, and answers there: guests of two networks with the
same address each get their own answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Final

from outlive.base import deadline, get_logger
from outlive.drivers.services.bridges import device_number
from outlive.node.ports import AnswerCaller
from outlive.node.services import METADATA_ADDRESS, METADATA_PORT, MetadataAnswer

REQUEST_S: Final = 5.0
"""How long a guest may take for its request, and to read the answer."""
REQUEST_BYTES: Final = 8192
CONNECTIONS_MOST: Final = 64
"""Of one bridge at a time; others are closed."""
BACKLOG: Final = 32

_log = get_logger("services")


class MetadataServer:
    """See the module. The host need not have the address yet at which it listens."""

    def __init__(self) -> None:
        self._servers: dict[str, asyncio.Server] = {}
        self._numbers: dict[str, int] = {}
        """The kernel's number of each bridge: a socket is bound to that device, and to no later one of the name."""
        self._failures: dict[str, str] = {}
        self._open: dict[str, int] = {}

    async def listen(self, bridges: Collection[str], answer: AnswerCaller) -> None:
        """Listen on these bridges and no others."""
        numbers = {bridge: device_number(bridge) for bridge in bridges}
        for bridge in [one for one in self._servers if numbers.get(one) != self._numbers.get(one)]:
            self._servers.pop(bridge).close()
        self._failures = {}
        for bridge in bridges:
            if bridge in self._servers:
                continue
            try:
                listening = _bind_socket(bridge)
            except OSError as error:
                why = error.strerror or error
                self._failures[bridge] = f"{METADATA_ADDRESS}:{METADATA_PORT} on {bridge}: {why}"
                continue
            self._numbers[bridge] = numbers[bridge]
            self._servers[bridge] = await asyncio.start_server(
                lambda reader, writer, bridge=bridge: self._serve(bridge, answer, reader, writer),  # type: ignore[misc]
                sock=listening,
                limit=REQUEST_BYTES,
            )

    async def stop(self) -> None:
        """Listen nowhere."""
        for server in self._servers.values():
            server.close()
        self._servers, self._failures = {}, {}

    def list_failures(self) -> Mapping[str, str]:
        """Bridges where it cannot listen → why."""
        return self._failures

    async def _serve(
        self, bridge: str, answer: AnswerCaller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        count = self._open[bridge] = self._open.get(bridge, 0) + 1
        try:
            if count <= CONNECTIONS_MOST:
                with deadline(REQUEST_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    peer = str(writer.get_extra_info("peername")[0])
                    words = head.split(b"\r\n", 1)[0].split(b" ")
                    found = MetadataAnswer(400)
                    if len(words) == 3 and words[0] in (b"GET", b"HEAD"):
                        found = await answer(bridge, peer, words[1].split(b"?")[0].decode("ascii", "replace"))
                    writer.write(_render_response(found, body=words[0] != b"HEAD"))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the guest's own business
        finally:
            self._open[bridge] -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _bind_socket(bridge: str) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, bridge.encode())
        listening.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        listening.bind((METADATA_ADDRESS, METADATA_PORT))
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


_IP_FREEBIND: Final = 15
"""Of Linux: an address can be bound that the host does not have yet."""


def _render_response(found: MetadataAnswer, *, body: bool) -> bytes:
    text = found.text.encode()
    status = HTTPStatus(found.status)
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(text)}",
        "Connection: close",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + (text if body else b"")
