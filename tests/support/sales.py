"""A cloud that sells capacity, on a memory store under virtual time: ``in_market`` runs what sells, ``in_cloud`` the
whole role of ``outlive up``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any

from msgspec.structs import replace

from outlive.base import LoopClock, Random, SeededIds, as_datetime
from outlive.commitments import (
    Batch,
    BatchRefusal,
    Commitment,
    CommitmentRequest,
    CommitmentSettings,
    DomainSource,
    GroupSettings,
    ProjectRequest,
    RamSettings,
    ResourceRequest,
    ResourceSettings,
    capacity_name,
    digest_of,
    quota_name,
    slot_allocations,
)
from outlive.failover import FailoverConfig, Inline
from outlive.placement import HYPERVISOR_TYPE, PlacementRequest, VMSource
from outlive.resources import (
    COMMITTED,
    Amounts,
    Assigned,
    CommitmentChange,
    CommittedResource,
    Condition,
    Flavor,
    FlavorGroupCapacity,
    FlavorSpec,
    Hypervisor,
    Instance,
    ObjectMeta,
    ProjectQuota,
    Reservation,
    Resource,
    VirtualMachine,
    VirtualMachineStatus,
    find_condition,
)
from outlive.roles import Limes, Ports, RoleSettings, UpRole
from outlive.store import MemoryStore, Store, list_all
from tests.support.dying import Watched
from tests.support.loops import run
from tests.support.selling_role import SellingRole
from tests.support.small_clouds import make_host, make_vm

GIB = 2**30
MIB = 2**20
ZONE = "zone-a"
SOLD = GroupSettings(
    ram=RamSettings(handles_commitments=True, handles_dry_run=True, has_capacity=True, has_quota=True),
    cores=ResourceSettings(handles_commitments=True, handles_dry_run=True, has_capacity=True),
    instances=ResourceSettings(has_capacity=True),
)
SETTINGS = RoleSettings(
    failover=FailoverConfig(flavor_failover_requirements={"*": 0}).apply_defaults(),
    commitments=CommitmentSettings(flavor_group_resources={"*": SOLD}),
)


def flavor(name: str, gib: int, vcpus: int, group: str = "g") -> Flavor:
    return Flavor(
        metadata=ObjectMeta(name=name),
        spec=FlavorSpec(
            flavor_name=name,
            resources=Amounts(cpu=vcpus * 1000, memory=gib * GIB),
            extra_specs={"quota:hw_version": group, HYPERVISOR_TYPE: "QEMU"},
        ),
    )


def host(
    name: str, *, gib: int = 64, cpu: int = 64, vms: Iterable[VirtualMachine] = (), zone: str = ZONE
) -> Hypervisor:
    ready = (Condition(type="Ready", status="True"),)
    return make_host(name, *vms, cpu=cpu * 1000, memory=gib * GIB, zone=zone, conditions=ready)


def vm(name: str, on: str, *, gib: int = 8, vcpus: int = 2, project: str = "p1", of: str = "m8") -> VirtualMachine:
    specs = {"quota:hw_version": "g", HYPERVISOR_TYPE: "QEMU"}
    status = VirtualMachineStatus(assigned=Assigned(hypervisor=on))
    size = {"cpu": vcpus * 1000, "memory": gib * GIB}
    return make_vm(name, **size, zone=ZONE, status=status, project=project, flavor=of, extra_specs=specs)


def hosting(name: str, *vms: VirtualMachine, **how: Any) -> list[Resource]:
    """A host with these VMs, and the VMs."""
    return [host(name, vms=vms, **how), *vms]


FLAVORS = (flavor("m32", 32, 8), flavor("m16", 16, 4), flavor("m8", 8, 2))


def asked(
    uuid: str,
    amount: int,
    *,
    old: str | None = None,
    new: str | None = "confirmed",
    expires: datetime | None = None,
    confirm_by: datetime | None = None,
) -> CommitmentRequest:
    """One commitment of a batch; amounts in units of 8 GiB, the smallest flavor."""
    return CommitmentRequest(
        uuid=uuid, old_status=old, new_status=new, amount=amount, expires_at=expires, confirm_by=confirm_by
    )


def batch(*projects: ProjectRequest, dry_run: bool = False, zone: str = ZONE) -> Batch:
    return Batch(zone=zone, dry_run=dry_run, projects=projects)


def project(name: str, *commitments: CommitmentRequest, resource: str = "hw_version_g_ram") -> ProjectRequest:
    """A project with one resource, whose totals follow from the commitments."""
    sums = {"confirmed": [0, 0], "guaranteed": [0, 0]}
    for one in commitments:
        for place, status in enumerate((one.old_status, one.new_status)):
            if status in sums:
                sums[status][place] += one.amount
    found = ResourceRequest(
        name=resource,
        confirmed_before=sums["confirmed"][0],
        confirmed_after=sums["confirmed"][1],
        guaranteed_before=sums["guaranteed"][0],
        guaranteed_after=sums["guaranteed"][1],
        commitments=commitments,
    )
    return ProjectRequest(project=name, resources=(found,))


def store_with(*objects: Resource) -> MemoryStore:
    """A store with these objects and the usual flavors."""
    store = MemoryStore(LoopClock(), SeededIds(Random(2)))
    store.load([*FLAVORS, *objects])
    return store


class Market:
    """The running cloud."""

    def __init__(self, store: Store, made: UpRole | SellingRole) -> None:
        self.store = store
        self.role = made

    def before_writes(self, asks: Callable[[str, Any], Awaitable[None]] | None) -> None:
        """Each write of the store, which is ``Watched``, waits for this."""
        assert isinstance(self.store, Watched)
        self.store.before = asks

    async def place(self, name: str, of: str = "p1", **changes: Any) -> tuple[str, ...]:
        """Have placement find hosts for a new VM of flavor ``m8``."""
        request = PlacementRequest(
            resource_id=name,
            project=of,
            zone=ZONE,
            need=Amounts(cpu=2000, memory=8 * GIB),
            flavor_name="m8",
            extra_specs={"quota:hw_version": "g", HYPERVISOR_TYPE: "QEMU"},
            pipeline="kvm-general-purpose-load-balancing",
        )
        return (await self.role.placement.rank(replace(request, **changes))).hosts

    async def expected(self, uuid: str = "") -> dict[str, list[str]]:
        """Slot → VMs that the store says it expects."""
        return {name: sorted(slot_allocations(slot)) for name, slot in (await self.slots(uuid)).items()}

    async def change(self, asked_for: Batch, request_id: str = "r") -> str:
        """Send a batch; the reason of its refusal, or nothing."""
        found: BatchRefusal | None = await self.role.commitments.changes.change(
            asked_for, request_id=request_id, requested_by="limes"
        )
        return found.reason if found is not None else ""

    async def sell(self, uuid: str, amount: int, *, of: str = "p1", then_s: float = 1.0) -> None:
        """Have a commitment accepted, and wait until its batch is applied."""
        assert await self.change(batch(project(of, asked(uuid, amount)))) == ""
        await asyncio.sleep(then_s)

    async def ask(self, asked_for: Batch, named: str) -> str:
        """The same under the caller's name of the request, as the interface does it."""
        digest, changes = digest_of(asked_for), self.role.commitments.changes
        known = await changes.recall(named, digest)
        if known is not None:
            return known.refusal.reason if known.refusal is not None else ""
        found: BatchRefusal | None = await changes.change(
            asked_for, request_id=named, requested_by="limes", digest=digest
        )
        return found.reason if found is not None else ""

    async def commitments(self) -> dict[str, CommittedResource]:
        return {one.spec.commitment_uuid: one async for one in list_all(self.store, CommittedResource)}

    async def slots(self, uuid: str = "") -> dict[str, Reservation]:
        found = {one.name: one async for one in list_all(self.store, Reservation) if one.spec.type == COMMITTED}
        return {name: one for name, one in found.items() if not uuid or _owner(one) == uuid}

    async def changes(self) -> list[CommitmentChange]:
        """Batches that were committed."""
        return [one async for one in list_all(self.store, CommitmentChange) if one.phase != "withdrawn"]

    async def ready(self, uuid: str) -> str:
        """The reason of the commitment's ``Ready``."""
        cr = (await self.commitments())[uuid]
        found = find_condition(cr.status.conditions, "Ready")
        return found.reason if found is not None else ""

    async def add(self, new: Hypervisor) -> None:
        """Another host."""
        written = await self.store.create(new)
        await self.store.replace_status(replace(written, status=new.status))

    async def lose(self, name: str) -> None:
        """The host is proven dead."""
        found = await self.store.get(Hypervisor, name)
        await self.store.replace_status(replace(found, status=replace(found.status, lost="fence-1")))

    async def run_on(self, name: str, vm: VirtualMachine) -> None:
        """The VM runs on another host now."""
        found = await self.store.get(Hypervisor, name)
        status = replace(
            found.status,
            instances=(*found.status.instances, Instance(id=vm.name)),
            allocation=(found.status.allocation or Amounts()) + vm.spec.resources,
        )
        await self.store.replace_status(replace(found, status=status))
        known = await self.store.get(VirtualMachine, vm.name)
        assigned = replace(known.status, assigned=Assigned(hypervisor=name))
        await self.store.replace_status(replace(known, status=assigned))

    def free(self, name: str) -> int:
        """GiB that the ledger has free on a host."""
        fleet = self.role.fleet
        return int(fleet.free_amounts()[fleet.index[name]][1]) // GIB

    async def start(self, made: VirtualMachine) -> None:
        """A VM appears on its host."""
        written = await self.store.create(made)
        await self.store.replace_status(replace(written, status=made.status))

    async def end(self, name: str) -> None:
        """A VM is deleted."""
        found = await self.store.get(VirtualMachine, name)
        await self.store.delete(found.ref, uid=found.metadata.uid)

    async def capacity(self, group: str = "g", zone: str = ZONE) -> FlavorGroupCapacity:
        """What a group has in a zone."""
        return await self.store.get(FlavorGroupCapacity, capacity_name(group, zone))

    async def quota(self, name: str = "p1", zone: str = ZONE) -> ProjectQuota:
        """What a project may use, and uses."""
        return await self.store.get(ProjectQuota, quota_name(name, zone))

    def metrics(self, prefix: str) -> list[str]:
        """Lines of metrics that begin so, without the prefix of all of them."""
        lines = self.role.metrics.render().decode().splitlines()
        return [line.removeprefix("outlive_") for line in lines if line.startswith(f"outlive_{prefix}")]


class Listing:
    """What Limes is said to list, after everything else: these, each of 8 GiB."""

    asked_at = math.inf

    def __init__(self, *uuids: str, **fields: Any) -> None:
        self.asked = 0
        self.commitments = {
            one: replace(
                Commitment(uuid=one, project="p1", group="g", zone=ZONE, memory_bytes=8 * GIB, state="confirmed"),
                **fields,
            )
            for one in uuids
        }

    def last_listing(self) -> tuple[dict[str, Commitment], tuple[str, ...]] | None:
        return self.commitments, ()

    def request_sync(self) -> None:
        self.asked += 1


def _owner(slot: Reservation) -> str:
    details = slot.spec.committed_resource_reservation
    return details.commitment_uuid if details is not None else ""


def in_cloud(
    objects: Iterable[Resource],
    story: Callable[[Market], Awaitable[None]],
    *,
    settings: RoleSettings = SETTINGS,
    wrap: Callable[[MemoryStore], Any] = lambda store: store,
    whole: bool = True,
    source: VMSource | None = None,
    limes: Limes | None = None,
    domains: DomainSource | None = None,
) -> None:
    """Run a story in a cloud with these objects and the usual flavors."""

    async def scene() -> None:
        store = wrap(store_with(*objects))
        await live(store, story, settings=settings, whole=whole, source=source, limes=limes, domains=domains)

    run(scene())


in_market = partial(in_cloud, whole=False)
"""The same where only what sells capacity runs, which takes a fraction of the time."""


async def live(
    store: Any,
    story: Callable[[Market], Awaitable[None]],
    *,
    settings: RoleSettings = SETTINGS,
    ends: bool = True,
    whole: bool = True,
    source: VMSource | None = None,
    limes: Limes | None = None,
    domains: DomainSource | None = None,
) -> None:
    """Run a story in a role that starts on this store, and ends cleanly or not. ``whole``: it also recovers."""
    random = Random(1)
    made = (UpRole if whole else SellingRole)(
        store,
        settings,
        Ports(computer=Inline(), source=source, limes=limes, domains=domains),
        identity="one",
        clock=LoopClock(),
        random=random,
        ids=SeededIds(random),
    )
    await made.prepare()
    running = asyncio.create_task(made.run())
    await asyncio.sleep(5)
    try:
        await story(Market(store, made))
    finally:
        if ends:
            made.stop()
        else:
            running.cancel()
        await asyncio.wait({running})
        if ends:
            running.result()


def later(seconds: float) -> datetime:
    """A moment so long after the start of a story."""
    return as_datetime(LoopClock().now() + seconds)
