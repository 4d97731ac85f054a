"""Cycles with racks and server groups, on a store."""

from __future__ import annotations

from typing import Any

from tests.support.failover import Cloud, Fault
from tests.support.loops import run

from outlive.base import OutliveError
from outlive.resources import Reservation

RACKS = {"h1": "r1", "h2": "r1", "h3": "r2", "h4": "r2", "h5": "r3", "h6": "r3"}


async def racked(settings: dict[str, Any], **config: Any) -> Cloud:
    cloud = Cloud(config, settings)
    for host, rack in RACKS.items():
        await cloud.host(host, rack=rack)
    return cloud


def racks(hosts: list[str]) -> list[str]:
    return sorted(RACKS[host] for host in hosts)


async def hosts_of(cloud: Cloud, vm: str) -> list[str]:
    return [slot.host for slot in (await cloud.slots()).values() if vm in slot.members]


async def test_with_racks_as_units_the_slots_of_a_vm_are_in_other_racks_and_rivals_come_from_others() -> None:
    cloud = await racked({"failureUnit": "rack"})
    for number in range(6):
        await cloud.vm(f"vm{number}", f"h{number + 1}")
    await cloud.cycle()
    for number in range(6):
        there = [f"h{number + 1}", *await hosts_of(cloud, f"vm{number}")]
        assert racks(there) == ["r1", "r2", "r3"]
        assert (await cloud.coverage(f"vm{number}")).covered
    for slot in (await cloud.slots()).values():
        assert len(set(racks(list(slot.members.values())))) == len(slot.members)
    cloud.store.calls.clear()
    await cloud.cycle()
    assert cloud.store.calls == []


def test_a_slot_in_the_rack_of_its_vm_is_cleaned_up_where_racks_are_units_and_kept_where_they_are_kept_apart() -> None:
    async def story(settings: dict[str, Any]) -> list[str]:
        cloud = await racked(settings, flavorFailoverRequirements={"*": 1})
        await cloud.vm("a", "h1")
        await cloud.slot("s", "h2", {"a": "h1"})
        await cloud.cycle()
        return await hosts_of(cloud, "a")

    (moved,) = run(story({"failureUnit": "rack"}))
    assert RACKS[moved] != "r1"
    assert run(story({"keepApart": ["rack"]})) == ["h2"]


async def test_members_of_an_anti_affinity_group_get_slots_away_from_each_other_in_any_order() -> None:
    cloud = await racked({}, flavorFailoverRequirements={"*": 1}, maxVMsToProcess=1)
    for number in range(3):
        await cloud.vm(f"vm{number}", f"h{number + 1}", server_group="g", server_group_policy="anti-affinity")
    for _ in range(3):
        await cloud.cycle()
    hosts = [host for number in range(3) for host in await hosts_of(cloud, f"vm{number}")]
    assert sorted(hosts) == ["h4", "h5", "h6"]


async def test_a_join_that_meets_a_peer_who_came_first_is_decided_again() -> None:
    cloud = await racked({}, flavorFailoverRequirements={"*": 1})
    for name, host in (("a", "h1"), ("b", "h2")):
        await cloud.vm(name, host, server_group="g", server_group_policy="anti-affinity")
    await cloud.vm("c", "h3")
    await cloud.slot("s", "h6", {"c": "h3"})
    both = {"c": "h3", "b": "h2"}
    cloud.store.faults.append(
        Fault(
            "replace_status",
            OutliveError(""),
            lambda obj: isinstance(obj, Reservation),
            before=lambda: cloud.set_members("s", both),
        )
    )
    await cloud.cycle()
    assert (await cloud.members())["s"] == both
    assert "h6" not in await hosts_of(cloud, "a")
    assert (await cloud.covered())["a"]
