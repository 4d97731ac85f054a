"""Moves our own VMs for the descheduler: it asks the VM's host, as people do with ``outlive vm migrate``."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlive.base.clock import Clock
from outlive.base.errors import Refused
from outlive.node.vm.operator import DONE
from outlive.node.vm.requests import is_asked
from outlive.node.vm.states import VmState, active_move, state_of
from outlive.placement.detectors import Move
from outlive.placement.ports import VmLocation
from outlive.recovery.states import unfinished
from outlive.resources import VirtualMachine
from outlive.resources.vms import Request
from outlive.store import Store
from outlive.store.access import compare_and_swap, read


class OwnVmMoves:
    """See the module. Of our own VMs no moves are kept: the record of the descheduler itself prevents repetition."""

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def locate(self, vm: str, request: str) -> VmLocation | None:
        """Where the VM is, and whether the move of this request was refused."""
        found = await read(self._store, VirtualMachine, vm)
        if found is None:
            return None
        return VmLocation(host=found.host, state=_state(found), refusal=_refusal(found, request))

    async def migrate(self, vm: str, request: str) -> None:
        """Ask for a live move to whatever host placement finds; ``Refused`` where the VM does something else."""
        wanted = Request(id=request, verb="migrate", force_live=True)

        def asked(kept: VirtualMachine | None) -> VirtualMachine | None:
            if kept is None or (kept.spec.request is not None and kept.spec.request.id == request):
                return None
            if _state(kept) != "ACTIVE":
                raise Refused(f"VM {vm} is {_state(kept)}", remedy="what is going on with it has to end first")
            return msgspec.structs.replace(kept, spec=msgspec.structs.replace(kept.spec, request=wanted))

        await compare_and_swap(self._store, VirtualMachine, vm, asked, clock=self._clock, half="spec")

    async def moves(self, vm: str) -> Sequence[Move]:
        """None is known."""
        return ()


def _state(vm: VirtualMachine) -> str:
    """In the words of ``VmLocation``."""
    if is_asked(vm) or active_move(vm) is not None or unfinished(vm):
        return "MIGRATING"
    state = state_of(vm)
    if state == VmState.FAIL:
        return "ERROR"
    return "ACTIVE" if state == VmState.START and vm.spec.power_state == "running" else state.upper()


def _refusal(vm: VirtualMachine, request: str) -> str:
    """Why the move of this request will not take place."""
    answered, move = vm.status.answered, vm.status.migration
    if answered is None or answered.id != request:
        return ""
    if answered.code not in DONE:
        return answered.message or answered.code
    over = move is not None and active_move(vm) is None
    return (move.message or move.reason) if move is not None and over else ""
