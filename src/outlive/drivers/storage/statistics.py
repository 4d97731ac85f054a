"""Statistics of a Ceph cluster: what it answers, read and merged into one report.

Nothing of one source is taken for the other: a storage daemon is reported once the map of daemons (``osd dump``), their
space (``osd df``) and their activity (``osd status``) all name it, a pool once ``ceph df`` and ``rados df`` do, which
list pools in different orders. What is missing in this round is left out of it. All sizes are bytes.

Tried with Ceph 16.2; the table of ``osd status`` is read with the borders that it had up to Ceph 14 as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from outlive.base import OutliveError, Unavailable
from outlive.drivers.commands import run
from outlive.drivers.storage.ceph import OUTPUT_BYTES, CephCommands, last_line
from outlive.drivers.storage.settings import StorageSettings
from outlive.node.ports import StorageReport
from outlive.resources import (
    CHECKS_LIMIT,
    CODE_CHARACTERS,
    SUMMARY_CHARACTERS,
    TEXT_CHARACTERS,
    StorageActivity,
    StorageCheck,
    StorageClusterStatus,
    StorageDaemonStatus,
    StorageDevice,
    StorageHealth,
    StoragePoolStatus,
    StorageVolume,
)

HEALTH, DUMP, SPACE, DAEMON_SPACE = "health", "osd dump", "df", "osd df"
"""Asked for as JSON."""
RADOS: Final = "rados df"
"""The same, of another program."""
TEXT: Final = " (text)"
STATUS, SPACE_TEXT, DAEMON_STATUS = "status (text)", "df (text)", "osd status (text)"
"""Asked for as people read them."""
DAEMONS_LIMIT: Final = 20_000
"""Storage daemons, and pools, that are reported."""
AT_ONCE: Final = 2
"""Questions: each program takes a quarter of a second of a processor before it asks anything."""
KIB: Final = 1024
_HEALTHS: Final[Mapping[str, StorageHealth]] = {"HEALTH_OK": "ok", "HEALTH_WARN": "warn", "HEALTH_ERR": "error"}
_WORST_FIRST: Final[Sequence[StorageHealth]] = ("error", "warn", "unknown", "ok")
_NO_NUMBER: Final = re.compile(r"(?<=[:\[,])\s*-?(?:nan|inf)(?=[,\]}])")
"""What Ceph writes for the share of nothing, though JSON has no such numbers."""
_AMOUNT: Final = re.compile(r"(\d+(?:\.\d*)?)([kMGTPE]?)")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_COLUMNS: Final = 9
"""Of the table of ``osd status``; a daemon that never ran has no host there."""

T = TypeVar("T")


# What Ceph prints, as far as it is read


class CheckSummary(msgspec.Struct, frozen=True):
    """Of a health check."""

    message: str = ""


class Check(msgspec.Struct, frozen=True):
    """One health check."""

    severity: str = ""
    summary: CheckSummary = CheckSummary()
    muted: bool = False


class Health(msgspec.Struct, frozen=True):
    """``ceph health``."""

    status: str = ""
    checks: dict[str, Check] = {}


class TotalStats(msgspec.Struct, frozen=True):
    """Of ``ceph df``: the whole cluster."""

    total_bytes: int = 0
    total_avail_bytes: int = 0
    total_used_raw_bytes: int = 0


class PoolStats(msgspec.Struct, frozen=True):
    """Of ``ceph df``: one pool."""

    stored: int = 0
    bytes_used: int = 0
    percent_used: float = 0.0
    max_avail: int = 0


class Pool(msgspec.Struct, frozen=True):
    """Of ``ceph df``."""

    name: str
    id: int = 0
    stats: PoolStats = PoolStats()


class Space(msgspec.Struct, frozen=True):
    """``ceph df``."""

    stats: TotalStats = TotalStats()
    pools: tuple[Pool, ...] = ()


class RadosPool(msgspec.Struct, frozen=True):
    """Of ``rados df``; some versions write numbers as text."""

    name: str
    num_objects: int = 0
    num_object_clones: int = 0
    num_object_copies: int = 0
    num_objects_missing_on_primary: int = 0
    num_objects_unfound: int = 0
    num_objects_degraded: int = 0
    read_ops: int = 0
    read_bytes: int = 0
    write_ops: int = 0
    write_bytes: int = 0


class Rados(msgspec.Struct, frozen=True):
    """``rados df``."""

    pools: tuple[RadosPool, ...] = ()


class MapEntry(msgspec.Struct, frozen=True):
    """Of ``osd dump``."""

    osd: int
    uuid: str = ""
    up: int = 0
    in_: int = msgspec.field(name="in", default=0)
    primary_affinity: float = 1.0


class Dump(msgspec.Struct, frozen=True):
    """``osd dump``: the map of storage daemons."""

    fsid: str = ""
    osds: tuple[MapEntry, ...] = ()


class SpaceEntry(msgspec.Struct, frozen=True):
    """Of ``osd df``. Sizes in KiB."""

    id: int
    device_class: str = ""
    crush_weight: float = 0.0
    reweight: float = 0.0
    kb: int = 0
    kb_used: int = 0
    kb_used_data: int = 0
    kb_used_omap: int = 0
    kb_used_meta: int = 0
    kb_avail: int = 0
    utilization: float = 0.0
    var: float = 0.0
    pgs: int = 0


class DaemonSpace(msgspec.Struct, frozen=True):
    """``osd df``."""

    nodes: tuple[SpaceEntry, ...] = ()
    stray: tuple[SpaceEntry, ...] = ()


class LogicalVolume(msgspec.Struct, frozen=True):
    """Of ``ceph-volume lvm list``."""

    type: str = ""
    lv_path: str = ""
    lv_name: str = ""
    vg_name: str = ""
    devices: tuple[str, ...] = ()
    tags: dict[str, Any] = {}


# Reading and merging


def read_json(text: str, kind: type[T]) -> T:
    """``Unavailable`` where it is not what Ceph prints."""
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(text, type=kind, strict=False)
    try:
        return msgspec.json.decode(_NO_NUMBER.sub("0", text), type=kind, strict=False)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"Ceph answered with something else than expected: {error}") from None


def health_of(health: Health) -> tuple[StorageHealth, tuple[StorageCheck, ...]]:
    """How the cluster does, and why, the worst first."""
    checks = [
        StorageCheck(
            code=code[:CODE_CHARACTERS],
            severity=_HEALTHS.get(check.severity, "unknown"),
            summary=check.summary.message[:SUMMARY_CHARACTERS],
            muted=check.muted,
        )
        for code, check in sorted(health.checks.items())
    ]
    checks.sort(key=lambda one: (one.muted, _WORST_FIRST.index(one.severity)))
    return _HEALTHS.get(health.status, "unknown"), tuple(checks[:CHECKS_LIMIT])


def parse_amount(text: str, factor: int) -> int:
    """A number of the table, such as ``2489M``: rounded by Ceph. ``ValueError``."""
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise ValueError(text)
    power: int = factor ** " kMGTPE".index(match[2] or " ")
    return round(float(match[1]) * power)


def read_activity(text: str) -> dict[str, StorageActivity]:
    """The rows of ``osd status`` by id, with borders or without; what looks like no row is none."""
    found: dict[str, StorageActivity] = {}
    for line in _COLOUR.sub("", text).splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")] if line.startswith("|") else line.split()
        if len(cells) == _COLUMNS - 1 and not line.startswith("|"):
            cells.insert(1, "")
        if len(cells) != _COLUMNS or not cells[0].isdigit():
            continue
        number, host, used, available, write_ops, write_bytes, read_ops, read_bytes, state = cells
        try:
            found[number] = StorageActivity(
                host=host.partition(".")[0],
                used_bytes=parse_amount(used, KIB),
                available_bytes=parse_amount(available, KIB),
                write_ops=parse_amount(write_ops, 1000),
                write_bytes=parse_amount(write_bytes, KIB),
                read_ops=parse_amount(read_ops, 1000),
                read_bytes=parse_amount(read_bytes, KIB),
                state=state,
            )
        except ValueError:
            continue
    return found


def merge_daemons(
    cluster: str, dump: Dump, space: DaemonSpace, activity: Mapping[str, StorageActivity]
) -> dict[str, StorageDaemonStatus]:
    """Those that all three name."""
    spaces = {one.id: one for one in (*space.stray, *space.nodes)}
    merged: dict[str, StorageDaemonStatus] = {}
    for entry in dump.osds[:DAEMONS_LIMIT]:
        found, active = spaces.get(entry.osd), activity.get(str(entry.osd))
        if found is None or active is None:
            continue
        merged[str(entry.osd)] = StorageDaemonStatus(
            cluster=cluster,
            uuid=entry.uuid,
            up=bool(entry.up),
            in_=bool(entry.in_),
            primary_affinity=entry.primary_affinity,
            device_class=found.device_class,
            weight=round(found.crush_weight, 5),
            reweight=round(found.reweight, 5),
            utilization=round(found.utilization, 2),
            variance=round(found.var, 2),
            placement_groups=found.pgs,
            size_bytes=found.kb * KIB,
            used_bytes=found.kb_used * KIB,
            data_bytes=found.kb_used_data * KIB,
            omap_bytes=found.kb_used_omap * KIB,
            meta_bytes=found.kb_used_meta * KIB,
            available_bytes=found.kb_avail * KIB,
            activity=active,
        )
    return merged


def merge_pools(cluster: str, space: Space, rados: Rados) -> dict[str, StoragePoolStatus]:
    """Those that both name."""
    used = {pool.name: pool for pool in rados.pools}
    return {
        pool.name: StoragePoolStatus(
            cluster=cluster,
            pool=pool.name,
            id=pool.id,
            stored_bytes=pool.stats.stored,
            used_bytes=pool.stats.bytes_used,
            free_bytes=pool.stats.max_avail,
            used_percent=round(100.0 * pool.stats.percent_used, 2),
            objects=found.num_objects,
            object_clones=found.num_object_clones,
            object_copies=found.num_object_copies,
            objects_missing_on_primary=found.num_objects_missing_on_primary,
            objects_unfound=found.num_objects_unfound,
            objects_degraded=found.num_objects_degraded,
            read_ops=found.read_ops,
            read_bytes=found.read_bytes,
            write_ops=found.write_ops,
            write_bytes=found.write_bytes,
        )
        for pool in space.pools[:DAEMONS_LIMIT]
        if (found := used.get(pool.name)) is not None
    }


def read_dump(answers: Mapping[str, str]) -> Dump | None:
    """The map of storage daemons, where it was answered."""
    try:
        return read_json(answers[DUMP], Dump) if DUMP in answers else None
    except Unavailable:
        return None


def merge(
    cluster: str, answers: Mapping[str, str], pools: Sequence[str] = (), dump: Dump | None = None
) -> StorageReport:
    """The report of one round, from the answers by question.

    ``pools``: those that are reported; none: all. ``dump``: where its answer has been decoded already.
    """
    missing: list[str] = []

    def read(question: str, kind: type[T]) -> T | None:
        if question in answers:
            with contextlib.suppress(Unavailable):
                return read_json(answers[question], kind)
        missing.append(question)
        return None

    def answer_to(question: str) -> str:
        if question not in answers:
            missing.append(question)
        return answers.get(question, "").strip("\n")

    health, space, rados = read(HEALTH, Health), read(SPACE, Space), read(RADOS, Rados)
    dump = dump if dump is not None else read(DUMP, Dump)
    if space is not None and pools:
        space = msgspec.structs.replace(space, pools=tuple(one for one in space.pools if one.name in pools))
    daemons: dict[str, StorageDaemonStatus] = {}
    if dump is None or dump.osds:
        found, activity = read(DAEMON_SPACE, DaemonSpace), read_activity(answer_to(DAEMON_STATUS))
        if dump is not None and found is not None:
            daemons = merge_daemons(cluster, dump, found, activity)
    grade, checks = health_of(health or Health())
    entries, stats = dump.osds if dump is not None else (), space.stats if space is not None else TotalStats()
    share = 100.0 * stats.total_used_raw_bytes / stats.total_bytes if stats.total_bytes else 0.0
    status = StorageClusterStatus(
        id=dump.fsid if dump is not None else "",
        health=grade,
        checks=checks,
        text=answer_to(STATUS)[:TEXT_CHARACTERS],
        utilization=answer_to(SPACE_TEXT)[:TEXT_CHARACTERS],
        total_bytes=stats.total_bytes,
        used_bytes=stats.total_used_raw_bytes,
        free_bytes=stats.total_avail_bytes,
        used_percent=round(share, 2),
        daemons=len(entries),
        daemons_up=sum(bool(one.up) for one in entries),
        daemons_in=sum(bool(one.in_) for one in entries),
        pools=len(space.pools) if space is not None else 0,
        missing=tuple(sorted(missing)),
    )
    return StorageReport(
        cluster=status,
        daemons=daemons,
        pools=merge_pools(cluster, space, rados) if space is not None and rados is not None else {},
        all_daemons=frozenset(str(one.osd) for one in entries) if dump is not None else None,
        all_pools=frozenset(one.name for one in space.pools) if space is not None else None,
        out=frozenset(str(one.osd) for one in entries if not one.in_),
    )


def read_volumes(text: str) -> dict[str, StorageDevice]:
    """What ``ceph-volume lvm list`` says, by id."""
    found: dict[str, StorageDevice] = {}
    for number, volumes in read_json(text, dict[str, tuple[LogicalVolume, ...]]).items():
        tags: Mapping[str, Any] = volumes[0].tags if volumes else {}
        devices = [device for one in volumes if one.type == "block" for device in one.devices]
        found[number] = StorageDevice(
            daemon_id=str(tags.get("ceph.osd_fsid", "")),
            cluster_id=str(tags.get("ceph.cluster_fsid", "")),
            block_device=devices[0] if devices else "",
            volumes=tuple(
                StorageVolume(
                    use=one.type, path=one.lv_path, group=one.vg_name, name=one.lv_name, devices=tuple(one.devices)
                )
                for one in sorted(volumes, key=lambda one: one.type)
            ),
        )
    return found


class CephStatistics:
    """See ``StorageStatisticsPort``."""

    def __init__(self, settings: StorageSettings) -> None:
        self._settings = settings
        self._ceph = CephCommands(settings)
        self._limit_s = float(settings.statistics_limit)

    def find_cluster(self) -> str:
        """Its name, where this host has a configuration of Ceph."""
        return self._settings.cluster if Path(self._settings.ceph_conf).exists() else ""

    async def collect(self) -> StorageReport:
        """Each question is a process of its own, so that one that hangs costs no other answer, and two run at once.

        A cluster that answers neither of the first two is not asked the others; nor is one without storage daemons
        asked about those, which it would not answer. Answers are decoded in a thread: each may have ``OUTPUT_BYTES``.
        """
        answers, failures = await self._ask_all(HEALTH, DUMP)
        if not answers:
            raise failures[0]
        questions = [SPACE, RADOS, STATUS, SPACE_TEXT]
        dump = await asyncio.to_thread(read_dump, answers)
        if dump is not None and dump.osds:
            questions += [DAEMON_SPACE, DAEMON_STATUS]
        for first in range(0, len(questions), AT_ONCE):
            more, _ = await self._ask_all(*questions[first : first + AT_ONCE])
            answers |= more
        return await asyncio.to_thread(merge, self._settings.cluster, answers, self._settings.pools, dump)

    async def list_devices(self) -> Mapping[str, StorageDevice]:
        """By ``ceph-volume``; a host without it has no storage daemons."""
        program = self._settings.volume_program
        if shutil.which(program) is None:
            return {}
        ended = await run(
            [program, "lvm", "list", "--format", "json"],
            limit_s=float(self._settings.command_limit),
            env={"CEPH_CONF": self._settings.ceph_conf},
            output_bytes=OUTPUT_BYTES,
        )
        if ended.code != 0:
            why = "no answer in time" if ended.killed else last_line(ended.err) or f"exit code {ended.code}"
            raise Unavailable(f"{program} does not list the volumes of this host: {why}", remedy="run it by hand")
        return await asyncio.to_thread(read_volumes, ended.out)

    async def _ask_all(self, *questions: str) -> tuple[dict[str, str], list[OutliveError]]:
        """The answers by question, and why others did not come."""
        answers: dict[str, str] = {}
        failures: list[OutliveError] = []

        async def ask(question: str) -> None:
            try:
                answers[question] = await self._ask(question)
            except OutliveError as error:
                failures.append(error)

        await asyncio.gather(*(ask(question) for question in questions))
        return answers, failures

    async def _ask(self, question: str) -> str:
        as_text = question.endswith(TEXT)
        words = (*question.removesuffix(TEXT).split(), "--format", "plain" if as_text else "json")
        if question == RADOS:
            return await self._ceph.ask_pools(*words[1:], limit_s=self._limit_s)
        return await self._ceph.ask(*words, limit_s=self._limit_s)
