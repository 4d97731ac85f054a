"""Whose business it is to move a VM that a detector finds: its host says that."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace
from tests.support.sales import Market, host, in_cloud, vm
from tests.unit.placement.test_descheduling import steal

from outlive.placement import NOVA, OWN
from outlive.resources import Descheduling
from outlive.store import list_all


def test_a_vm_on_a_host_of_nova_is_novas_though_it_is_kept_as_an_object() -> None:
    kept, own = vm("v", "h1"), vm("w", "h2")
    ours = host("h2", vms=[own])
    ours = replace(ours, spec=replace(ours.spec, management="node"))

    async def story(market: Market) -> None:
        await asyncio.sleep(70)
        found = {one.spec.ref: one async for one in list_all(market.store, Descheduling)}
        assert {name: one.spec.ref_type for name, one in found.items()} == {"v": NOVA, "w": OWN, "unknown": NOVA}
        unmoved = [name for name, one in found.items() if one.status.conditions[0].reason == "UnsupportedRefType"]
        assert sorted(unmoved) == ["unknown", "v"]  # there is no Nova here

    steals = steal(("v", "h1", 90.0), ("w", "h2", 90.0), ("unknown", "h9", 90.0))
    in_cloud([host("h1", vms=[kept]), kept, ours, own, steals], story)
