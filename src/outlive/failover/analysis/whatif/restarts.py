"""Where VMs come to that are new, or whose host is gone: their own slots first, else what placement finds.

As after a failure (docs/reference/failover-analysis.md#what-if): a VM takes a slot of its own that is left, which is
then used up; whoever has none is placed as a new VM would be, one after the other, each counted before the next is
asked about.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlive.base.errors import OutliveError
from outlive.failover.analysis.drain.inputs import move_request
from outlive.failover.analysis.survival import FailuresInput, survive
from outlive.failover.analysis.whatif.altered import Altered, running
from outlive.failover.analysis.whatif.answers import Landed
from outlive.failover.model import SlotView, VmView
from outlive.failover.snapshot import Snapshot
from outlive.placement.ranking import why_nowhere
from outlive.placement.request import Intent

NEW_VM = "what-if-{:05d}"
"""What new VMs are called."""


async def added(now: Altered, like: VmView, count: int) -> tuple[list[Landed], list[tuple[VmView, str]], Altered]:
    """VMs like this one, each placed by the engine and counted before the next."""
    views = [msgspec.structs.replace(like, id=NEW_VM.format(number)) for number in range(1, count + 1)]
    placed, unplaced = placed_by_engine(await now.gathered(), views)
    return [Landed(vm=vm.id, host=vm.host) for vm in placed], unplaced, now.with_vms(placed)


def placed_by_engine(gathered: Snapshot, views: Sequence[VmView]) -> tuple[list[VmView], list[tuple[VmView, str]]]:
    """The VMs with a host each, as placement ranks them one after the other, and those without."""
    fleet, engine = gathered.fleet, gathered.engine
    placed: list[VmView] = []
    unplaced: list[tuple[VmView, str]] = []
    for vm in views:
        request = move_request(vm, intent=Intent.CREATE)
        try:
            hosts = engine.rank(request).hosts
            reason = "" if hosts else why_nowhere(engine.rank(request, why=True))
        except OutliveError as error:
            hosts, reason = (), str(error)
        if not hosts:
            unplaced.append((vm, reason))
            continue
        record = fleet.host(hosts[0])
        assert record is not None, "a ranked host is known"
        there = msgspec.structs.replace(vm, host=hosts[0])
        fleet.upsert_host(running(record, there))
        placed.append(there)
    return placed, unplaced


async def lost(
    now: Altered, gathered: Snapshot, gone: set[str]
) -> tuple[list[Landed], list[tuple[VmView, str]], Altered]:
    """The cluster without these hosts: their VMs take their own slots, or what placement finds, or run nowhere."""
    stranded = [vm for vm in gathered.vms if vm.host in gone]
    slots = _own_slots(gathered, stranded, gone)
    into = [msgspec.structs.replace(vm, host=slots[vm.id].host) for vm in stranded if vm.id in slots]
    rest = now.without_hosts(gone).without_slots(slot.name for slot in slots.values()).with_vms(into)
    placed, unplaced = placed_by_engine(
        await rest.gathered(), [msgspec.structs.replace(vm, host="") for vm in stranded if vm.id not in slots]
    )
    landed = [
        Landed(vm=vm.id, source=vm.host, host=slots[vm.id].host, slot=slots[vm.id].name)
        for vm in stranded
        if vm.id in slots
    ]
    sources = {vm.id: vm.host for vm in stranded}
    landed += [Landed(vm=vm.id, source=sources[vm.id], host=vm.host) for vm in placed]
    return landed, unplaced, rest.with_vms(placed).without_members(vm.id for vm in stranded)


def _own_slots(gathered: Snapshot, stranded: Sequence[VmView], gone: set[str]) -> dict[str, SlotView]:
    """VM → the slot of its own that it is left, by the evaluation of ``survive``; whoever has none is left out."""
    if not stranded:
        return {}
    there = {slot.name: slot for slot in gathered.observation.slots if slot.host in gathered.fleet.index}
    given = FailuresInput(
        vms=gathered.vms,
        required={vm.id: 1 for vm in stranded},
        slots=tuple(there.values()),
        hosts=gathered.observation.hosts,
        cases=(tuple(sorted(gone)),),
    )
    return {one.vm: there[one.slot] for one in survive(given).landing or () if not one.contested}
