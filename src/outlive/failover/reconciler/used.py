"""Slots that have done what they were for, or never can: they go, whatever a cycle is doing.

A slot with a consumer holds its space until that VM runs on the slot's host and is among its VMs, or is gone; a slot on
a host that is proven dead holds nothing that anybody could use. Both rest on facts of one object each and on no figure,
so no brake and no budget is asked; what the members miss then, upkeep gives them again. Not promised: that a slot goes
before anything else happens to it; until then it counts for nobody (``outlive.failover.slots.slot_view``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from outlive.base.errors import Conflict, NotFound
from outlive.base.logging import get_logger
from outlive.failover.planner.cleanup import Cause, Deletion
from outlive.failover.reconciler.writes import SlotWriter
from outlive.failover.report.reporter import Reporter
from outlive.resources import FAILOVER, Hypervisor, Reservation, VirtualMachine
from outlive.runtime.controller import Requeue
from outlive.store import Store

_log = get_logger("failover.using")


class UsedSlots:
    """The controller of slots that are used up or lost; its keys are names of reservations."""

    name = "failover-used-slots"

    def __init__(
        self,
        store: Store,
        hosts: Callable[[str], Hypervisor | None],
        slots_on: Callable[[str], Iterable[Reservation]],
        consumed_by: Callable[[str], Iterable[Reservation]],
        writer: SlotWriter,
        reporter: Reporter,
    ) -> None:
        """``hosts``: a host as it was last seen."""
        self._store = store
        self._hosts = hosts
        self._slots_on = slots_on
        self._consumed_by = consumed_by
        self._writer = writer
        self._reporter = reporter

    async def reconcile(self, key: str) -> Requeue | None:
        """Delete the slot if its time has come."""
        try:
            slot = await self._store.get(Reservation, key, fresh=True)
        except NotFound:
            return None
        deletion = await self._over(slot)
        if deletion is None:
            return None
        try:
            await self._writer.delete(slot)
        except Conflict:
            return Requeue(0.0)
        _log.info("slot.over", slot=slot.name, host=slot.status.host, cause=deletion.cause.value, why=deletion.detail)
        self._reporter.slot_deleted(slot.metadata.uid, deletion)
        return None

    async def _over(self, slot: Reservation) -> Deletion | None:
        if slot.spec.type != FAILOVER or not slot.status.host:
            return None
        host, consumer = self._hosts(slot.status.host), slot.status.consumer
        if host is not None and host.status.lost:
            detail = f"its host {host.name} is proven dead by fence {host.status.lost}"
            return Deletion(slot=slot.name, cause=Cause.HOST_LOST, detail=detail)
        if consumer is None:
            return None
        try:
            vm = await self._store.get(VirtualMachine, consumer.vm, fresh=True)
        except NotFound:
            return Deletion(slot=slot.name, cause=Cause.CONSUMER_GONE, detail=f"VM {consumer.vm} is gone")
        if host is not None and _arrived(vm, host):
            detail = f"VM {consumer.vm} has arrived on {host.name}: what the slot held is part of its allocation"
            return Deletion(slot=slot.name, cause=Cause.CONSUMED, detail=detail)
        return None

    # Which slots need a look

    def of_slot(self, _old: Reservation | None, new: Reservation | None) -> list[str]:
        """The slot itself, if it has a consumer or its host is lost."""
        if new is None or new.spec.type != FAILOVER:
            return []
        host = self._hosts(new.status.host)
        over = new.status.consumer is not None or (host is not None and host.status.lost)
        return [new.name] if over else []

    def of_host(self, old: Hypervisor | None, new: Hypervisor | None) -> list[str]:
        """All slots of a host that is lost, and the consumed ones of a host whose VMs are others than before."""
        if new is None:
            return []
        slots = sorted(self._slots_on(new.name), key=lambda one: one.name)
        if new.status.lost and (old is None or not old.status.lost):
            return [slot.name for slot in slots]
        if old is not None and old.status.instances == new.status.instances:
            return []
        return [slot.name for slot in slots if slot.status.consumer is not None]

    def of_vm(self, old: VirtualMachine | None, new: VirtualMachine | None) -> list[str]:
        """The slots whose consumer is gone, or is somewhere else, or in another state, than before."""
        vm = new if new is not None else old
        if vm is None or (old is not None and new is not None and old.status == new.status):
            return []
        return [slot.name for slot in self._consumed_by(vm.name)]


def _arrived(vm: VirtualMachine, host: Hypervisor) -> bool:
    """Whether the host lists it, and it is there: a list may be of a time when the VM was there once before."""
    where = vm.host
    if where != host.name or all(one.id != vm.name for one in host.status.instances):
        return False
    return host.spec.management != "node" or any(
        one.hypervisor == host.name and one.seen == "running" for one in vm.status.holders
    )
