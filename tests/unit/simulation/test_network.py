"""Faults of the simulated OVN."""

from __future__ import annotations

import pytest

from outlive.base import Conflict, LoopClock, Random, Unavailable, Unknown
from outlive.network import PORTS, SWITCHES, Op, Receipt, Scope, upsert
from outlive.simulation.network import OvnFault, SimulatedNorthbound, SimulatedOvn, SimulatedSouthbound

SWITCH = upsert(SWITCHES, {"name": "green"}, {"name": "green"})
PORT = upsert(PORTS, {"name": "cart"}, {"name": "cart", "switch": "green"})


def northbound(ovn: SimulatedOvn) -> SimulatedNorthbound:
    return SimulatedNorthbound(ovn, LoopClock(), Random(1))


async def write(database: SimulatedNorthbound, *ops: Op) -> Receipt:
    return await database.transact(Scope(), lambda _rows, _features: ops, comment="a test")


async def test_an_answer_is_lost_before_or_after_the_commit() -> None:
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


async def test_a_plan_is_made_anew_where_somebody_was_faster_and_given_up_after_a_while() -> None:
    ovn = SimulatedOvn()
    database = northbound(ovn)
    ovn.faults.transactions = [OvnFault.OVERTAKEN] * 4
    assert (await write(database, SWITCH)).ops == (SWITCH,)
    ovn.faults.transactions = [OvnFault.OVERTAKEN] * 5
    with pytest.raises(Conflict):
        await write(database, PORT)


async def test_databases_that_are_down_are_unavailable() -> None:
    ovn = SimulatedOvn()
    database, southbound = northbound(ovn), SimulatedSouthbound(ovn, LoopClock(), Random(1))
    ovn.faults.northbound_down = ovn.faults.southbound_down = True
    with pytest.raises(Unavailable):
        await database.read_rows()
    with pytest.raises(Unavailable):
        await southbound.list_chassis()
    assert database.explain_unhealthy()
