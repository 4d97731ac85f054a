"""A cluster that has been running for a while when the story begins: every host is a member, every VM runs where it is.

An inventory is of a cluster that runs. Were it switched on instead, its hosts would report that they are empty, and
thousands of starts would come before what was asked about. The daemons begin as after an update of their software: they
find their domains, their holder entries and their own membership, and take them over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from outlive.base.ids import SeededIds
from outlive.node.membership.steps import Remembered
from outlive.node.ports.hypervisor import DomainState
from outlive.resources import Holder, MemberRecord, Membership, ObjectMeta, VirtualMachine
from outlive.simulation.domains import SimDomain, domain_of
from outlive.simulation.invariants import wanted

if TYPE_CHECKING:
    from outlive.simulation.world import World

EPOCH = 1
"""Of every host: as if it had joined once, and never been away."""

_replace = msgspec.structs.replace


def already_running(world: World) -> None:
    """Put every host and VM of the world into that state; its machines must have booted, its daemons not begun."""
    ids = SeededIds(world.random.fork("running"))
    members = list(_members(world, ids))
    world.store.lay(members)
    uids = {one.name: one.metadata.uid for one in members}
    domains: list[tuple[str, SimDomain]] = []
    held: list[VirtualMachine] = []
    for vm in world.store.all_of(VirtualMachine):
        host = vm.status.assigned.hypervisor if vm.status.assigned is not None else ""
        if host not in uids or not wanted(vm):
            continue
        run_id = ids.uuid()
        entry = Holder(hypervisor=host, member_uid=uids[host], epoch=EPOCH, run_id=run_id, seen="running")
        held.append(_replace(vm, status=_replace(vm.status, phase="start", holders=(entry,))))
        domains.append((host, domain_of(vm, run_id, EPOCH, DomainState.RUNNING)))
    world.store.lay(held)
    for host, domain in domains:
        world.hosts[host].hypervisor.has(domain)


def _members(world: World, ids: SeededIds) -> Iterator[Membership]:
    for name, host in world.hosts.items():
        uid = ids.uuid()
        host.machine.remembered = Remembered(uid=uid, epoch=EPOCH, incarnation=world.store.incarnation)
        record = MemberRecord(
            machine_id=host.machine.machine_id,
            boot_id=host.machine.boot_id,
            epoch=EPOCH,
            seq=1,
            nonce=ids.uuid(),
            incarnation=world.store.incarnation,
        )
        yield Membership(metadata=ObjectMeta(name=name, uid=uid), record=record)
