"""What the network controller tells of ports, networks and VMs as events, and how many of them it has refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from outlive.network.informers import NetworkInformers
from outlive.network.views import VmPlace
from outlive.resources import ObjectRef, VirtualMachine, VirtualMachinePort, VirtualNetwork, condition
from outlive.resources.meta import Resource
from outlive.resources.reasons import MigrationReason, NetworkReason, Reason, reason, render
from outlive.runtime.metrics import Metrics

LATE_S: Final = 3.0
"""A target that takes longer to be prepared is told of."""
_TAKEN: Final = (NetworkReason.ADDRESS_TWICE, NetworkReason.MAC_TWICE)


class NetworkEvents:
    """See the module. Each is told where something has changed, and not again while it stays."""

    def __init__(self, informers: NetworkInformers, emit: Any, metrics: Metrics) -> None:
        self._informers = informers
        self._emit = emit
        self._problems = metrics.counter("network_problems_total", "Problems of VMs of own hosts, as told", ("reason",))
        self._refused: dict[tuple[str, str], str] = {}
        """Kind and name of what is not programmed now → why …"""
        self._counts: Counter[tuple[str, str]] = Counter()
        """… and how many of a kind there are for each reason."""
        self._gauge = metrics.gauge("network_refused", "Ports and networks that are not programmed", ("kind", "reason"))

    def report_late(self, vm: str, port: str, place: VmPlace, took_s: float) -> None:
        """Tell that a target was prepared late."""
        if took_s >= LATE_S:
            self._warn(_about_vm(vm), "PreparedLate", f"{place.target} was prepared for {port} after {took_s:.1f} s")

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
        self._warn(_about_vm(vm), "ProgrammedAgain", note)

    def report_portless(self, vm: str, interfaces: Iterable[str]) -> None:
        """Tell that a VM that runs keeps rows of interfaces of which the store has no port."""
        for interface in interfaces:
            note = str(render(reason(NetworkReason.NO_PORT, vm=vm, interface=interface)))
            self._warn(_about_vm(vm), "PortMissing", note)

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
        before = condition(found.status.conditions, "Programmed") if found is not None else None
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
        before = condition(found.status.conditions, "AddressesReserved") if found is not None else None
        if notice is not None and (before is None or before.reason != notice.code):
            about = ObjectRef(kind="VirtualMachinePort", name=port)
            self._warn(about, "AddressTaken" if notice.code in _TAKEN else "NotChanged", str(render(notice)))

    def _warn(self, about: ObjectRef, reason: str, note: str) -> None:
        self._problems.labels(reason).inc()
        self._emit(about, reason, note, type="Warning", action="Program")


def _about_vm(name: str) -> ObjectRef:
    return ObjectRef(kind="VirtualMachine", name=name)
