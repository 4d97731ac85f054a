"""One virtual machine at a time leaves this host: where it goes, the write that begins the move, and the wait for it.

Used by whoever empties the host because somebody asked for it, and by whoever lets virtual machines leave because it
degrades. What is on its way longer than it was waited for stays booked where it goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from outlive.base.clock import Clock
from outlive.base.ids import Ids
from outlive.base.logging import get_logger
from outlive.node.decisions import FLUSH_RUN
from outlive.node.vm.flushing import FlushedVm, FlushInput, FlushStep
from outlive.node.vm.relocating import MEBIBYTE, away_from, figures, relocated
from outlive.node.vm.selecting import NodeFigures, booked
from outlive.node.vm.shared import VmHost
from outlive.node.vm.states import START, STOPPED_BY_DRAIN, active_move, assigned_to, state_of
from outlive.resources import VirtualMachine
from outlive.resources.vms import VirtualMachineStatus
from outlive.store import Store

WATCH_S: Final = 1.0
"""How often a virtual machine on its way is looked at."""
ON_THE_WAY: Final = frozenset({"migrate", "migrate-live", "unmigrate", "shutdown", "restart"})
"""States that are awaited."""

_log = get_logger("node.departing")


class Departures:
    """See the module."""

    def __init__(self, store: Store, shared: VmHost, *, clock: Clock, ids: Ids) -> None:
        self.stopped = False
        """Whether nothing more is waited for."""
        self._store = store
        self._shared = shared
        self._clock = clock
        self._ids = ids
        self._late: dict[str, tuple[str, VirtualMachine]] = {}
        """Virtual machines that are on their way longer than they were waited for: they stay booked."""

    async def figures(self) -> tuple[NodeFigures, ...]:
        """What hosts have published, and what is still on its way to them."""
        nodes = await figures(self._store)
        for name, (target, vm) in sorted(self._late.items()):
            now = await self._shared.records.read(self._store, name)
            if now is None or active_move(now) is None:
                del self._late[name]
                continue
            need = vm.spec.resources
            memory, vcpus = need.memory_bytes / MEBIBYTE, need.cpu_milli / 1000
            nodes = tuple(booked(one, memory=memory, vcpus=vcpus) if one.name == target else one for one in nodes)
        return nodes

    def decide(
        self,
        vm: VirtualMachine,
        op: Literal["flush", "unflush"],
        nodes: tuple[NodeFigures, ...],
        *,
        stay: bool = False,
    ) -> FlushStep | None:
        """What is done with it; ``stay``: whether it stays where no other host takes it."""
        shared = self._shared
        item = FlushedVm(
            uuid=vm.name,
            state=state_of(vm),
            node=assigned_to(vm) or None,
            memory=vm.spec.resources.memory_bytes / MEBIBYTE,
            vcpus=vm.spec.resources.cpu_milli / 1000,
            last_node=away_from(vm),
            node_limit=vm.spec.host_limit or None,
            selector=vm.spec.selector or None,
            autostart=vm.spec.autostart or vm.status.reason == STOPPED_BY_DRAIN,
        )
        given = FlushInput(
            node=shared.host,
            op=op,
            vms=(item,),
            nodes=nodes,
            running=(vm.name,) if op == "flush" else (),
            default_selector=shared.wishes.cluster_spec.default_selector or None,
            require_fit=shared.settings.require_fit,
            mem_means=shared.settings.mem_means,
            stay=stay,
        )
        return next(iter(shared.decisions.use(FLUSH_RUN, given, subject=vm.name).steps), None)

    async def send(self, vm: VirtualMachine, target: str, home: str, *, live_only: bool = False) -> bool:
        """Begin its move; whether it is on its way. ``live_only``: it stays where it cannot move live."""
        source, move_id = assigned_to(vm), self._ids.uuid()
        self._late[vm.name] = (target, vm)
        await self._shared.records.relabel(self._store, vm.name, target)

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if assigned_to(now) != source or active_move(now) is not None or state_of(now) != state_of(vm):
                return None
            phase = ("migrate-live" if live_only else "migrate") if state_of(now) == START else now.status.phase
            return relocated(now, target=target, home=home, phase=phase, move_id=move_id)

        after = await self._shared.records.change(self._store, vm.name, change)
        if after is not None and assigned_to(after) != target:
            await self._shared.records.relabel(self._store, vm.name, assigned_to(after))
            return False
        return after is not None

    async def shut_down(self, vm: VirtualMachine) -> bool:
        """Ask it to end until this host is ready again; whether that is under way."""

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if assigned_to(now) != self._shared.host or state_of(now) != START:
                return None
            return msgspec.structs.replace(now.status, phase="shutdown", reason=STOPPED_BY_DRAIN)

        return await self._shared.records.change(self._store, vm.name, change) is not None

    async def settled(self, name: str) -> VirtualMachine | None:
        """The virtual machine once nothing of it is on its way, or as it is after the limit."""
        return await self._until(name, lambda vm: state_of(vm) not in ON_THE_WAY)

    async def gone(self, name: str) -> VirtualMachine | None:
        """As it is once it has left, or came back; after the limit the next one goes all the same."""
        vm = await self._until(name, lambda now: state_of(now) not in ON_THE_WAY and active_move(now) is None)
        if vm is None or active_move(vm) is None:
            self._late.pop(name, None)
        else:
            _log.warning("drain.late", host=self._shared.host, vm=name, state=state_of(vm))
        return vm

    async def _until(self, name: str, reached: Callable[[VirtualMachine], bool]) -> VirtualMachine | None:
        deadline_s = self._clock.monotonic() + float(self._shared.settings.drain_wait)
        while True:
            vm = await self._shared.records.read(self._store, name)
            if vm is None or reached(vm) or self._clock.monotonic() >= deadline_s or self.stopped:
                return vm
            await self._clock.sleep(WATCH_S)
