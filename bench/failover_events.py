"""One VM's event on the cache of the reconciler: what changed is taken over, decided about, and its writes taken over.

The very code that ``outlive up`` runs, decision log and log lines included, without the store and without asking
placement; the offers of placement are new ones for each event.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import structlog

from bench.failover_cloud import ZONE, Cloud, vm_view
from bench.figures import Figure
from outlive.base import Random, SystemClock, configure_logging
from outlive.failover import Demands, Inline, Offers, SlotView, claim_of, free_amounts, resolve_size
from outlive.failover.planner import Action, CleanResult, Join, LeaveInput, Open, PlanResult, leave
from outlive.failover.reconciler import Assigner, Decider, FleetCache, Informers, Terms
from outlive.placement import VmView
from outlive.resources import (
    RESERVATION_TYPE_LABEL,
    Amounts,
    FailoverStatus,
    Hypervisor,
    HypervisorStatus,
    Instance,
    ObjectMeta,
    Reservation,
    ReservationSpec,
    ReservationStatus,
)
from outlive.runtime import DecisionLog

EVENTS = 300
SIZES = (1, 2, 4, 8)


class Follower:
    """The cache of a fleet, with a source of changes that carries its answers out."""

    def __init__(self, cloud: Cloud, result: PlanResult) -> None:
        self.cloud = cloud
        nobody: Any = SimpleNamespace(items=list, get=lambda name: None)
        informers = Informers(nobody, nobody, nobody, nobody)
        demands = Demands({"*": 2})
        self.state = FleetCache(informers, demands, clock=SystemClock(), trust_hosts=True, follow_vms=False)
        self.on: dict[str, dict[str, None]] = {name: {} for name in cloud.names}
        for vm in cloud.vms:
            self.on[vm.host][vm.id] = None
        self.slots = {slot.name: slot for slot in result.slots}
        with self.state.without_marking():
            for name in cloud.names:
                self.state.put_host(name, self.host(name))
            for vm in cloud.vms:
                self.state.put_vm(vm.id, vm)
            for slot in result.slots:
                self.state.put_slot(slot.name, reservation(slot))
        clock = SystemClock()
        self.assigner = Assigner(self.state, Decider(DecisionLog(clock), Inline(), clock=clock))
        self.classes, self.offers = cloud.offers()
        self.serial = 0

    def host(self, name: str) -> Hypervisor:
        instances = tuple(Instance(id=vm) for vm in self.on[name])
        return Hypervisor(metadata=ObjectMeta(name=name), status=HypervisorStatus(instances=instances))

    def seconds(self, change: Callable[[], None]) -> float:
        """What a change takes until everything it calls for is decided and taken over."""
        offers = Offers(reuse=dict(self.offers.reuse), new=dict(self.offers.new))
        free = free_amounts(self.cloud.fleet)
        start = time.perf_counter()
        change()
        touched = self.state.take_dirty()
        left = self.leaving(touched)
        taken = time.perf_counter() - start
        written: list[tuple[str, Reservation | None]] = [(slot.name, reservation(slot)) for slot in left.slots]
        written += [(deletion.slot, None) for deletion in left.deleted]
        start = time.perf_counter()
        self.take_over(written)
        state = self.state
        missing = [
            claim_of(vm, state.index.count_missing(name), resolve_size(vm), with_project=False)
            for name in touched
            if (vm := state.vms.get(name)) is not None and state.index.count_missing(name)
        ]
        actions = self.assigner.assign(missing, Terms(offers, free)) if missing else []
        taken += time.perf_counter() - start
        written = self.written(actions)
        start = time.perf_counter()
        self.take_over(written)
        return taken + time.perf_counter() - start

    def take_over(self, written: list[tuple[str, Reservation | None]]) -> None:
        with self.state.without_marking():
            for name, slot in written:
                self.state.put_slot(name, slot)

    def leaving(self, vms: list[str]) -> CleanResult:
        """What these VMs give reason to leave."""
        state = self.state
        departing = [vm for vm in vms if state.departs(vm)]
        return leave(
            LeaveInput(
                vms=tuple(state.vms[vm] for vm in departing if vm in state.vms),
                gone=tuple(vm for vm in departing if vm not in state.vms),
                slots=tuple(state.slots_of(departing)),
            )
        )

    def written(self, actions: list[Action]) -> list[tuple[str, Reservation | None]]:
        """The slots as the writes of these actions leave them."""
        found: list[tuple[str, Reservation | None]] = []
        for action in actions:
            if isinstance(action, Join):
                slot = self.state.slots[action.slot]
                members = {**slot.members, action.vm: action.vm_host}
                found.append((slot.name, reservation(msgspec.structs.replace(slot, members=members))))
            elif isinstance(action, Open):
                self.serial += 1
                slot = SlotView(
                    name=f"event-{self.serial}",
                    host=action.host,
                    cpu_milli=action.cpu_milli,
                    memory_bytes=action.memory_bytes,
                    members={action.vm: action.vm_host},
                )
                found.append((slot.name, reservation(slot)))
        return found


def reservation(slot: SlotView) -> Reservation:
    """The object that a slot's view is made of."""
    return Reservation(
        metadata=ObjectMeta(name=slot.name, labels={RESERVATION_TYPE_LABEL: "failover"}),
        spec=ReservationSpec(
            type="FailoverReservation",
            availability_zone=ZONE,
            resources=Amounts(cpu=slot.cpu_milli, memory=slot.memory_bytes),
            target_host=slot.host,
        ),
        status=ReservationStatus(host=slot.host, failover_reservation=FailoverStatus(allocations=dict(slot.members))),
    )


def events(cloud: Cloud, result: PlanResult) -> list[Figure]:
    """Median times of one VM's event on the fleet of ``result``."""
    with Path(os.devnull).open("w") as nowhere:
        with redirect_stderr(nowhere):
            configure_logging(form="json")
        try:
            return _events(cloud, result)
        finally:
            structlog.reset_defaults()


def _events(cloud: Cloud, result: PlanResult) -> list[Figure]:
    random, world = Random(7), Follower(cloud, result)
    times: dict[str, list[float]] = {"appears": [], "moves": [], "disappears": []}

    def report(vm: VmView | None, name: str, hosts: list[Hypervisor]) -> Callable[[], None]:
        def change() -> None:
            world.state.put_vm(name, vm)
            for host in hosts:
                world.state.put_host(host.name, host)

        return change

    for number in range(EVENTS):
        fresh = vm_view(f"fresh-{number}", random.choice(cloud.names), random.choice(SIZES))
        world.on[fresh.host][fresh.id] = None
        times["appears"].append(world.seconds(report(fresh, fresh.id, [world.host(fresh.host)])))
        before = world.state.vms[random.choice(cloud.vms).id]
        moved = vm_view(before.id, random.choice(cloud.names), before.cpu_milli // 1000)
        del world.on[before.host][before.id]
        world.on[moved.host][moved.id] = None
        hosts = [world.host(name) for name in dict.fromkeys((before.host, moved.host))]
        times["moves"].append(world.seconds(report(moved, moved.id, hosts)))
        del world.on[fresh.host][fresh.id]
        times["disappears"].append(world.seconds(report(None, fresh.id, [world.host(fresh.host)])))
    assert not world.state.index.list_faulty()
    assert not world.state.index.missing_slots()
    return [
        Figure(f"a VM {what}, 10,000 VMs, covered again", statistics.median(found) * 1000, "ms", 1.0)
        for what, found in times.items()
    ]
