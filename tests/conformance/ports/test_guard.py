"""What every connection to a guard keeps (``outlive.node.ports.machine``)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.conformance.claims import PATIENCE_S, claims_of, until
from tests.conformance.ports.harness import GuardHarness
from tests.conformance.ports.real import GUARD
from tests.conformance.ports.simulated import GUARDS

from outlive.base import Refused, Unavailable

claim = claims_of((*GUARDS, GUARD))
T_S, W_S = 30.0, 60.0
SHORT_S = 1.0
"""After so long without a renewal the gate shuts, where that is waited for."""


async def _armed(h: GuardHarness, timeout_s: float = T_S):
    port = h.driver()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await port.beat(port.read_clocks(), 3)
            with contextlib.suppress(Refused):  # the machine stood still between both calls
                await port.arm(timeout_s, W_S)
                return port


@claim
async def test_arming_needs_a_fresh_renewal(h: GuardHarness) -> None:
    port = h.driver()
    with pytest.raises(Refused):
        await port.arm(T_S, W_S)
    await port.beat(h.instants(ago_s=T_S + 1.0), 3)
    with pytest.raises(Refused):
        await port.arm(T_S, W_S)
    await port.beat(port.read_clocks(), 3)
    await port.arm(T_S, W_S)
    report = await port.report()
    assert (report.armed, report.timeout_s, report.watchdog_s, report.gate_open) == (True, T_S, W_S, True)


@claim
async def test_times_grow_only_while_it_is_disarmed(h: GuardHarness) -> None:
    port = await _armed(h)
    with pytest.raises(Refused):
        await port.arm(T_S + 1.0, W_S)
    await port.disarm()
    assert not (await port.report()).armed
    await port.beat(port.read_clocks(), 3)
    await port.arm(T_S + 1.0, W_S)
    assert (await port.report()).timeout_s == T_S + 1.0


@claim
async def test_what_a_dead_daemon_armed_and_began_stays_so(h: GuardHarness) -> None:
    port = await _armed(h)
    assert await port.begin_create("r1")
    h.kill()
    port = h.driver()
    report = await port.report()
    assert (report.armed, report.creates) == (True, ("r1",))
    await port.end_create("r1")
    assert (await port.report()).creates == ()


@claim
async def test_without_renewals_its_gate_shuts_and_nothing_may_start(h: GuardHarness) -> None:
    port = await _armed(h, SHORT_S)

    async def is_shut() -> bool:
        return not (await port.report()).gate_open

    async def opens():
        await port.beat(port.read_clocks(), 4)
        report = await port.report()
        return report if report.gate_open else None

    await until(is_shut, "the gate shuts")
    assert not await port.begin_create("late")
    with pytest.raises(Refused):
        await port.disarm()
    assert "late" not in (await port.report()).creates
    report = await until(opens, "a renewal opens the gate of a host that is empty")
    assert report.closed_epochs[0] == 3


@claim
async def test_an_older_renewal_keeps_nothing_open(h: GuardHarness) -> None:
    port = await _armed(h, SHORT_S)
    old = port.read_clocks()

    async def is_shut() -> bool:
        await port.beat(old, 3)
        return not (await port.report()).gate_open

    await until(is_shut, "the gate shuts although the guard hears of that renewal again and again")


@claim
async def test_an_armed_guard_that_does_not_answer_shuts_the_gate_and_proves_nothing(h: GuardHarness) -> None:
    port = await _armed(h)
    assert (await port.report()).armed
    h.halt_guard()
    report = await port.report()
    assert (report.armed, report.gate_open) == (False, False)
    assert not await port.begin_create("r1")
    for call in (port.beat(port.read_clocks(), 3), port.end_create("r1"), port.arm(T_S, W_S), port.disarm()):
        with pytest.raises(Unavailable):
            await call


@claim
async def test_where_no_guard_ever_was_armed_everything_starts(h: GuardHarness) -> None:
    h.kill_guard()
    port = h.driver()
    report = await port.report()
    assert (report.armed, report.gate_open) == (False, True)
    assert await port.begin_create("r1")
    with pytest.raises(Unavailable):
        await port.arm(T_S, W_S)
