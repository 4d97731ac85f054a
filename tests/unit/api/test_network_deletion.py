"""A network that has ports is deleted by force only."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.network_controllers import network, port

from outlive.api import check_deletion, check_network_in_use
from outlive.base import Invalid, LoopClock, Random, Refused, SeededIds
from outlive.resources import ObjectMeta, VirtualMachine, VirtualMachineSpec, VirtualNetwork, VirtualNetworkSpec
from outlive.store import MemoryStore


async def test_a_network_whose_bridge_vms_are_attached_to_is_deleted_by_force_only() -> None:
    store = MemoryStore(LoopClock(), SeededIds(Random(1)))
    blue = VirtualNetwork(metadata=ObjectMeta(name="blue"), spec=VirtualNetworkSpec(type="managed", vni=70))
    red = VirtualNetwork(metadata=ObjectMeta(name="red"), spec=VirtualNetworkSpec(type="bridged", vni=7))
    spec = VirtualMachineSpec(definition="<domain><interface><source bridge='vmbr70'/></interface></domain>")
    await store.create(VirtualMachine(metadata=ObjectMeta(name="web"), spec=spec))
    with pytest.raises(Refused, match=r"1 VM is attached to vmbr70 of network blue: web"):
        await check_deletion(blue, store)
    await check_deletion(blue, store, force=True)
    await check_deletion(red, store)
    await store.create(blue)
    with pytest.raises(Invalid, match="blue has VNI 70, and VMs are attached to its bridge: web"):
        await check_network_in_use(replace(blue, spec=replace(blue.spec, vni=71)), store)
    await check_network_in_use(replace(blue, spec=replace(blue.spec, mtu=1400)), store)


async def test_a_network_that_has_ports_is_deleted_by_force_only() -> None:
    store = MemoryStore(LoopClock(), SeededIds(Random(1)))
    for one in (network("green"), network("blue"), port("web.0", "green")):
        await store.create(one)
    with pytest.raises(Refused, match=r"network green has 1 port: web\.0"):
        await check_deletion(network("green"), store)
    await check_deletion(network("green"), store, force=True)
    await check_deletion(network("blue"), store)
