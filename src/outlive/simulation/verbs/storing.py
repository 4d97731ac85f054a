"""What happens on the storage: strangers that open disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlive.resources import VirtualMachine
from outlive.simulation.verbs.arguments import Arguments, text, texts

if TYPE_CHECKING:
    from outlive.simulation.world import World

STRANGER = "a-stranger"


async def lock_disks(world: World, given: Arguments) -> None:
    """Somebody who is no host has the disks of these VMs open."""
    for disk in _disks(world, given):
        world.disks.lock(disk, text(given, "by", STRANGER))


async def unlock_disks(world: World, given: Arguments) -> None:
    """They are closed again, or the lock is removed by hand."""
    for disk in _disks(world, given):
        world.disks.unlock(disk)


def _disks(world: World, given: Arguments) -> list[str]:
    found = [world.store.look(VirtualMachine, name) for name in texts(given, "vms")]
    return [disk for vm in found if vm is not None for disk in vm.spec.disks]
