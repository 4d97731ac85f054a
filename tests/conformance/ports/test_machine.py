"""What every driver of a machine keeps (``outlive.node.ports.machine``)."""

from __future__ import annotations

import asyncio

import pytest
from tests.conformance.claims import claims_of
from tests.conformance.ports.harness import MachineHarness
from tests.conformance.ports.real_machine import MACHINE
from tests.conformance.ports.simulated import MACHINES

from outlive.node.membership import RememberedMembership

claim = claims_of((*MACHINES, MACHINE))
FIRST, SECOND = RememberedMembership(uid="u", epoch=1), RememberedMembership(uid="u", epoch=2)


@claim
async def test_nothing_is_remembered_at_first(h: MachineHarness) -> None:
    assert await h.driver().read_remembered() is None


@claim
async def test_what_is_remembered_survives_a_kill_and_a_loss_of_power(h: MachineHarness) -> None:
    for one in (FIRST, SECOND):
        await h.driver().remember(one)
        h.kill()
        assert await h.driver().read_remembered() == one
    await h.driver().remember(FIRST)
    h.lose_power()
    assert await h.driver().read_remembered() == FIRST


@claim
async def test_what_was_being_written_is_there_whole_or_not_at_all(h: MachineHarness) -> None:
    await h.driver().remember(FIRST)
    for end in (h.kill, h.lose_power):
        for rounds in (0, 1, 2, 5):
            task = asyncio.create_task(h.driver().remember(SECOND))
            for _ in range(rounds):
                await asyncio.sleep(0)
            end()
            assert await h.driver().read_remembered() in (FIRST, SECOND)
            await asyncio.gather(task, return_exceptions=True)


@claim
async def test_a_disk_that_takes_nothing_keeps_what_it_has(h: MachineHarness) -> None:
    port = h.driver()
    await port.remember(FIRST)
    h.fill_disk(True)
    with pytest.raises(OSError, match="No space"):
        await port.remember(SECOND)
    assert await port.read_remembered() == FIRST
    h.lose_power()
    assert await h.driver().read_remembered() == FIRST
    h.fill_disk(False)
    port = h.driver()
    await port.remember(SECOND)
    assert await port.read_remembered() == SECOND


@claim
async def test_a_boot_has_an_id_of_its_own_and_the_machine_stays_the_same(h: MachineHarness) -> None:
    port = h.driver()
    machine, boot = port.machine_id(), port.boot_id()
    assert machine
    assert boot
    h.kill()
    port = h.driver()
    assert (port.machine_id(), port.boot_id()) == (machine, boot)
    h.lose_power()
    port = h.driver()
    assert port.machine_id() == machine
    assert port.boot_id() != boot


@claim
async def test_one_daemon_has_the_lock_until_its_process_ends(h: MachineHarness) -> None:
    first = h.driver()
    assert first.lock()
    assert first.lock()
    h.halt()
    second = h.driver()
    assert not second.lock(), "one that stands still may go on"
    h.kill()
    assert not h.driver().lock(), "it ends with the process that has it, and no other"


@claim
async def test_the_lock_of_a_killed_daemon_is_free(h: MachineHarness) -> None:
    assert h.driver().lock()
    h.kill()
    assert h.driver().lock()
    h.lose_power()
    assert h.driver().lock()


@claim
async def test_figures_are_of_their_kinds(h: MachineHarness) -> None:
    port = h.driver()
    assert port.read_capacity().cpu_milli > 0
    assert port.read_load() >= 0.0
    used = port.read_usage()
    assert used is None or used.memory_bytes > 0
    stall = port.disk_stall()
    assert stall is None or 0.0 <= stall <= 1.0
    assert port.read_capabilities() == port.read_capabilities()
    assert port.read_capabilities().cpus >= 0
