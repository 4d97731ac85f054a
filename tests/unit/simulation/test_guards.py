"""The simulated guard acts on its host as the real one, and the watchdog device resets what nobody feeds."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.loops import run
from tests.support.virtual_hosts import GuardedHost, small_vm

from outlive.base.errors import Refused
from outlive.node.fencing.proofs import GUARD_SLACK_S
from outlive.simulation.guards import GuardClient, SimGuard
from outlive.simulation.process import Process

T_S, W_S = 5.0, 10.0


async def _armed(host: GuardedHost) -> GuardClient:
    host.start()
    client = GuardClient(host.answering_guard, host.machine, host.daemon)
    await client.beat(client.instants(), 1)
    await client.arm(T_S, W_S)
    await host.hypervisor.create(small_vm(), "r1", 1, False)
    return client


def test_gate_is_open_while_renewals_are_acknowledged() -> None:
    async def story() -> bool:
        host = GuardedHost()
        client = await _armed(host)
        for _ in range(30):
            await asyncio.sleep(1.0)
            await client.beat(client.instants(), 1)
        return await client.begin_create("r2") and host.hypervisor.runs("vm-1") and host.resets == []

    assert run(story())


def test_silent_daemon_costs_the_host_its_vms_and_not_its_life() -> None:
    async def story() -> None:
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
        await client.beat(client.instants(), 2)
        await asyncio.sleep(3.0)
        assert await client.begin_create("r2")
        assert host.hypervisor.service

    run(story())


def test_guest_that_cannot_be_killed_is_reset_within_t_and_w() -> None:
    async def story() -> list[float]:
        host = GuardedHost()
        await _armed(host)
        begun = asyncio.get_running_loop().time()
        host.hypervisor.faults.unkillable["vm-1"] = True
        await asyncio.sleep(60.0)
        assert not host.hypervisor.domains
        return [moment - begun for moment in host.resets]

    (moment,) = run(story())
    assert moment <= T_S + W_S + GUARD_SLACK_S


@pytest.mark.parametrize("how", ["killed", "halted"])
def test_guard_that_is_gone_feeds_nobody(how: str) -> None:
    async def story() -> float:
        host = GuardedHost()
        await _armed(host)
        begun = asyncio.get_running_loop().time()
        host.process.kill() if how == "killed" else host.process.halt()
        await asyncio.sleep(60.0)
        return host.resets[0] - begun

    assert W_S <= run(story()) <= W_S + GUARD_SLACK_S


def test_guard_that_dies_while_it_empties_its_host_puts_the_reset_off_by_w() -> None:
    async def story() -> float:
        host = GuardedHost()
        await _armed(host)
        begun = asyncio.get_running_loop().time()
        host.hypervisor.faults.unkillable["vm-1"] = True
        await asyncio.sleep(T_S + W_S - 1.5)
        host.process.kill()
        await asyncio.sleep(60.0)
        return host.resets[0] - begun

    assert T_S + 2 * W_S - 1.6 <= run(story()) <= T_S + 2 * W_S + GUARD_SLACK_S


def test_guard_that_never_opened_its_watchdog_does_not_feed_it_by_its_death() -> None:
    async def story() -> float:
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
        return host.resets[0] - begun

    assert run(story()) <= W_S + GUARD_SLACK_S


def test_broken_watchdog_resets_nothing() -> None:
    async def story() -> list[float]:
        host = GuardedHost()
        await _armed(host)
        host.machine.watchdog.broken = True
        host.process.kill()
        await asyncio.sleep(60.0)
        return host.resets

    assert run(story()) == []


def test_create_under_way_keeps_the_host_from_being_called_empty() -> None:
    async def story() -> list[float]:
        host = GuardedHost()
        client = await _armed(host)
        assert await client.begin_create("r9")
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(60.0)
        return [moment - begun for moment in host.resets]

    assert len(run(story())) == 1


def test_arming_needs_a_fresh_renewal() -> None:
    async def story() -> None:
        host = GuardedHost()
        host.start()
        client = GuardClient(host.answering_guard, host.machine, host.daemon)
        with pytest.raises(Refused):
            await client.arm(T_S, W_S)

    run(story())
