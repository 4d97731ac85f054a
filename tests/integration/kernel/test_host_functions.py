"""A host's daemon and a real card: made, registered, programmed at each start, and what it refuses told by name.

The parts of the daemon that have nothing to do with cards are not started; the store is in memory.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from tests.support.loops import run_by

from outlive.base import Random, SeededIds, SystemClock
from outlive.node.functions import FunctionReconciler, SriovDevice
from outlive.resources import Hypervisor, ObjectMeta, VirtualFunctionSettings
from outlive.runtime import DecisionLog, FaultRecorder, FaultSet
from outlive.store import MemoryStore

pytestmark = [pytest.mark.component("kernel-guest"), pytest.mark.slow]
HOST = "kvm-1"
_replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def card() -> str:
    """The card without functions."""
    subprocess.run(["modprobe", "igb"], check=True)
    (device,) = Path("/sys/class/net").glob("*/device/sriov_totalvfs")
    device.with_name("sriov_numvfs").write_text("0")
    return device.parts[4]


class World:
    """A store with one host, and daemons of it one after the other."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.ids = SeededIds(Random(1))
        self.store = MemoryStore(self.clock, self.ids)

    def daemon(self, *devices: SriovDevice) -> FunctionReconciler:
        from outlive.drivers.links import CardFunctions

        async def read(_vm: str) -> None:
            return None

        node = SimpleNamespace(
            read=read,
            domains=SimpleNamespace(looked=False),
            store=self.store,
            host=HOST,
            clock=self.clock,
            lease=SimpleNamespace(entered=None),
            informer=SimpleNamespace(items=tuple),
            decisions=DecisionLog(self.clock),
            faults=FaultSet(FaultRecorder(self.store, self.clock, "daemon", HOST), self.clock),
        )
        return FunctionReconciler(cast("Any", node), CardFunctions(), devices)

    async def host(self) -> Hypervisor:
        return await self.store.get(Hypervisor, HOST)

    async def want(self, **settings: VirtualFunctionSettings) -> None:
        found = await self.host()
        await self.store.replace(_replace(found, spec=_replace(found.spec, virtual_functions=settings)))


def play(story: Callable[[World], Awaitable[None]]) -> None:
    async def played() -> None:
        world = World()
        await world.store.create(Hypervisor(metadata=ObjectMeta(name=HOST)))
        await story(world)

    asyncio.run(played())


def change(card: str, index: int, *settings: str) -> None:
    """As somebody else does it."""
    subprocess.run(["ip", "link", "set", card, "vf", str(index), *settings], check=True)


def shown(card: str, index: int) -> str:
    """What the card says of a function, in the words of ``ip``."""
    told = subprocess.run(["ip", "link", "show", card], check=True, capture_output=True, text=True).stdout
    return next(line for line in told.splitlines() if line.strip().startswith(f"vf {index} "))


@run_by(play)
async def test_daemon_makes_registers_and_programs_functions_and_does_so_again(world: World, *, card: str) -> None:
    """What somebody else has changed on the card since is as it is wanted after the next start."""
    await world.want(**{f"{card}v1": VirtualFunctionSettings(vlan=7, vlan_qos=3, link_state="enable")})
    first = world.daemon(SriovDevice(device=card, count=2), SriovDevice(device="enp9s9", count=2))
    await first.reconcile()
    await first.reconcile()
    status = (await world.host()).status
    assert [one.name for one in status.virtual_functions] == [f"{card}v0", f"{card}v1"]
    assert all(one.pci.startswith("0000:") for one in status.virtual_functions)
    assert {one.name: one.vf_count for one in status.physical_functions} == {card: 2, "enp9s9": 2}
    assert "no network device enp9s9" in {one.name: one.message for one in status.physical_functions}["enp9s9"]
    assert (status.virtual_functions[1].settings.vlan, status.virtual_functions[1].settings.vlan_qos) == (7, 3)
    assert "linkState: Operation not supported" in status.virtual_functions[1].message
    assert status.virtual_functions[0].message == ""
    assert "vlan 7, qos 3" in shown(card, 1)

    change(card, 1, "vlan", "0")
    assert "vlan" not in shown(card, 1)
    await world.daemon(SriovDevice(device=card, count=2)).reconcile()
    assert "vlan 7, qos 3" in shown(card, 1)
    assert [one.name for one in (await world.host()).status.physical_functions] == [card]


@run_by(play)
async def test_count_is_not_changed_while_a_function_is_in_use(world: World, *, card: str) -> None:
    """The card keeps what it has, and the host says so."""
    await world.daemon(SriovDevice(device=card, count=2)).reconcile()
    found = await world.host()
    used = tuple(_replace(one, used_by="vm-1") for one in found.status.virtual_functions)
    await world.store.replace_status(_replace(found, status=_replace(found.status, virtual_functions=used)))
    await world.daemon(SriovDevice(device=card, count=3)).reconcile()
    status = (await world.host()).status
    assert len(status.virtual_functions) == 2
    assert "refuses to have 3 virtual functions" in status.physical_functions[0].message


def test_count_is_not_changed_while_a_device_of_somebody_else_is_on_a_function(card: str) -> None:
    """As libvirt puts one on it for a guest."""
    subprocess.run(["modprobe", "-a", "igbvf", "macvtap"], check=True)

    def put_on(function: str) -> None:
        words = ("link", "add", "link", function, "name", "tap0", "type", "macvtap", "mode", "passthru")
        subprocess.run(["ip", *words], check=True)

    def remove() -> None:
        subprocess.run(["ip", "link", "del", "tap0"], check=True)

    async def story(world: World) -> None:
        await world.daemon(SriovDevice(device=card, count=2)).reconcile()
        (name,) = os.listdir(f"/sys/class/net/{card}/device/virtfn0/net")  # noqa: PTH208
        put_on(name)
        await world.daemon(SriovDevice(device=card, count=3)).reconcile()
        status = (await world.host()).status
        assert len(status.virtual_functions) == 2
        assert "refuses to have 3 virtual functions" in status.physical_functions[0].message
        remove()

    play(story)
