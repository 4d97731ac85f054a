"""Bad input of networks: told with the object's name, and others are served."""

from __future__ import annotations

import asyncio

from tests.support.network_clouds import Cloud, guest, in_cloud

from outlive.resources import ObjectMeta, VirtualNetwork, condition
from outlive.resources.networks import Subnet, VirtualNetworkSpec


def network(name: str, cidr: str, kind: str = "routed") -> VirtualNetwork:
    spec = VirtualNetworkSpec(type=kind, subnets=(Subnet(cidr=cidr),))  # type: ignore[arg-type]
    return VirtualNetwork(metadata=ObjectMeta(name=name), spec=spec)


def test_a_malformed_routed_network_is_told_with_its_name_and_others_are_served() -> None:
    async def story(cloud: Cloud) -> None:
        assert await cloud.programmed("web") == ""
        assert await cloud.programmed("lost") == "network-invalid"
        found = condition((await cloud.store.get(VirtualNetwork, "apple")).status.conditions, "Programmed")
        assert found is not None
        assert (found.status, found.reason) == ("False", "network-invalid")
        assert "apple" in found.message
        await asyncio.sleep(75)
        assert "network-port-refused.lost.0" in await cloud.faults()

    in_cloud("red", story, beside=(network("apple", "10.44.0.1/16"), *guest("lost", "apple", 7)))
