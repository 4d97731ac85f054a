"""The simulated guard acts on its host as the real one, and the watchdog device resets what nobody feeds."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.virtual_hosts import GuardedHost, small_vm

from outlive.node.fencing import GUARD_SLACK_S
from outlive.simulation import Process, SimGuard, SimGuardClient

T_S, W_S = 5.0, 10.0


async def _armed(host: GuardedHost) -> SimGuardClient:
    host.start()
    client = SimGuardClient(host.answering_guard, host.machine, host.daemon)
    await client.beat(client.read_clocks(), 1)
    await client.arm(T_S, W_S)
    await host.hypervisor.create(small_vm(), "r1", 1, False)
    return client


async def test_silent_daemon_costs_the_host_its_vms_and_not_its_life() -> None:
    host = GuardedHost()
    client = await _armed(host)
    await asyncio.sleep(T_S + 1.0)
    assert not host.hypervisor.domains
    assert not await client.begin_create("r2")
    assert not host.hypervisor.service
    report = await client.report()
    assert (report.gate_open, report.closed_epochs) == (False, (1,))
    await asyncio.sleep(60.0)
    assert host.resets == []
    await client.beat(client.read_clocks(), 2)
    await asyncio.sleep(3.0)
    assert await client.begin_create("r2")
    assert host.hypervisor.service


async def test_guest_that_cannot_be_killed_is_reset_within_t_and_w() -> None:
    host = GuardedHost()
    await _armed(host)
    begun = asyncio.get_running_loop().time()
    host.hypervisor.faults.unkillable["vm-1"] = True
    await asyncio.sleep(60.0)
    assert not host.hypervisor.domains
    (moment,) = [moment - begun for moment in host.resets]
    assert moment <= T_S + W_S + GUARD_SLACK_S


@pytest.mark.parametrize("how", ["killed", "halted"])
async def test_guard_that_is_gone_feeds_nobody(how: str) -> None:
    host = GuardedHost()
    await _armed(host)
    begun = asyncio.get_running_loop().time()
    host.process.kill() if how == "killed" else host.process.halt()
    await asyncio.sleep(60.0)
    assert W_S <= host.resets[0] - begun <= W_S + GUARD_SLACK_S


async def test_guard_that_never_opened_its_watchdog_does_not_feed_it_by_its_death() -> None:
    host = GuardedHost()
    await _armed(host)
    begun = asyncio.get_running_loop().time()
    host.process.kill()
    await asyncio.sleep(W_S / 2)
    again = Process("guard", 2)
    guard = SimGuard(host.machine, host.hypervisor, again, host.bench.history, host.changed)
    again.start(guard.run, lambda process: None)
    await asyncio.sleep(W_S / 4)
    again.kill()
    await asyncio.sleep(60.0)
    assert host.resets[0] - begun <= W_S + GUARD_SLACK_S


async def test_create_under_way_keeps_the_host_from_being_called_empty() -> None:
    host = GuardedHost()
    client = await _armed(host)
    assert await client.begin_create("r9")
    await asyncio.sleep(60.0)
    assert len(host.resets) == 1
