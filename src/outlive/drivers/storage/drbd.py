"""Replicated volumes of DRBD 9: who writes one, by its roles and its quorum; and disconnection, which takes quorum.

A replica says only what it knows itself. Where it has quorum, its data is up to date and it knows no primary, there is
none that may still write: had one kept quorum without this replica, DRBD would have marked this one outdated in the
same step. A host is shut out of a volume where that holds and this replica is disconnected from it for good
(``StandAlone``): so only a coordinator with a replica of the volume can shut a host out of it.

Nothing is decided on what is not understood: what ``drbdsetup`` prints is taken whole or not at all.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from outlive.base.errors import NotFound, Refused, Unavailable, Unknown
from outlive.drivers.commands import run
from outlive.drivers.storage.ceph import last_line
from outlive.drivers.storage.settings import StorageSettings
from outlive.node.ports import CutReport, DiskLock

SCHEME: Final = "drbd:"
SCOPE: Final = f"disk:{SCHEME}"
NO_SUCH_RESOURCE: Final = 10
"""Exit code of ``drbdsetup``."""
QUORUMS: Final = ("majority", "all")
"""Settings by which at most one side of a divided resource has quorum; by a number two sides may have it."""
NO_DATA: Final = frozenset({"Diskless", "Failed", "Detaching", "Inconsistent"})
"""States of a disk from which nothing is read."""
NOTES_FILE: Final = "drbd-cuts.json"


class Endpoint(msgspec.Struct, frozen=True):
    """One end of a path."""

    address: str = ""


class ConnectionPath(msgspec.Struct, frozen=True):
    """How a peer is reached."""

    remote_host: Endpoint = Endpoint()


class Device(msgspec.Struct, frozen=True):
    """One volume of a resource, on this host."""

    quorum: bool = False
    disk_state: str = msgspec.field(name="disk-state", default="")


class Connection(msgspec.Struct, frozen=True):
    """A peer."""

    name: str = ""
    peer_node_id: int = msgspec.field(name="peer-node-id", default=-1)
    connection_state: str = msgspec.field(name="connection-state", default="")
    peer_role: str = msgspec.field(name="peer-role", default="")
    paths: tuple[ConnectionPath, ...] = ()

    @property
    def address(self) -> str:
        """Where the peer is; empty where that is not printed."""
        return next((path.remote_host.address for path in self.paths if path.remote_host.address), "")


class Replica(msgspec.Struct, frozen=True):
    """A resource, as this host sees it."""

    name: str = ""
    role: str = ""
    force_io_failures: bool = msgspec.field(name="force-io-failures", default=False)
    devices: tuple[Device | None, ...] | None = ()
    connections: tuple[Connection | None, ...] | None = ()

    @property
    def volumes(self) -> list[Device]:
        """Its devices; one of which nothing is printed has no quorum."""
        return [one or Device() for one in self.devices or ()]

    @property
    def peers(self) -> list[Connection]:
        """Its connections."""
        return [one or Connection() for one in self.connections or ()]


class Options(msgspec.Struct, frozen=True):
    """Of a resource."""

    quorum: str | int = "off"


class Configured(msgspec.Struct, frozen=True):
    """A resource, as it is configured."""

    resource: str = ""
    options: Options = Options()


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """From what one host was disconnected by this one."""

    epoch: int
    resources: tuple[str, ...]


def doubt(replica: Replica, quorum: str | int) -> str:
    """Why somebody else may write it, as far as this replica knows; empty: nobody does."""
    name = replica.name
    if quorum not in QUORUMS:
        kind = "without quorum" if quorum == "off" else f"with quorum {quorum}, which two sides may have at once"
        return f"{name} is used {kind}, so that a replica that is cut off writes on: set quorum majority"
    if not replica.volumes or replica.force_io_failures:
        return f"{name} is not usable here"
    if not all(device.quorum for device in replica.volumes):
        return f"{name} has no quorum here"
    if not all(device.disk_state == "UpToDate" for device in replica.volumes):
        return f"the data of {name} is not up to date here"
    primary = next((one.name for one in replica.peers if one.peer_role == "Primary"), "")
    return f"{name} is in use on {primary}" if primary else ""


class Drbd:
    """The parts of ``StoragePort`` and ``CutPort`` for ``drbd:RESOURCE``. ``own``: this host's storage address."""

    def __init__(self, settings: StorageSettings, state: Path, own: str) -> None:
        self._program = settings.drbd_program
        self._limit_s = float(settings.command_limit)
        self._notes = state / NOTES_FILE
        self._own = own
        self._one_change = asyncio.Lock()

    # --- StoragePort

    def place(self, volume: str) -> str:
        """The resource."""
        return volume

    async def check_reach(self, place: str) -> str | None:
        """Whether its replica here serves writes: without quorum, or without data and peers, DRBD lets them wait, or
        fail."""
        replica = await self._replica(place.removeprefix(SCHEME))
        connected = any(one.connection_state == "Connected" for one in replica.peers)
        if replica.role == "Primary" and any(not one.quorum for one in replica.volumes):
            return f"{place} has no quorum here"
        if not connected and any(one.disk_state in NO_DATA for one in replica.volumes):
            return f"{place} has neither data nor a peer here"
        return "" if all(one.quorum for one in replica.volumes) else None

    async def locks(self, volume: str) -> tuple[DiskLock, ...]:
        """Who is its primary. ``Unavailable`` where this replica cannot know that."""
        name = volume.removeprefix(SCHEME)
        replica, quorum = await self._replica(name), await self._quorum(name)
        if replica.role == "Primary":
            return (DiskLock(volume=volume, id="primary", locker="this host", address=self._own),)
        for peer in replica.peers:
            if peer.peer_role == "Primary":
                return (DiskLock(volume=volume, id="primary", locker=peer.name, address=peer.address),)
        if why := doubt(replica, quorum):
            raise Unavailable(f"who writes {volume} is not known: {why}", remedy=f"see drbdadm status {name}")
        return ()

    async def release(self, lock: DiskLock) -> None:
        """This host's own role is given back; a peer's nobody can take."""
        if lock not in await self.locks(lock.volume):
            return
        name = lock.volume.removeprefix(SCHEME)
        if lock.address != self._own:
            raise Refused(f"{name} is in use on {lock.locker}", remedy=f"see drbdadm status {name}")
        ended = await run([self._program, "secondary", name], limit_s=self._limit_s)
        if ended.killed:
            raise Unknown(f"drbdsetup secondary {name} did not end within {self._limit_s:g} s")
        if ended.code != 0:
            raise Refused(f"{name} stays in use on this host: {last_line(ended.err)}", remedy=f"see fuser on {name}")

    # --- CutPort

    async def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        """Disconnect this host's replicas from it."""
        names = tuple(sorted(one.removeprefix(SCOPE) for one in scope if one.startswith(SCOPE)))
        found = {name: peer for name in names if (peer := await self._peer(name, host)) is not None}
        if not found:
            raise NotFound(f"this host has no replica of a volume of {host}")
        async with self._one_change:
            notes = await self._read_notes()
            before = notes.get(host, Note(epoch=0, resources=()))
            resources = tuple(sorted({*before.resources, *found}))
            notes[host] = Note(epoch=max(before.epoch, epoch), resources=resources)
            await self._write_notes(notes)
            for name, peer in found.items():
                if peer.connection_state != "StandAlone":
                    await self._order("disconnect", name, str(peer.peer_node_id))

    async def read_back(self, host: str, epoch: int) -> CutReport:
        """Volumes that this replica is disconnected from the host for, and that nobody writes."""
        if shutil.which(self._program) is None:
            raise NotFound(f"this host has no DRBD: {self._program} is not installed")
        note = (await self._read_notes()).get(host)
        if note is None or note.epoch < epoch:
            return CutReport()
        there: list[str] = []
        for name in note.resources:
            peer = await self._peer(name, host)
            gone = peer is not None and peer.connection_state == "StandAlone"
            if gone and not doubt(await self._replica(name), await self._quorum(name)):
                there.append(name)
        if not there:
            return CutReport()
        return CutReport(
            scope=tuple(f"{SCOPE}{name}" for name in there),
            evidence=f"disconnected from {host} with quorum here: {', '.join(there)}",
        )

    async def barrier(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """What this replica knows that nobody writes; ``Unavailable`` where it does not."""
        mine = tuple(one for one in scope if one.startswith(SCOPE))
        for one in mine:
            name = one.removeprefix(SCOPE)
            if why := doubt(await self._replica(name), await self._quorum(name)):
                raise Unavailable(why, remedy=f"see drbdadm status {name}")
        return mine

    async def lift(self, host: str, epoch: int) -> None:
        """Connect again to what was disconnected through that epoch."""
        async with self._one_change:
            notes = await self._read_notes()
            note = notes.get(host)
            if note is None or note.epoch > epoch:
                return
            for name in note.resources:
                peer = await self._peer(name, host)
                if peer is not None and peer.connection_state == "StandAlone":
                    await self._order("connect", name, str(peer.peer_node_id))
            del notes[host]
            await self._write_notes(notes)

    async def hosts(self) -> Mapping[str, int]:
        """From which this host was disconnected; a note goes with the last of its connections."""
        return {host: note.epoch for host, note in (await self._read_notes()).items()}

    async def _peer(self, name: str, host: str) -> Connection | None:
        try:
            replica = await self._replica(name)
        except NotFound:
            return None
        return next((one for one in replica.peers if one.name.partition(".")[0] == host.partition(".")[0]), None)

    async def _replica(self, name: str) -> Replica:
        found = await self._printed("status", name, list[Replica | None] | None)
        return next((one for one in reversed(found or []) if one is not None and one.name == name), Replica(name=name))

    async def _quorum(self, name: str) -> str | int:
        found = await self._printed("show", name, list[Configured | None] | None)
        return next((one.options.quorum for one in reversed(found or []) if one and one.resource == name), "off")

    async def _printed(self, verb: str, name: str, shape: Any) -> Any:
        ended = await run([self._program, verb, name, "--json"], limit_s=self._limit_s)
        if ended.killed:
            raise Unavailable(f"drbdsetup {verb} {name} did not end within {self._limit_s:g} s", remedy="see dmesg")
        if ended.code == NO_SUCH_RESOURCE:
            raise NotFound(f"this host has no replica of {SCHEME}{name}", remedy="see drbdadm status")
        if ended.code != 0:
            raise Unavailable(f"drbdsetup {verb} {name}: {last_line(ended.err)}", remedy="is DRBD 9 loaded here?")
        try:
            return msgspec.json.decode(ended.out, type=shape)
        except msgspec.DecodeError as error:
            raise Unavailable(f"drbdsetup {verb} {name} printed what is not understood: {error}") from None

    async def _order(self, *words: str) -> None:
        ended = await run([self._program, *words], limit_s=self._limit_s)
        if ended.code != 0:
            why = f"no end within {self._limit_s:g} s" if ended.killed else last_line(ended.err)
            raise Unknown(f"drbdsetup {' '.join(words)}: {why}", remedy="see drbdadm status")

    async def _read_notes(self) -> dict[str, Note]:
        try:
            raw = await asyncio.to_thread(self._notes.read_bytes)
            return msgspec.json.decode(raw, type=dict[str, Note])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise Unavailable(f"{self._notes} cannot be read: {error}", remedy="remove it; hosts stay cut") from None

    async def _write_notes(self, notes: dict[str, Note]) -> None:
        def write() -> None:
            new = self._notes.with_suffix(".new")
            with new.open("wb") as stream:
                stream.write(msgspec.json.encode(notes))
                stream.flush()
                os.fsync(stream.fileno())
            new.replace(self._notes)

        try:
            await asyncio.to_thread(write)
        except OSError as error:
            raise Unavailable(f"{self._notes} cannot be written: {error.strerror}") from None
