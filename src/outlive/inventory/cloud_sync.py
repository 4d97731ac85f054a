"""Keeps hosts as the ``Hypervisor`` objects of other clusters have them, and slots as ``Reservation`` objects there.

Hosts follow their objects within a watch. A cluster that cannot be read keeps its hosts as they were, and an object
that is not understood keeps its host's last good state; where that lasts a fault says so. A host whose object is gone
is down at once, and is deleted by the rule of every inventory (``sync.HOST_MISSES``). VMs come from their own source.

Slots are written from ours alone, one object for each under a name that follows from the slot's. Objects that are not
ours are never touched; ours go with their slots, also where the slot was deleted while nobody looked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from outlive.base import (
    AlreadyExists,
    BadInput,
    Clock,
    Ids,
    Invalid,
    NotFound,
    OutliveError,
    Random,
    Unavailable,
    as_datetime,
    get_logger,
    join_parts,
)
from outlive.failover import HOST_INDEX
from outlive.inventory.cloud_hosts import CLUSTER_LABEL, SOURCE, has_vm_on, make_host, vanished_host, zone_of
from outlive.inventory.cloud_slots import OWNER_LABEL, cloud_name, cloud_reservation, patch_operations, slot_of
from outlive.inventory.settings import InventorySettings
from outlive.inventory.sync import HOST_MISSES
from outlive.resources import (
    CLUSTER,
    CREATOR_LABEL,
    FAILOVER,
    Cluster,
    Hypervisor,
    ObjectRef,
    R,
    Reservation,
    cluster_id,
)
from outlive.resources.foreign import CloudHypervisor, CloudReservation
from outlive.resources.reasons import FaultCode
from outlive.runtime import (
    ActiveFault,
    ClusterVerbs,
    ControllerOptions,
    ControllerRun,
    FaultRecorder,
    Informer,
    Metrics,
    OrderedTaskGroup,
    Periodic,
    Requeue,
    Watch,
)
from outlive.store import Selector, Store, compare_and_swap

LOOK_S: Final = 5.0
"""How often faults are computed, and whether all objects are to be listed."""
RETRY_CAP_S: Final = 30.0
"""The longest wait before a host or slot is tried again."""
WORKERS: Final = 4
NAMED: Final = 6
"""Problems that a fault names."""

_log = get_logger("inventory")


@dataclass(frozen=True, slots=True)
class InventoryCluster:
    """A cluster of the settings, as it is reached."""

    name: str
    zones: frozenset[str]
    """Empty: all."""
    store: Store
    verbs: ClusterVerbs


Placed = Callable[[], Awaitable[Mapping[str, str]]]
"""VM → host, of every VM that the source of VMs knows; errors where it cannot be asked."""


class CloudCaches(NamedTuple):
    """What Outlive has."""

    hosts: Informer[Hypervisor]
    slots: Informer[Reservation]


class FollowedCluster(NamedTuple):
    """A cluster with the caches of its objects."""

    cluster: InventoryCluster
    hosts: Informer[CloudHypervisor]
    slots: Informer[CloudReservation]

    def is_following(self) -> bool:
        """Whether the cache of hosts is what the cluster has now."""
        return self.hosts.synced and not self.hosts.stalled_s()


def explain_exclusion(found: list[tuple[InventoryCluster, CloudHypervisor]], host: Hypervisor | None) -> str:
    """Why the object of a host is not taken over; empty where it is. ``found``: in which clusters it is."""
    if len(found) > 1:
        return f"is in the clusters {join_parts([cluster.name for cluster, _ in found])}"
    cluster, seen = found[0]
    if cluster.zones and (zone := zone_of(seen)) not in cluster.zones:
        where = f"zone {zone}" if zone else "no zone"
        return f"is in {where}, and cluster {cluster.name} has {join_parts(sorted(cluster.zones), most=NAMED)}"
    if host is not None and host.spec.management != "nova":
        return f"is a host of management {host.spec.management} here"
    return ""


class CloudHostController:
    """The controller of hosts: a key is the name of a ``Hypervisor`` object, and of the host."""

    name = "cloud-hosts"

    def __init__(self, store: Store, hosts: Informer[Hypervisor], clock: Clock) -> None:
        self._store = store
        self._hosts = hosts
        self._clock = clock
        self.followed: tuple[FollowedCluster, ...] = ()
        self.problems: dict[str, str] = {}
        """Host → why its object is not taken over."""

    async def reconcile(self, key: str) -> Requeue | None:
        """Have the host as its object is."""
        found = [(one.cluster, seen) for one in self.followed if (seen := one.hosts.get(key)) is not None]
        why = ""
        if not found:
            self.problems.pop(key, None)
            return await self._handle_missing_object(key)
        if not (why := explain_exclusion(found, self._hosts.get(key))):
            try:
                await self._mirror(found[0][0].name, found[0][1])
            except (BadInput, Invalid) as error:
                why = error.message
        if why and self.problems.get(key) != why:
            _log.warning("inventory.left_out", source=SOURCE, host=key, problem=why)
        self.problems.pop(key, None)
        if why:
            self.problems[key] = why
        return None

    async def mark_vanished(self, name: str) -> None:
        """Have the host down, since its object is gone."""
        now = as_datetime(self._clock.now())

        def mark_host(found: Hypervisor | None) -> Hypervisor | None:
            return vanished_host(found, now) if found is not None and is_cloud_host(found) else None

        await compare_and_swap(self._store, Hypervisor, name, mark_host, clock=self._clock, cache=self._hosts.get)

    async def _handle_missing_object(self, key: str) -> Requeue | None:
        """Of an object that is certainly gone; of one that cannot be read now nothing is known."""
        host = self._hosts.get(key)
        if host is None or not is_cloud_host(host):
            return None
        of = next((one for one in self.followed if one.cluster.name == host.metadata.labels[CLUSTER_LABEL]), None)
        if of is None or key in of.hosts.malformed:
            return None
        if not of.is_following():
            return Requeue(LOOK_S)
        await self.mark_vanished(key)
        return None

    async def _mirror(self, cluster: str, seen: CloudHypervisor) -> None:
        now = as_datetime(self._clock.now())

        def wanted_host(found: Hypervisor | None) -> Hypervisor | None:
            if found is not None and found.spec.management != "nova":
                return None
            return make_host(seen, found, cluster=cluster, now=now)

        def with_spec(found: Hypervisor | None) -> Hypervisor | None:
            made = wanted_host(found)
            return made if found is None or made is None else msgspec.structs.replace(made, status=found.status)

        def with_status(found: Hypervisor | None) -> Hypervisor | None:
            return None if found is None else wanted_host(found)

        known = self._hosts.get(seen.name)
        if known is None or with_spec(known) != known:
            known = await compare_and_swap(
                self._store, Hypervisor, seen.name, with_spec, clock=self._clock, half="spec"
            )
        if known is not None and with_status(known) != known:
            await compare_and_swap(self._store, Hypervisor, seen.name, with_status, clock=self._clock)


class CloudSlotController:
    """The controller of slots: a key is the name of our reservation."""

    name = "cloud-slots"

    def __init__(self, caches: CloudCaches) -> None:
        self._caches = caches
        self.followed: tuple[FollowedCluster, ...] = ()
        self.owner = ""
        """The uid of our ``Cluster``."""
        self.problems: dict[str, str] = {}
        """Object → why it is not as its slot."""

    def key_of_object(self, old: CloudReservation | None, new: CloudReservation | None) -> Iterable[str]:
        """The slot of an object of ours, as it is now or was."""
        return {key for one in (old, new) if one is not None and (key := slot_of(one, self.owner))}

    async def reconcile(self, key: str) -> Requeue | None:
        """Have one object for the slot, in the cluster of its host, and none elsewhere."""
        slot = self._caches.slots.get(key)
        if (slot is not None and slot.spec.type != FAILOVER) or key in self._caches.slots.malformed:
            return None
        self.problems.pop(cloud_name(key), None)
        target = ""
        if slot is not None and (name := slot.status.host or slot.spec.target_host):
            host = self._caches.hosts.get(name)
            if host is None:
                return None  # nobody can say where it belongs; its host or its deletion brings it here again
            target = host.metadata.labels.get(CLUSTER_LABEL, "")
        failure: OutliveError | None = None
        for one in self.followed:
            try:
                if not one.slots.synced:
                    raise Unavailable(f"the reservations of cluster {one.cluster.name} were not read yet")
                there = one.slots.get(cloud_name(key))
                if slot is not None and one.cluster.name == target:
                    await self._write(one.cluster, slot, there)
                elif there is not None and slot_of(there, self.owner) == key:
                    meta, verbs = there.metadata, one.cluster.verbs
                    with contextlib.suppress(NotFound):
                        await verbs.delete(CloudReservation, meta.name, uid=meta.uid, version=meta.resource_version)
            except OutliveError as error:  # the other clusters come first
                failure = failure or error
        if failure is not None:
            raise failure
        return None

    async def _write(self, cluster: InventoryCluster, slot: Reservation, there: CloudReservation | None) -> None:
        wanted, name = cloud_reservation(slot, self.owner), cloud_name(slot.name)
        if there is None:
            try:
                there = await cluster.verbs.create(CloudReservation, wanted)
            except AlreadyExists:  # ours, if the answer to its creation was lost or is not seen yet
                there = await cluster.store.get(CloudReservation, name, fresh=True)
            except Invalid as error:
                self.problems[name] = error.message
                return
        if slot_of(there, self.owner) != slot.name:
            self.problems[name] = "is there already and is not ours"
            return
        for half, subresource in (("spec", ""), ("status", "status")):
            if operations := patch_operations(there.document, wanted, half):
                there = await cluster.verbs.patch(
                    CloudReservation,
                    name,
                    operations,
                    version=there.metadata.resource_version,
                    subresource=subresource,
                )


def is_cloud_host(host: Hypervisor) -> bool:
    """Whether the host was made from an object of another cluster."""
    return host.metadata.labels.get(CREATOR_LABEL) == SOURCE and CLUSTER_LABEL in host.metadata.labels


async def list_host_names(store: Store) -> set[str] | None:
    """The names of all ``Hypervisor`` objects, those that are not understood as well; ``None`` where one has none."""
    names: set[str] = set()
    token = ""
    while True:
        page = await store.list(CloudHypervisor, token=token)
        names.update(one.name for one in page.items)
        names.update(one.ref.name for one in page.malformed)
        if not page.token:
            return None if "" in names else names
        token = page.token


class CloudInventorySyncer:
    """See the module. ``run`` until cancelled; at most one process at a time is to run it."""

    def __init__(
        self,
        store: Store,
        clusters: Iterable[InventoryCluster],
        settings: InventorySettings,
        caches: CloudCaches,
        placed: Placed,
        *,
        clock: Clock,
        random: Random,
        ids: Ids,
        metrics: Metrics,
        faults: FaultRecorder,
    ) -> None:
        self._store = store
        self._clusters = tuple(clusters)
        self._settings = settings
        self._caches = caches
        self._placed = placed
        self._clock = clock
        self._random = random
        self._ids = ids
        self._metrics = metrics
        self._faults = faults
        self._followed: tuple[FollowedCluster, ...] = ()
        self._hosts = CloudHostController(store, caches.hosts, clock)
        self._slots = CloudSlotController(caches)
        self._misses: dict[str, int] = {}
        """Host → listings in a row that lacked its object."""
        self._followed_at: dict[str, float] = {}
        """Cluster → when its hosts were known to be as they are there, by the monotonic clock."""
        self._problems = metrics.add_gauge("inventory_problems", "Records of the last full reading that are wrong")
        metrics.register_collector(self._collect)

    async def run(self) -> None:
        """Follow every cluster, and keep hosts and slots."""
        self._faults.forget()
        self._misses = {}
        owner = cluster_id(await self._store.get(Cluster, CLUSTER))
        ours = Selector.from_labels({OWNER_LABEL: owner})
        begun = self._clock.monotonic()
        self._followed_at = {one.name: begun for one in self._clusters}
        self._followed = tuple(
            FollowedCluster(
                one,
                self._make_informer(one, CloudHypervisor),
                self._make_informer(one, CloudReservation, selector=ours),
            )
            for one in self._clusters
        )
        self._hosts.followed = self._slots.followed = self._followed
        self._slots.owner = owner
        try:
            async with OrderedTaskGroup() as group:
                for one in self._followed:
                    group.create_task(one.hosts.run(), name=f"hypervisors of {one.cluster.name}")
                    if self._settings.reservations:
                        group.create_task(one.slots.run(), name=f"reservations of {one.cluster.name}")
                hosts = [Watch(one.hosts) for one in self._followed]
                group.create_task(self._make_controller_run(self._hosts, hosts).run(), name="hosts")
                if self._settings.reservations:
                    slots = [Watch(one.slots, self._slots.key_of_object) for one in self._followed]
                    slots.append(Watch(self._caches.slots))
                    slots.append(Watch(self._caches.hosts, self._slots_of_host))
                    group.create_task(self._make_controller_run(self._slots, slots).run(), name="slots")
                group.create_task(self._inspect_periodically(), name="inspection")
        finally:
            self._followed = ()

    def _make_informer(
        self, cluster: InventoryCluster, kind: type[R], *, selector: Selector | None = None
    ) -> Informer[R]:
        random = self._random.fork(f"{cluster.name} {kind.__name__}")
        return Informer(cluster.store, kind, clock=self._clock, random=random, selector=selector)

    def _make_controller_run(
        self, controller: CloudHostController | CloudSlotController, watches: list[Watch]
    ) -> ControllerRun:
        return ControllerRun(
            controller,
            watches,
            WORKERS,
            ControllerOptions(retry_cap_s=RETRY_CAP_S),
            clock=self._clock,
            random=self._random,
            ids=self._ids,
            metrics=self._metrics,
        )

    def _slots_of_host(self, old: Hypervisor | None, new: Hypervisor | None) -> Iterable[str]:
        """The slots of a host that is in another cluster than before."""
        before, now = (one.metadata.labels.get(CLUSTER_LABEL) if one is not None else None for one in (old, new))
        one = new if new is not None else old
        if before == now or one is None:
            return ()
        return [slot.name for slot in self._caches.slots.list_by_index(HOST_INDEX, one.name)]

    async def _inspect_periodically(self) -> None:
        """Count missing hosts by full listings, and record faults."""
        listed_at: float | None = None

        async def inspect() -> None:
            nonlocal listed_at
            now = self._clock.monotonic()
            if listed_at is None or now - listed_at >= float(self._settings.full_interval):
                listed_at = now
                await self._count_missing_hosts()
            problems = self._list_problems()
            self._problems.set(len(problems))
            faults = await self._find_stale_clusters()
            if problems:
                fields = {"what": join_parts(problems, most=NAMED)}
                faults.append(
                    ActiveFault(FaultCode.INVENTORY_LEFT_OUT, ObjectRef(kind="Cluster", name=CLUSTER), fields)
                )
            await self._faults.record(faults)

        await Periodic(inspect, LOOK_S, clock=self._clock).run()

    async def _count_missing_hosts(self) -> None:
        """Have hosts down that a full listing lacks, and delete those that were missing often enough and are empty."""
        for one in self._followed:
            cluster = one.cluster.name
            try:
                names = await list_host_names(one.cluster.store)
                if names is None:
                    continue
                mirrored = [host for host in self._caches.hosts.items() if is_cloud_host(host)]
                missing = [
                    host
                    for host in mirrored
                    if host.metadata.labels[CLUSTER_LABEL] == cluster and host.name not in names
                ]
                for host in mirrored:
                    if host.name in names:
                        self._misses.pop(host.name, None)
                for host in missing:
                    self._misses[host.name] = self._misses.get(host.name, 0) + 1
                    await self._hosts.mark_vanished(host.name)
                await self._delete([host for host in missing if self._misses[host.name] >= HOST_MISSES])
            except OutliveError as error:
                _log.warning("inventory.failed", source=SOURCE, cluster=cluster, error=str(error))

    async def _delete(self, hosts: list[Hypervisor]) -> None:
        if not hosts:
            return
        placed = await self._placed()
        for host in hosts:
            if has_vm_on(host, placed):
                continue
            now = self._caches.hosts.get(host.name)
            if now is not None:
                await self._store.delete(now.ref, uid=now.metadata.uid, version=now.metadata.resource_version)
            self._misses.pop(host.name, None)
            _log.info("inventory.host_deleted", source=SOURCE, host=host.name)

    def _list_problems(self) -> list[str]:
        """What is not as it is in its cluster, and why."""
        found = [
            f"Hypervisor/{name} of cluster {one.cluster.name} ({why})"
            for one in self._followed
            for name, why in one.hosts.malformed.items()
        ]
        found += [f"Hypervisor/{name} ({why})" for name, why in self._hosts.problems.items()]
        found += [f"Reservation/{name} ({why})" for name, why in self._slots.problems.items()]
        known = {one.name for one in self._clusters}
        for host in self._caches.hosts.items():
            if is_cloud_host(host) and (name := host.metadata.labels[CLUSTER_LABEL]) not in known:
                found.append(f"{host.name} (cluster {name} is in no setting)")
        return sorted(found)

    async def _find_stale_clusters(self) -> list[ActiveFault]:
        """Clusters whose objects were not followed for too long."""
        found = []
        for one in self._followed:
            age_s = self._age_s(one)
            if age_s < float(self._settings.stale_after):
                continue
            try:
                await one.cluster.store.list(CloudHypervisor, limit=1)
                why = "its watch does not come back"
            except OutliveError as error:
                why = error.message
            since = as_datetime(self._clock.now() - age_s).isoformat(timespec="seconds")
            subject = ObjectRef(kind="Cluster", name=one.cluster.name)
            found.append(ActiveFault(FaultCode.INVENTORY_STALE, subject, {"why": why, "since": since}))
        return found

    def _age_s(self, one: FollowedCluster) -> float:
        """How long ago the cluster's hosts were known to be as they are there."""
        now = self._clock.monotonic()
        if one.is_following():
            self._followed_at[one.cluster.name] = now
        return now - self._followed_at[one.cluster.name]

    def _collect(self) -> Iterator[Metric]:
        if not self._followed:
            return
        age = GaugeMetricFamily("inventory_age_seconds", "How old what is known of hosts and VMs is", labels=["source"])
        for one in self._followed:
            age.add_metric([f"{SOURCE}/{one.cluster.name}"], self._age_s(one))
        yield age
