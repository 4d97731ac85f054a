"""Moves our own VMs for the descheduler: it asks the VM's host, as people do with ``outlive vm migrate``."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlive.base import Clock, Refused
from outlive.node.vm import DONE, is_asked
from outlive.placement import CompletedMove, VmLocation
from outlive.recovery.states import is_unfinished
from outlive.resources import Request, VirtualMachine, VirtualMachineSpec, VmState, active_move, state_of
from outlive.store import Store, change_spec, read


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
        return VmLocation(host=found.host, state=_state_of(found), refusal=_find_refusal(found, request))

    async def migrate(self, vm: str, request: str) -> None:
        """Ask for a live move to whatever host placement finds; ``Refused`` where the VM does something else."""
        wanted = Request(id=request, verb="migrate", force_live=True)

        def set_request(kept: VirtualMachine) -> VirtualMachineSpec | None:
            if kept.spec.request is not None and kept.spec.request.id == request:
                return None
            if _state_of(kept) != "ACTIVE":
                raise Refused(f"VM {vm} is {_state_of(kept)}", remedy="what is going on with it has to end first")
            return msgspec.structs.replace(kept.spec, request=wanted)

        await change_spec(self._store, VirtualMachine, vm, set_request, clock=self._clock)

    async def list_moves(self, vm: str) -> Sequence[CompletedMove]:
        """None is known."""
        return ()


def _state_of(vm: VirtualMachine) -> str:
    """In the words of ``VmLocation``."""
    if is_asked(vm) or active_move(vm) is not None or is_unfinished(vm):
        return "MIGRATING"
    state = state_of(vm)
    if state == VmState.FAIL:
        return "ERROR"
    return "ACTIVE" if state == VmState.START and vm.spec.power_state == "running" else state.upper()


def _find_refusal(vm: VirtualMachine, request: str) -> str:
    """Why the move of this request will not take place."""
    answered, move = vm.status.answered, vm.status.migration
    if answered is None or answered.id != request:
        return ""
    if answered.code not in DONE:
        return answered.message or answered.code
    over = move is not None and active_move(vm) is None
    return (move.message or move.reason) if move is not None and over else ""
