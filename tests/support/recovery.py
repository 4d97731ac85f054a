"""A small cloud for recovery's tests: hosts that renew and start what is assigned to them, and recovery beside them.

The hosts are as simple as can be: they hold and run, or refuse. What they write they write by the steps of the
protocol, so that a recovery that asks for something unsafe is refused here too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from outlive.base import Conflict, LoopClock, Random, SeededIds, as_datetime
from outlive.failover import Caller, Demands, InProcessPlacement
from outlive.node.membership import HOLD, HoldView, Me, member_view
from outlive.node.vm import current_rejection, reach_of
from outlive.placement import Engine, Fleet, PipelineTable, PlacementSettings
from outlive.recovery import RecoveryController, RecoveryInformers, slot_indexes, vm_indexes
from outlive.resources import (
    HOST_LABEL,
    RESERVATION_TYPE_LABEL,
    ZONE_LABEL,
    Amounts,
    Assigned,
    Cluster,
    DomainCapabilities,
    FailoverSpec,
    FailoverStatus,
    Holder,
    Hypervisor,
    HypervisorSpec,
    Instance,
    MemberRecord,
    Membership,
    ObjectMeta,
    Proof,
    Rejection,
    Reservation,
    ReservationSpec,
    ReservationStatus,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
    is_to_run,
)
from outlive.runtime import DecisionLog, Informer, Manager, Metrics
from outlive.store import MemoryStore, Store
from tests.support.failover import DirectRanker, EventList
from tests.support.field_writers import WriterStore
from tests.support.loops import run, running

GIB = 2**30
_replace = msgspec.structs.replace


class FaultList:
    """Remembers what is active."""

    def __init__(self) -> None:
        self.open: dict[tuple[str, str], str] = {}

    def forget(self) -> None:
        """Nothing is remembered but what is open."""

    async def record(self, active: Any, *, undetermined: Any = ()) -> None:
        found = {(one.code, one.subject.name): str(one.message) for one in active}
        stay = {key: text for key, text in self.open.items() if {key[0], ".".join(key)} & set(undetermined)}
        self.open = {**stay, **found}


class RecoveryCloud:
    """Hosts, VMs and slots in a memory store."""

    def __init__(self, *, seed: int = 1, wrap: Callable[[Store], Store] = lambda store: store) -> None:
        self.clock = LoopClock()
        self.random = Random(seed)
        self.ids = SeededIds(self.random.fork("ids"))
        self.memory = MemoryStore(self.clock, SeededIds(self.random.fork("store")))
        self.daemon = WriterStore(self.memory, writer="daemon")
        self.wrap = wrap
        self.alive: set[str] = set()
        self.refuses: dict[str, str] = {}
        """Host → why it starts nothing."""
        self.dawdles: set[str] = set()
        """Hosts that neither start nor refuse."""
        self.faults = FaultList()
        self.metrics = Metrics()
        self.events = EventList()
        self.decisions = DecisionLog(self.clock)
        self.running: dict[str, set[str]] = {}
        """VM → hosts where a domain of it runs."""

    # What there is

    async def hosts(self, *names: str, cpu: int = 64_000, memory: int = 256 * GIB, **spec: Any) -> None:
        for name in names:
            labels = {ZONE_LABEL: "z"}
            host = await self.memory.create(
                Hypervisor(metadata=ObjectMeta(name=name, labels=labels), spec=HypervisorSpec(**spec))
            )
            status = _replace(
                host.status,
                capacity=Amounts(cpu=cpu, memory=memory),
                allocation=Amounts(cpu=0, memory=0),
                domain_capabilities=DomainCapabilities(hypervisor_type="kvm"),
            )
            await self.memory.replace_status(_replace(host, status=status))
            record = MemberRecord(machine_id=f"machine-{name}", boot_id="boot-1", epoch=1, seq=1, nonce=name)
            await self.memory.create(Membership(metadata=ObjectMeta(name=name), record=record))
            self.alive.add(name)

    async def vm(
        self,
        name: str,
        host: str,
        *,
        cpu: int = 2_000,
        memory: int = 4 * GIB,
        status: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> None:
        vm = await self.memory.create(
            VirtualMachine(
                metadata=ObjectMeta(name=name, labels={"outlive.dev/host": host}),
                spec=VirtualMachineSpec(
                    flavor="std", zone="z", resources=Amounts(cpu=cpu, memory=memory), disks=(f"disk-{name}",), **spec
                ),
            )
        )
        holder = Holder(hypervisor=host, member_uid=await self.uid(host), epoch=1, run_id=f"run-{name}", seen="running")
        found = {"phase": "start", "assigned": Assigned(hypervisor=host), "holders": (holder,), **(status or {})}
        await self.memory.replace_status(_replace(vm, status=VirtualMachineStatus(**found)))
        if found["holders"]:
            self.running[name] = {host}
            await self._report(host)

    async def slot(self, name: str, host: str, members: Mapping[str, str], *, cpu: int = 2_000, **how: Any) -> None:
        slot = await self.memory.create(
            Reservation(
                metadata=ObjectMeta(name=name, labels={RESERVATION_TYPE_LABEL: "failover"}),
                spec=ReservationSpec(
                    type="FailoverReservation",
                    availability_zone="z",
                    target_host=host,
                    resources=Amounts(cpu=cpu, memory=how.get("memory", 4 * GIB)),
                    failover_reservation=FailoverSpec(resource_group="std"),
                ),
            )
        )
        failover = FailoverStatus(allocations=dict(members), last_changed=as_datetime(self.clock.now()))
        status = ReservationStatus(host=host, failover_reservation=failover)
        await self.memory.replace_status(_replace(slot, status=status))

    async def cluster(self, **spec: Any) -> None:
        cluster = Cluster(metadata=ObjectMeta(name="default"))
        await self.memory.create(_replace(cluster, spec=_replace(cluster.spec, **spec)))

    # What happens

    async def die(self, *names: str, proof: str = "power") -> None:
        """The hosts lose power, and are proven dead at once."""
        for name in names:
            self.lose_power(name)
        for name in names:
            await self.prove(name, proof)

    def lose_power(self, name: str) -> None:
        self.alive.discard(name)
        for hosts in self.running.values():
            hosts.discard(name)

    async def condemn(self, name: str, phase: str = "condemned") -> None:
        await self._change(name, lambda record: _condemned(name, record, phase))

    async def release(self, name: str) -> None:
        """The host is stopped cleanly."""
        await self._change(name, lambda record: _replace(record, state="Released"))

    async def prove(self, name: str, kind: str = "power") -> None:
        def proven(record: MemberRecord) -> MemberRecord:
            fence = _condemned(name, record, "proven").fence
            proof = Proof(kind=kind, evidence="seen off", epoch=record.epoch, fence=fence.id)
            return _replace(record, state="Revoked", fence=fence, dead_through=record.epoch, proof=proof)

        await self._change(name, proven)

    async def _change(self, name: str, change: Callable[[MemberRecord], MemberRecord]) -> None:
        """A renewal may be on its way: then once more."""
        for _ in range(5):
            member = await self.memory.get(Membership, name)
            try:
                await self.memory.replace(_replace(member, record=change(member.record)))
            except Conflict:
                continue
            return

    async def come_back(self, name: str) -> None:
        """The host boots and joins."""
        member = await self.memory.get(Membership, name)
        old = member.record
        proof = Proof(kind="reboot", evidence="another boot", epoch=old.epoch)
        record = _replace(old, state="Held", epoch=old.epoch + 1, dead_through=old.epoch, proof=proof, boot_id="boot-2")
        await self.memory.replace(_replace(member, record=record))
        self.alive.add(name)

    # Hosts

    async def run(self) -> None:
        """All hosts renew each second and do what they are to; for ever."""
        while True:
            for name in sorted(self.alive):
                try:
                    await self._renew(name)
                    await self._work(name)
                except Conflict:
                    pass
            await self.clock.sleep(1.0)

    async def _renew(self, name: str) -> None:
        member = await self.daemon.get(Membership, name, fresh=True)
        if member.record.state == "Held":
            await self.daemon.replace(_replace(member, record=_replace(member.record, seq=member.record.seq + 1)))

    async def _work(self, name: str) -> None:
        member = await self.daemon.get(Membership, name, fresh=True)
        if member.record.state != "Held" or name in self.dawdles:
            return
        me = Me(host=name, uid=member.metadata.uid, epoch=member.record.epoch)
        for vm in (await self.memory.list(VirtualMachine, limit=5000)).items:
            where = vm.status.assigned
            astray = vm.metadata.labels.get(HOST_LABEL) != name
            if where is None or where.hypervisor != name:
                continue
            if any(one.hypervisor == name and one.epoch == me.epoch for one in vm.status.holders):
                if astray:  # its writer was late; daemons put right what they run
                    labels = {**vm.metadata.labels, HOST_LABEL: name}
                    await self.memory.replace(_replace(vm, metadata=_replace(vm.metadata, labels=labels)))
                continue
            if astray or current_rejection(vm) is not None:
                continue
            await self._start(vm, me)
        await self._report(name)

    async def _start(self, vm: VirtualMachine, me: Me) -> None:
        where = vm.status.assigned
        assert where is not None
        if me.host in self.refuses:
            if vm.status.rejection is None:
                said = Rejection(
                    hypervisor=me.host, fence=where.fence, reason="not-created", message=self.refuses[me.host]
                )
                await self.daemon.replace_status(_replace(vm, status=_replace(vm.status, rejection=said)))
            return
        members = [member_view(one) for one in (await self.memory.list(Membership)).items]
        outcome = HOLD.attempt(
            HoldView(
                vm=vm.name,
                me=me,
                assigned=where.hypervisor,
                wanted=is_to_run(vm),
                holders=vm.status.holders,
                members=tuple(members),
                reach=reach_of(vm),
                run_id=self.ids.new_uuid(),
            )
        )
        if outcome.refused is not None:
            return
        holders = tuple(_replace(one, seen="running") for one in outcome.holders)
        vm = await self.daemon.replace_status(_replace(vm, status=_replace(vm.status, holders=holders)))
        self.running.setdefault(vm.name, set()).add(me.host)
        assert len(self.running[vm.name]) == 1, f"{vm.name} runs on {self.running[vm.name]}"

    async def _report(self, name: str) -> None:
        host = await self.daemon.get(Hypervisor, name, fresh=True)
        here = sorted(vm for vm, hosts in self.running.items() if name in hosts)
        if [one.id for one in host.status.instances] == here:
            return
        cpu, memory = 0, 0
        for vm in here:
            resources = (await self.memory.get(VirtualMachine, vm)).spec.resources
            cpu, memory = cpu + resources.cpu_milli, memory + resources.memory_bytes
        status = _replace(
            host.status,
            instances=tuple(Instance(id=vm) for vm in here),
            num_instances=len(here),
            allocation=Amounts(cpu=cpu, memory=memory),
        )
        await self.daemon.replace_status(_replace(host, status=status))

    # Recovery

    def manager(self) -> Manager:
        """Recovery as a process of its own, with caches of its own."""
        store = self.wrap(self.memory)
        recovery = WriterStore(store, writer="recovery")
        random = self.random.fork("informers")

        def informer(kind: Any, **how: Any) -> Any:
            return Informer(self.memory, kind, clock=self.clock, random=random, **how)

        informers = RecoveryInformers(
            vms=informer(VirtualMachine, indexes=vm_indexes()),
            reservations=informer(Reservation, indexes=slot_indexes()),
            hypervisors=informer(Hypervisor),
            memberships=informer(Membership),
            clusters=informer(Cluster),
        )
        settings = PlacementSettings()
        fleet = Fleet(settings)
        informers.hypervisors.subscribe(lambda _, new: fleet.upsert_host(new) if new is not None else None)
        informers.reservations.subscribe(
            lambda old, new: fleet.upsert_reservation(new) if new is not None else fleet.remove_reservation(old.name)
        )
        manager = Manager(self.clock, random, Metrics(), self.ids)
        self.metrics = Metrics()
        RecoveryController(
            recovery,
            informers,
            placement=InProcessPlacement(DirectRanker(Engine(fleet, PipelineTable.with_shipped())), fleet),
            fleet=fleet,
            demands=Demands({}),
            caller=Caller(),
            metrics=self.metrics,
            events=self.events,
            decisions=self.decisions,
            clock=self.clock,
            ids=self.ids,
            faults=self.faults,
        ).attach(manager)
        return manager

    # What came of it

    async def uid(self, host: str) -> str:
        return (await self.memory.get(Membership, host)).metadata.uid

    async def get(self, vm: str) -> VirtualMachine:
        return await self.memory.get(VirtualMachine, vm)

    async def where(self, vm: str) -> str:
        found = (await self.get(vm)).status.assigned
        return found.hypervisor if found is not None else ""

    async def recovery(self, vm: str) -> Any:
        return (await self.get(vm)).status.recovery

    async def consumers(self) -> dict[str, str]:
        page = await self.memory.list(Reservation, limit=5000)
        return {one.name: one.status.consumer.vm for one in page.items if one.status.consumer is not None}

    async def recovered(self, vms: Iterable[str]) -> bool:
        found = [await self.recovery(vm) for vm in vms]
        return all(one is not None and one.phase == "recovered" for one in found)


def play(story: Callable[[RecoveryCloud], Awaitable[None]], **how: Any) -> None:
    """The story, with hosts and recovery running."""

    async def main() -> None:
        cloud = RecoveryCloud(**how)
        async with running(cloud, cloud.manager()):
            await story(cloud)

    run(main())


async def join_before(cloud: RecoveryCloud, *hosts: str) -> None:
    """These joined the store that the backup was made of."""
    for name in hosts:
        found = await cloud.memory.get(Membership, name)
        record = _replace(found.record, incarnation="that-of-the-backup")
        await cloud.memory.replace(_replace(found, record=record))


def _condemned(name: str, record: MemberRecord, phase: str) -> MemberRecord:
    fence = _replace(record.fence, id=f"{name}.{record.epoch}", epoch=record.epoch, phase=phase)
    return _replace(record, state="Revoked", fence=fence)
