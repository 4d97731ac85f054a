"""What tests of cycles have in common."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from outlive.placement import VmList, VmView
from outlive.resources import Reservation
from tests.support.failover import Cloud
from tests.support.literal_rules import DependencyGraph


async def six_hosts(cloud: Cloud) -> None:
    await cloud.hosts("h1", "h2", "h3", "h4", "h5", "h6")


async def cloud_of(*hosts: str, need: int = 2, vms: Mapping[str, str] = MappingProxyType({})) -> Cloud:
    """A cloud of these hosts, or of six, with these VMs on them, of which each needs so many slots."""
    cloud = Cloud({"flavorFailoverRequirements": {"*": need}})
    await (cloud.hosts(*hosts) if hosts else six_hosts(cloud))
    for name, host in vms.items():
        await cloud.vm(name, host)
    return cloud


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
