"""What the network controller tells of ports and VMs as events."""

from __future__ import annotations

from typing import Any, Final

from outlive.network.informers import NetworkInformers
from outlive.network.views import VmPlace
from outlive.resources import ObjectRef, VirtualMachine, condition
from outlive.resources.reasons import MigrationReason, NetworkReason, Reason, render

LATE_S: Final = 3.0
"""A target that takes longer to be prepared is told of."""
_TAKEN: Final = (NetworkReason.ADDRESS_TWICE, NetworkReason.MAC_TWICE)


class NetworkEvents:
    """See the module. Each is told where something has changed, and not again while it stays."""

    def __init__(self, informers: NetworkInformers, emit: Any) -> None:
        self._informers = informers
        self._emit = emit

    def report_late(self, vm: str, port: str, place: VmPlace, took_s: float) -> None:
        """Tell that a target was prepared late."""
        if took_s >= LATE_S:
            self._warn(_about_vm(vm), "PreparedLate", f"{place.target} was prepared for {port} after {took_s:.1f} s")

    def report_aborted(self, vm: VirtualMachine | None, move: str) -> None:
        """Tell that the move, which was under way, has been aborted because the network was not prepared."""
        now = vm.status.migration if vm is not None else None
        if vm is not None and now is not None and now.id == move and now.reason == MigrationReason.NETWORK_NOT_READY:
            self._warn(vm.ref, "MoveAbortedByNetwork", f"the move to {now.target} is aborted: {now.message}")

    def report_overwritten(self, vm: str, operations: int) -> None:
        """Tell that rows which somebody else changed were programmed again."""
        note = f"somebody else had changed its rows in OVN: {operations} operations have put them right"
        self._warn(_about_vm(vm), "ProgrammedAgain", note)

    def report_problem(self, port: str, problem: Reason) -> None:
        """Tell why a port is not programmed, where that was not so, or not for this reason."""
        found = self._informers.ports.get(port)
        before = condition(found.status.conditions, "Programmed") if found is not None else None
        if problem.code == NetworkReason.NO_HOST or (before is not None and before.reason == problem.code):
            return
        about = ObjectRef(kind="VirtualMachinePort", name=port)
        self._warn(about, "AddressTaken" if problem.code in _TAKEN else "NotProgrammed", str(render(problem)))

    def report_notice(self, port: str, notice: Reason | None) -> None:
        """Tell what is wrong with the network or addresses of a port that is programmed all the same."""
        found = self._informers.ports.get(port)
        before = condition(found.status.conditions, "AddressesReserved") if found is not None else None
        if notice is not None and (before is None or before.reason != notice.code):
            about = ObjectRef(kind="VirtualMachinePort", name=port)
            self._warn(about, "AddressTaken" if notice.code in _TAKEN else "NotChanged", str(render(notice)))

    def _warn(self, about: ObjectRef, reason: str, note: str) -> None:
        self._emit(about, reason, note, type="Warning", action="Program")


def _about_vm(name: str) -> ObjectRef:
    return ObjectRef(kind="VirtualMachine", name=name)
