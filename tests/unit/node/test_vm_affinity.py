"""Hard affinity rules at the moment in which a VM that is down starts on a host, whichever process put it there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.loops import run_by
from tests.support.node_worlds import assigned, at, condemn, play, set_status, vm_of

from outlive.resources import HOST_LABEL, AffinityRule, RecoveryPolicy, VirtualMachine
from outlive.simulation import VmSpec, World
from outlive.store import Page, Selector

APART = (AffinityRule(group="db", policy="anti-affinity"),)
TOGETHER = (AffinityRule(group="web", policy="affinity"),)


async def _place(world: World, name: str, host: str, fence: str = "") -> None:
    """As somebody writes it who has looked before."""
    vm = vm_of(world, name)
    metadata = msgspec.structs.replace(vm.metadata, labels={**vm.metadata.labels, HOST_LABEL: host})
    await world.store.replace(msgspec.structs.replace(vm, metadata=metadata))
    await set_status(world, name, assigned=assigned(host, fence))


async def _stop(world: World, *names: str) -> None:
    for name in names:
        await world.do("request", {"vm": name, "verb": "stop"})
    while any(world.running_hosts(name) for name in names):
        await world.clock.sleep(0.1)


def _apart(*hosts: str) -> tuple[VmSpec, ...]:
    return tuple(
        VmSpec(name=f"vm-{n}", host=host, affinity=APART, migration_method="live") for n, host in enumerate(hosts, 1)
    )


def _together(*hosts: str) -> tuple[VmSpec, ...]:
    return tuple(VmSpec(name=f"vm-{n}", host=host, affinity=TOGETHER) for n, host in enumerate(hosts, 1))


def _said(world: World, name: str) -> tuple[str, str, str]:
    said = vm_of(world, name).status.rejection
    return (said.hypervisor, said.reason, said.message) if said is not None else ("", "", "")


@pytest.mark.slow
@pytest.mark.parametrize("first", ["vm-1", "vm-2"])
@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.3])
@run_by(play, hosts=3, vms=_apart("kvm-1", "kvm-2"))
async def test_of_two_that_are_kept_apart_and_start_at_once_on_a_host_one_is_turned_away(
    world: World, *, first: str, after_s: float
) -> None:
    other = "vm-2" if first == "vm-1" else "vm-1"
    await _stop(world, "vm-1", "vm-2")
    await world.clock.sleep(1)
    for name in ("vm-1", "vm-2"):
        await _place(world, name, "kvm-3")
    await world.clock.sleep(1)
    await world.do("request", {"vm": first, "verb": "start"})
    await world.clock.sleep(after_s)
    await world.do("request", {"vm": other, "verb": "start"})
    for _ in range(300):
        await world.clock.sleep(0.1)
        assert not (world.running_hosts("vm-1") and world.running_hosts("vm-2"))
    runs = {name: world.running_hosts(name) for name in ("vm-1", "vm-2")}
    assert sorted(runs.values()) == [(), ("kvm-3",)]
    there = next(name for name in runs if runs[name])
    turned_away = "vm-2" if there == "vm-1" else "vm-1"
    why = f"kvm-3 has {there} of anti-affinity group db of {turned_away}, or is to get it"
    assert _said(world, turned_away) == ("kvm-3", "against-affinity", why)


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["requested", "target-ready", "transferring", "done"])
@run_by(play, hosts=3, vms=_apart("kvm-1", "kvm-2"))
async def test_vm_that_a_user_starts_does_not_run_beside_one_that_moves_there(world: World, *, phase: str) -> None:
    await _stop(world, "vm-1")
    await world.do("move", {"vm": "vm-2", "to": "kvm-3"})
    while (move := vm_of(world, "vm-2").status.migration) is None or move.phase != phase:
        if vm_of(world, "vm-2").host == "kvm-3" and move is None:
            break
        await world.clock.sleep(0.01)
    await _place(world, "vm-1", "kvm-3")
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    for _ in range(900):
        await world.clock.sleep(0.1)
        assert any("kvm-3" not in world.running_hosts(name) for name in ("vm-1", "vm-2"))
    assert "kvm-3" in (*world.running_hosts("vm-1"), *world.running_hosts("vm-2"))
    if not world.running_hosts("vm-1"):
        assert _said(world, "vm-1")[:2] == ("kvm-3", "against-affinity")


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["requested", "target-ready", "transferring"])
@run_by(play, hosts=3, vms=_apart("kvm-1", "kvm-2"))
async def test_vm_that_a_user_starts_does_not_run_beside_one_that_is_leaving(world: World, *, phase: str) -> None:
    await _stop(world, "vm-1")
    await world.do("move", {"vm": "vm-2", "to": "kvm-3"})
    for _ in range(3000):
        if (move := vm_of(world, "vm-2").status.migration) is not None and move.phase == phase:
            break
        await world.clock.sleep(0.01)
    else:
        raise AssertionError(f"no phase {phase}")
    await _place(world, "vm-1", "kvm-2")
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    for _ in range(900):
        await world.clock.sleep(0.1)
        assert any("kvm-2" not in world.running_hosts(name) for name in ("vm-1", "vm-2"))
    assert world.running_hosts("vm-2") == ("kvm-3",), "it has left"
    assert world.running_hosts("vm-1") == ("kvm-2",) or _said(world, "vm-1")[:2] == ("kvm-2", "against-affinity")


@run_by(play, vms=_together("kvm-1", "kvm-1"))
async def test_vm_does_not_start_away_from_its_group(world: World) -> None:
    await _stop(world, "vm-1")
    await _place(world, "vm-1", "kvm-2")
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 30)
    assert (world.running_hosts("vm-1"), world.running_hosts("vm-2")) == ((), ("kvm-1",))
    why = "kvm-2 has no VM of affinity group web of vm-1, which is on kvm-1"
    assert _said(world, "vm-1") == ("kvm-2", "against-affinity", why)


@pytest.mark.parametrize("others", ["are down", "are lost"])
@run_by(play, vms=_together("kvm-1", "kvm-1"), violations=True)
async def test_vm_starts_where_its_group_is_nowhere_else(world: World, *, others: str) -> None:
    await _stop(world, *(("vm-1", "vm-2") if others == "are down" else ("vm-1",)))
    if others == "are lost":
        await world.do("power-off", {"hosts": ["kvm-1"]})
        await condemn(world, "kvm-1", dead="power")
    await _place(world, "vm-1", "kvm-2")
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 120)
    assert world.running_hosts("vm-1") == ("kvm-2",)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["vm-1", "vm-2"])
@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.05, 0.3])
def test_of_a_group_that_starts_at_once_on_several_hosts_one_starts(first: str, after_s: float) -> None:
    async def story(world: World) -> None:
        other = "vm-2" if first == "vm-1" else "vm-1"
        await _stop(world, "vm-1", "vm-2")
        for name in ("vm-1", "vm-2"):
            vm = vm_of(world, name)
            spec = msgspec.structs.replace(vm.spec, affinity=TOGETHER)
            await world.store.replace(msgspec.structs.replace(vm, spec=spec))
        await world.clock.sleep(1)
        await world.do("request", {"vm": first, "verb": "start"})
        await world.clock.sleep(after_s)
        await world.do("request", {"vm": other, "verb": "start"})
        await world.clock.sleep(60)
        down = [name for name in ("vm-1", "vm-2") if not world.running_hosts(name)]
        assert len(down) == 1
        status = vm_of(world, down[0]).status
        assert (status.phase, status.reason) == ("fail", "against-affinity")

    here = RecoveryPolicy(mode="hold")
    play(story, vms=tuple(VmSpec(name=f"vm-{n}", host=f"kvm-{n}", recovery=here) for n in (1, 2)))


@run_by(play, vms=_together("kvm-1", "kvm-1"), violations=True)
async def test_other_vms_are_not_listed_for_one_that_may_not_start_yet(world: World) -> None:
    listed: list[Selector | None] = []
    lists = world.store.list

    async def counted(
        kind: type[Any], *, selector: Selector | None = None, limit: int = 500, token: str = ""
    ) -> Page[Any]:
        if kind is VirtualMachine and selector is None:
            listed.append(selector)
        return await lists(kind, selector=selector, limit=limit, token=token)

    await world.do("power-off", {"hosts": ["kvm-1"]})
    await condemn(world, "kvm-1")
    await _place(world, "vm-1", "kvm-2")
    world.store.list = counted  # type: ignore[method-assign]
    await world.clock.sleep(120)
    assert vm_of(world, "vm-1").status.holders, "kvm-1 may still run it"
    assert len(listed) < 3


@run_by(play, vms=(VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-2", host="kvm-1")))
async def test_vm_whose_guest_ends_by_itself_starts_again_where_it_is_also_against_a_rule(world: World) -> None:
    for name in ("vm-1", "vm-2"):
        vm = vm_of(world, name)
        await world.store.replace(msgspec.structs.replace(vm, spec=msgspec.structs.replace(vm.spec, affinity=APART)))
    await world.do("guest-crash", {"vms": ["vm-1"]})
    await world.clock.sleep(1)
    await at(world, 30)
    assert (world.running_hosts("vm-1"), world.running_hosts("vm-2")) == (("kvm-1",), ("kvm-1",))


def test_vm_that_no_other_host_may_start_says_which_rule_keeps_it_down() -> None:
    async def story(world: World) -> None:
        await _stop(world, "vm-1")
        await _place(world, "vm-1", "kvm-2")
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 30)
        status = vm_of(world).status
        assert (world.running_hosts("vm-1"), status.phase, status.reason) == ((), "fail", "against-affinity")
        assert status.message.startswith("kvm-2 has vm-2 of anti-affinity group db")

    vms = _apart("kvm-1", "kvm-2")
    play(story, vms=tuple(msgspec.structs.replace(one, recovery=RecoveryPolicy(mode="hold")) for one in vms))
