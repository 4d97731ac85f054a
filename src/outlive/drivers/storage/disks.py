"""All disks of a host, each by the driver of its kind: ``rbd:POOL/IMAGE``, ``rbd+MONITOR,…:POOL/IMAGE``,
``file:/PATH``, ``block:/dev/…``, ``drbd:RESOURCE``. Each Ceph cluster is a kind of its own: a disk in one that this
host does not know has no driver, so nothing is proven of it and nothing starts with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_interface
from typing import Final, Protocol, TypeVar

from outlive.base import NotFound, OutliveError, Unavailable, get_logger
from outlive.node.ports import PLACES_LIMIT, CutPort, CutReport, DiskLock
from outlive.resources import Hypervisor, image_key
from outlive.store import Store, list_all

AT_ONCE: Final = 8
"""Disks of one VM that are asked for at the same time."""

T = TypeVar("T")

_log = get_logger("drivers.storage")


class Locks(Protocol):
    """The part of ``StoragePort`` for disks of one kind."""

    async def list_locks(self, volume: str) -> tuple[DiskLock, ...]:
        """Of one disk. ``NotFound``: there is no such disk."""
        ...

    async def release(self, lock: DiskLock) -> None:
        """As ``StoragePort``."""
        ...

    def find_place(self, volume: str) -> str:
        """As ``StoragePort``."""
        ...

    async def check_reach(self, place: str) -> str | None:
        """Why this host does not reach it; empty: it does; ``None``: nobody can say."""
        ...


def driver_of(kinds: Mapping[str, T], kind: str) -> T | None:
    """That of a kind; a definition may name some of the monitors of its cluster."""
    head, _, monitors = kind.partition("+")
    if not monitors:
        return kinds.get(kind)
    wanted = set(monitors.split(","))
    for known, found in kinds.items():
        its_head, _, its_monitors = known.partition("+")
        if its_head == head and wanted <= set(its_monitors.split(",")):
            return found
    return None


def is_option(volume: str) -> bool:
    """True if a storage program would parse the name as an option; users of the API choose the names of disks."""
    return volume.partition(":")[2].startswith("-")


class Unlocked:
    """What has no locks: firmware files and devices of the host (``outlive.resources.definitions``)."""

    async def list_locks(self, volume: str) -> tuple[DiskLock, ...]:
        """None."""
        return ()

    async def release(self, lock: DiskLock) -> None:
        """There is none."""

    def find_place(self, volume: str) -> str:
        """Nowhere that is known."""
        return ""

    async def check_reach(self, place: str) -> str | None:
        """Nobody can say."""
        return None


class Disks:
    """``StoragePort`` by the kind of each disk. ``address``: this host's own on the storage network. ``clusters``:
    kinds of images of Ceph, and the cluster of each."""

    def __init__(self, address: str, kinds: Mapping[str, Locks], clusters: Mapping[str, str]) -> None:
        self._address = address
        self._kinds = kinds
        self._clusters = clusters

    def own_address(self) -> str:
        """Of this host."""
        return self._address

    def are_same(self, one: str, other: str) -> bool:
        """An image in a cluster that this host does not know may be that of the same name in any other cluster."""
        if one == other or image_key(one) != image_key(other):
            return one == other
        first, second = (driver_of(self._clusters, disk.partition(":")[0]) for disk in (one, other))
        return first is None or second is None or first == second

    async def list_locks(self, volumes: tuple[str, ...]) -> tuple[DiskLock, ...]:
        """Of all of them, in their order."""
        turn = asyncio.Semaphore(AT_ONCE)

        async def list_volume(volume: str) -> tuple[DiskLock, ...]:
            async with turn:
                return await self._require_driver(volume).list_locks(volume)

        answers = await asyncio.gather(*(list_volume(one) for one in volumes), return_exceptions=True)
        found: list[DiskLock] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            found.extend(answer)
        return tuple(found)

    def find_place(self, volume: str) -> str:
        """By the driver of its kind; nowhere where this host has none."""
        driver = self._find_driver(volume)
        return driver.find_place(volume) if driver is not None else ""

    async def check_reach(self, places: tuple[str, ...]) -> dict[str, str]:
        """Of all of them at once; what cannot be asked now is left out."""
        asked = [(place, driver) for place in places[:PLACES_LIMIT] if (driver := self._find_driver(place)) is not None]
        questions = (driver.check_reach(place) for place, driver in asked)
        answers = await asyncio.gather(*questions, return_exceptions=True)
        found: dict[str, str] = {}
        for (place, _), answer in zip(asked, answers, strict=True):
            if isinstance(answer, OutliveError):
                _log.warning("storage.reach_unknown", place=place, error=str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            elif answer is not None:
                found[place] = answer
        return found

    def _find_driver(self, name: str) -> Locks | None:
        """The driver of the kind of a disk or a place; ``None`` where this host has none."""
        return None if is_option(name) else driver_of(self._kinds, name.partition(":")[0])

    async def release(self, lock: DiskLock) -> None:
        """By the driver of its disk."""
        await self._require_driver(lock.volume).release(lock)

    def _require_driver(self, volume: str) -> Locks:
        kind = volume.partition(":")[0]
        if is_option(volume):
            raise Unavailable(f"{volume!r} would be an option of a program", remedy="correct the VM's disks")
        found = driver_of(self._kinds, kind)
        if found is None and "+" in kind:
            monitors = kind.partition("+")[2].replace(",", ", ")
            raise Unavailable(
                f"disk {volume} lies in a Ceph cluster that this host does not know: its monitors are {monitors}",
                remedy="name them in storage.cephMonitors or storage.clusters of node.yaml, or leave <host> out",
            )
        if found is None:
            raise Unavailable(
                f"nobody here knows the locks on disk {volume!r}",
                remedy=f"disks of hosts with a daemon are named {', '.join(f'{one}:…' for one in self._kinds)}",
            )
        return found


class Cuts:
    """``CutPort`` by all who can shut a host out of something; each takes its own part."""

    def __init__(self, parts: Mapping[str, CutPort]) -> None:
        self._parts = dict(parts)

    def add(self, kind: str, part: CutPort) -> None:
        """One more part, for disks of that kind, or for ``port``."""
        self._parts[kind] = part

    def select(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """As the parts say together."""
        found = {one for part in self._parts.values() for one in part.select(scope)}
        return tuple(one for one in scope if one in found)

    async def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        """By each of them; one that fails spoils no other: what was shut out is read back. Where all fail, the first
        error."""
        meant = tuple(one for one in scope if not is_option(one.removeprefix("disk:")))
        await self._call_all(
            lambda part: part.cut(host, epoch, meant), self._find_parts(meant), host, some_will_do=True
        )

    async def read_back(self, host: str, epoch: int) -> CutReport:
        """What all parts that answer say, asked at once; the first error where none does. One that does not answer is
        none that says that nothing is shut out."""
        parts = self._parts.values()
        answers = await asyncio.gather(*(part.read_back(host, epoch) for part in parts), return_exceptions=True)
        reports = [one for one in answers if isinstance(one, CutReport)]
        errors = [one for one in answers if isinstance(one, BaseException)]
        failed = [one for one in errors if not isinstance(one, NotFound)]
        broken = [one for one in failed if not isinstance(one, OutliveError)]
        if broken or (failed and not reports):
            raise (broken or failed)[0]
        for why in failed:
            _log.warning("storage.part_not_asked", error=str(why))
        if not reports:
            raise errors[0] if errors else NotFound(f"nobody can shut {host} out of its disks or networks")
        ends = [one.expires_in_s for one in reports if one.scope and one.expires_in_s is not None]
        return CutReport(
            scope=tuple(sorted({one for report in reports for one in report.scope})),
            evidence="; ".join(one.evidence for one in reports if one.evidence),
            unanswered=str(failed[0]) if failed else "",
            expires_in_s=min(ends, default=None),
        )

    async def wait_isolated(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """Of those that shut anybody out of something in it."""
        found: list[str] = []
        for part in self._find_parts(scope):
            found.extend(await part.wait_isolated(scope))
        return tuple(found)

    async def lift(self, host: str, epoch: int) -> None:
        """By each of them."""
        await self._call_all(lambda part: part.lift(host, epoch), list(self._parts.values()), host)

    async def list_hosts(self) -> Mapping[str, int]:
        """Of each of them that answers: another one hides none of these. ``Unavailable`` where none does."""
        found: dict[str, int] = {}
        parts = list(self._parts.values())
        for part in await self._call_all(lambda part: part.list_hosts(), parts, "any host", some_will_do=True):
            for host, through in part.items():
                found[host] = min(through, found.get(host, through))
        return found

    def _find_parts(self, scope: tuple[str, ...]) -> list[CutPort]:
        volumes = [one.removeprefix("disk:") for one in scope if one.startswith("disk:")]
        kinds = {one.partition(":")[0] for one in volumes if not is_option(one)}
        kinds |= {"port"} if any(one.startswith("port:") for one in scope) else set()
        wanted = [part for kind in sorted(kinds) if (part := driver_of(self._parts, kind)) is not None]
        return [part for part in self._parts.values() if part in wanted]

    async def _call_all(
        self, call: Callable[[CutPort], Awaitable[T]], parts: list[CutPort], host: str, *, some_will_do: bool = False
    ) -> list[T]:
        answers: list[T] = []
        missing: list[NotFound] = []
        failed: list[OutliveError] = []
        for part in parts:
            try:
                answers.append(await call(part))
            except NotFound as error:
                missing.append(error)
            except OutliveError as error:
                failed.append(error)
        if failed and not (some_will_do and answers):
            raise failed[0]
        for why in failed:
            _log.warning("storage.part_not_asked", error=str(why))
        if not answers:
            raise missing[0] if missing else NotFound(f"nobody can shut {host} out of its disks or networks")
        return answers


class StorageAddresses:
    """All addresses from which a host's clients may reach storage, as the host's own record says."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def __call__(self, host: str) -> tuple[str, ...]:
        """``NotFound`` where it says none, or one that another host says as well: that one would be shut out too."""
        of: dict[str, set[str]] = {}
        async for one in list_all(self._store, Hypervisor):
            published = [one.status.storage_address, *one.status.addresses.values()]
            of[one.name] = {_strip_prefix(address) for address in published if address}
        mine = of.get(host, set())
        if not mine:
            raise NotFound(
                f"the address of {host} on the storage network is not known",
                remedy="set host.addresses in its node.yaml",
            )
        for other, addresses in of.items():
            if other != host and (both := sorted(mine & addresses)):
                raise NotFound(
                    f"{both[0]} is an address of {host} and of {other}", remedy="correct host.addresses in node.yaml"
                )
        return tuple(sorted(mine))


def _strip_prefix(address: str) -> str:
    try:
        return str(ip_interface(address).ip)
    except ValueError:
        return address
