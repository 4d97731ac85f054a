"""Keeps hosts, VMs and flavors as a source has them, for as long as the process runs.

Each reading is carried out in batches of a few hosts with all that is on them, so that nothing computes for long; each
batch is checked, planned and written exactly like an import (``check``, ``plan``, ``write``). What the source does not
know stays: an operator's labels, traits and maintenance survive. Records that are wrong are left out, and what is known
of the same object stays as it is; the rest of the reading counts.

Nothing is deleted because it is missing (docs/how-to/openstack.md#gone): a VM goes when the source says of that very
VM that there is none, a host when it was missing in ``HOST_MISSES`` full readings in a row and no VM is on it. Until
then a missing host is down. Hosts that are not the source's (``management`` other than ``nova``) and the VMs on them
are never touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from outlive.base import Clock, Conflict, Invalid, OutliveError, Random, Unavailable, as_datetime, get_logger
from outlive.inventory.check import Existing, ImportOptions, WantedInventory, check_leaving_out
from outlive.inventory.plan import plan_import
from outlive.inventory.ports import InventorySource, Reading
from outlive.inventory.records import FlavorRecord, HostRecord, Inventory, VmRecord, name_objects
from outlive.inventory.settings import OpenStackSettings
from outlive.inventory.write import apply_import
from outlive.resources import CREATOR_LABEL, BadInputs, Flavor, Hypervisor, ObjectRef, Problem, VirtualMachine
from outlive.resources.reasons import FaultCode
from outlive.runtime import ActiveFault, FaultRecorder, Metrics, Periodic
from outlive.store import Store

HOSTS_OF_A_BATCH: Final = 20
VMS_OF_A_BATCH: Final = 400
"""VMs without a host, or of hosts with many of them, that are planned at once; a batch may have more by one host."""
TRIES: Final = 6
"""Of one batch against writers that are faster."""
TRY_AGAIN_S: Final = 0.1
HOST_MISSES: Final = 3
BACKOFF_CAP_S: Final = 300.0
"""The longest time between two readings while the source does not answer."""
PROBLEMS_SHOWN: Final = 20

_log = get_logger("inventory")


class Objects(Protocol):
    """What the store has, from caches."""

    def find_host(self, name: str) -> Hypervisor | None:
        """One host."""
        ...

    def find_vm(self, name: str) -> VirtualMachine | None:
        """One VM."""
        ...

    def list_hosts(self) -> Iterable[Hypervisor]:
        """All hosts."""
        ...

    def list_vms(self) -> Iterable[VirtualMachine]:
        """All VMs."""
        ...

    def list_flavors(self) -> Iterable[Flavor]:
        """All flavors."""
        ...

    def vms_on(self, host: str) -> Iterable[VirtualMachine]:
        """The VMs that are assigned to a host."""
        ...


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records that are carried out together."""

    hosts: tuple[HostRecord, ...] = ()
    vms: tuple[VmRecord, ...] = ()
    flavors: tuple[FlavorRecord, ...] = ()
    gone_hosts: frozenset[str] = frozenset()
    """Names of hosts to delete."""
    gone_vms: frozenset[str] = frozenset()


def split_records(inventory: Inventory) -> Iterator[RecordBatch]:
    """All records, each once: flavors first, then hosts with the VMs on them, then VMs that run nowhere."""
    if inventory.flavors:
        yield RecordBatch(flavors=tuple(inventory.flavors))
    on: dict[str, list[VmRecord]] = {}
    for vm in inventory.vms:
        on.setdefault(vm.host or "", []).append(vm)
    hosts: list[HostRecord] = []
    vms: list[VmRecord] = []
    for host in inventory.hosts:
        hosts.append(host)
        vms += on.pop(host.name, [])
        if len(hosts) >= HOSTS_OF_A_BATCH or len(vms) >= VMS_OF_A_BATCH:
            yield RecordBatch(hosts=tuple(hosts), vms=tuple(vms))
            hosts, vms = [], []
    rest = [*vms, *(vm for listed in on.values() for vm in listed)]
    if hosts and not rest:
        yield RecordBatch(hosts=tuple(hosts))
    for start in range(0, len(rest), VMS_OF_A_BATCH):
        yield RecordBatch(hosts=tuple(hosts) if start == 0 else (), vms=tuple(rest[start : start + VMS_OF_A_BATCH]))


def find_existing(batch: RecordBatch, objects: Objects) -> Existing:
    """What a batch is compared with: its objects, the hosts that its VMs are on or leave, and all VMs on those."""
    ids = (*(vm.id for vm in batch.vms), *batch.gone_vms)
    vms = {vm_id: found for vm_id in ids if (found := objects.find_vm(vm_id)) is not None}
    names = {
        *(host.name for host in batch.hosts),
        *batch.gone_hosts,
        *(vm.host for vm in batch.vms if vm.host),
        *(vm.host for vm in vms.values() if vm.host),
    }
    hosts = {name: host for name in sorted(names) if (host := objects.find_host(name)) is not None}
    for name in names:
        vms.update((vm.name, vm) for vm in objects.vms_on(name))
    return Existing(hosts=hosts, vms=vms, flavors={flavor.name: flavor for flavor in objects.list_flavors()})


def drop_foreign(batch: RecordBatch, existing: Existing) -> RecordBatch:
    """The batch without hosts of somebody else, and without VMs that are or were on one."""
    foreign = {name for name, host in existing.hosts.items() if host.spec.management != "nova"}
    if not foreign:
        return batch

    def is_own(vm: VmRecord) -> bool:
        known = existing.vms.get(vm.id)
        return vm.host not in foreign and not (known is not None and known.host in foreign)

    hosts = tuple(host for host in batch.hosts if host.name not in foreign)
    return RecordBatch(hosts=hosts, vms=tuple(filter(is_own, batch.vms)), flavors=batch.flavors)


def check_batch(
    batch: RecordBatch, existing: Existing, options: ImportOptions
) -> tuple[WantedInventory, tuple[Problem, ...]]:
    """The batch without the records that are wrong, and what is wrong with them."""
    inventory = Inventory(what=options.creator, has_hosts=True, has_vms=True)
    inventory.hosts, inventory.vms, inventory.flavors = list(batch.hosts), list(batch.vms), list(batch.flavors)
    try:
        wanted, found = check_leaving_out(inventory, existing, options)
    except BadInputs as error:
        return WantedInventory(hosts={}, vms={}, flavors={}), error.problems
    return wanted, tuple(found.shown)


def missing_hosts(listed: Iterable[str], objects: Objects, creator: str) -> tuple[str, ...]:
    """Hosts that were made from the source and that it does not list."""
    names = set(listed)
    return tuple(
        sorted(
            host.name
            for host in objects.list_hosts()
            if host.name not in names
            and host.metadata.labels.get(CREATOR_LABEL) == creator
            and host.spec.management == "nova"
        )
    )


class InventorySyncer:
    """See the module. ``run`` until cancelled; at most one process at a time is to run it."""

    def __init__(
        self,
        store: Store,
        source: InventorySource,
        objects: Objects,
        settings: OpenStackSettings,
        *,
        clock: Clock,
        random: Random,
        metrics: Metrics,
        faults: FaultRecorder,
    ) -> None:
        self._store = store
        self._source = source
        self._objects = objects
        self._settings = settings
        self._clock = clock
        self._random = random
        self._faults = faults
        # each batch is a part, and a word of a newer Nova makes no VM lose its slots
        self._options = ImportOptions(creator=source.name, partial=True, unknown_runs=True)
        self._misses: dict[str, int] = {}
        """Host → full readings in a row that did not list it."""
        self._began = 0.0
        self._running = False
        """Whether this process is the one that follows the source: it alone knows how old it is."""
        self._read_at: float | None = None
        """When everything that the source said was taken over last, by the monotonic clock."""
        self._known_as_of = "the start"
        self._reads = metrics.add_counter("inventory_reads_total", "Readings of a source of hosts and VMs", ("result",))
        self._written = metrics.add_counter("inventory_writes_total", "Objects written from a source of hosts and VMs")
        self._left_out = metrics.add_gauge("inventory_problems", "Records of the last full reading that are wrong")
        metrics.register_collector(self._collect)

    @property
    def age_s(self) -> float:
        """How old what is known of the source is."""
        return self._clock.monotonic() - (self._began if self._read_at is None else self._read_at)

    async def run(self) -> None:
        """Read and carry out, again and again; a source that does not answer is asked less and less often."""
        self._source.forget()
        self._faults.forget()
        self._began, self._read_at, self._running = self._clock.monotonic(), None, True
        failures = 0

        async def follow_once() -> float:
            nonlocal failures
            why = ""
            try:
                await self.sync()
                failures = 0
            except OutliveError as error:
                failures += 1
                why = str(error)
                self._source.forget()
                self._reads.labels("error").inc()
                _log.warning("inventory.failed", source=self._source.name, error=why, failures=failures)
            faults = []
            if self.age_s >= float(self._settings.stale_after):
                subject = ObjectRef(kind="Cluster", name=self._settings.cloud)
                fields = {"why": why or "a reading takes that long", "since": self._known_as_of}
                faults.append(ActiveFault(FaultCode.INVENTORY_STALE, subject, fields))
            await self._faults.record(faults)
            pause_s = float(self._settings.poll_interval)
            return pause_s if not failures else self._random.backoff_seconds(failures, pause_s, BACKOFF_CAP_S)

        try:
            await Periodic(follow_once, float(self._settings.poll_interval), clock=self._clock).run()
        finally:
            self._running = False

    async def sync(self) -> int:
        """One reading, carried out; how many objects were written."""
        began = self._clock.monotonic()
        reading = await self._source.read()
        name_objects(reading.inventory)
        problems = list(reading.inventory.problems.shown)
        written = 0
        for batch in split_records(reading.inventory):
            done, wrong = await self._carry_out(batch)
            written += done
            problems += wrong
            await asyncio.sleep(0)
        written += await self._delete_vms(reading)
        if reading.full:
            written += await self._see_to_missing_hosts(reading)
            self._left_out.set(len({problem.place for problem in problems}))
            for problem in problems[:PROBLEMS_SHOWN]:
                _log.warning("inventory.left_out", source=self._source.name, problem=str(problem))
        self._read_at, self._known_as_of = began, as_datetime(self._clock.now()).isoformat(timespec="seconds")
        self._reads.labels("full" if reading.full else "changes").inc()
        if written:
            self._written.inc(written)
            _log.info("inventory.synced", source=self._source.name, full=reading.full, written=written)
        return written

    async def _carry_out(self, batch: RecordBatch) -> tuple[int, tuple[Problem, ...]]:
        """Check, plan and write one batch. Who was faster is waited for: what he wrote has to reach the caches."""
        for attempt in range(TRIES):
            existing = find_existing(batch, self._objects)
            wanted, problems = check_batch(drop_foreign(batch, existing), existing, self._options)
            wanted = msgspec.structs.replace(
                wanted,
                gone_hosts=batch.gone_hosts & existing.hosts.keys(),
                gone_vms=batch.gone_vms & existing.vms.keys(),
            )
            now = as_datetime(self._clock.now())
            plan = plan_import(wanted, existing, self._options, landed={}, now=now)
            try:
                return await apply_import(self._store, plan), problems
            except Conflict:
                await self._clock.sleep(TRY_AGAIN_S * 2**attempt)
            except Invalid as error:
                return await self._carry_out_parts(batch, error)
        raise Unavailable("others write the same objects all the time", place="the store", remedy="see who it is")

    async def _carry_out_parts(self, batch: RecordBatch, error: Invalid) -> tuple[int, tuple[Problem, ...]]:
        """The same where the store refuses an object of the batch: that one is left out, and the others are written."""
        parts = [
            *(RecordBatch(flavors=(one,)) for one in batch.flavors),
            *(RecordBatch(hosts=(one,)) for one in batch.hosts),
            *(RecordBatch(vms=(one,)) for one in batch.vms),
            *(RecordBatch(gone_vms=frozenset({one})) for one in sorted(batch.gone_vms)),
            *(RecordBatch(gone_hosts=frozenset({one})) for one in sorted(batch.gone_hosts)),
        ]
        if len(parts) <= 1:
            return 0, (Problem(error.place, error.message, error.remedy),)
        written = 0
        problems: tuple[Problem, ...] = ()
        for part in parts:
            done, wrong = await self._carry_out(part)
            written += done
            problems += wrong
        return written, problems

    async def _delete_vms(self, reading: Reading) -> int:
        """Delete VMs of which the source says that there are none."""
        creator = self._source.name
        gone = set(reading.deleted)
        if reading.full:
            listed = {vm.id for vm in reading.inventory.vms}
            made = (vm.name for vm in self._objects.list_vms() if vm.metadata.labels.get(CREATOR_LABEL) == creator)
            missing = tuple(sorted(name for name in made if name not in listed))
            gone |= await self._source.find_missing(missing) if missing else frozenset()
        ours = [vm for name in sorted(gone) if (vm := self._objects.find_vm(name)) is not None and self._may_delete(vm)]
        written = 0
        for start in range(0, len(ours), VMS_OF_A_BATCH):
            names = frozenset(vm.name for vm in ours[start : start + VMS_OF_A_BATCH])
            written += (await self._carry_out(RecordBatch(gone_vms=names)))[0]
        return written

    def _may_delete(self, vm: VirtualMachine) -> bool:
        host = self._objects.find_host(vm.host) if vm.host else None
        is_ours = vm.metadata.labels.get(CREATOR_LABEL) == self._source.name
        return is_ours and (host is None or host.spec.management == "nova")

    async def _see_to_missing_hosts(self, reading: Reading) -> int:
        """Say of hosts that are missing that they are down, and delete those that were missing often enough."""
        inventory = reading.inventory
        listed = {host.name for host in inventory.hosts} | inventory.listed_hosts
        missing = missing_hosts(listed, self._objects, self._source.name)
        counted = {name: self._misses.get(name, 0) + (0 if inventory.nameless else 1) for name in missing}
        self._misses = counted
        gone = {name for name in missing if counted[name] >= HOST_MISSES and not list(self._objects.vms_on(name))}
        known = [self._objects.find_host(name) for name in missing if name not in gone]
        down = tuple(
            HostRecord(name=host.name, place=host.name, capacity=host.status.capacity, down=True)
            for host in known
            if host is not None and host.status.capacity is not None
        )
        left, few = sorted(gone), HOSTS_OF_A_BATCH
        parts = [RecordBatch(hosts=down[start : start + few]) for start in range(0, len(down), few)]
        parts += [RecordBatch(gone_hosts=frozenset(left[start : start + few])) for start in range(0, len(left), few)]
        written = 0
        for part in parts:
            written += (await self._carry_out(part))[0]
            await asyncio.sleep(0)
        return written

    def _collect(self) -> Iterator[Metric]:
        if not self._running:
            return
        age = GaugeMetricFamily("inventory_age_seconds", "How old what is known of hosts and VMs is", labels=["source"])
        age.add_metric([self._source.name], self.age_s)
        yield age
