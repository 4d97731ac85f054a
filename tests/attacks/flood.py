"""Floods of one server of this machine, each a process of its own (``python -m tests.attacks.flood FLOOD``).

Each is a loop over some connections that go on as soon as they can, for a few seconds. Nothing here obeys
``Retry-After``. What is printed is a JSON line: how many connections were opened, and how many answers of each status
came.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).parents[2]
RECEIVE_BYTES: Final = 4096
"""What the kernel takes for a client that reads nothing."""
CONNECTIONS_MOST: Final = 1200
SECONDS_MOST: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class Flood:
    """What a flood does. ``kind`` names a function of this module."""

    kind: str
    port: int
    authority: str = ""
    """File of the certificate to believe; plain HTTP without."""
    token: str = ""
    method: str = "GET"
    path: str = "/schema/openapi.json"
    body: str = ""
    """``{n}`` in it is the number of the request."""
    pipelined: int = 3
    """Requests that are sent at once where no answer is read."""
    connections: int = 64
    seconds: float = 5.0
    host: str = "127.0.0.1"

    def request(self, number: int = 0) -> bytes:
        """One whole request."""
        body = self.body.replace("{n}", str(number)).encode()
        lines = [f"{self.method} {self.path} HTTP/1.1", f"host: {self.host}:{self.port}"]
        lines += [f"authorization: Bearer {self.token}"] if self.token else []
        lines += ["content-type: application/json", f"content-length: {len(body)}"] if body else []
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Attack:
    """The connections of a flood, and what it counts."""

    def __init__(self, flood: Flood) -> None:
        self.flood = flood
        self.opened = 0
        self.statuses: Counter[str] = Counter()
        self._tls = ssl.create_default_context(cafile=flood.authority) if flood.authority else None
        self.numbers = iter(range(10**9))

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection whose receive buffer is small."""
        opened = socket.socket()
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, (self.flood.host, self.flood.port))
        name = self.flood.host if self._tls is not None else None
        streams = await asyncio.open_connection(sock=opened, ssl=self._tls, server_hostname=name, limit=2**20)
        self.opened += 1
        return streams


async def never_reads(attack: Attack) -> None:
    """Sends many requests at once, and reads no answer."""
    _, writer = await attack.open()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(attack.flood.request() * attack.flood.pipelined)
    while not writer.is_closing():
        await asyncio.sleep(0.2)
        writer.write(b"\r\n")  # notices that the connection is gone, and is no request
    raise ConnectionResetError


async def asks(attack: Attack) -> None:
    """Sends the next request as soon as the last one is answered."""
    reader, writer = await attack.open()
    while True:
        writer.write(attack.flood.request(next(attack.numbers)))
        head = await reader.readuntil(b"\r\n\r\n")
        attack.statuses[head[9:12].decode()] += 1
        await take_body(reader, head.lower())


async def take_body(reader: asyncio.StreamReader, head: bytes) -> None:
    """Read what follows the head of an answer."""
    if b"transfer-encoding: chunked" in head:
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readline()
    else:
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length or 0))


async def watches(attack: Attack) -> None:
    """Opens one watch, and takes what comes until it ends."""
    reader, writer = await attack.open()
    writer.write(attack.flood.request())
    head = await reader.readuntil(b"\r\n\r\n")
    attack.statuses[head[9:12].decode()] += 1
    while await reader.read(2**16):
        pass
    raise ConnectionResetError


async def half_heads(attack: Attack) -> None:
    """Begins a head and sends a byte of it now and then."""
    _, writer = await attack.open()
    writer.write(b"GET / HTTP/1.1\r\nx: ")
    await trickle(writer)


async def half_bodies(attack: Attack) -> None:
    """Declares a large body and sends a byte of it now and then."""
    _, writer = await attack.open()
    whole = attack.flood.request()
    head = whole[: whole.index(b"\r\n\r\n")]
    writer.write(head + b"\r\ncontent-type: application/json\r\ncontent-length: 8000000\r\n\r\n" + b" " * 200_000)
    await trickle(writer)


async def trickle(writer: asyncio.StreamWriter) -> None:
    """One byte after the other until the connection ends."""
    while not writer.is_closing():
        writer.write(b"x")
        await asyncio.sleep(0.5)
    raise ConnectionResetError


KINDS: Final[dict[str, Callable[[Attack], Awaitable[None]]]] = {
    each.__name__: each for each in (never_reads, asks, watches, half_heads, half_bodies)
}


async def run(flood: Flood) -> dict[str, Any]:
    """Flood; what it came to."""
    attack = Attack(flood)
    act = KINDS[flood.kind]

    async def again() -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
                await act(attack)
            await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(again()) for _ in range(min(flood.connections, CONNECTIONS_MOST))]
    await asyncio.wait(tasks, timeout=min(flood.seconds, SECONDS_MOST))
    for task in tasks:
        task.cancel()
    return {"opened": attack.opened, "statuses": dict(attack.statuses)}


class Flooding:
    """A flood that runs; ``result`` once it is over."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.result: dict[str, Any] = {}

    @property
    def running(self) -> bool:
        """Whether it goes on."""
        return self._process.poll() is None

    def end(self) -> None:
        """Wait for its end."""
        out, _ = self._process.communicate(timeout=SECONDS_MOST + 20.0)
        self.result = json.loads(out or b"{}")


@contextmanager
def flooding(flood: Flood) -> Iterator[Flooding]:
    """The flood goes on beside the block, which may end earlier or later."""
    command = [sys.executable, "-m", "tests.attacks.flood", json.dumps(asdict(flood))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=REPOSITORY) as process:
        made = Flooding(process)
        try:
            yield made
            made.end()
        finally:
            process.kill()


if __name__ == "__main__":
    os.nice(5)  # attackers come from other machines, and take no processor time from the server
    print(json.dumps(asyncio.run(run(Flood(**json.loads(sys.argv[1]))))))
