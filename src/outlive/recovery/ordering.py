"""In which order VMs are recovered: the most important first, and before each those that it starts after.

Whoever an important VM starts after is as important as that VM, since it does not start before: else the room that is
left would go to a VM that has to wait for one which got none. Only the order of the plan is settled here; that a VM
waits for others is its host's business (``outlive.node.vm.ordering``).
"""

from __future__ import annotations

from collections.abc import Iterable

from outlive.failover.model import VmView
from outlive.failover.protection import restart_order
from outlive.node.vm.ordering import in_order
from outlive.recovery.model import VmState


def ordered(vms: Iterable[VmState]) -> list[VmState]:
    """In the order in which they restart: by priority, memory and id, but none before those that it starts after.

    Of those that start after each other in a circle somebody comes first.
    """
    by_id = {vm.id: vm for vm in vms}
    first = _restarted(by_id, {vm.id: vm.priority for vm in by_id.values()})
    if not any(vm.after for vm in first):
        return first
    lifted: dict[str, int] = {}
    for vm in first:  # the highest first, so that each is lifted once, and as far as anybody lifts it
        below = [vm]
        while below:
            one = below.pop()
            if one.id not in lifted:
                lifted[one.id] = vm.priority
                below += [by_id[name] for name in one.after if name in by_id]
    names = [vm.id for vm in _restarted(by_id, lifted)]
    return [by_id[name] for name in in_order(names, {vm.id: vm.after for vm in first})]


def _restarted(vms: dict[str, VmState], priorities: dict[str, int]) -> list[VmState]:
    views = [VmView(id=vm.id, host="", memory_bytes=vm.memory_bytes) for vm in vms.values()]
    return [vms[view.id] for view in restart_order(views, priorities)]
