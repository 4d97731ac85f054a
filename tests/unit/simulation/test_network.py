"""Faults of the simulated OVN."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.loops import run

from outlive.base.clock import LoopClock
from outlive.base.errors import Conflict, Unavailable, Unknown
from outlive.base.random import Random
from outlive.network.operations import PORTS, SWITCHES, Op, upsert
from outlive.network.ports import Receipt, Scope
from outlive.simulation.network import OvnFault, SimulatedNorthbound, SimulatedOvn, SimulatedSouthbound

SWITCH = upsert(SWITCHES, {"name": "green"}, {"name": "green"})
PORT = upsert(PORTS, {"name": "cart"}, {"name": "cart", "switch": "green"})


def northbound(ovn: SimulatedOvn) -> SimulatedNorthbound:
    return SimulatedNorthbound(ovn, LoopClock(), Random(1))


async def write(database: SimulatedNorthbound, *ops: Op) -> Receipt:
    return await database.transact(Scope(), lambda _rows, _features: ops, comment="a test")


def test_an_answer_is_lost_before_or_after_the_commit() -> None:
    async def story() -> None:
        ovn = SimulatedOvn()
        database = northbound(ovn)
        ovn.faults.transactions = [OvnFault.LOST_BEFORE, OvnFault.LOST_AFTER]
        with pytest.raises(Unknown):
            await write(database, SWITCH)
        assert SWITCHES not in ovn.rows
        with pytest.raises(Unknown):
            await write(database, SWITCH)
        assert ovn.rows[SWITCHES]
        assert (await write(database, SWITCH)).ops == ()

    run(story())


def test_a_plan_is_made_anew_where_somebody_was_faster_and_given_up_after_a_while() -> None:
    async def story() -> None:
        ovn = SimulatedOvn()
        database = northbound(ovn)
        ovn.faults.transactions = [OvnFault.OVERTAKEN] * 4
        assert (await write(database, SWITCH)).ops == (SWITCH,)
        ovn.faults.transactions = [OvnFault.OVERTAKEN] * 5
        with pytest.raises(Conflict):
            await write(database, PORT)

    run(story())


def test_a_restored_database_has_its_old_rows_and_everything_may_have_changed() -> None:
    async def story() -> None:
        ovn = SimulatedOvn("ch-1")
        database = northbound(ovn)
        await write(database, SWITCH)
        saved = ovn.backup()
        await write(database, PORT)
        changes = database.changes()
        batch = asyncio.create_task(anext(changes))
        await asyncio.sleep(0)
        ovn.restore(saved)
        assert await batch == frozenset()
        assert PORTS not in await database.rows()
        assert ovn.bindings == {}

    run(story())


def test_databases_that_are_down_are_unavailable() -> None:
    async def story() -> None:
        ovn = SimulatedOvn()
        database, southbound = northbound(ovn), SimulatedSouthbound(ovn, LoopClock(), Random(1))
        ovn.faults.northbound_down = ovn.faults.southbound_down = True
        with pytest.raises(Unavailable):
            await database.rows()
        with pytest.raises(Unavailable):
            await southbound.chassis()
        assert database.healthy()

    run(story())


def test_chassis_are_behind_while_northd_is_down() -> None:
    async def story() -> None:
        ovn = SimulatedOvn("ch-1")
        database = northbound(ovn)
        ovn.faults.northd_down = True
        receipt = await write(database, SWITCH, PORT)
        assert not (await database.applied(receipt, on=["ch-1"], limit_s=1)).done
        assert ovn.bindings == {}
        ovn.faults.northd_down = False
        assert (await database.applied(receipt, on=["ch-1"], limit_s=1)).done
        assert "cart" in ovn.bindings

    run(story())


def test_the_guest_activates_the_chassis_that_waits() -> None:
    async def story() -> None:
        ovn = SimulatedOvn("ch-1", "ch-2")
        database = northbound(ovn)
        await write(database, SWITCH, PORT)
        ovn.plug("cart", "ch-1")
        options = {"requested-chassis": "ch-1,ch-2", "activation-strategy": "rarp"}
        await write(database, upsert(PORTS, {"name": "cart"}, {"options": options}))
        ovn.plug("cart", "ch-2")
        ovn.announce("cart", "ch-1")
        assert ovn.bindings["cart"].activated == ()
        ovn.announce("cart", "ch-2")
        assert ovn.bindings["cart"].activated == ("ch-2",)

    run(story())
