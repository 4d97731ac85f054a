"""The follower killed between any two writes, two followers at once, and a controller that starts into leftovers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.loops import run, run_by
from tests.support.pod_worlds import NODES, PodWorld, Zone, entry_of

from outlive.base import Random, Unknown
from outlive.network import (
    DEFAULT_CONTROLLER,
    DHCP,
    LOCAL,
    NAME_KEY,
    NAMESPACE_KEY,
    OWNER_KEY,
    POLICIES,
    PORTS,
    ROUTES,
    VM_KEY,
    ZONE_KEY,
    Rows,
)
from outlive.store import FaultStore

Act = Callable[[PodWorld], None]
WRITES_LIMIT = 40


def _start(pod: str, node: str, *, up: bool) -> Act:
    def act(world: PodWorld) -> None:
        world.run(pod, "cart", node, up=up, entries=entry_of("shop/green", 9))

    return act


ACTS: tuple[Act, ...] = (
    _start("cart-1", "hv-a", up=True),
    _start("cart-2", "hv-b", up=False),
    lambda world: world.ready("cart-2"),
    lambda world: world.complete("cart-1"),
    lambda world: world.remove("cart-1"),
    _start("cart-3", "hv-c", up=False),
    lambda world: world.complete("cart-3"),
    lambda world: world.remove("cart-3"),
)
"""Born on hv-a, moved to hv-b, and a migration to hv-c that failed."""


class Killer:
    """Kills the zone's process at the n-th write, before or after its effect, and starts another one."""

    def __init__(self, world: PodWorld, zone: Zone, at: int, *, effect: bool) -> None:
        self.writes = 0
        self.fired = False
        self._world, self._zone, self._at = world, zone, at
        for port in (zone.nb, zone.verbs):
            setattr(port, "after" if effect else "before", self._count)

    def _count(self, _: str) -> None:
        self.writes += 1
        if self.writes == self._at and not self.fired:
            self.fired = True
            self._restarting = asyncio.get_running_loop().create_task(self._restart())
            raise asyncio.CancelledError

    async def _restart(self) -> None:
        await self._zone.kill()
        self._zone.start()


def final_rows(kill_at: int, *, effect: bool) -> tuple[Rows, Any, bool]:
    """The rows at the end of the story, the VM's address, and whether the process was killed in it."""

    async def played() -> tuple[Rows, Any, bool]:
        world = PodWorld()
        zone = world.zone()
        await world.network("shop.green")
        killer = Killer(world, zone, kill_at, effect=effect)
        zone.start()
        await world.settle()
        for act in ACTS:
            act(world)
            await world.settle(5)
        await zone.kill()
        return sorted_rows(zone.nb.tables), world.entry("cart-2"), killer.fired

    return run(played())


def sorted_rows(rows: Rows) -> Rows:
    return {table: sorted(found, key=str) for table, found in rows.items()}


@pytest.mark.parametrize("effect", [False, True])
def test_a_follower_that_is_killed_at_any_write_ends_with_the_same_rows(effect: bool) -> None:
    expected, address, _ = final_rows(0, effect=effect)
    assert address["ip_addresses"] == ["10.44.7.3/24", "fd44:0:0:7::3/64"]
    fired = True
    at = 0
    while fired:
        at += 1
        assert at < WRITES_LIMIT
        rows, found, fired = final_rows(at, effect=effect)
        assert (rows, found) == (expected, address), f"killed at write {at}"
    assert at > 8, "the story has so many writes"


def test_two_followers_at_once_never_undo_each_other() -> None:
    async def played() -> Rows:
        world = PodWorld()
        zone = world.zone()
        await world.network("shop.green")
        zone.start()
        zone.start()
        await world.settle()
        for act in ACTS:
            act(world)
            await world.settle(5)
        commits = len(zone.nb.commits)
        await world.settle(120)
        assert len(zone.nb.commits) == commits, "they come to rest"
        await zone.kill()
        return sorted_rows(zone.nb.tables)

    assert run(played()) == final_rows(0, effect=False)[0]


async def test_an_annotation_whose_answer_was_lost_is_read_back() -> None:
    world = PodWorld()
    zone = world.zone()
    lost = [True]

    def lose(_: str) -> None:
        if lost.pop() if lost else False:
            raise Unknown("the answer was lost")

    zone.verbs.after = lose
    zone.start()
    await world.settle()
    world.run("cart-1", "cart", "hv-a")
    world.run("other-1", "other", "hv-a")
    await world.settle()
    assert {world.entry(one)["ip_addresses"][0] for one in ("cart-1", "other-1")} == {
        "10.44.7.3/24",
        "10.44.7.4/24",
    }
    await zone.kill()


def leftovers() -> Rows:
    """Rows of a VM that is gone, and rows of others that look like it."""
    ids = {ZONE_KEY: LOCAL, NAMESPACE_KEY: "shop", VM_KEY: "gone"}
    dhcp = {ZONE_KEY: LOCAL, NAME_KEY: "shop/gone", OWNER_KEY: DEFAULT_CONTROLLER}
    port = {NAMESPACE_KEY: "shop", VM_KEY: "gone", "pod": "true"}
    return {
        ROUTES: [
            {"ip_prefix": "10.44.7.99", "nexthop": "10.44.7.99", "policy": "dst-ip", "external_ids": ids},
            {"ip_prefix": "10.1.0.0/16", "nexthop": "10.0.0.1", "external_ids": {NAME_KEY: "shop/gone"}},
        ],
        POLICIES: [{"priority": 10, "match": "ip4.src == 10.44.7.99", "action": "reroute", "external_ids": ids}],
        DHCP: [
            {"cidr": "10.44.7.0/24", "external_ids": dhcp},
            {"cidr": "10.9.0.0/24", "external_ids": {**dhcp, OWNER_KEY: "egress-network-controller"}},
        ],
        PORTS: [
            {"name": "shop_gone-1", "switch": "hv-a", "external_ids": port},
            {"name": "shop_plain", "switch": "hv-a", "external_ids": {"pod": "true", "namespace": "shop"}},
        ],
    }


def names(rows: Rows) -> set[str]:
    return {
        *(row["ip_prefix"] for row in rows.get(ROUTES, ())),
        *(row["match"] for row in rows.get(POLICIES, ())),
        *(row["cidr"] for row in rows.get(DHCP, ())),
        *(row["name"] for row in rows.get(PORTS, ()) if not row["name"].startswith("stor-")),
    }


OTHERS = {"10.1.0.0/16", "10.9.0.0/24", "shop_plain"}
"""What somebody else owns."""


def play_leftovers(check: Callable[[PodWorld, Zone], Awaitable[None]]) -> None:
    async def played() -> None:
        world = PodWorld()
        zone = world.zone()
        await check(world, zone)
        await zone.kill()

    run(played())


def add(zone: Zone, rows: Rows) -> None:
    for table, found in rows.items():
        for row in found:
            zone.nb.add(table, **row)


@run_by(play_leftovers)
async def test_leftovers_go_at_start_and_nothing_of_others_does(world: PodWorld, zone: Zone) -> None:
    add(zone, leftovers())
    zone.start()
    await world.settle()
    assert names(zone.nb.tables) == OTHERS


@run_by(play_leftovers)
async def test_later_leftovers_are_reported_one_period_before_they_go(world: PodWorld, zone: Zone) -> None:
    zone.start()
    await world.settle()
    add(zone, leftovers())
    everything = names(zone.nb.tables)
    await world.settle(600)
    assert names(zone.nb.tables) == everything
    assert b"outlive_network_pod_orphans 4.0" in zone.metrics.render()
    await world.settle(600)
    assert names(zone.nb.tables) == OTHERS


@pytest.mark.parametrize(("gone", "deleted"), [(10, True), (11, False)])
@run_by(play_leftovers)
async def test_where_most_vms_seem_to_be_gone_nothing_is_deleted(
    world: PodWorld, zone: Zone, *, gone: int, deleted: bool
) -> None:
    for number in range(gone):
        ids = {ZONE_KEY: LOCAL, NAMESPACE_KEY: "shop", VM_KEY: f"gone-{number}"}
        zone.nb.add(ROUTES, ip_prefix=f"10.44.7.{number + 50}", nexthop="10.44.7.9", external_ids=ids)
    zone.start()
    await world.settle()
    assert (zone.nb.table(ROUTES) == []) is deleted
    world.run("cart-1", "cart", "hv-a")
    await world.settle()
    assert zone.nb.port("shop_cart-1"), "VMs are followed all the same"


@run_by(play_leftovers)
async def test_a_vm_that_comes_back_within_the_period_keeps_its_rows(world: PodWorld, zone: Zone) -> None:
    zone.start()
    await world.settle()
    add(zone, leftovers())
    await world.settle(600)
    world.run("gone-1", "gone", "hv-a")
    await world.settle(600)
    assert "shop_gone-1" in names(zone.nb.tables)


@run_by(play_leftovers)
async def test_a_restart_within_a_migration_changes_no_row(world: PodWorld, zone: Zone) -> None:
    await world.network("shop.green")
    zone.start()
    await world.settle()
    for act in ACTS[:2]:
        act(world)
        await world.settle()
    await zone.kill()
    before, commits = zone.nb.tables, len(zone.nb.commits)
    zone.start()
    await world.settle(5)
    assert zone.nb.tables == before
    assert len(zone.nb.commits) == commits


@run_by(play_leftovers)
async def test_a_vm_whose_annotation_cannot_be_read_keeps_its_rows_over_a_restart(world: PodWorld, zone: Zone) -> None:
    zone.start()
    await world.settle()
    for act in ACTS[:4]:
        act(world)
        await world.settle()
    world.remove("cart-1")
    await world.settle()
    before = sorted_rows(zone.nb.tables)
    await zone.kill()
    world.annotate("cart-2", **{"k8s.ovn.org/pod-networks": "[]"})
    zone.start()
    await world.settle(5)
    assert sorted_rows(zone.nb.tables) == before


@run_by(play_leftovers)
async def test_addresses_of_a_vm_that_stopped_while_nobody_followed_are_free_and_its_rows_are_gone(
    world: PodWorld, zone: Zone
) -> None:
    zone.start()
    await world.settle()
    world.run("cart-1", "cart", "hv-a")
    await world.settle()
    await zone.kill()
    world.complete("cart-1")
    world.run("next-1", "next", "hv-a")
    zone.start()
    await world.settle()
    assert world.entry("next-1")["ip_addresses"][0] == "10.44.7.3/24"
    world.run("cart-2", "cart", "hv-a")
    await world.settle()
    assert world.entry("cart-2")["ip_addresses"][0] == "10.44.7.4/24", "its old one is somebody else's"
    assert {row["name"] for row in zone.nb.table(PORTS) if "cart" in row["name"]} == {"shop_cart-2"}


@run_by(play_leftovers)
async def test_a_database_that_is_restored_from_a_backup_is_right_again(world: PodWorld, zone: Zone) -> None:
    await world.network("shop.green")
    zone.start()
    await world.settle()
    ACTS[0](world)
    await world.settle()
    backup = zone.nb.ovn.make_backup()
    for act in ACTS[1:5]:
        act(world)
        await world.settle()
    before = sorted_rows(zone.nb.tables)
    zone.nb.ovn.restore(backup)
    await world.settle(10)
    assert sorted_rows(zone.nb.tables) == before


@run_by(play_leftovers)
async def test_rows_that_somebody_else_breaks_are_right_again(world: PodWorld, zone: Zone) -> None:
    zone.start()
    await world.settle()
    for act in ACTS[:4]:
        act(world)
        await world.settle()
    before = sorted_rows(zone.nb.tables)
    broken = {table: [row for row in rows if "cart" not in str(row)] for table, rows in zone.nb.tables.items()}
    zone.nb.ovn._replace(broken, "somebody")
    await world.settle(10)
    assert sorted_rows(zone.nb.tables) == before


@run_by(play_leftovers)
async def test_a_watch_that_is_lost_loses_nothing(world: PodWorld, zone: Zone) -> None:
    faults = FaultStore(world.server, clock=world.clock, random=Random(3))
    zone.store = faults
    zone.start()
    await world.settle()
    ACTS[0](world)
    await world.settle()
    faults.network.cut()
    for act in ACTS[1:3]:
        act(world)
        await world.settle(20)
    faults.network.heal()
    await world.settle(60)
    off = zone.nb.port("shop_cart-1")
    assert off is not None
    assert off["enabled"] is False


async def test_in_two_zones_each_follower_programs_its_own_database() -> None:
    world = PodWorld()
    zones = {name: world.zone(name) for name in NODES[:2]}
    for zone in zones.values():
        zone.start()
    await world.settle()
    world.run("cart-1", "cart", "hv-a")
    await world.settle()
    world.run("cart-2", "cart", "hv-b", up=False)
    await world.settle()
    here, there = zones["hv-b"].nb, zones["hv-a"].nb
    assert here.port("shop_cart-2")
    assert here.port("shop_cart-1") is None
    world.ready("cart-2")
    await world.settle()
    assert {(row["ip_prefix"], row["nexthop"]) for row in there.table(ROUTES)} == {
        ("10.44.7.3", "100.88.0.8"),
        ("fd44:0:0:7::3", "fd97::8"),
    }
    assert there.table(DHCP) == []
    assert {row["ip_prefix"]: row["nexthop"] for row in here.table(ROUTES)} == {
        "10.44.7.3": "10.44.7.3",
        "fd44:0:0:7::3": "fd44:0:0:7::3",
        "10.44.0.0/16": "100.64.0.8",
        "fd44::/48": "fd98::8",
    }
    assert len(here.table(DHCP)) == 2
    for pod in ("cart-1", "cart-2"):
        world.complete(pod)
        world.remove(pod)
    await world.settle()
    assert there.table(ROUTES) == []
    assert {row["ip_prefix"] for row in here.table(ROUTES)} == {"10.44.0.0/16", "fd44::/48"}, "the way out stays"
    world.run("next-1", "next", "hv-a")
    await world.settle()
    assert world.entry("next-1")["ip_addresses"][0] == "10.44.7.3/24"
    for zone in zones.values():
        await zone.kill()


async def test_in_two_zones_of_a_layer2_network_both_know_both_ports() -> None:
    world = PodWorld()
    zones = {name: world.zone(name) for name in NODES[:2]}
    await world.network("shop.green")
    for zone in zones.values():
        zone.start()
    await world.settle()
    world.run("cart-1", "cart", "hv-a", routed=False, entries=entry_of("shop/green", 9, tunnel=5))
    world.run("bad-1", "bad", "hv-a", routed=False, entries=entry_of("shop/green", 10))
    await world.settle()
    world.run("cart-2", "cart", "hv-b", routed=False, up=False, entries=entry_of("shop/green", 9, tunnel=6))
    await world.settle()
    world.ready("cart-2")
    await world.settle()
    for name, zone in zones.items():
        source, target = (zone.nb.port(f"shop.green_shop_cart-{number}") or {} for number in (1, 2))
        assert (source["enabled"], target["enabled"]) == (False, True)
        assert source.get("type", "") == ("" if name == "hv-a" else "remote")
        assert target.get("type", "") == ("" if name == "hv-b" else "remote")
        assert (source["options"]["requested-tnl-key"], target["options"]["requested-tnl-key"]) == ("5", "6")
    assert "TunnelKeyMissing" in zones["hv-a"].events.reasons("bad-1")
    for zone in zones.values():
        await zone.kill()
