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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from outlive.base import NotFound, Refused, Unavailable, Unknown
from outlive.drivers.commands import run
from outlive.drivers.storage.ceph import last_line
from outlive.drivers.storage.settings import StorageSettings
from outlive.node.ports import CutReport, DiskLock
from outlive.storage import (
    CONNECTED,
    BadDocument,
    ConnectionState,
    DrbdResource,
    ResourceState,
    explain_writer,
    read_show,
    read_status,
)

SCHEME: Final = "drbd:"
SCOPE: Final = f"disk:{SCHEME}"
NO_SUCH_RESOURCE: Final = 10
"""Exit code of ``drbdsetup``."""
NO_DATA: Final = frozenset({"Diskless", "Failed", "Detaching", "Inconsistent"})
"""States of a disk from which nothing is read."""
NOTES_FILE: Final = "drbd-cuts.json"
T = TypeVar("T")


class PeerEndpoint(msgspec.Struct, frozen=True):
    """One end of a path."""

    address: str = ""


class PeerPath(msgspec.Struct, frozen=True):
    """How a peer is reached."""

    remote_host: PeerEndpoint = PeerEndpoint()


class PeerAddress(msgspec.Struct, frozen=True):
    """Where a peer is; the name of a peer that is not known is empty."""

    name: str = ""
    paths: tuple[PeerPath, ...] = ()


class AddressedReplica(msgspec.Struct, frozen=True):
    """A resource with the addresses of its peers, which decide nothing."""

    name: str = ""
    connections: tuple[PeerAddress | None, ...] | None = ()


class DisconnectNote(msgspec.Struct, frozen=True, kw_only=True):
    """From what one host was disconnected by this one."""

    epoch: int
    resources: tuple[str, ...]


class Drbd:
    """The parts of ``StoragePort`` and ``CutPort`` for ``drbd:RESOURCE``. ``own``: this host's storage address."""

    def __init__(self, settings: StorageSettings, state: Path, own: str) -> None:
        self._program = settings.drbd_program
        self._limit_s = float(settings.command_limit)
        self._notes = state / NOTES_FILE
        self._own = own
        self._one_change = asyncio.Lock()

    # --- StoragePort

    def find_place(self, volume: str) -> str:
        """The resource."""
        return volume

    async def check_reach(self, place: str) -> str | None:
        """Whether its replica here serves writes: without quorum, or without data and peers, DRBD lets them wait, or
        fail."""
        replica = await self._read_state(place.removeprefix(SCHEME))
        connected = any(one.connection_state == CONNECTED for one in replica.connections)
        if replica.is_primary and not replica.has_quorum:
            return f"{place} has no quorum here"
        if not connected and any(one.disk_state in NO_DATA for one in replica.devices):
            return f"{place} has neither data nor a peer here"
        return "" if replica.has_quorum else None

    async def list_locks(self, volume: str) -> tuple[DiskLock, ...]:
        """Who is its primary. ``Unavailable`` where this replica cannot know that."""
        name = volume.removeprefix(SCHEME)
        printed = await self._read_output("status", name)
        replica = _state_of(name, printed)
        if replica.is_primary:
            return (DiskLock(volume=volume, id="primary", locker="this host", address=self._own),)
        if peer := replica.primary_peer:
            return (DiskLock(volume=volume, id="primary", locker=peer, address=_address_of(name, peer, printed)),)
        if why := explain_writer(await self._read_resource(name, replica)):
            raise Unavailable(f"who writes {volume} is not known: {why}", remedy=f"see drbdadm status {name}")
        return ()

    async def release(self, lock: DiskLock) -> None:
        """This host's own role is given back; a peer's nobody can take."""
        if lock not in await self.list_locks(lock.volume):
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

    def select(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """Resources of DRBD."""
        return tuple(one for one in scope if one.startswith(SCOPE))

    async def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        """Disconnect this host's replicas from it."""
        names = tuple(sorted(one.removeprefix(SCOPE) for one in self.select(scope)))
        found = {name: peer for name in names if (peer := await self._find_connection(name, host)) is not None}
        if not found:
            raise NotFound(f"this host has no replica of a volume of {host}")
        async with self._one_change:
            notes = await self._read_notes()
            before = notes.get(host, DisconnectNote(epoch=0, resources=()))
            resources = tuple(sorted({*before.resources, *found}))
            notes[host] = DisconnectNote(epoch=max(before.epoch, epoch), resources=resources)
            await self._write_notes(notes)
            for name, peer in found.items():
                if peer.connection_state != "StandAlone":
                    await self._run_order("disconnect", name, peer)

    async def read_back(self, host: str, epoch: int) -> CutReport:
        """Volumes that this replica is disconnected from the host for, and that nobody writes."""
        if shutil.which(self._program) is None:
            raise NotFound(f"this host has no DRBD: {self._program} is not installed")
        note = (await self._read_notes()).get(host)
        if note is None or note.epoch < epoch:
            return CutReport()
        there: list[str] = []
        for name in note.resources:
            peer = await self._find_connection(name, host)
            gone = peer is not None and peer.connection_state == "StandAlone"
            if gone and not explain_writer(await self._read_resource(name, await self._read_state(name))):
                there.append(name)
        if not there:
            return CutReport()
        return CutReport(
            scope=tuple(f"{SCOPE}{name}" for name in there),
            evidence=f"disconnected from {host} with quorum here: {', '.join(there)}",
        )

    async def wait_isolated(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """What this replica knows that nobody writes; ``Unavailable`` where it does not."""
        mine = self.select(scope)
        for one in mine:
            name = one.removeprefix(SCOPE)
            if why := explain_writer(await self._read_resource(name, await self._read_state(name))):
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
                peer = await self._find_connection(name, host)
                if peer is not None and peer.connection_state == "StandAlone":
                    await self._run_order("connect", name, peer)
            del notes[host]
            await self._write_notes(notes)

    async def list_hosts(self) -> Mapping[str, int]:
        """From which this host was disconnected; a note goes with the last of its connections."""
        return {host: note.epoch for host, note in (await self._read_notes()).items()}

    async def _find_connection(self, name: str, host: str) -> ConnectionState | None:
        """The connection to that host; ``None`` where there is none, or no resource."""
        try:
            replica = await self._read_state(name)
        except NotFound:
            return None
        return next((one for one in replica.connections if one.name.partition(".")[0] == host.partition(".")[0]), None)

    async def _read_state(self, name: str) -> ResourceState:
        return _state_of(name, await self._read_output("status", name))

    async def _read_resource(self, name: str, state: ResourceState) -> DrbdResource:
        """The state with the quorum option, which must be known to say who may write."""
        configs = _parse_output("show", name, read_show, await self._read_output("show", name))
        quorum = next((one.quorum for one in reversed(configs) if one.resource == name), "")
        return DrbdResource(**msgspec.structs.asdict(state), quorum=quorum, present=True)

    async def _read_output(self, verb: str, name: str) -> str:
        ended = await run([self._program, verb, name, "--json"], limit_s=self._limit_s)
        if ended.killed:
            raise Unavailable(f"drbdsetup {verb} {name} did not end within {self._limit_s:g} s", remedy="see dmesg")
        if ended.code == NO_SUCH_RESOURCE:
            raise NotFound(f"this host has no replica of {SCHEME}{name}", remedy="see drbdadm status")
        if ended.code != 0:
            raise Unavailable(f"drbdsetup {verb} {name}: {last_line(ended.err)}", remedy="is DRBD 9 loaded here?")
        return ended.out

    async def _run_order(self, verb: str, name: str, peer: ConnectionState) -> None:
        if peer.peer_node_id is None:
            raise Unavailable(f"drbdsetup status {name} gives {peer.name} no node id", remedy="see drbdadm status")
        words = (verb, name, str(peer.peer_node_id))
        ended = await run([self._program, *words], limit_s=self._limit_s)
        if ended.code != 0:
            why = f"no end within {self._limit_s:g} s" if ended.killed else last_line(ended.err)
            raise Unknown(f"drbdsetup {' '.join(words)}: {why}", remedy="see drbdadm status")

    async def _read_notes(self) -> dict[str, DisconnectNote]:
        try:
            raw = await asyncio.to_thread(self._notes.read_bytes)
            return msgspec.json.decode(raw, type=dict[str, DisconnectNote])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise Unavailable(f"{self._notes} cannot be read: {error}", remedy="remove it; hosts stay cut") from None

    async def _write_notes(self, notes: dict[str, DisconnectNote]) -> None:
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


def _parse_output(verb: str, name: str, read: Callable[[str], T], text: str) -> T:
    """What a command printed; ``Unavailable``: nothing is decided on what is not understood."""
    try:
        return read(text)
    except BadDocument as error:
        raise Unavailable(f"drbdsetup {verb} {name}: {error.message}", remedy=error.remedy) from None


def _state_of(name: str, text: str) -> ResourceState:
    """The last entry of that name, as the storage agent takes them; an empty one, which proves nothing."""
    found = _parse_output("status", name, read_status, text)
    return next((one for one in reversed(found) if one.name == name), ResourceState(name=name))


def _address_of(name: str, peer: str, text: str) -> str:
    """Where the peer is; empty where that is not printed, or not understood."""
    try:
        found = msgspec.json.decode(text, type=list[AddressedReplica | None] | None) or []
    except msgspec.DecodeError:
        return ""
    replica = next((one for one in reversed(found) if one is not None and one.name == name), AddressedReplica())
    peers = [one for one in replica.connections or () if one is not None and one.name == peer]
    return next((path.remote_host.address for one in peers for path in one.paths if path.remote_host.address), "")
