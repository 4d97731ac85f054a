"""A hypervisor that never answers one call holds up nothing but that call, and that for a limited time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.loops import run_by
from tests.support.node_worlds import at, holders, play, record, vm_of

from outlive.base import Unavailable, Unknown
from outlive.node.ports import Domain
from outlive.resources import VirtualMachine
from outlive.simulation import VmSpec, World

VMS = (VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-2", host="kvm-1"))
LIMITS = {"callLimit": "5s", "shutdownLimit": "20s"}


class Hanging:
    """The hypervisor, but calls of these names are never answered."""

    def __init__(self, inner: Any, *names: str) -> None:
        self._inner = inner
        self.names = set(names)

    def __getattr__(self, name: str) -> Any:
        return self._forever if name in self.names else getattr(self._inner, name)

    async def _forever(self, *_: Any, **__: Any) -> None:
        await asyncio.get_running_loop().create_future()


def _hang(world: World, *names: str) -> Hanging:
    role: Any = world.hosts["kvm-1"].daemon.role
    here = role.daemon.shared.domains
    hanging = here.hypervisor = Hanging(here.hypervisor, *names)
    return hanging


@run_by(play, vms=VMS, node=LIMITS)
async def test_guest_whose_shutdown_is_never_answered_is_stopped_hard_in_the_end(world: World) -> None:
    _hang(world, "shutdown")
    await world.do("request", {"vm": "vm-1", "verb": "shutdown"})
    await at(world, 60)
    assert world.running_hosts("vm-1") == ()
    assert world.running_hosts("vm-2") == ("kvm-1",)
    vm = world.store.find(VirtualMachine, "vm-1")
    assert vm is not None
    assert (vm.status.phase, vm.status.holders) == ("stop", ())


@run_by(play, vms=VMS, node=LIMITS)
async def test_daemon_goes_on_looking_though_the_start_of_the_service_is_never_answered(world: World) -> None:
    hypervisor = _hang(world, "list_domains", "start_service")
    await at(world, 30)
    hypervisor.names.clear()
    await at(world, 60)
    before = record(world).seq
    await world.do("guest-crash", {"vms": ["vm-2"]})
    await at(world, 90)
    assert world.running_hosts("vm-2") == ("kvm-1",)
    assert record(world).seq > before


class HangingProcess:
    """The hypervisor of a host on which a process hangs in the kernel: it ends by no signal, and no list shows it."""

    def __init__(self, inner: Any, vm: str) -> None:
        self._inner = inner
        self.vm = vm
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def list_domains(self) -> tuple[Domain, ...]:
        return tuple(one for one in await self._inner.list_domains() if not self.asked or one.vm != self.vm)

    async def destroy(self, vm: str, *, run_id: str = "", uuid: str = "") -> None:
        if vm == self.vm:
            self.asked += 1
            raise Unavailable(f"{vm} does not end: its process hangs")
        await self._inner.destroy(vm, run_id=run_id, uuid=uuid)


@pytest.mark.slow
@run_by(play, vms=VMS, node=LIMITS)
async def test_host_keeps_its_entry_of_a_guest_until_its_kill_is_known_to_be_done_whatever_a_look_shows(
    world: World,
) -> None:
    role: Any = world.hosts["kvm-1"].daemon.role
    here = role.daemon.shared.domains
    inner = here.hypervisor
    hanging = here.hypervisor = HangingProcess(inner, "vm-1")
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 60)
    assert hanging.asked > 3, "it is asked again and again"
    assert world.running_hosts("vm-1") == ("kvm-1",)
    assert [one[0] for one in holders(world)] == ["kvm-1"]
    here.hypervisor = inner
    await at(world, 120)
    assert world.running_hosts("vm-1") == ()
    assert holders(world) == []


class LostAnswer:
    """A hypervisor that ends domains and does not say so."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def destroy(self, vm: str, *, run_id: str = "", uuid: str = "") -> None:
        self.asked += 1
        await self._inner.destroy(vm, run_id=run_id, uuid=uuid)
        raise Unknown(f"nobody said whether {vm} has ended")


@run_by(play, vms=VMS, node=LIMITS)
async def test_vm_that_is_wanted_again_before_its_kill_is_known_to_be_done_starts_once_it_is(world: World) -> None:
    await at(world, 10)
    role: Any = world.hosts["kvm-1"].daemon.role
    here = role.daemon.shared.domains
    inner = here.hypervisor
    here.hypervisor = LostAnswer(inner)
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 10.5)
    assert world.running_hosts("vm-1") == ()
    assert [one[0] for one in holders(world)] == ["kvm-1"]
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 20)
    assert vm_of(world).status.reason == "not-ended"
    here.hypervisor = inner
    await at(world, 30)
    assert world.running_hosts("vm-1") == ("kvm-1",)
    assert holders(world) == [("kvm-1", 1, "running")]
    assert (vm_of(world).status.phase, vm_of(world).status.reason) == ("start", "")


@run_by(play, vms=VMS, node=LIMITS)
async def test_restart_whose_kill_is_not_known_to_be_done_does_not_wait_for_the_guest_again(world: World) -> None:
    await at(world, 10)
    role: Any = world.hosts["kvm-1"].daemon.role
    here = role.daemon.shared.domains
    inner = here.hypervisor
    here.hypervisor = LostAnswer(inner)
    await world.do("guest-ignores-shutdown", {"vms": ["vm-1"]})
    await world.do("request", {"vm": "vm-1", "verb": "restart"})
    await at(world, 35)
    assert world.running_hosts("vm-1") == ()
    here.hypervisor = inner
    await at(world, 45)
    assert world.running_hosts("vm-1") == ("kvm-1",)


@run_by(play, vms=VMS, node=LIMITS)
async def test_remains_of_a_guest_that_has_ended_are_cleared_away_once_a_second_until_that_is_known_to_be_done(
    world: World,
) -> None:
    await at(world, 10)
    role: Any = world.hosts["kvm-1"].daemon.role
    here = role.daemon.shared.domains
    inner = here.hypervisor
    lost = here.hypervisor = LostAnswer(inner)
    await world.do("guest-crash", {"vms": ["vm-1"]})
    await at(world, 20)
    assert 5 < lost.asked < 15
    here.hypervisor = inner
    await at(world, 40)
    assert world.running_hosts("vm-1") == ("kvm-1",)


class DeafOnce:
    """A store that never answers its first call."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._heard = False

    async def get(self, kind: type, name: str, **how: Any) -> Any:
        if not self._heard:
            self._heard = True
            await asyncio.get_running_loop().create_future()
        return await self._inner.get(kind, name, **how)


@run_by(play, vms=VMS)
async def test_wishes_are_read_again_though_one_reading_was_never_answered(world: World) -> None:
    role: Any = world.hosts["kvm-1"].daemon.role
    desired = role.daemon.shared.desired
    desired._store = DeafOnce(desired._store)
    await at(world, 10)
    await world.do("drain", {"host": "kvm-1"})
    await at(world, 30)
    assert desired.spec.drain


@run_by(play, vms=VMS)
async def test_vm_starts_though_the_question_whether_the_cluster_is_paused_was_once_never_answered(
    world: World,
) -> None:
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 10)
    role: Any = world.hosts["kvm-1"].daemon.role
    pause = role.daemon.shared.pause
    pause._store = DeafOnce(pause._store)
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 30)
    assert world.running_hosts("vm-1") == ("kvm-1",)
