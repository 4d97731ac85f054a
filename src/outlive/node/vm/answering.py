"""Requests of users to one virtual machine: each is answered once, in one write that quotes its id.

The host that the virtual machine is assigned to answers, by ``vm.request`` on what it just read; the write is a
compare-and-swap on that very version, so that an answer never rests on an older state.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from outlive.base.logging import get_logger
from outlive.node.decisions import VM_REQUEST
from outlive.node.vm.relocating import MEBIBYTE, away_from, figures, relocated
from outlive.node.vm.requests import RequestedVm, VmRequestArgs, VmRequestInput, VmRequestResult, VmWrites
from outlive.node.vm.selecting import NodeFigures
from outlive.node.vm.shared import VmHost
from outlive.node.vm.states import START, THEN_DISABLE, active_move, assigned_to, state_of
from outlive.resources import VirtualMachine
from outlive.resources.vms import Request, VirtualMachineStatus

RELOCATIONS: Final = frozenset({"migrate", "unmigrate", "move"})

_replace = msgspec.structs.replace
_log = get_logger("node.vm")


class Answerer:
    """See the module."""

    def __init__(self, shared: VmHost) -> None:
        self._shared = shared

    def asked(self, vm: VirtualMachine) -> bool:
        """Whether there is a request that was not answered."""
        request = vm.spec.request
        return request is not None and vm.status.answered.partition(" ")[0] != request.id

    async def answer(self, vm: VirtualMachine) -> None:
        """Answer it, whatever it comes to."""
        shared, request = self._shared, vm.spec.request
        assert request is not None
        nodes = await figures(shared.move) if request.verb in RELOCATIONS else ()
        first = self._decide(vm, request, nodes)
        move_id = shared.ids.uuid()
        if first.ok and first.writes.node is not UNSET:
            await shared.records.relabel(shared.move, vm.name, first.writes.node)

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if now.spec.request != request or not self.asked(now) or assigned_to(now) != shared.host:
                return None
            result = self._decide(now, request, nodes)
            if result.writes != first.writes:
                return None  # it changed meanwhile: look again
            status = _written(now, result.writes, move_id) if result.ok else now.status
            return _replace(status, answered=f"{request.id} {result.code}")

        after = await shared.records.change(shared.move, vm.name, change)
        if after is not None and first.writes.node is not UNSET and assigned_to(after) != first.writes.node:
            await shared.records.relabel(shared.move, vm.name, assigned_to(after))
        memory = shared.memory(vm.name)
        if request.verb in ("start", "restart"):
            memory.failures, memory.not_before_s = 0, 0.0
        _log.info("vm.request", vm=vm.name, verb=request.verb, id=request.id, code=first.code.value)

    def _decide(self, vm: VirtualMachine, request: Request, nodes: tuple[NodeFigures, ...]) -> VmRequestResult:
        shared = self._shared
        given = VmRequestInput(
            request=request.verb,
            args=VmRequestArgs(target=request.target or None, force=request.force, force_live=request.force_live),
            vm=RequestedVm(
                state=state_of(vm),
                node=assigned_to(vm),
                last_node=away_from(vm),
                node_limit=vm.spec.host_limit or None,
                selector=vm.spec.selector or None,
                method=vm.spec.migration_method or "none",
                memory=vm.spec.resources.memory_bytes / MEBIBYTE,
                vcpus=vm.spec.resources.cpu_milli / 1000,
                migration_active=active_move(vm) is not None,
            ),
            nodes=nodes,
            default_selector=shared.wishes.cluster_spec.default_selector or None,
            require_fit=shared.settings.require_fit,
            mem_means=shared.settings.mem_means,
        )
        return shared.decisions.use(VM_REQUEST, given, subject=vm.name)


def _written(vm: VirtualMachine, writes: VmWrites, move_id: str) -> VirtualMachineStatus:
    """The status after what an accepted request writes."""
    status = vm.status
    if writes.node is not UNSET:
        phase = writes.state if writes.state is not UNSET else status.phase
        home = writes.last_node if writes.last_node is not UNSET else away_from(vm)
        return relocated(vm, target=writes.node, home=home, phase=phase, move_id=move_id)
    if writes.last_node is not UNSET:
        status = _replace(status, home=writes.last_node or assigned_to(vm))
    if writes.via is not UNSET:
        return _replace(status, phase=writes.via, reason=THEN_DISABLE)
    if writes.state is not UNSET:
        status = _replace(status, phase=writes.state, reason="")
        if writes.state == START:
            status = _replace(status, rejection=None)
    return status
