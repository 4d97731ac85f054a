"""Statistics of the storage cluster: a duty of the primary coordinator, and what each host says of its own devices.

The primary asks the cluster every interval, also for storage daemons of hosts that are down, and writes what has
changed under its term; the server refuses every other coordinator, and every other term. Asking never delays the
renewal of a membership: the port asks in child processes, and this is no part of the renewing loop
(docs/how-to/storage.md#statistics).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from outlive.base import (
    AlreadyExists,
    Clock,
    Conflict,
    Forbidden,
    NotFound,
    OutliveError,
    Unavailable,
    Unknown,
    as_datetime,
    as_instant,
    get_logger,
)
from outlive.node.ports import StorageReport, StorageStatisticsPort
from outlive.node.primary_elector import ROLE
from outlive.resources import (
    Election,
    ObjectMeta,
    ObjectRef,
    Resource,
    StorageCluster,
    StorageDaemon,
    StorageDevice,
    StorageHealth,
    StoragePool,
    object_name,
)
from outlive.resources.reasons import FaultCode, Value
from outlive.runtime import ActiveFault, Crashes, FaultRecorder, Periodic, log_errors
from outlive.store import LIST_S, Store, compare_and_swap, list_all, read, require_answer, swap

HEALTHS: Final[tuple[StorageHealth, ...]] = ("ok", "warn", "error", "unknown")
"""As their places here, in metrics."""
REFRESH_S: Final = 60.0
"""A cluster in which nothing changes is written so often, to say when it was sampled."""
STALE_ROUNDS: Final = 3
"""Rounds in a row that may fail before there is a fault."""
WRITES_PER_S: Final = 10
"""Writes of one round for each second of its interval; renewals of memberships use the same store."""
UNANSWERED_LIMIT: Final = 3
"""Writes of one round that the store may leave unanswered; then the round ends."""
OUT_LIMIT: Final = 20
"""Daemons that are out and have a fault each; where there are more, the cluster has one for all of them."""
NAMED_LIMIT: Final = 5
"""Daemons that this one names."""
DEVICES_RETRY_S: Final = 3600.0
"""The longest pause before a host is asked again on which devices its daemons keep their data."""
GAUGES_S: Final = 10.0
"""Metrics are read from the store at most so often, however often they are asked for."""

_log = get_logger("node.storage")


class Known(NamedTuple):
    """What the store has, by name."""

    clusters: Mapping[str, StorageCluster]
    daemons: Mapping[str, StorageDaemon]
    pools: Mapping[str, StoragePool]


def wanted_objects(name: str, report: StorageReport, term: int, known: Known, now: float) -> list[Resource]:
    """What is to be written: objects that differ from those that are known, apart from the term.

    ``now``: seconds since 1970.
    """
    wanted: list[Resource] = []
    status = msgspec.structs.replace(report.cluster, sampled_at=as_datetime(now))
    cluster = known.clusters.get(name)
    sampled = cluster.status.sampled_at if cluster is not None else None
    is_old = abs(now - (as_instant(sampled) if sampled is not None else 0.0)) >= REFRESH_S
    if cluster is None or is_old or msgspec.structs.replace(status, sampled_at=sampled) != cluster.status:
        wanted.append(StorageCluster(metadata=_metadata_of(cluster, name), term=term, status=status))
    for number, figures in report.daemons.items():
        daemon = known.daemons.get(number)
        if daemon is None or daemon.status != figures:
            device = daemon.device if daemon is not None else None
            wanted.append(
                StorageDaemon(metadata=_metadata_of(daemon, number), term=term, status=figures, device=device)
            )
    for own_name, used in report.pools.items():
        pool = known.pools.get(object_name(own_name))
        if pool is None or pool.status != used:
            wanted.append(StoragePool(metadata=_metadata_of(pool, object_name(own_name)), term=term, status=used))
    return wanted


def find_gone_objects(name: str, report: StorageReport, known: Known) -> list[Resource]:
    """Objects of daemons and pools that the cluster does not have any more."""
    gone: list[Resource] = []
    if report.all_daemons is not None:
        of_it = [one for one in known.daemons.values() if one.status is None or one.status.cluster == name]
        gone += [one for one in of_it if one.name not in report.all_daemons]
    if report.all_pools is not None:
        names = {object_name(one) for one in report.all_pools}
        gone += [one for one in known.pools.values() if one.status.cluster == name and one.name not in names]
    return gone


def faults_of(name: str, report: StorageReport) -> list[ActiveFault]:
    """Daemons that are out, and what the cluster itself says is wrong."""
    numbers = sorted(report.out, key=lambda one: (len(one), one))
    found = [
        ActiveFault(FaultCode.STORAGE_DAEMON_OUT, ObjectRef(kind="StorageDaemon", name=number), {"cluster": name})
        for number in (numbers if len(numbers) <= OUT_LIMIT else ())
    ]
    if len(numbers) > OUT_LIMIT:
        fields: dict[str, Value] = {"count": len(numbers), "first": ", ".join(numbers[:NAMED_LIMIT])}
        found.append(ActiveFault(FaultCode.STORAGE_DAEMONS_OUT, cluster_ref(name), fields))
    codes = {"warn": FaultCode.STORAGE_WARN, "error": FaultCode.STORAGE_ERROR}
    if (code := codes.get(report.cluster.health)) is not None:
        why = "; ".join(check.summary or check.code for check in report.cluster.checks if not check.muted)
        found.append(ActiveFault(code, cluster_ref(name), {"why": why or "it does not say why"}))
    return found


def cluster_ref(name: str) -> ObjectRef:
    """The cluster, as a fault names it."""
    return ObjectRef(kind="StorageCluster", name=name)


PART: Final = "its statistics of the storage"
"""What crashes, as the fault of its host names it."""


class StorageStatistics:
    """The duty; see ``Duty``. ``faults``: of the reporter ``primary``."""

    name = "storage-statistics"

    def __init__(
        self,
        store: Store,
        port: StorageStatisticsPort,
        *,
        host: str,
        interval_s: float,
        faults: FaultRecorder,
        clock: Clock,
        crashes: Crashes | None = None,
    ) -> None:
        self._crashes = crashes or Crashes(clock)
        self._store = store
        self._port = port
        self._host = host
        self._interval_s = interval_s
        self._faults = faults
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._failed = 0
        """Rounds in a row that brought not everything."""
        self._written: dict[tuple[str, str], float] = {}
        """When this process wrote an object, or tried to, by kind and name (monotonic)."""

    async def start(self, term: int) -> None:
        """Begin to collect; nothing is waited for."""
        await self.stop()
        self._failed = 0
        self._faults.forget()
        self._task = asyncio.create_task(self._run(term), name="storage statistics")

    async def stop(self) -> None:
        """End, together with questions that wait for an answer. Faults stay: the next primary ends them."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _run(self, term: int) -> None:
        me = ObjectRef(kind="Hypervisor", name=self._host)

        async def act() -> None:
            await self._round(term)
            self._crashes.record_success(me, PART)

        await Periodic(
            act,
            self._interval_s,
            clock=self._clock,
            failed=log_errors(_log, "storage.not_published", host=self._host),
            errors=(OutliveError, TimeoutError),
            crashed=partial(self._crashes.record_crash, me, PART),  # the other duties go on
        ).run()

    async def _round(self, term: int) -> None:
        name, report, why = self._port.find_cluster(), None, ""
        try:
            report = await self._port.collect()
        except OutliveError as error:
            why = error.message
        if report is not None and report.cluster.missing:
            why = f"it did not answer {', '.join(report.cluster.missing)}"
        self._failed = self._failed + 1 if why else 0
        if why:
            _log.warning("storage.not_collected", host=self._host, cluster=name, why=why, rounds=self._failed)
        if not await self._is_primary(term):
            return
        active = faults_of(name, report) if report is not None else []
        if self._failed >= STALE_ROUNDS:
            active.append(ActiveFault(FaultCode.STORAGE_UNKNOWN, cluster_ref(name), {"why": why}))
        undetermined = set()  # this round says nothing of them
        if report is None or report.all_daemons is None:
            undetermined |= {FaultCode.STORAGE_DAEMON_OUT, FaultCode.STORAGE_DAEMONS_OUT}
        if report is None or report.cluster.health == "unknown":
            undetermined |= {FaultCode.STORAGE_WARN, FaultCode.STORAGE_ERROR}
        await self._faults.record(active, undetermined=undetermined)
        if report is not None:
            with require_answer("storage", max(self._interval_s, LIST_S)):
                await self._publish(name, report, term)

    async def _is_primary(self, term: int) -> bool:
        """Whether the store says so; it refuses what anybody else writes, this only spares the tries."""
        election = await read(self._store, Election, ROLE)
        return election is not None and (election.record.holder, election.record.term) == (self._host, term)

    async def _publish(self, name: str, report: StorageReport, term: int) -> None:
        """Write what has changed: the cluster first, then what this process wrote longest ago. What is beyond the limit
        of a round, and an object that somebody else changes meanwhile, waits for the next one."""
        known = await _read_known(self._store)
        wanted = wanted_objects(name, report, term, known, self._clock.now())
        wanted.sort(key=lambda one: (not isinstance(one, StorageCluster), self._written.get(_key_of(one), 0.0)))
        gone = find_gone_objects(name, report, known)
        limit = max(1, round(WRITES_PER_S * self._interval_s))
        if len(wanted) + len(gone) > limit:
            _log.info("storage.not_all_published", cluster=name, wanted=len(wanted), gone=len(gone), limit=limit)
        wanted = wanted[: max(1, limit - len(gone))]
        unanswered = 0
        for one in wanted:
            self._written[_key_of(one)] = self._clock.monotonic()
            try:
                with _skip_failed(one):
                    await self._write(one)
            except Unavailable:
                unanswered += 1
                if unanswered >= UNANSWERED_LIMIT:
                    raise
        for one in gone[: limit - len(wanted)]:
            with _skip_failed(one), require_answer(f"{one.kind()}/{one.name}"):
                await self._store.delete(one.ref, uid=one.metadata.uid, version=one.metadata.resource_version)
                _log.info("storage.gone", kind=one.kind(), name=one.name)
        kept = {_key_of(one) for one in (*wanted, *(one for of_kind in known for one in of_kind.values()))}
        self._written = {key: at for key, at in self._written.items() if key in kept}

    async def _write(self, wanted: Resource) -> None:
        if wanted.metadata.resource_version:
            await swap(self._store, wanted)
        else:
            with require_answer(f"{wanted.kind()}/{wanted.name}"):
                await self._store.create(wanted)


@contextlib.contextmanager
def _skip_failed(obj: Resource) -> Iterator[None]:
    """An error of this object alone leaves it to the next round; one of the store or of the role ends the round."""
    try:
        yield
    except (AlreadyExists, Conflict, NotFound, Unknown):
        pass  # somebody else has changed it
    except (Unavailable, Forbidden):
        raise
    except OutliveError as error:
        _log.warning("storage.not_written", kind=obj.kind(), name=obj.name, error=str(error))


def _key_of(obj: Resource) -> tuple[str, str]:
    return obj.kind(), obj.name


async def publish_devices(store: Store, port: StorageStatisticsPort, host: str, clock: Clock) -> None:
    """Write on which devices the storage daemons of this host keep their data; those that left it are forgotten."""
    devices = await port.list_devices()
    _log.info("storage.devices", host=host, count=len(devices), daemons=sorted(devices))
    listed = [one async for one in list_all(store, StorageDaemon)]
    former = [one.name for one in listed if one.device is not None and one.device.host == host]
    for number in sorted({*devices, *former}):
        found = devices.get(number)
        device = msgspec.structs.replace(found, host=host) if found is not None else None
        await compare_and_swap(store, StorageDaemon, number, partial(_place_daemon, number, host, device), clock=clock)


def _place_daemon(
    name: str, host: str, device: StorageDevice | None, kept: StorageDaemon | None
) -> StorageDaemon | None:
    """The daemon on that device of the host, or not on this host any more; ``None``: there is nothing to write."""
    if kept is None:
        return StorageDaemon(metadata=ObjectMeta(name=name), device=device) if device is not None else None
    if device is None and (kept.device is None or kept.device.host != host or kept.status is None):
        return None  # one that no storage cluster has reported is the primary's to delete
    return msgspec.structs.replace(kept, device=device)


async def _read_known(store: Store) -> Known:
    with require_answer("storage", LIST_S):
        return Known(
            {one.name: one async for one in list_all(store, StorageCluster)},
            {one.name: one async for one in list_all(store, StorageDaemon)},
            {one.name: one async for one in list_all(store, StoragePool)},
        )


def _metadata_of(kept: Resource | None, name: str) -> ObjectMeta:
    return kept.metadata if kept is not None else ObjectMeta(name=name)


# For the server of metrics


class StorageGauges:
    """Metrics of storage, from what the store has of it; names are without the prefix."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known = Known({}, {}, {})
        self._refresh_at = 0.0
        """Monotonic."""
        self._one = asyncio.Lock()

    async def refresh(self) -> None:
        """Read it anew, at most every ``GAUGES_S``; where the store does not answer, the figures stay as they were."""
        async with self._one:
            if self._clock.monotonic() < self._refresh_at:
                return
            try:
                self._known = await _read_known(self._store)
            except OutliveError as error:
                _log.warning("storage.not_read", error=str(error))
            self._refresh_at = self._clock.monotonic() + GAUGES_S

    def collect(self) -> Iterator[Metric]:
        """All series; none for a cluster without storage."""
        if any(self._known):
            yield from _cluster_metrics(self._known.clusters)
            yield from _daemon_metrics(self._known.daemons)
            yield from _pool_metrics(self._known.pools)


def _build_gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"storage_{name}", text, labels=labels)


def _cluster_metrics(clusters: Mapping[str, StorageCluster]) -> list[Metric]:
    health = _build_gauge(
        "cluster_health", "Health of a storage cluster: 0 ok, 1 warns, 2 in error, 3 unknown", "cluster"
    )
    space = _build_gauge("cluster_bytes", "Space of a storage cluster, with all copies", "cluster", "kind")
    sampled = _build_gauge(
        "cluster_sampled_seconds", "When a storage cluster was sampled, seconds since 1970", "cluster"
    )
    for name, one in sorted(clusters.items()):
        status = one.status
        health.add_metric((name,), HEALTHS.index(status.health))
        for kind, size in (("total", status.total_bytes), ("used", status.used_bytes), ("free", status.free_bytes)):
            space.add_metric((name, kind), size)
        if status.sampled_at is not None:
            sampled.add_metric((name,), as_instant(status.sampled_at))
    return [health, space, sampled]


def _daemon_metrics(daemons: Mapping[str, StorageDaemon]) -> list[Metric]:
    labels = ("cluster", "daemon", "host")
    up = _build_gauge("daemon_up", "Whether a storage daemon runs", *labels)
    placed = _build_gauge("daemon_in", "Whether data is placed on a storage daemon", *labels)
    space = _build_gauge("daemon_bytes", "Space of a storage daemon", *labels, "kind")
    groups = _build_gauge("daemon_placement_groups", "Placement groups of a storage daemon", *labels)
    operations = _build_gauge("daemon_operations", "Operations of a storage daemon in a second", *labels, "kind")
    throughput = _build_gauge("daemon_throughput_bytes", "Bytes of a storage daemon in a second", *labels, "kind")
    for name, one in sorted(daemons.items()):
        status = one.status
        if status is None:
            continue
        active = status.activity
        values = (status.cluster, name, active.host)
        up.add_metric(values, status.up)
        placed.add_metric(values, status.in_)
        groups.add_metric(values, status.placement_groups)
        sizes = {"size": status.size_bytes, "used": status.used_bytes, "free": status.available_bytes}
        for kind, size in sizes.items():
            space.add_metric((*values, kind), size)
        for kind, number, size in (
            ("read", active.read_ops, active.read_bytes),
            ("write", active.write_ops, active.write_bytes),
        ):
            operations.add_metric((*values, kind), number)
            throughput.add_metric((*values, kind), size)
    return [up, placed, space, groups, operations, throughput]


def _pool_metrics(pools: Mapping[str, StoragePool]) -> list[Metric]:
    labels = ("cluster", "pool", "kind")
    space = _build_gauge("pool_bytes", "Space of a pool: stored, used with all copies, free", *labels)
    objects = _build_gauge("pool_objects", "Objects of a pool", *labels)
    operations = CounterMetricFamily("storage_pool_operations", "Operations on a pool", labels=labels)
    throughput = CounterMetricFamily(
        "storage_pool_throughput_bytes", "Bytes read from and written to a pool", labels=labels
    )
    for status in (one.status for _, one in sorted(pools.items())):
        values = (status.cluster, status.pool)
        sizes = {"stored": status.stored_bytes, "used": status.used_bytes, "free": status.free_bytes}
        numbers = {
            "all": status.objects,
            "clones": status.object_clones,
            "copies": status.object_copies,
            "degraded": status.objects_degraded,
            "missing": status.objects_missing_on_primary,
            "unfound": status.objects_unfound,
        }
        for family, figures in (
            (space, sizes),
            (objects, numbers),
            (operations, {"read": status.read_ops, "write": status.write_ops}),
            (throughput, {"read": status.read_bytes, "write": status.write_bytes}),
        ):
            for kind, number in figures.items():
                family.add_metric((*values, kind), number)
    return [space, objects, operations, throughput]
