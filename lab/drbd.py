"""A DRBD cluster that is not there: executables ``drbdsetup`` and ``drbdadm`` for several nodes, with one model behind.

``DrbdLab`` starts a process that runs the model of ``outlive.simulation.drbd`` in real time behind a unix socket, and
writes ``FOLDER/<node>/drbdsetup`` and ``drbdadm``, which speak to it. Tests change the world by its methods, from any
process that knows the folder: ``DrbdLab(folder)`` without nodes joins one that runs. ``FOLDER/<node>/proc-drbd`` exists
while DRBD is loaded on that node.

The executables know what ``Service.answer`` lists, print what real ones print, and exit as they do: 10 for an unknown
resource, 11 for a refused change of state, 20 for everything else that is wrong.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from lab.processes import LabError, Process, until
from outlive.base import NotFound, OutliveError, Random, Refused, SystemClock
from outlive.simulation.drbd import DrbdCluster, DrbdOpener, DrbdWrite, storage_address

PROJECT: Final = Path(__file__).parent.parent
TOOLS: Final = ("drbdsetup", "drbdadm")
OUT, ERR, EXIT = 1, 2, 3
"""Kinds of the frames that the service sends: one byte, four of the length, the rest."""
UNKNOWN_RESOURCE, REFUSED, FAILED = 10, 11, 20
"""Exit codes."""
NOT_LOADED: Final = "Could not connect to 'drbd' generic netlink family\n"
WORDS_LIMIT: Final = 65536
"""Bytes of one request."""
ANSWER_LIMIT_S: Final = 30.0
"""A control verb takes no longer, waiting for writes apart."""
SOON_S: Final = 0.2

PROGRAM: Final = """#!{python} -IS
import _socket, posix, sys
try:
    service = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    service.connect({socket!r})
    words = "\\0".join([{node!r}, {tool!r}, *sys.argv[1:]]).encode()
    service.sendall(len(words).to_bytes(4, "big") + words)
except OSError:
    posix._exit(20)
got = b""
while True:
    more = service.recv(65536)
    if not more:
        posix._exit(20)
    got += more
    while len(got) >= 5 and len(got) >= 5 + (size := int.from_bytes(got[1:5], "big")):
        kind, text, got = got[0], got[5:5 + size], got[5 + size:]
        if kind == 3:
            posix._exit(int(text))
        while text:
            text = text[posix.write(kind, text):]
"""


class DrbdLab:
    """See the module. Times are those of the model; the defaults are short, so that nobody waits."""

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[str] = (),
        *,
        seed: int = 0,
        ping_interval_s: float = 0.3,
        ping_timeout_s: float = 0.1,
        connect_interval_s: float = 0.3,
        resync_s: float = 0.3,
        newer_tools: bool = False,
    ) -> None:
        self.folder = folder
        self.nodes = tuple(nodes)
        self._settings = {
            "folder": str(folder),
            "nodes": self.nodes,
            "seed": seed,
            "ping_interval_s": ping_interval_s,
            "ping_timeout_s": ping_timeout_s,
            "connect_interval_s": connect_interval_s,
            "resync_s": resync_s,
            "newer_tools": newer_tools,
        }
        self._service = Process(folder / "drbd.pid")
        self._where = folder / "drbd.socket"
        """A file with the path of the socket, whose own length is limited."""

    def start(self) -> None:
        """The service, and the executables of all nodes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix="drbd-")) / "socket"
        self._where.write_text(str(path))
        for node in self.nodes:
            (self.folder / node).mkdir(exist_ok=True)
            for tool in TOOLS:
                python = getattr(sys, "_base_executable", sys.executable)
                program = self.program(node, tool)
                program.write_text(PROGRAM.format(python=python, socket=str(path), node=node, tool=tool))
                program.chmod(0o700)
        words = [sys.executable, "-m", "lab.drbd", json.dumps({**self._settings, "socket": str(path)})]
        self._service.start(words, self.folder / "drbd.log", env={"PYTHONPATH": str(PROJECT)})
        until(lambda: _listens(path) or not self._service.pid, "the DRBD service listens", 20)
        if not self._service.pid:
            raise LabError(f"the DRBD service ended; see {self.folder / 'drbd.log'}")

    def stop(self) -> None:
        """The service; running executables end."""
        self._service.stop()
        shutil.rmtree(Path(self._where.read_text()).parent, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def program(self, node: str, tool: str = "drbdsetup") -> Path:
        """An executable of a node."""
        return self.folder / node / tool

    def proc_file(self, node: str) -> Path:
        """The file that exists while DRBD is loaded there."""
        return self.folder / node / "proc-drbd"

    def address(self, node: str) -> str:
        """Of a node, on the storage network."""
        return storage_address(self.nodes.index(node))

    def call(self, verb: str, *arguments: Any, limit_s: float = ANSWER_LIMIT_S, **named: Any) -> Any:
        """What a verb of the model, or of ``Service``, answers; ``LabError`` with its error."""
        words = "\0".join(["", json.dumps([verb, arguments, named])]).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as service:
            service.settimeout(limit_s)
            try:
                service.connect(self._where.read_text())
                service.sendall(len(words).to_bytes(4, "big") + words)
                parts = []
                while part := service.recv(65536):
                    parts.append(part)
            except OSError as error:
                raise LabError(f"{verb}: the DRBD service does not answer: {error}") from error
        answer = json.loads(b"".join(parts))
        if "error" in answer:
            raise LabError(answer["error"])
        return answer["value"]

    def create(self, name: str, disks: Sequence[str], diskless: Sequence[str] = (), **options: Any) -> None:
        """See ``DrbdCluster.create``."""
        self.call("create", name, disks, diskless, **options)

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Nothing passes between two nodes."""
        self.call("cut", a, b, one_way=one_way)

    def heal(self, a: str, b: str) -> None:
        """Everything passes again."""
        self.call("heal", a, b)

    def isolate(self, node: str) -> None:
        """Nothing passes between it and any other."""
        self.call("isolate", node)

    def rejoin(self, node: str) -> None:
        """Everything passes again between it and all others."""
        self.call("rejoin", node)

    def crash(self, node: str) -> None:
        """Power off: its executables end, and fail until ``boot``."""
        self.call("crash", node)

    def boot(self, node: str) -> None:
        """Power on."""
        self.call("boot", node)

    def open(self, node: str, resource: str) -> int:
        """A process opens a device; the answer is for ``write`` and ``close``."""
        number: int = self.call("open", node, resource)
        return number

    def start_write(self, opener: int) -> int:
        """Write a block; the answer is for ``wait_write``."""
        number: int = self.call("start_write", opener)
        return number

    def wait_write(self, write: int, within_s: float) -> bool:
        """Whether it was acknowledged within that time; ``LabError`` if it failed."""
        acknowledged: bool = self.call("wait_write", write, within_s, limit_s=within_s + ANSWER_LIMIT_S)
        return acknowledged

    def write(self, opener: int, within_s: float = 5.0) -> bool:
        """Both."""
        return self.wait_write(self.start_write(opener), within_s)

    def close(self, opener: int) -> None:
        """Close the device."""
        self.call("close", opener)

    def hang(self, node: str, hangs: bool = True) -> None:
        """No executable of the node ends, whatever it was asked; those that were started then go on afterwards."""
        self.call("hang", node, hangs)

    def garble(self, node: str, text: str, times: int = 1) -> None:
        """The next outputs of ``status`` and ``show`` are this text."""
        self.call("garble", node, text, times)

    def unload(self, node: str, unloaded: bool = True) -> None:
        """DRBD's module is not loaded there."""
        self.call("unload", node, unloaded)


def _listens(path: Path) -> bool:
    """Whether somebody takes connections there; the file is there a moment before."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as service:
        try:
            service.connect(str(path))
        except OSError:
            return False
    return True


# --- the service


class Service:
    """Answers the executables and the tests."""

    def __init__(self, settings: dict[str, Any]) -> None:
        times = {name: settings[name] for name in settings if name.endswith("_s")}
        self._cluster = DrbdCluster(
            SystemClock(), Random(settings["seed"]), settings["nodes"], newer_tools=settings["newer_tools"], **times
        )
        self._folder = Path(settings["folder"])
        self._socket = settings["socket"]
        self._openers: dict[int, DrbdOpener] = {}
        self._writes: list[asyncio.Task[DrbdWrite]] = []
        self._free: dict[str, asyncio.Event] = {}
        """Of nodes whose executables hang, until they do not."""
        self._garbage: dict[str, list[str]] = {}
        self._unloaded: set[str] = set()
        self._running: dict[str, set[asyncio.StreamWriter]] = {node: set() for node in settings["nodes"]}

    async def serve(self) -> None:
        """Until the process ends."""
        for node in self._running:
            self._write_proc(node)
        server = await asyncio.start_unix_server(self._take, self._socket)
        async with server:
            await server.serve_forever()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            size = int.from_bytes(await reader.readexactly(4), "big")
            words = (await reader.readexactly(min(size, WORDS_LIMIT))).decode().split("\0")
            if words[0]:
                await self._run(reader, writer, *words)
            else:
                writer.write(
                    json.dumps(await self._control(*json.loads(words[1])), default=msgspec.to_builtins).encode()
                )
                await writer.drain()
        writer.close()

    # --- tests

    async def _control(self, verb: str, arguments: list[Any], named: dict[str, Any]) -> dict[str, Any]:
        method = getattr(self, f"_control_{verb}", None) or getattr(self._cluster, verb, None)
        if method is None or verb.startswith("_"):
            return {"error": f"the DRBD service knows no verb {verb}"}
        try:
            value = method(*arguments, **named)
            return {"value": await value if inspect.isawaitable(value) else value}
        except (OutliveError, OSError, KeyError, IndexError) as error:
            return {"error": f"{verb}: {error}"}

    def _control_isolate(self, node: str) -> None:
        """See ``DrbdLab``, as for all of these."""
        for other in self._running:
            if other != node:
                self._cluster.cut(node, other)

    def _control_rejoin(self, node: str) -> None:
        for other in self._running:
            if other != node:
                self._cluster.heal(node, other)

    def _control_crash(self, node: str) -> None:
        self._cluster.crash(node)
        for writer in self._running[node]:
            writer.close()
        self._write_proc(node)

    def _control_boot(self, node: str) -> None:
        self._cluster.boot(node)
        self._write_proc(node)

    async def _control_open(self, node: str, resource: str) -> int:
        opener = await self._cluster.open(node, resource)
        self._openers[opener.number] = opener
        return opener.number

    def _control_start_write(self, opener: int) -> int:
        self._writes.append(asyncio.create_task(self._cluster.write(self._openers[opener])))
        return len(self._writes) - 1

    async def _control_wait_write(self, write: int, within_s: float) -> bool:
        done, _ = await asyncio.wait([self._writes[write]], timeout=within_s)
        for one in done:
            await one
        return bool(done)

    def _control_close(self, opener: int) -> None:
        self._cluster.close(self._openers.pop(opener))

    def _control_hang(self, node: str, hangs: bool) -> None:
        if hangs:
            self._free.setdefault(node, asyncio.Event())
        elif (free := self._free.pop(node, None)) is not None:
            free.set()

    def _control_garble(self, node: str, text: str, times: int) -> None:
        self._garbage[node] = [text] * times

    def _control_unload(self, node: str, unloaded: bool) -> None:
        (self._unloaded.add if unloaded else self._unloaded.discard)(node)
        self._write_proc(node)

    def _write_proc(self, node: str) -> None:
        file = self._folder / node / "proc-drbd"
        if node in self._unloaded or node in self._cluster.network.down:
            file.unlink(missing_ok=True)
        else:
            file.write_text("version: 9.3.3 (api:2/proto:118-124)\nTransports (api:21): tcp (9.3.3)\n")

    # --- executables

    async def _run(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: str, tool: str, *words: str
    ) -> None:
        self._running[node].add(writer)

        async def answer() -> None:
            if (free := self._free.get(node)) is not None:
                await free.wait()
            code = FAILED
            if node not in self._cluster.network.down:
                code = await self.answer(node, tool, words, lambda kind, text: self._send(writer, kind, text))
            await self._send(writer, EXIT, str(code))

        working, ended = asyncio.create_task(answer()), asyncio.create_task(reader.read())
        try:
            await asyncio.wait([working, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._running[node].discard(writer)
            for task in (working, ended):
                task.cancel()
            await asyncio.gather(working, ended, return_exceptions=True)

    async def _send(self, writer: asyncio.StreamWriter, kind: int, text: str) -> None:
        raw = text.encode()
        writer.write(bytes([kind]) + len(raw).to_bytes(4, "big") + raw)
        await writer.drain()

    async def answer(
        self, node: str, tool: str, words: Sequence[str], send: Callable[[int, str], Awaitable[None]]
    ) -> int:
        """The exit code of a command; what it prints is sent."""
        verb, *others = words or ("",)
        flags = {word for word in others if word.startswith("-")}
        names = [word for word in others if not word.startswith("-")]
        if node in self._unloaded:
            if verb == "show":
                return 0
            await send(ERR, NOT_LOADED)
            return FAILED
        try:
            match verb, names:
                case (("status" | "show"), [] | [_]):
                    name = names[0] if names and names[0] != "all" else None
                    text = self._text(node, verb, name, "--json" in flags)
                    garbage = self._garbage.get(node)
                    await send(OUT, garbage.pop() if garbage else text)
                case "events2", [] | [_]:
                    name = names[0] if names and names[0] != "all" else None
                    async for lines in self._events(node, name, "--timestamps" in flags, "--now" in flags):
                        await send(OUT, lines)
                case (("primary" | "secondary" | "disconnect" | "connect" | "suspend-io" | "resume-io"), [name, *rest]):
                    await self._order(node, verb, self._named(node, name), "--force" in flags, rest)
                case "new-current-uuid", [name]:
                    self._cluster.new_current_uuid(node, self._named(node, name))
                case "adjust", [name] if tool == "drbdadm":
                    for one in self._cluster.resource_names(node) if name == "all" else [name]:
                        for peer in self._cluster.find_replica(node, one).peers:
                            self._cluster.connect(node, one, peer)
                case _:
                    await send(ERR, f"{tool}: the stand-in does not know {' '.join(words)!r}\n")
                    return FAILED
        except NotFound as error:
            await send(ERR, f"{names[0] if names else ''}: Failure: (158) Unknown resource ({error.message})\n")
            return UNKNOWN_RESOURCE
        except Refused as error:
            await send(ERR, f"{error.message}\n")
            return REFUSED
        return 0

    def _text(self, node: str, verb: str, name: str | None, as_json: bool) -> str:
        if verb == "show":
            return self._cluster.show_text(node, name)
        return self._cluster.status_text(node, name) if as_json else self._plain_status(node, name)

    def _plain_status(self, node: str, name: str | None) -> str:
        lines = []
        for one in self._cluster.resource_names(node) if name is None else [name]:
            replica = self._cluster.find_replica(node, one)
            lines.append(f"{one} role:{replica.role}")
            lines += [f"  disk:{volume.disk}" for volume in replica.volumes]
            for peer in replica.peers.values():
                how = f"role:{peer.role}" if peer.is_connected else f"connection:{peer.state}"
                lines.append(f"  {peer.node} {how}")
                lines += [f"    peer-disk:{disk}" for disk in peer.disks if peer.is_connected]
            lines.append("")
        return "\n".join(lines) + ("\n" if lines else "# No currently configured DRBD found.\n")

    async def _events(self, node: str, name: str | None, timestamps: bool, now: bool) -> AsyncIterator[str]:
        if now:
            yield self._cluster.events_text(node, name, timestamps=timestamps)
            return
        async for line in self._cluster.follow_events(node, name, timestamps=timestamps):
            yield f"{line}\n"

    def _named(self, node: str, word: str) -> str:
        """The resource of a name or of a minor."""
        for name in self._cluster.resource_names(node):
            replica = self._cluster.find_replica(node, name)
            if word == name or word in {str(replica.minor + number) for number in range(len(replica.volumes))}:
                return name
        raise NotFound(f"{node} has no {word}")

    async def _order(self, node: str, verb: str, name: str, force: bool, rest: Sequence[str]) -> None:
        cluster = self._cluster
        match verb:
            case "primary":
                await cluster.promote(node, name, force=force)
            case "secondary" if force:
                cluster.force_secondary(node, name)
            case "secondary":
                await cluster.demote(node, name)
            case "suspend-io":
                cluster.suspend(node, name)
            case "resume-io":
                cluster.resume(node, name)
            case _:
                peers = cluster.find_replica(node, name).peers.values()
                peer = next((one.node for one in peers if rest and rest[0] in (str(one.node_id), one.node)), "")
                (cluster.disconnect if verb == "disconnect" else cluster.connect)(node, name, peer)


if __name__ == "__main__":
    asyncio.run(Service(json.loads(sys.argv[1])).serve())
