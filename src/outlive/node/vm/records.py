"""Reading and changing what the store has of a virtual machine: its status, its label, the memberships of its holders.

Every change is a compare-and-swap (``outlive.store.access``) whose function is called anew on each fresh reading and
returns ``None`` once there is nothing (more) to write. A phase that must not follow the present one is not written.
``Unavailable`` where the store is away, or others keep changing the virtual machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from outlive.base.clock import Clock
from outlive.node.membership.states import MemberView, member_view
from outlive.node.vm.states import followed
from outlive.resources import HOST_LABEL, Holder, Membership, VirtualMachine
from outlive.resources.vms import VirtualMachineStatus
from outlive.store import Store, compare_and_swap, read

Change = Callable[[VirtualMachine], VirtualMachineStatus | None]
"""From what was read to the status to write; ``None``: nothing."""

_replace = msgspec.structs.replace


async def change_vm(store: Store, name: str, change: Change, clock: Clock) -> VirtualMachine | None:
    """The virtual machine after the change, or as it was found where there was nothing to write; ``None``: gone."""

    def changed(vm: VirtualMachine | None) -> VirtualMachine | None:
        status = change(vm) if vm is not None else None
        if vm is None or status is None:
            return None
        return _replace(vm, status=_replace(status, phase=followed(vm, status.phase)))

    return await compare_and_swap(store, VirtualMachine, name, changed, clock=clock)


async def relabel(store: Store, name: str, host: str, clock: Clock) -> None:
    """Let ``host`` observe the virtual machine. Before it is assigned, always."""

    def labelled(vm: VirtualMachine | None) -> VirtualMachine | None:
        if vm is None:
            return None
        return _replace(vm, metadata=_replace(vm.metadata, labels={**vm.metadata.labels, HOST_LABEL: host}))

    await compare_and_swap(store, VirtualMachine, name, labelled, clock=clock, half="spec")


async def assign_to(store: Store, name: str, host: str, change: Change, clock: Clock) -> VirtualMachine | None:
    """A change that assigns it to ``host``: the label first, and set right again where it is not assigned there."""
    await relabel(store, name, host, clock)
    after = await change_vm(store, name, change, clock)
    now = after.status.assigned if after is not None else None
    if now is not None and now.hypervisor not in (host, ""):
        await relabel(store, name, now.hypervisor, clock)
    return after


async def members_of(store: Store, holders: Iterable[Holder], *, but: str = "") -> tuple[MemberView, ...]:
    """The memberships that these holders' entries name, except those of one host; missing ones are left out."""
    hosts = sorted({one.hypervisor for one in holders} - {but})
    found = [await read(store, Membership, host) for host in hosts]
    return tuple(member_view(one) for one in found if one is not None)
