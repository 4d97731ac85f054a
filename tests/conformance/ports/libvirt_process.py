"""The driver of libvirt as processes on a laboratory host: ``python -m tests.conformance.ports.libvirt_process``.

Started once on a host; each connection to the socket is served by a process of its own, which is one driver. A line is
a call (``[id, name, arguments]``) or its answer (``[id, kind, value]``).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec
from lab.hosts import PROJECT

from outlive.base import errors
from outlive.drivers.libvirt import DomainRun, LibvirtHypervisor, LibvirtSettings
from outlive.node.ports import DiskIo, Domain, MigrationSettings
from outlive.resources import VirtualMachine, convert
from outlive.runtime import Duration


class Served:
    """One driver and its connection."""

    def __init__(self, connection: socket.socket, settings: LibvirtSettings) -> None:
        self.driver = LibvirtHypervisor(settings)
        self.driver.moves.on_phase = self._reached  # type: ignore[method-assign]
        self.stops_at = ""
        self._connection = connection

    async def run(self) -> None:
        reader, self.writer = await asyncio.open_connection(sock=self._connection)
        tasks = set()
        while line := await reader.readline():
            task = asyncio.create_task(self._answer(*msgspec.json.decode(line)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _answer(self, call: int, name: str, given: dict[str, Any]) -> None:
        try:
            if name == "stop_at":
                self.stops_at = given["phase"]
                value: Any = None
            elif name == "no_address":
                self.driver.settings = msgspec.structs.replace(self.driver.settings, migration_address="")
                value = None
            elif name == "functions":
                names = tuple(given["names"])
                self.driver.functions = lambda: names
                value = None
            elif name == "post_copy_stall":
                self.driver.moves.post_copy_stall_s = given["seconds"]
                value = None
            elif name == "last_move":
                value = self.driver.moves.last
            else:
                value = await getattr(self.driver, name)(**arguments(given))
        except errors.OutliveError as error:
            self._write([call, type(error).__name__, error.message])
        except Exception as error:
            self._write([call, "Exception", repr(error)])
        else:
            self._write([call, "", value])

    async def _reached(self, phase: str, run: DomainRun) -> None:
        """Say so, and stand still until somebody lets this process go on."""
        if phase == self.stops_at:
            self._write([0, "reached", phase])
            await self.writer.drain()
            os.kill(os.getpid(), signal.SIGSTOP)

    def _write(self, answer: list[Any]) -> None:
        self.writer.write(msgspec.json.encode(answer) + b"\n")


def arguments(given: dict[str, Any]) -> dict[str, Any]:
    """As the port takes them."""
    types: dict[str, Any] = {"vm": VirtualMachine, "incoming": MigrationSettings | None, "settings": MigrationSettings}
    return {
        name: convert(types[name], value) if name in types and not isinstance(value, str) else value
        for name, value in given.items()
    }


def answered(value: Any, name: str) -> Any:
    """The value of an answer."""
    kinds: dict[str, Any] = {
        "list_domains": tuple[Domain, ...],
        "list_problems": tuple[str, ...],
        "disk_io": tuple[DiskIo, ...],
    }
    return msgspec.convert(value, kinds[name]) if name in kinds else value


def main() -> None:
    """Serve for ever."""
    path, address = sys.argv[1:]
    settings = LibvirtSettings(
        uri="qemu:///system",
        kind="qemu",
        slice="/sys/fs/cgroup/machine",
        user="root",
        disk_paths=("/",),
        firmware_paths=("/",),
        console_paths=("/",),
        host_devices=("user",),
        migration_address=address,
        migration_tls=str(Path(path).parent / "tls"),
        call_limit=Duration(10.0),
        start_service=f"{sys.executable} -I {PROJECT}/lab/service.py start libvirtd",
    )
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(64)
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.sendall(b'[0,"hello",null]\n')
            asyncio.run(Served(connection, settings).run())
            os._exit(0)
        connection.close()


if __name__ == "__main__":
    main()
