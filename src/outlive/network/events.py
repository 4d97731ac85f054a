"""What the network controller reports of ports, networks and VMs, and what it looks at again after a change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from outlive.base import Clock
from outlive.network.informers import BY_NETWORK, BY_VM, NetworkInformers, PortChange, condition_of
from outlive.network.own_vms import OwnPort
from outlive.network.ports import Binding, Chassis, OvnFeatures
from outlive.network.views import VmPlace, is_down, place_of
from outlive.resources import (
    Announcement,
    Cluster,
    Hypervisor,
    ObjectRef,
    PortMove,
    Resource,
    VirtualMachine,
    VirtualMachinePort,
    VirtualMachinePortStatus,
    VirtualNetwork,
    find_condition,
    interface_id,
    with_condition,
)
from outlive.resources.reasons import MigrationReason, NetworkReason, Reason, make_reason, render
from outlive.runtime import Metrics

LATE_S: Final = 3.0
"""A target that takes longer to be prepared is told of."""
_TAKEN: Final = (NetworkReason.ADDRESS_TWICE, NetworkReason.MAC_TWICE)


class NetworkEvents:
    """See the module. Each is told where something has changed, and not again while it stays."""

    def __init__(self, informers: NetworkInformers, emit: Any, metrics: Metrics) -> None:
        self._informers = informers
        self._emit = emit
        self._problems = metrics.add_counter(
            "network_problems_total", "Problems of VMs on Outlive's hosts", ("reason",)
        )
        self._refused: dict[tuple[str, str], str] = {}
        """Kind and name of what is not programmed now → why …"""
        self._counts: Counter[tuple[str, str]] = Counter()
        """… and how many of a kind there are for each reason."""
        self._gauge = metrics.add_gauge(
            "network_refused", "Ports and networks that are not programmed", ("kind", "reason")
        )

    def report_late(self, vm: str, port: str, place: VmPlace, took_s: float) -> None:
        """Tell that a target was prepared late."""
        if took_s >= LATE_S:
            self._warn(_vm_ref(vm), "PreparedLate", f"{place.target} was prepared for {port} after {took_s:.1f} s")

    def report_gap(self, port: str, gap_ms: int) -> None:
        """Tell that the guest was silent for longer than its user accepts."""
        found = self._informers.ports.get(port)
        if found is not None and gap_ms > found.spec.max_gap_ms:
            note = (
                f"the network was silent for {gap_ms} ms in the last move, longer than maxGapMs {found.spec.max_gap_ms}"
            )
            self._warn(ObjectRef(kind="VirtualMachinePort", name=port), "GapExceeded", note)

    def report_aborted(self, vm: VirtualMachine | None, move: str) -> None:
        """Tell that the move, which was under way, has been aborted because the network was not prepared."""
        now = vm.status.migration if vm is not None else None
        if vm is not None and now is not None and now.id == move and now.reason == MigrationReason.NETWORK_NOT_READY:
            self._warn(vm.ref, "MoveAbortedByNetwork", f"the move to {now.target} is aborted: {now.message}")

    def report_overwritten(self, vm: str, operations: int) -> None:
        """Tell that rows which somebody else changed were programmed again."""
        note = f"somebody else had changed its rows in OVN: {operations} operations have put them right"
        self._warn(_vm_ref(vm), "ProgrammedAgain", note)

    def report_portless(self, vm: str, interfaces: Iterable[str]) -> None:
        """Tell that a VM that runs keeps rows of interfaces of which the store has no port."""
        for interface in interfaces:
            note = str(render(make_reason(NetworkReason.NO_PORT, vm=vm, interface=interface)))
            self._warn(_vm_ref(vm), "PortMissing", note)

    def report_port(self, name: str, problem: Reason | None) -> None:
        """Tell why a port is not programmed, where that was not so, or not for this reason; ``None``: it is."""
        found = self._informers.ports.get(name)
        is_waiting = problem is not None and problem.code == NetworkReason.NO_HOST
        self._report(VirtualMachinePort, name, found, None if is_waiting else problem)

    def report_network(self, name: str, network: VirtualNetwork | None, problem: Reason | None) -> None:
        """The same of a network."""
        self._report(VirtualNetwork, name, network, problem)

    def forget_ports(self, names: Iterable[str]) -> None:
        """Ports that are gone are not counted."""
        for name in names:
            self._count((VirtualMachinePort.__name__, name), None)

    def _report(
        self,
        kind: type[Resource],
        name: str,
        found: VirtualMachinePort | VirtualNetwork | None,
        problem: Reason | None,
    ) -> None:
        self._count((kind.__name__, name), problem.code if problem is not None and found is not None else None)
        before = find_condition(found.status.conditions, "Programmed") if found is not None else None
        if problem is not None and (before is None or before.reason != problem.code):
            event = "AddressTaken" if problem.code in _TAKEN else "NotProgrammed"
            self._warn(ObjectRef(kind=kind.__name__, name=name), event, str(render(problem)))

    def _count(self, key: tuple[str, str], code: str | None) -> None:
        before = self._refused.pop(key, None)
        if code is not None:
            self._refused[key] = code
        for why, change in ((before, -1), (code, 1)):
            if before != code and why is not None:
                self._counts[key[0], why] += change
                self._gauge.labels(key[0], why).set(self._counts[key[0], why])

    def report_notice(self, port: str, notice: Reason | None) -> None:
        """Tell what is wrong with the network, mode or addresses of a port that is programmed all the same."""
        found = self._informers.ports.get(port)
        before = find_condition(found.status.conditions, "AddressesReserved") if found is not None else None
        if notice is not None and (before is None or before.reason != notice.code):
            about = ObjectRef(kind="VirtualMachinePort", name=port)
            self._warn(about, "AddressTaken" if notice.code in _TAKEN else "NotChanged", str(render(notice)))

    def _warn(self, about: ObjectRef, reason: str, note: str) -> None:
        self._problems.labels(reason).inc()
        self._emit(about, reason, note, type="Warning", action="Program")


def _vm_ref(name: str) -> ObjectRef:
    return ObjectRef(kind="VirtualMachine", name=name)


# What the network controller looks at again when an object changes: keys of its queues.

NETWORK_PREFIX: Final = "network/"
VM_PREFIX: Final = "vm/"


class NetworkKeys:
    """See the module. The controller notes where VMs are, and which of them it left as they were."""

    def __init__(self, informers: NetworkInformers, events: NetworkEvents, clock: Clock) -> None:
        self._informers = informers
        self._events = events
        self._clock = clock
        self.seen_s: dict[str, float] = {}
        """VM → when the change was seen that it is looked at for."""
        self.places: dict[str, VmPlace] = {}
        """Of VMs with ports: where they were when they were looked at last."""
        self.frozen: dict[str, None] = {}
        """VMs whose rows were left as they are because the cluster was paused."""
        self.portless: dict[str, tuple[str, ...]] = {}
        """VMs that keep rows of interfaces without a port, and which."""

    def find_moving(self, old: VirtualMachine | None, new: VirtualMachine | None) -> Iterable[str]:
        """A VM whose migration began, went on or ended; only those that have ports."""
        name = changed_name(old, new)
        if place_of(old).move == place_of(new).move == "" or not self._informers.ports.list_by_index(BY_VM, name):
            return ()
        self.seen_s.setdefault(name, self._clock.monotonic())
        return (VM_PREFIX + name,)

    def find_vms(self, old: VirtualMachine | None, new: VirtualMachine | None) -> Iterable[str]:
        """A VM whose place, ports or definition changed outside of a migration, and those with an interface of it."""
        has_its_ports = old is not None and new is not None and old.spec.ports == new.spec.ports
        found = set() if has_its_ports else self._informers.rivals_of(old, new)
        has_its_place = place_of(old) == place_of(new) and is_down(old) == is_down(new)
        if not (place_of(old).move or place_of(new).move or (has_its_ports and has_its_place)):
            found.add(changed_name(old, new))
        has_rows = (name for name in found if name in self.portless or self._informers.ports.list_by_index(BY_VM, name))
        concerned = sorted(has_rows)
        for name in concerned:
            self.seen_s.setdefault(name, self._clock.monotonic())
        return [VM_PREFIX + name for name in concerned]

    def find_vms_of_port(self, old: VirtualMachinePort | None, new: VirtualMachinePort | None) -> Iterable[str]:
        """The VM of a port that came, went or changed, and those at its addresses."""
        facts = [
            (one.spec, one.status.network, one.status.addresses, one.status.port_mode)
            for one in (old, new)
            if one is not None
        ]
        if new is None:
            self._events.forget_ports([changed_name(old, new)])
        elif len(facts) == 2 and facts[0] == facts[1]:
            return ()
        vms = {port.spec.vm for port in (old, new) if port is not None}
        return [VM_PREFIX + vm for vm in sorted(vms | self._informers.vms_at(old, new))]

    def find_of_network(self, old: VirtualNetwork | None, new: VirtualNetwork | None) -> Iterable[str]:
        """The network, and VMs on it where it changed."""
        name = changed_name(old, new)
        facts = [(one.spec, one.status.type, one.status.host_subnets) for one in (old, new) if one is not None]
        changed = len(facts) < 2 or facts[0] != facts[1]
        ports = self._informers.ports.list_by_index(BY_NETWORK, name) if changed else ()
        return (NETWORK_PREFIX + name, *{VM_PREFIX + port.spec.vm: None for port in ports})

    def find_of_host(self, old: Hypervisor | None, new: Hypervisor | None) -> Iterable[str]:
        """A host that came, went, was labelled or is another chassis now: routed networks give it a subnet, and the
        ports of VMs that are there follow."""
        facts = [
            (one.metadata.labels, one.spec.chassis, one.status.chassis, one.spec.management)
            for one in (old, new)
            if one is not None
        ]
        if len(facts) == 2 and facts[0] == facts[1]:
            return ()
        name, networks = changed_name(old, new), self._informers.networks.items()
        return (
            *(NETWORK_PREFIX + one.name for one in networks if one.spec.type == "routed"),
            *(VM_PREFIX + vm for vm, place in self.places.items() if name in (place.host, place.target)),
        )

    def find_of_cluster(self, old: Cluster | None, new: Cluster | None) -> Iterable[str]:
        """Everything, where a pause began or ended."""
        facts = [(one.paused, one.status.store_incarnation) for one in (old, new) if one is not None]
        if len(facts) == 2 and facts[0] == facts[1]:
            return ()
        vms, networks = self.list_names()
        names = dict.fromkeys((*vms, *self.frozen))
        return (*(NETWORK_PREFIX + one for one in networks), *(VM_PREFIX + one for one in names))

    def list_names(self) -> tuple[list[str], list[str]]:
        """VMs with ports, and networks."""
        return self._informers.ports.index_keys(BY_VM), [one.name for one in self._informers.networks.items()]


def changed_name(old: Any, new: Any) -> str:
    """The name of an object that came, went or changed."""
    return str((new if new is not None else old).name)


# What is reported of a port: whether a target can take it over, and where it is. Pure.

_replace = msgspec.structs.replace


def preparation_problem(
    own: OwnPort,
    host: str,
    chassis: str,
    known: Mapping[str, Chassis],
    binding: Binding | None,
    features: OvnFeatures,
    nb_cfg: int,
) -> Reason | None:
    """Why a host cannot take the port over yet; ``None``: it can.

    Its chassis has bound the port, and has the change ``nb_cfg``. An OVN that binds a port once lets it wait unbound.
    """
    if chassis not in known:
        return make_reason(NetworkReason.NO_CHASSIS, host=host)
    waits_unbound = own.mode == "shared" and not (features.chassis_list and features.strategies)
    if not waits_unbound and (binding is None or chassis not in (binding.chassis, *binding.additional_chassis)):
        return make_reason(NetworkReason.NOT_BOUND, host=host, port=interface_id(own.interface, own.mode, host))
    return make_reason(NetworkReason.FLOWS_BEHIND, host=host) if known[chassis].nb_cfg < nb_cfg else None


def unprepared_move(move: str, problem: Reason, reported: PortMove | None) -> PortMove:
    """That the target cannot take the port over; the time of a preparation before says that it could once."""
    times_ms = reported.times_ms if reported is not None and reported.id == move else {}
    return PortMove(id=move, reason=problem.code, message=render(problem).text, times_ms=times_ms)


def settled_status(
    own: OwnPort,
    place: VmPlace,
    notice: Reason | None,
    *,
    bound: bool,
    move: PortMove | None,
    announcements: tuple[Announcement, ...] | None,
    at: datetime,
) -> PortChange:
    """From the status of a port that OVN has to what it is now.

    ``notice``: what is wrong with its network, mode or addresses all the same. ``announcements``: ``None`` leaves those
    of before.
    """
    interfaces = {host: interface_id(own.interface, own.mode, host) for host in (place.host, place.target) if host}
    unbound = None if bound else make_reason(NetworkReason.NOT_BOUND, host=place.host, port=interfaces[place.host])

    def change(now: VirtualMachinePortStatus) -> VirtualMachinePortStatus:
        conditions = now.conditions
        for kind, problem in (("Programmed", None), ("Bound", unbound), ("AddressesReserved", notice)):
            conditions = with_condition(conditions, condition_of(kind, problem, at))
        switched = now.active_on not in ("", place.host)
        return _replace(
            now,
            network=own.network.name,
            port_mode=own.mode,
            interfaces=interfaces,
            active_on=place.host,
            switched_at=at if switched else now.switched_at,
            migration=_without_note(move or now.migration),
            announcements=announcements if switched and announcements is not None else now.announcements,
            conditions=conditions,
        )

    return change


def noted_move(place: VmPlace, incarnation: str) -> PortChange:
    """From the status of a port to one that says where its VM moves to in this incarnation of the store."""

    def change(now: VirtualMachinePortStatus) -> VirtualMachinePortStatus:
        is_same = now.migration is not None and now.migration.id == place.move
        move = now.migration if is_same and now.migration is not None else PortMove(id=place.move)
        return _replace(now, migration=_replace(move, target=place.target, incarnation=incarnation))

    return change


def is_noted_arrival(port: VirtualMachinePort | None, host: str, incarnation: str) -> bool:
    """True if a move to that host was noted in this incarnation of the store.

    A VM that is on that host now, without a move, has arrived: only the target writes that, which then has the guest.
    """
    move = port.status.migration if port is not None else None
    return move is not None and incarnation != "" and (move.target, move.incarnation) == (host, incarnation)


def _without_note(move: PortMove | None) -> PortMove | None:
    """The move without what was noted of it during a pause."""
    return _replace(move, target="", incarnation="") if move is not None else None


def refused_status(problem: Reason, place: VmPlace, at: datetime) -> PortChange:
    """From the status of a port to one that says why OVN does not have it, and has its VM's move wait."""

    def change(now: VirtualMachinePortStatus) -> VirtualMachinePortStatus:
        conditions = with_condition(now.conditions, condition_of("Programmed", problem, at))
        move = unprepared_move(place.move, problem, now.migration) if place.move else None
        return _replace(now, migration=_without_note(move or now.migration), conditions=conditions)

    return change
