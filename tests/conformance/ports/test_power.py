"""What every driver of BMCs keeps (``outlive.node.ports.machine``)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.conformance.claims import PATIENCE_S, claims_of, until
from tests.conformance.ports.harness import PowerHarness, within
from tests.conformance.ports.real_power import POWER as REAL
from tests.conformance.ports.simulated import POWER

from outlive.base import NotFound, Unavailable, Unknown
from outlive.node.ports import PowerPort, PowerReading, PowerState
from outlive.resources import Hypervisor

claim = claims_of((*POWER, *REAL))
SHORT_S = 2.0
"""Less than a slow controller takes."""


async def _read(port: PowerPort, host: Hypervisor) -> PowerReading:
    """A reading, however often a slow controller has to be asked for it."""
    for _ in range(20):
        try:
            return await port.read(host)
        except Unavailable:
            await asyncio.sleep(1.0)
    raise AssertionError("it never answered")


async def _sent(call) -> None:
    """A command, answered or not."""
    with contextlib.suppress(Unavailable, Unknown):
        await call


async def _switched(h: PowerHarness, host: str, on: bool) -> None:
    """Wait for what a command that was sent leads to."""
    await until(lambda: h.is_on(host) == on, f"{host} is on: {on}", h.settle_s + PATIENCE_S)


@claim
async def test_identity_and_state_come_in_one_answer(h: PowerHarness) -> None:
    a, b = h.host("a"), h.host("b")
    port = h.driver()
    reading = await _read(port, a)
    assert (reading.state, reading.system_uuid) == (PowerState.ON, a.spec.fencing.system_uuid)
    await _sent(port.power_off(b))
    await _switched(h, "b", False)
    h.wire("a", to="b")
    reading = await _read(port, a)
    assert (reading.state, reading.system_uuid) == (PowerState.OFF, b.spec.fencing.system_uuid)


@claim
async def test_a_reading_is_of_a_moment_after_its_call(h: PowerHarness) -> None:
    host, port = h.host("a"), h.driver()
    assert (await _read(port, host)).state is PowerState.ON
    await _sent(port.power_off(host))
    await _switched(h, "a", False)
    assert (await _read(port, host)).state is PowerState.OFF


@claim
async def test_one_call_is_one_command_whether_it_is_answered_or_not(h: PowerHarness) -> None:
    host, port = h.host("a"), h.driver()
    for number, command in enumerate((port.power_off, port.power_off, port.power_on, port.power_on), 1):
        await _sent(command(host))
        await until(lambda number=number: h.commands("a") >= number, "it arrives", h.settle_s + PATIENCE_S)
        assert h.commands("a") == number
    await _switched(h, "a", True)
    await asyncio.sleep(h.settle_s)
    assert h.commands("a") == 4


@claim
async def test_switching_off_what_is_off_and_on_what_is_on_changes_nothing(h: PowerHarness) -> None:
    host, port = h.host("a"), h.driver()
    await _sent(port.power_on(host))
    await asyncio.sleep(h.settle_s)
    assert h.boots("a") == 1, "no reset"
    for _ in range(2):
        await _sent(port.power_off(host))
        await _switched(h, "a", False)
    await asyncio.sleep(h.settle_s)
    assert (h.is_on("a"), h.is_on("b")) == (False, True)


@claim
async def test_a_caller_that_gives_up_or_is_killed_has_sent_one_command_at_most(h: PowerHarness) -> None:
    host = h.host("a")
    h.set_mode("a", "slow")
    with pytest.raises((TimeoutError, Unavailable, Unknown)):
        await within(h.driver().power_off(host), SHORT_S)
    await asyncio.sleep(h.settle_s)
    assert h.commands("a") <= 1
    before = h.commands("a")
    task = asyncio.create_task(h.driver().power_off(host))
    await asyncio.sleep(0.01)
    h.kill()
    await asyncio.sleep(h.settle_s)
    assert h.commands("a") <= before + 1
    await asyncio.gather(task, return_exceptions=True)


@claim
async def test_a_dead_controller_is_unavailable_and_hears_nothing_when_it_is_back(h: PowerHarness) -> None:
    h.set_mode("a", "dead")
    host, port = h.host("a"), h.driver()
    for call in (port.read(host), port.power_off(host), port.power_on(host)):
        with pytest.raises(Unavailable):
            await call
    h.set_mode("a", "ok")
    await asyncio.sleep(h.settle_s)
    assert h.commands("a") == 0, "no hidden retries"
    assert h.is_on("a")


@claim
async def test_a_host_without_a_controller_is_not_found(h: PowerHarness) -> None:
    host, port = h.host("c"), h.driver()
    for call in (port.read(host), port.power_off(host), port.power_on(host)):
        with pytest.raises(NotFound):
            await call
    assert h.is_on("c")


@claim
async def test_what_a_controller_says_is_passed_on_as_it_is(h: PowerHarness) -> None:
    h.set_mode("a", "lying")
    host, port = h.host("a"), h.driver()
    await port.power_off(host)
    await asyncio.sleep(h.settle_s)
    reading = await _read(port, host)
    assert (reading.state, h.is_on("a")) == (PowerState.OFF, True), "who is to be believed is not for the driver to say"
