"""Promises of every southbound database, and of the way of a change down to the chassis."""

from __future__ import annotations

from collections.abc import Callable

from tests.conformance.claims import PATIENCE_S, claims_of, until
from tests.conformance.ovn.test_northbound import write
from tests.conformance.ovn.worlds import OvnWorld, reading, worlds

from outlive.network import PORTS, SWITCHES, Binding, Op, SouthboundDb, delete, upsert

claim = claims_of(worlds(2))
SWITCH = upsert(SWITCHES, {"name": "green"}, {"name": "green"})
PORT = upsert(PORTS, {"name": "cart"}, {"name": "cart", "switch": "green", "addresses": ["0a:00:00:00:00:05"]})


def requested(chassis: str, strategy: str | None = None) -> Op:
    options = {"requested-chassis": chassis, "activation-strategy": strategy}
    return upsert(PORTS, {"name": "cart"}, {"options": options})


async def wait_bound(southbound: SouthboundDb, wanted: Callable[[Binding], bool]) -> Binding:
    """The binding once it is so."""

    async def read() -> Binding | None:
        binding = await southbound.read_binding("cart")
        return binding if binding is not None and wanted(binding) else None

    return await until(read, "the port is bound like that")


@claim
async def test_a_change_reaches_all_chassis(world: OvnWorld) -> None:
    northbound = await world.northbound()
    receipt = await write(northbound, SWITCH, PORT)
    applied = await northbound.wait_applied(receipt, on=["ch-1", "ch-2"], limit_s=PATIENCE_S)
    assert applied.done
    assert applied.behind == ()
    southbound = await world.southbound()
    assert [(one.name, one.nb_cfg >= receipt.nb_cfg) for one in await southbound.list_chassis()] == [
        ("ch-1", True),
        ("ch-2", True),
    ]


@claim
async def test_a_port_is_bound_where_it_is_plugged(world: OvnWorld) -> None:
    northbound, southbound = await world.northbound(), await world.southbound()
    assert await southbound.read_binding("cart") is None
    async with reading(southbound.watch_changes()) as batches:
        await write(northbound, SWITCH, PORT)
        world.plug("cart", "ch-1")
        binding = await wait_bound(southbound, lambda one: one.chassis == "ch-1" and one.up)
        assert binding.tunnel_key > 0
        assert binding.additional_chassis == ()
        await until(lambda: any("cart" in names or not names for names in batches), "its binding is told")
    await write(northbound, delete(PORTS, {"name": "cart"}))

    async def is_gone() -> bool:
        return await southbound.read_binding("cart") is None

    await until(is_gone, "its binding goes")


@claim
async def test_a_dead_chassis_is_behind_and_its_port_stays_up(world: OvnWorld) -> None:
    northbound, southbound = await world.northbound(), await world.southbound()
    await write(northbound, SWITCH, PORT)
    world.plug("cart", "ch-2")
    await wait_bound(southbound, lambda one: one.chassis == "ch-2" and one.up)
    world.kill("ch-2")
    receipt = await write(northbound, upsert(PORTS, {"name": "cart"}, {"enabled": True}))
    assert (await northbound.wait_applied(receipt, on=["ch-1"], limit_s=PATIENCE_S)).done
    applied = await northbound.wait_applied(receipt, on=["ch-1", "ch-2", "ch-9"], limit_s=0.5)
    assert not applied.done
    assert applied.behind == ("ch-2", "ch-9")
    binding = await southbound.read_binding("cart")
    assert binding is not None
    assert binding.chassis == "ch-2"
    assert binding.up
    world.plug("cart", "ch-1")
    await wait_bound(southbound, lambda one: one.chassis == "ch-1")


@claim
async def test_a_dead_chassis_is_forgotten(world: OvnWorld) -> None:
    northbound, southbound = await world.northbound(), await world.southbound()
    await write(northbound, SWITCH, PORT)
    world.plug("cart", "ch-2")
    await wait_bound(southbound, lambda one: one.chassis == "ch-2")
    world.kill("ch-2")
    await southbound.forget_chassis("ch-2")
    await wait_bound(southbound, lambda one: one.chassis == "")
    assert [one.name for one in await southbound.list_chassis()] == ["ch-1"]
    await southbound.forget_chassis("ch-9")


@claim
async def test_a_list_of_chassis_gives_an_additional_one_until_it_is_narrowed(world: OvnWorld) -> None:
    northbound, southbound = await world.northbound(), await world.southbound()
    await write(northbound, SWITCH, PORT)
    world.plug("cart", "ch-1")
    await wait_bound(southbound, lambda one: one.chassis == "ch-1")
    await write(northbound, requested("ch-1,ch-2", "rarp"))
    binding = await wait_bound(southbound, lambda one: one.requested_additional_chassis == ("ch-2",))
    assert binding.requested_chassis == "ch-1"
    assert binding.additional_chassis == ()
    world.plug("cart", "ch-2")
    binding = await wait_bound(southbound, lambda one: one.additional_chassis == ("ch-2",))
    assert binding.chassis == "ch-1"
    assert binding.activated == ()
    await write(northbound, requested("ch-2"))
    binding = await wait_bound(southbound, lambda one: one.chassis == "ch-2" and not one.additional_chassis)
    assert binding.requested_additional_chassis == ()
    assert binding.requested_chassis == "ch-2"


@claim
async def test_nobody_has_learned_an_address_that_was_never_used(world: OvnWorld) -> None:
    southbound = await world.southbound()
    assert await southbound.mac_bindings("10.1.2.3") == []
