"""Faults that last as long as their condition: failed VMs, scarce memory, power controllers that do not answer.

No recovery depends on them. Recovery's leader raises them, because it has all VMs and hosts in view and there is one of
it; a new leader takes over what the one before it raised (docs/concepts/safety.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from outlive.base.clock import Clock
from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.base.quantity import format_bytes
from outlive.node.ports.faults import Faults
from outlive.recovery.report import HELD_DELTA, HELD_FAULT, held_message
from outlive.recovery.view import CLUSTER, RecoveryInformers
from outlive.resources import Fault, Hypervisor, ObjectRef, VirtualMachine
from outlive.store import Store, list_all

FAILED: Final = "vm-failed"
OVERCOMMITTED: Final = "memory-overcommitted"
OVERPROVISIONED: Final = "memory-overprovisioned"
NOT_REHEARSED: Final = "power-not-rehearsed"
CODES: Final = (FAILED, OVERCOMMITTED, OVERPROVISIONED, NOT_REHEARSED, HELD_FAULT)
DELTAS: Final = {FAILED: 10, OVERCOMMITTED: 50, OVERPROVISIONED: 10, NOT_REHEARSED: 10, HELD_FAULT: HELD_DELTA}
"""What each takes off the cluster's health."""
EVERY_S: Final = 10.0
"""How often all VMs and hosts are looked at for this."""
DOUBT_S: Final = 2.0
"""Caches that have lost the store for longer say nothing."""
FEWEST_HOSTS: Final = 2
"""With fewer there is nothing that could fail over."""
MIB: Final = 1 << 20
_log = get_logger("recovery")


class Standing(NamedTuple):
    """A fault that is to stand."""

    code: str
    subject: ObjectRef
    message: str
    remedy: str


def standing(vms: Iterable[VirtualMachine], hosts: Iterable[Hypervisor]) -> tuple[Standing, ...]:
    """What is so now. Memory is that of the living hosts of our daemon, and must do without the largest of them."""
    vms = tuple(vms)
    found = [
        Standing(
            FAILED,
            ObjectRef(kind="VirtualMachine", name=vm.name),
            f"VM {vm.name} has failed: {vm.status.message or vm.status.reason or 'its host did not say why'}",
            f"remove the cause, then: outlive request {vm.name} start",
        )
        for vm in vms
        if vm.status.phase == "fail"
    ]
    for vm in vms:
        record = vm.status.recovery
        message = held_message(vm.name, record.reason, record.message) if record is not None and record.reason else ""
        if record is not None and message:
            about = ObjectRef(kind="VirtualMachine", name=vm.name)
            found.append(Standing(HELD_FAULT, about, message, record.remedy))
    living = [one for one in hosts if one.spec.management == "node" and not one.status.lost]
    found += [
        Standing(
            NOT_REHEARSED,
            ObjectRef(kind="Hypervisor", name=one.name),
            f"if {one.name} died now its power controller would prove nothing: {one.status.rehearsed}",
            "see to its power controller, its address, and spec.fencing.systemUuid",
        )
        for one in living
        if one.spec.fencing.driver and one.status.rehearsed not in ("", "ok")
    ]
    ours = {one.name: _memory(one) for one in living}
    totals = [total for total, _ in ours.values() if total > 0]
    if len(totals) < FEWEST_HOSTS:
        return tuple(found)
    room = sum(totals) - max(totals)
    allocated = sum(taken for _, taken in ours.values())
    provisioned = sum(
        vm.spec.resources.memory_bytes
        for vm in vms
        if vm.status.assigned is not None and vm.status.assigned.hypervisor in ours
    )
    subject = ObjectRef(kind="Cluster", name=CLUSTER)
    if allocated >= room:
        message = f"running VMs have {_said(allocated)} of memory, and without the largest host there are {_said(room)}"
        found.append(Standing(OVERCOMMITTED, subject, message, "add a host, or stop VMs"))
    elif provisioned >= room:
        message = (
            f"if all VMs ran they would have {_said(provisioned)} of memory, and without the largest host there are "
            f"{_said(room)}"
        )
        found.append(Standing(OVERPROVISIONED, subject, message, "add a host, or delete VMs that nobody needs"))
    return tuple(found)


def _memory(host: Hypervisor) -> tuple[int, int]:
    """What the host has, and what runs on it takes."""
    has, taken = host.effective_capacity(), host.status.allocation
    return (has.memory_bytes if has is not None else 0, taken.memory_bytes if taken is not None else 0)


def _said(amount: int) -> str:
    return format_bytes(amount // MIB * MIB)


class StandingFaults:
    """Keeps them as they are, looking now and then."""

    def __init__(self, store: Store, informers: RecoveryInformers, faults: Faults, clock: Clock) -> None:
        self._store = store
        self._informers = informers
        self._faults = faults
        self._clock = clock

    async def run(self) -> None:
        """Until cancelled; may be called again, when somebody else has led meanwhile."""
        while True:
            try:
                await self.look()
            except OutliveError as error:
                _log.info("faults.not_looked_at", error=str(error))
            await self._clock.sleep(EVERY_S)

    async def look(self) -> None:
        """Raise what is so, end what is not any more, whoever raised it, and when. Errors of the store."""
        if self._informers.stalled_s() > DOUBT_S:
            return
        kept = [one async for one in list_all(self._store, Fault) if one.code in CODES and not one.ended]
        wanted = {
            (one.code, one.subject.name): one
            for one in standing(self._informers.vms.items(), self._informers.hypervisors.items())
        }
        for one in wanted.values():
            await self._faults.raise_(one.code, one.subject, one.message, remedy=one.remedy, delta=DELTAS[one.code])
        for fault in kept:
            if (fault.code, fault.subject.name) not in wanted:
                await self._faults.end(fault.code, fault.subject)
