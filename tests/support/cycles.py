"""What tests of cycles have in common."""

from __future__ import annotations

from typing import Any

from outlive.placement.vms import VmList, VmView
from outlive.resources import Reservation
from tests.support.failover import Cloud
from tests.support.literal_rules import DependencyGraph


async def six_hosts(cloud: Cloud) -> None:
    await cloud.hosts("h1", "h2", "h3", "h4", "h5", "h6")


async def check_rules(cloud: Cloud) -> None:
    slots = list((await cloud.slots()).values())
    graph = DependencyGraph.build(slots)
    assert all(graph.holds_in(slot.name) for slot in slots)


async def slots_of(cloud: Cloud, vm: str) -> list[str]:
    return [name for name, members in (await cloud.members()).items() if vm in members]


def is_slot(obj: Any) -> bool:
    return getattr(obj, "kind", "") == "Reservation" or isinstance(obj, Reservation)


class Database:
    """A VM source that is no store."""

    def __init__(self, *vms: VmView) -> None:
        self.vms = vms

    async def list_vms(self) -> VmList:
        return VmList(vms=self.vms)

    async def get_vm(self, vm_id: str) -> VmView | None:
        return next((vm for vm in self.vms if vm.id == vm_id), None)
