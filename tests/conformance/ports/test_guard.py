"""What every connection to a guard keeps (``outlive.node.ports.guard``)."""

from __future__ import annotations

import asyncio

import pytest
from tests.conformance.claims import claims_of
from tests.conformance.ports.harness import GuardHarness
from tests.conformance.ports.real import GUARD
from tests.conformance.ports.simulated import GUARDS

from outlive.base.errors import Refused, Unavailable

claim = claims_of((*GUARDS, GUARD))
T_S, W_S = 1.0, 2.0


async def _armed(h: GuardHarness):
    port = h.driver()
    await port.beat(port.instants(), 3)
    await port.arm(T_S, W_S)
    return port


@claim
async def test_arming_needs_a_fresh_renewal(h: GuardHarness) -> None:
    port = h.driver()
    with pytest.raises(Refused):
        await port.arm(T_S, W_S)
    await port.beat(h.instants(ago_s=T_S + 1.0), 3)
    with pytest.raises(Refused):
        await port.arm(T_S, W_S)
    await port.beat(port.instants(), 3)
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
    await port.beat(port.instants(), 3)
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
    port = await _armed(h)
    await asyncio.sleep(h.settle_s)
    assert not (await port.report()).gate_open
    assert not await port.begin_create("late")
    with pytest.raises(Refused):
        await port.disarm()
    assert "late" not in (await port.report()).creates
    await port.beat(port.instants(), 4)
    report = await port.report()
    assert (report.gate_open, report.closed_epochs) == (True, (3,))


@claim
async def test_an_older_renewal_keeps_nothing_open(h: GuardHarness) -> None:
    port = await _armed(h)
    old = port.instants()
    await asyncio.sleep(T_S / 2)
    for _ in range(3):
        await port.beat(old, 3)
    await asyncio.sleep(T_S / 2 + 0.5)
    assert not (await port.report()).gate_open


@claim
async def test_an_armed_guard_that_does_not_answer_shuts_the_gate_and_proves_nothing(h: GuardHarness) -> None:
    port = await _armed(h)
    assert (await port.report()).armed
    h.halt_guard()
    report = await port.report()
    assert (report.armed, report.gate_open) == (False, False)
    assert not await port.begin_create("r1")
    for call in (port.beat(port.instants(), 3), port.end_create("r1"), port.arm(T_S, W_S), port.disarm()):
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
