"""A way to a server that can be cut, silenced and turned to another server; it forwards bytes and knows no protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

READ_BYTES = 65_536
LOOK_S = 0.05


class TcpProxy:
    """Listens on ``port`` of 127.0.0.1."""

    def __init__(self, target: int) -> None:
        self.target = target
        """The port of 127.0.0.1 to which new connections go."""
        self.comes_through = asyncio.Event()
        """While it is not set nothing comes through, and nobody is told."""
        self.comes_through.set()
        self.loses_answers = False
        """While it is true what clients send arrives, and at the first byte of an answer the connection breaks."""
        self.port = 0
        self.connections = 0
        """Opened so far."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def break_all(self) -> None:
        """Close every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        ways = [
            asyncio.create_task(self._copy(reader, back)),
            asyncio.create_task(self._copy(there, writer, answers=True)),
        ]
        self._tasks.update(ways)
        await asyncio.wait(ways)
        self._tasks.difference_update(ways)
        self._writers -= {writer, back}

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool = False) -> None:
        with suppress(OSError):
            while part := await source.read(READ_BYTES):
                await self.comes_through.wait()
                if answers and self.loses_answers:
                    sink.transport.abort()
                    return
                sink.write(part)
                await sink.drain()
        sink.close()


@asynccontextmanager
async def proxied(target: int) -> AsyncIterator[TcpProxy]:
    """A proxy before that port."""
    proxy = TcpProxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.comes_through.set()
        proxy.break_all()
        for task in list(proxy._tasks):
            task.cancel()
        await asyncio.sleep(LOOK_S)
