"""Images of Ceph: their locks, as the servers have them, and isolation of a host by Ceph's list of blocked clients.

**A host is blocked by its whole address**, ``ADDRESS:0/0``: every client that comes from there, now or later, reaches
no image any more, of whatever pool, until the entry is taken away. Ceph knows neither hosts nor epochs. Which host and
epoch it was, and which disks were asked for, is written beside it, in the monitors' own store (``outlive/cut/HOST``):
first the note, then the entry. What is read back is the note, as far as every address in it is on the list now.

**To let a host in again is an order that Ceph carries out whatever happened meanwhile.** One that is late must not
follow a later order to block, so a host that lets another in first writes down that it does (``outlive/lift/HOST/BY``),
and looks at the note after that; a host that blocks writes the note first, and looks for such entries after that. One
of both sees the other, and gives way.

**A storage daemon learns of the list a moment after the monitors.** The barrier waits until each of them that is up has
a map at least as new as the one that the monitors have when it is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from ipaddress import ip_address
from typing import Final, NamedTuple

import msgspec

from outlive.base import Clock, LimitExceeded, NotFound, OutliveError, Unavailable, deadline, get_logger
from outlive.drivers.storage.ceph import CephCommands, parse_json_answer
from outlive.drivers.storage.disks import driver_of
from outlive.node.ports import REACH_S, CutReport, DiskLock

SCHEME: Final = "rbd:"
NAMED: Final = "rbd+"
"""How ids begin whose definition names the monitors."""
AT_ONCE: Final = 4
"""Images that are asked for at the same time."""
BARRIER_S: Final = 15.0
"""How long storage daemons may take to hear of a list."""
TELL_S: Final = 4.0
"""How long they are asked, one after the other."""
ASK_AGAIN_S: Final = 0.3
"""When they are asked again."""
CLOCKS_DIFFER_S: Final = 300.0
"""By how much the monitors' clocks may be ahead of this host's."""
NOTE_BYTES: Final = 60_000
"""The monitors store 64 KiB under one key."""

_log = get_logger("drivers.storage")

NO_IMAGE: Final = "outlive-reach"
"""Is asked for where no image of a pool is known."""

Addresses = Callable[[str], Awaitable[tuple[str, ...]]]
"""All addresses from which clients of a host reach Ceph; ``NotFound`` where they are not all known."""


class RbdLocks:
    """The part of ``StoragePort`` for ``rbd:POOL/IMAGE`` and ``rbd+MONITOR,…:POOL/IMAGE``, in one cluster."""

    def __init__(self, ceph: CephCommands) -> None:
        self._ceph = ceph
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._images: dict[str, str] = {}
        """Place → one of its images, by which is asked whether it is reached."""

    def find_place(self, volume: str) -> str:
        """Its pool."""
        place = volume.rpartition("/")[0]
        self._images[place] = _image_name(volume)
        return place

    async def check_reach(self, place: str) -> str | None:
        """By the header of one of its images, which some storage daemon has to read."""
        pool = _image_name(place)
        why = await self._ceph.check_reach("status", self._images.get(place, f"{pool}/{NO_IMAGE}"), limit_s=REACH_S)
        return f"pool {pool}: {why}" if why else why

    async def list_locks(self, volume: str) -> tuple[DiskLock, ...]:
        """Of one image. ``NotFound``: there is none."""
        async with self._turn:
            try:
                words = ("lock", "ls", _image_name(volume), "--format", "json")
                found = parse_json_answer(await self._ceph.ask_images(*words), words)
            except NotFound as error:
                raise NotFound(
                    f"disk {volume} does not exist: {error.message}", remedy="correct the VM's disks, or create it"
                ) from error
        rows = found if isinstance(found, list) else list((found or {}).values())
        return tuple(
            DiskLock(volume=volume, id=str(row["id"]), locker=str(row["locker"]), address=str(row["address"]))
            for row in rows
        )

    async def release(self, lock: DiskLock) -> None:
        """Remove it and block the one client that had it."""
        try:
            await self._ceph.order_images("lock", "rm", _image_name(lock.volume), lock.id, lock.locker)
        except NotFound:
            return


class BlocklistNote(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is written beside the entries of one host."""

    epoch: int = 0
    addresses: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    """``POOL/IMAGE``, and the whole id of a disk whose definition names the monitors."""


class ClusterMap(NamedTuple):
    """What the monitors say."""

    fsid: str
    epoch: int
    blocked: dict[str, float]
    """Whole addresses, and until when (seconds since 1970)."""
    up: frozenset[int]
    """Storage daemons."""


class RbdCut:
    """The part of ``CutPort`` for the images of one cluster, whose disks are of that ``kind``.

    ``host`` is this very host, ``own`` its address on the storage network.
    """

    def __init__(
        self,
        ceph: CephCommands,
        addresses: Addresses,
        clock: Clock,
        *,
        host: str,
        own: str,
        lasts_s: float,
        kind: str = "rbd",
    ) -> None:
        self._kind = kind
        self._ceph = ceph
        self._addresses = addresses
        self._clock = clock
        self._host = host
        self._own = own
        self._lasts_s = lasts_s
        self._heard: dict[str, float] = {}
        """Entries that every storage daemon has heard of."""

    def select(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """Images of this cluster."""
        kinds = {self._kind: self}
        return tuple(one for one in scope if driver_of(kinds, one.removeprefix("disk:").partition(":")[0]) is self)

    async def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        """Block all addresses of the host."""
        images = tuple(sorted(one.removeprefix("disk:").removeprefix(SCHEME) for one in self.select(scope)))
        if not images:
            raise NotFound(f"{host} is to be isolated from no image of Ceph")
        self._ceph.check_configured()
        addresses = await self._addresses(host)
        before = await self._make_note(host)
        kept = before if before.epoch >= epoch or await self._is_blocked(before) else BlocklistNote()
        note = BlocklistNote(
            epoch=max(kept.epoch, epoch),
            addresses=tuple(sorted({*kept.addresses, *addresses})),
            images=tuple(sorted({*kept.images, *images})),
        )
        if note != before:
            text = msgspec.json.encode(note).decode()
            if len(text) > NOTE_BYTES:
                raise LimitExceeded(f"{host} has too many images to be isolated from them", remedy="fence it by power")
            await self._ceph.run_order("config-key", "set", _note_key(host), text)
        if others := await self._list_lifts(host):
            by = others[0]
            raise Unavailable(
                f"{by} is about to let {host} in again, and its order may still arrive",
                remedy=f"if {by} is off, ceph config-key rm {_lift_key(host, by)}",
            )
        for address in note.addresses:
            await self._ceph.run_order("osd", "blocklist", "add", _blocklist_entry(address), f"{self._lasts_s:g}")

    async def read_back(self, host: str, epoch: int) -> CutReport:
        """The note, as far as all its addresses are on the list."""
        self._ceph.check_configured()
        known = await self._addresses(host)
        note = await self._make_note(host)
        if note.epoch < epoch or not note.images:
            return CutReport()
        seen = await self._read_map()
        addresses = {*note.addresses, *known}
        ends = [seen.blocked.get(_blocklist_entry(address), 0.0) for address in addresses]
        left_s = min(ends) - self._clock.now() - CLOCKS_DIFFER_S
        if left_s <= 0:
            return CutReport()
        blocked = ", ".join(sorted(addresses))
        return CutReport(
            scope=tuple(f"disk:{image if image.startswith(NAMED) else SCHEME + image}" for image in note.images),
            evidence=f"Ceph {seen.fsid} blocks {blocked} as of map {seen.epoch}, through epoch {note.epoch} of {host}",
            expires_in_s=left_s,
        )

    async def wait_isolated(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """Wait for the storage daemons; ``Unavailable`` also where this very host is blocked."""
        mine = self.select(scope)
        if not mine:
            return ()
        seen = await self._read_map()
        if self._own and _blocklist_entry(self._own) in seen.blocked:
            raise Unavailable(
                f"Ceph blocks this host's address {self._own}", remedy="it is let in by the coordinators after a reboot"
            )
        if any(self._heard.get(entry) != until for entry, until in seen.blocked.items()):
            await self._wait_all_current(seen)
            self._heard = seen.blocked
        return mine

    async def lift(self, host: str, epoch: int) -> None:
        """Take the entries away, unless they are of a later epoch."""
        self._ceph.check_configured()
        note = await self._make_note(host)
        if not note.addresses or note.epoch > epoch or not await self._is_blocked(note, any_of_them=True):
            await self._finish_lift(host)
            return
        await self._ceph.run_order("config-key", "set", _lift_key(host, self._host), str(epoch))
        note = await self._make_note(host)
        if note.epoch <= epoch:
            for address in note.addresses:
                await self._ceph.run_order("osd", "blocklist", "rm", _blocklist_entry(address))
        await self._finish_lift(host)

    async def list_hosts(self) -> Mapping[str, int]:
        """Hosts with a note, of which any address is on the list; a note that nobody understands hides no other."""
        self._ceph.check_configured()
        notes = await self._ceph.ask_json("config-key", "dump", _note_key(""))
        if not notes:
            return {}
        blocked = (await self._read_map()).blocked
        found: dict[str, int] = {}
        for key, text in notes.items():
            try:
                note = _read_note(key, str(text))
                if any(_blocklist_entry(address) in blocked for address in note.addresses):
                    found[key.removeprefix(_note_key(""))] = note.epoch
            except OutliveError as error:
                _log.warning("storage.note_not_read", key=key, error=str(error))
        return found

    async def _finish_lift(self, host: str) -> None:
        """No order of this host's to let in is under way: each ends before the next begins."""
        if self._host in await self._list_lifts(host):
            await self._ceph.run_order("config-key", "rm", _lift_key(host, self._host))

    async def _list_lifts(self, host: str) -> list[str]:
        prefix = _lift_key(host, "")
        found = await self._ceph.ask_json("config-key", "dump", prefix)
        return sorted(key.removeprefix(prefix) for key in found or {})

    async def _make_note(self, host: str) -> BlocklistNote:
        try:
            text = await self._ceph.ask("config-key", "get", _note_key(host))
        except NotFound:
            return BlocklistNote()
        return _read_note(_note_key(host), text)

    async def _is_blocked(self, note: BlocklistNote, *, any_of_them: bool = False) -> bool:
        if not note.addresses:
            return False
        blocked = (await self._read_map()).blocked
        there = [_blocklist_entry(address) in blocked for address in note.addresses]
        return any(there) if any_of_them else all(there)

    async def _read_map(self) -> ClusterMap:
        """The map of storage daemons as ``osd dump`` prints it. ``Unavailable`` where it is none."""
        found = await self._ceph.ask_json("osd", "dump")
        try:
            blocked = {
                str(entry): datetime.fromisoformat(until).timestamp()
                for entry, until in found["blocklist"].items()
                if str(entry).endswith(":0/0")
            }
            up = frozenset(int(osd["osd"]) for osd in found["osds"] if osd["up"])
            return ClusterMap(str(found["fsid"]), int(found["epoch"]), blocked, up)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            what = f"Ceph printed a map that is not understood: {error}"
            raise Unavailable(what, remedy="see ceph osd dump") from None

    async def _wait_all_current(self, seen: ClusterMap) -> None:
        """Each storage daemon that is up has that map; one that hangs is waited for until it counts as down."""
        left = seen.up
        try:
            with deadline(BARRIER_S):
                while left := left - await self._find_current(seen.epoch):
                    await self._clock.sleep(ASK_AGAIN_S)
                    left &= (await self._read_map()).up
        except TimeoutError:
            names = ", ".join(f"osd.{one}" for one in sorted(left)[:3])
            raise Unavailable(
                f"{names} of Ceph may not have heard yet whom it must shut out", remedy="see ceph osd tree"
            ) from None

    async def _find_current(self, epoch: int) -> set[int]:
        """Storage daemons that say that they have this map."""
        heard: set[int] = set()
        for line in (
            await self._ceph.read_output("tell", "osd.*", "status", "--format", "json", limit_s=TELL_S)
        ).splitlines():
            start = line.find("{")  # before it stands whose answer it is, where there are several
            status = parse_json_answer(line[start:], ("tell", "osd.*")) if start >= 0 else None
            if isinstance(status, dict) and isinstance(status.get("newest_map"), int) and status["newest_map"] >= epoch:
                heard.add(int(status["whoami"]))
        return heard


def _read_note(key: str, text: str) -> BlocklistNote:
    try:
        return msgspec.json.decode(text.strip(), type=BlocklistNote)
    except msgspec.DecodeError:
        raise Unavailable(f"{key} of Ceph holds no note of ours", remedy=f"ceph config-key rm {key}") from None


def _blocklist_entry(address: str) -> str:
    """A whole address, as the list spells it."""
    try:
        found = ip_address(address.strip("[]"))
    except ValueError:
        raise NotFound(f"{address!r} is no address of a client of Ceph", remedy="see host.addresses") from None
    return f"[{found.compressed}]:0/0" if found.version == 6 else f"{found}:0/0"


def _image_name(volume: str) -> str:
    return volume.partition(":")[2]


def _note_key(host: str) -> str:
    return f"outlive/cut/{host}"


def _lift_key(host: str, by: str) -> str:
    return f"outlive/lift/{host}/{by}"
