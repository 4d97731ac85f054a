"""Room of VMs that a host is to run: each counts exactly once, in the host's report, in its slot, or as its block."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.loops import run

from outlive.base import LoopClock, Random, SeededIds
from outlive.placement import Fleet
from outlive.recovery import InFlightRoom, RecoveryInformers, slot_indexes, vm_indexes
from outlive.resources import (
    Amounts,
    Assigned,
    Cluster,
    Consumer,
    Hypervisor,
    HypervisorStatus,
    Instance,
    Membership,
    Migration,
    ObjectMeta,
    ObjectRef,
    Reservation,
    ReservationSpec,
    ReservationStatus,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)
from outlive.runtime import Informer
from outlive.store import MemoryStore

CORES = 64_000
SIZES = {"a": 2000, "b": 3000, "c": 5000}
HOSTS = ("h1", "h2")
_replace = msgspec.structs.replace


class Room:
    """Two hosts with daemons, and what a fleet makes of it."""

    def __init__(self) -> None:
        clock = LoopClock()
        store = MemoryStore(clock, SeededIds(Random(1)))
        random = Random(1)
        self.vms = Informer(store, VirtualMachine, clock=clock, random=random, indexes=vm_indexes())
        self.hosts = Informer(store, Hypervisor, clock=clock, random=random)
        self.slots = Informer(store, Reservation, clock=clock, random=random, indexes=slot_indexes())
        self.fleet = Fleet()
        self._version = 0
        self.hosts.subscribe(lambda _, new: self.fleet.upsert_host(new) if new is not None else None)
        self.slots.subscribe(self._slot_changed)
        members, clusters = (Informer(store, kind, clock=clock, random=random) for kind in (Membership, Cluster))
        InFlightRoom(self.fleet, RecoveryInformers(self.vms, self.slots, self.hosts, members, clusters))

    def _slot_changed(self, old: Reservation | None, new: Reservation | None) -> None:
        if new is not None:
            self.fleet.upsert_reservation(new)
        elif old is not None:
            self.fleet.remove_reservation(old.name)

    def show(self, informer: Any, obj: Any) -> None:
        """The informer sees the object like this."""
        before = informer.get(obj.name)
        self._version += 1
        version = before.metadata.resource_version if before is not None else ""
        uid = before.metadata.uid if before is not None else f"uid-{self._version}"
        meta = ObjectMeta(name=obj.name, uid=uid, resource_version=str(self._version))
        informer.note(_replace(obj, metadata=meta), replaced=version)

    def host(self, name: str, *there: str, source: str = "daemon") -> None:
        """The host reports these VMs."""
        status = HypervisorStatus(
            capacity=Amounts(cpu=CORES, memory=0),
            allocation=Amounts(cpu=sum(SIZES[vm] for vm in there), memory=0),
            instances=tuple(Instance(id=vm) for vm in there),
            source=source,
        )
        self.show(self.hosts, Hypervisor(metadata=ObjectMeta(name=name), status=status))

    def vm(self, name: str, host: str = "", *, slot: str = "", phase: str = "start", to: str = "") -> None:
        """The VM is assigned there."""
        where = Assigned(hypervisor=host, slot=ObjectRef(kind="Reservation", name=slot) if slot else None)
        self.show(
            self.vms,
            VirtualMachine(
                metadata=ObjectMeta(name=name),
                spec=VirtualMachineSpec(resources=Amounts(cpu=SIZES[name], memory=0)),
                status=VirtualMachineStatus(
                    phase="migrate" if to else phase,
                    assigned=where if host else None,
                    migration=Migration(id="m", source=host, target=to) if to else None,
                ),
            ),
        )

    def slot(self, vm: str, host: str) -> None:
        """A slot that the VM is let into."""
        spec = ReservationSpec(type="FailoverReservation", resources=Amounts(cpu=SIZES[vm], memory=0), target_host=host)
        status = ReservationStatus(host=host, consumer=Consumer(vm=vm, fence="f"))
        self.show(self.slots, Reservation(metadata=ObjectMeta(name=f"slot-{vm}"), spec=spec, status=status))

    def taken(self, host: str) -> int:
        """Milli-cores that nobody else may have."""
        free = self.fleet.free_amounts()[self.fleet.index[host]]
        return CORES - int(free[0])


async def test_host_that_has_booted_keeps_the_room_of_the_vms_that_it_starts_again() -> None:
    room = Room()
    room.host("h1", "a", "b")
    room.vm("a", "h1")
    room.vm("b", "h1")
    assert room.taken("h1") == 5000
    room.host("h1")
    assert room.taken("h1") == 5000
    room.host("h1", "b")
    assert room.taken("h1") == 5000
    room.vm("a", "h1", phase="stop")
    assert room.taken("h1") == 3000


async def test_hosts_without_a_daemon_have_the_vms_that_they_report_and_no_others() -> None:
    room = Room()
    room.host("h1", source="mirror")
    room.vm("a", "h1")
    assert room.taken("h1") == 0
    room.host("h1")
    assert room.taken("h1") == 2000


ACTS = st.lists(
    st.tuples(
        st.sampled_from(("assign", "stop", "report", "slot", "unslot")),
        st.sampled_from(sorted(SIZES)),
        st.sampled_from(HOSTS),
        st.sets(st.sampled_from(sorted(SIZES))),
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=60)
@given(ACTS)
def test_every_vm_that_is_wanted_counts_exactly_once_where_it_is_assigned(
    acts: list[tuple[str, str, str, set[str]]],
) -> None:
    async def story() -> None:
        room = Room()
        assigned: dict[str, str] = {}
        reports: dict[str, set[str]] = {host: set() for host in HOSTS}
        slots: dict[str, str] = {}
        for host in HOSTS:
            room.host(host)
        for act, vm, host, there in acts:
            match act:
                case "assign":
                    room.vm(vm, host)
                    assigned[vm] = host
                case "stop":
                    room.vm(vm, host, phase="stop")
                    assigned.pop(vm, None)
                case "report":
                    room.host(host, *sorted(there))
                    reports[host] = there
                case "slot":
                    room.slot(vm, host)
                    slots[vm] = host
                case _ if slots.pop(vm, None) is not None:
                    found = room.slots.get(f"slot-{vm}")
                    assert found is not None
                    room.slots.note_deleted(found.ref)
            for one in HOSTS:
                counted = {*reports[one], *(vm for vm, at in assigned.items() if at == one)}
                counted |= {vm for vm, at in slots.items() if at == one}
                assert room.taken(one) == sum(SIZES[vm] for vm in counted)

    run(story())
