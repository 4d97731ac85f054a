"""A small cloud for failover's tests: hosts, VMs and slots in a memory store, placement over the same hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from outlive.base import LoopClock, OutliveError, Random, SeededIds, as_datetime
from outlive.failover import (
    HOST_INDEX,
    Computer,
    Failover,
    FailoverConfig,
    FailoverUpkeepSettings,
    Inline,
    InProcessPlacement,
    PlacementPort,
    ProtectionSettings,
    SlotView,
    slot_view,
)
from outlive.failover.reconciler import Informers
from outlive.placement import (
    Engine,
    Fleet,
    PipelineTable,
    PlacementRequest,
    PlacementSettings,
    Ranking,
    VMSource,
    blocked_hosts,
)
from outlive.resources import (
    RESERVATION_TYPE_LABEL,
    Amounts,
    Assigned,
    Condition,
    Coverage,
    FailoverSpec,
    FailoverStatus,
    FlavorGroup,
    Hypervisor,
    HypervisorSpec,
    Instance,
    ObjectMeta,
    ObjectRef,
    Reservation,
    ReservationSpec,
    ReservationStatus,
    Resource,
    VirtualMachine,
)
from outlive.runtime import FaultRecorder, Informer, Metrics
from outlive.store import MemoryStore, Page
from tests.support.field_writers import WriterStore
from tests.support.remembering_log import RememberingLog
from tests.support.small_clouds import make_host, make_vm

GIB = 2**30


@dataclass(slots=True)
class Fault:
    """What goes wrong, where, how often, and whether the write happened all the same."""

    call: str
    error: OutliveError
    where: Callable[[Any], bool] = lambda _: True
    times: int = 1
    applied: bool = False
    before: Callable[[], Any] | None = None
    """Awaited first: somebody else does something in between."""


class ScriptedStore:
    """A store whose calls fail as a test says; everything else goes through."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner
        self.faults: list[Fault] = []
        self.calls: list[tuple[str, str, str]] = []
        """(call, kind, name) of every write."""
        self._waiting: list[tuple[int, asyncio.Event]] = []

    async def wrote(self, count: int) -> None:
        """Return as soon as so many writes were begun."""
        event = asyncio.Event()
        self._waiting.append((count, event))
        await event.wait()

    async def _through(self, call: str, subject: Any, doing: Callable[[], Any]) -> Any:
        if call not in ("get", "list"):
            ref = subject if isinstance(subject, ObjectRef) else subject.ref
            self.calls.append((call, ref.kind, ref.name))
            for count, event in self._waiting:
                if len(self.calls) >= count:
                    event.set()
        for fault in self.faults:
            if fault.call == call and fault.times > 0 and fault.where(subject):
                fault.times -= 1
                if fault.before is not None:
                    await fault.before()
                    if fault.error.code == "error":
                        break
                if fault.applied:
                    await doing()
                raise fault.error
        return await doing()

    async def get(self, kind: type[Any], name: str, **how: Any) -> Any:
        return await self._through("get", kind, lambda: self._inner.get(kind, name, **how))

    async def list(self, kind: type[Any], **how: Any) -> Page[Any]:
        return await self._through("list", kind, lambda: self._inner.list(kind, **how))

    def observe(self, kind: type[Any], **how: Any) -> Any:
        return self._inner.observe(kind, **how)

    async def create(self, obj: Any) -> Any:
        return await self._through("create", obj, lambda: self._inner.create(obj))

    async def replace(self, obj: Any) -> Any:
        return await self._through("replace", obj, lambda: self._inner.replace(obj))

    async def replace_status(self, obj: Any) -> Any:
        return await self._through("replace_status", obj, lambda: self._inner.replace_status(obj))

    async def delete(self, ref: ObjectRef, **how: Any) -> None:
        await self._through("delete", ref, lambda: self._inner.delete(ref, **how))

    async def patch_metadata(self, ref: ObjectRef, **how: Any) -> Resource:
        return await self._through("patch_metadata", ref, lambda: self._inner.patch_metadata(ref, **how))

    async def close(self) -> None:
        await self._inner.close()


@dataclass(slots=True)
class Emitted:
    """One event."""

    kind: str
    name: str
    reason: str
    note: str
    type: str
    action: str


class EventList:
    """Events in a list."""

    def __init__(self) -> None:
        self.all: list[Emitted] = []

    def emit(self, regarding: ObjectRef, reason: str, note: str, *, type: str = "Normal", action: str = "") -> None:
        self.all.append(Emitted(regarding.kind, regarding.name, reason, note, type, action))

    def reasons(self) -> list[str]:
        return [event.reason for event in self.all]

    def of(self, reason: str) -> list[Emitted]:
        return [event for event in self.all if event.reason == reason]


class DirectRanker:
    """Placement without a service around it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.requests: list[PlacementRequest] = []
        self.error: OutliveError | None = None
        self.fail_when: Callable[[PlacementRequest], bool] = lambda _: True
        self.takes_s: Callable[[PlacementRequest], float] = lambda _: 0.0

    async def rank(self, request: PlacementRequest, *, why: bool = False) -> Ranking:
        self.requests.append(request)
        if (seconds := self.takes_s(request)) > 0:
            await asyncio.sleep(seconds)
        if self.error is not None and self.fail_when(request):
            raise self.error
        return self._engine.rank(request, why=why)


@dataclass
class Cloud:
    """Everything a cycle needs. ``config`` keys are those of the section ``failover``, as in the file."""

    config: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    protection: Mapping[str, Any] = field(default_factory=dict)
    source: VMSource | None = None
    port: PlacementPort | None = None
    computer: Computer = field(default_factory=Inline)
    seed: int = 1

    def __post_init__(self) -> None:
        self.clock = LoopClock()
        self.random = Random(self.seed)
        self.ids = SeededIds(self.random.fork("ids"))
        self.memory = MemoryStore(self.clock, SeededIds(self.random.fork("store")))
        self.store = ScriptedStore(self.memory)
        self.own = WriterStore(self.store, writer="failover")
        keys = {"limitOneNewReservationPerHypervisor": False, "maxVMsToProcess": -1, **self.config}
        self.failover = msgspec.convert(keys, FailoverConfig).apply_defaults()
        self.upkeep_settings = msgspec.convert(dict(self.settings), FailoverUpkeepSettings)
        placement = PlacementSettings()
        self.fleet = Fleet(placement)
        self.ranker = DirectRanker(Engine(self.fleet, PipelineTable.with_shipped()))
        self.events = EventList()
        self.metrics = Metrics()
        self.decisions = RememberingLog(self.clock)
        how = {"clock": self.clock, "random": self.random.fork("informers")}
        self.informers = Informers(
            hypervisors=Informer(self.own, Hypervisor, **how),
            reservations=Informer(self.own, Reservation, indexes={HOST_INDEX: blocked_hosts}, **how),
            groups=Informer(self.own, FlavorGroup, **how),
            vms=Informer(self.own, VirtualMachine, **how),
        )
        self.placement = self.port or InProcessPlacement(self.ranker, self.fleet)
        self.failover_run = Failover(
            self.own,
            informers=self.informers,
            fleet=self.fleet,
            placement=self.placement,
            computer=self.computer,
            config=self.failover,
            settings=self.upkeep_settings,
            metrics=self.metrics,
            events=self.events,
            decisions=self.decisions,
            clock=self.clock,
            random=self.random.fork("failover"),
            ids=self.ids,
            source=self.source,
            protection=msgspec.convert(dict(self.protection), ProtectionSettings),
            faults=FaultRecorder(self.own, self.clock, "failover"),
        )
        self.reconciler = self.failover_run.reconciler
        self.informers.hypervisors.subscribe(self._host_changed)
        self.informers.reservations.subscribe(self._slot_changed)
        self._following: list[asyncio.Task[None]] = []

    def _host_changed(self, old: Hypervisor | None, new: Hypervisor | None) -> None:
        if new is not None:
            self.fleet.upsert_host(new)
        elif old is not None:
            self.fleet.remove_host(old.name)

    def _slot_changed(self, old: Reservation | None, new: Reservation | None) -> None:
        if new is not None:
            self.fleet.upsert_reservation(new)
        elif old is not None:
            self.fleet.remove_reservation(old.name)

    async def cycle(self) -> float:
        """One tick, with caches that show what is there."""
        await self.follow()
        return await self.reconciler.tick()

    async def follow(self) -> None:
        """Let the caches follow the store, and see what is there now."""
        informers = self.informers
        every = (informers.hypervisors, informers.reservations, informers.groups, informers.vms)
        if not self._following:
            self._following = [asyncio.create_task(informer.run()) for informer in every]
        for informer in every:
            await informer.wait_synced()
        await self.clock.sleep(0.01)

    # Hosts

    async def host(
        self, name: str, *, zone: str = "z", rack: str = "", cpu: int = 64_000, memory: int = 256 * GIB, **spec: Any
    ) -> None:
        domains = {"rack": rack} if rack else {}
        made = make_host(name, cpu=cpu, memory=memory, zone=zone, domains=domains, spec=HypervisorSpec(**spec))
        status = made.status
        await self.set_host(
            await self.memory.create(made),
            capacity=status.capacity,
            allocation=status.allocation,
            domain_capabilities=status.domain_capabilities,
        )

    async def set_host(self, host: Hypervisor, **status: Any) -> None:
        changed = msgspec.structs.replace(host, status=msgspec.structs.replace(host.status, **status))
        self.fleet.upsert_host(await self.memory.replace_status(changed))

    async def hosts(self, *names: str, **how: Any) -> None:
        for name in names:
            await self.host(name, **how)

    async def get_host(self, name: str) -> Hypervisor:
        return await self.memory.get(Hypervisor, name)

    async def instances(self, name: str, change: Callable[[tuple[Instance, ...]], Iterable[Instance]]) -> None:
        host = await self.get_host(name)
        instances = tuple(change(host.status.instances))
        await self.set_host(host, instances=instances, num_instances=len(instances))

    # VMs

    async def vm(
        self,
        name: str,
        host: str,
        *,
        flavor: str = "std",
        cpu: int = 2_000,
        memory: int = 4 * GIB,
        zone: str = "z",
        **spec: Any,
    ) -> None:
        made = make_vm(name, host, cpu=cpu, memory=memory, zone=zone, flavor=flavor, **spec)
        vm = await self.memory.create(made)
        await self.memory.replace_status(msgspec.structs.replace(vm, status=made.status))
        await self.instances(host, lambda there: (*there, Instance(id=name, name=name)))

    async def move(self, name: str, host: str) -> None:
        vm = await self.memory.get(VirtualMachine, name)
        assert vm.status.assigned is not None
        await self.instances(vm.status.assigned.hypervisor, lambda there: (i for i in there if i.id != name))
        status = msgspec.structs.replace(vm.status, assigned=Assigned(hypervisor=host))
        await self.memory.replace_status(msgspec.structs.replace(vm, status=status))
        await self.instances(host, lambda there: (*there, Instance(id=name)))

    async def stop(self, name: str) -> None:
        vm = await self.memory.get(VirtualMachine, name)
        assert vm.status.assigned is not None
        await self.instances(
            vm.status.assigned.hypervisor,
            lambda there: (msgspec.structs.replace(i, active=False) if i.id == name else i for i in there),
        )

    async def remove_vm(self, name: str, *, also_from_host: bool = True) -> None:
        vm = await self.memory.get(VirtualMachine, name)
        assert vm.status.assigned is not None
        if also_from_host:
            await self.instances(vm.status.assigned.hypervisor, lambda there: (i for i in there if i.id != name))
        await self.memory.delete(vm.ref)

    # Slots

    async def slot(
        self,
        name: str,
        host: str,
        members: Mapping[str, str] | None,
        *,
        cpu: int = 2_000,
        memory: int = 4 * GIB,
        ready: bool | None = True,
        zone: str = "z",
        labelled: bool = True,
        resources: Amounts | None = None,
    ) -> Reservation:
        slot = await self.memory.create(
            Reservation(
                metadata=ObjectMeta(name=name, labels={RESERVATION_TYPE_LABEL: "failover"} if labelled else {}),
                spec=ReservationSpec(
                    type="FailoverReservation",
                    availability_zone=zone,
                    target_host=host,
                    resources=resources if resources is not None else Amounts(cpu=cpu, memory=memory),
                    failover_reservation=FailoverSpec(resource_group="std"),
                ),
            )
        )
        if members is not None:
            ready_words = {True: "True", False: "False"}
            conditions = (
                ()
                if ready is None
                else (Condition(type="Ready", status=ready_words[ready], reason="ReservationActive"),)
            )
            status = ReservationStatus(
                host=host,
                conditions=conditions,
                failover_reservation=FailoverStatus(
                    allocations=dict(members), last_changed=as_datetime(self.clock.now())
                ),
            )
            slot = await self.memory.replace_status(msgspec.structs.replace(slot, status=status))
        self.fleet.upsert_reservation(slot)
        return slot

    async def slots(self) -> dict[str, SlotView]:
        page = await self.memory.list(Reservation, limit=5000)
        return {slot.name: slot_view(slot) for slot in page.items}

    async def members(self) -> dict[str, dict[str, str]]:
        return {name: slot.members for name, slot in (await self.slots()).items()}

    async def set_members(self, name: str, members: Mapping[str, str]) -> None:
        """Somebody else changes a slot behind the cycle's back."""
        slot = await self.memory.get(Reservation, name)
        failover = FailoverStatus(allocations=dict(members), last_changed=as_datetime(self.clock.now()))
        status = msgspec.structs.replace(slot.status, failover_reservation=failover)
        self.fleet.upsert_reservation(await self.memory.replace_status(msgspec.structs.replace(slot, status=status)))

    async def covered(self) -> dict[str, bool]:
        page = await self.memory.list(Coverage, limit=5000)
        return {one.name: one.status.covered for one in page.items}

    async def coverage(self, vm: str) -> Any:
        return (await self.memory.get(Coverage, vm)).status

    def metric(self, name: str, **labels: str) -> float:
        """The value of one series; 0 where there is none."""
        for line in self.metrics.render().decode().splitlines():
            head, _, value = line.rpartition(" ")
            series, _, given = head.partition("{")
            found = dict(part.split("=", 1) for part in given.rstrip("}").split(",") if part)
            if series == f"outlive_{name}" and all(found.get(k) == f'"{v}"' for k, v in labels.items()):
                return float(value)
        return 0.0
