"""Virtual functions of hosts' cards: registered, programmed, and booked on every way that a VM comes and goes."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.loops import run_by
from tests.support.node_worlds import at, faults, host_of, play, vm_of

from outlive.resources import Fault, FunctionNeed, MigrationPhase, VirtualFunctionSettings, free_functions
from outlive.simulation import VmSpec, World

MAC = "52:54:00:00:00:01"
NIC = FunctionNeed(name="eth0v0", mac=MAC)
PASSED = FunctionNeed(name="eth0v0", kind="hostdev", pci="0000:00:10.0", mac=MAC)
VM = VmSpec(name="vm-1", host="kvm-1", functions=(NIC,))
CARDS = {"eth0": 2}
_replace = msgspec.structs.replace


def books(world: World, host: str) -> dict[str, tuple[str, str]]:
    """Function → who uses it, who has reserved it; without those that are free."""
    functions = host_of(world, host).status.virtual_functions
    return {one.name: (one.used_by, one.reserved_by) for one in functions if one.used_by or one.reserved_by}


def mac_of(world: World, host: str, name: str = "eth0v0") -> str:
    """What the books say."""
    return next(one.mac for one in host_of(world, host).status.virtual_functions if one.name == name)


async def want(world: World, host: str, **settings: VirtualFunctionSettings) -> None:
    """As an operator writes it."""
    found = host_of(world, host)
    spec = _replace(found.spec, virtual_functions=settings)
    await world.store.replace(_replace(found, spec=spec))


def message(world: World, name: str) -> str:
    """Of a fault that is not over."""
    return next(one.message for one in world.store.list_all(Fault) if one.name == name and not one.ended)


@run_by(play, vms=(VM,), functions=CARDS)
async def test_host_registers_its_functions_and_books_those_of_its_vms(world: World) -> None:
    status = host_of(world).status
    assert [(one.name, one.vf_count, one.message) for one in status.physical_functions] == [("eth0", 2, "")]
    assert [one.name for one in status.virtual_functions] == ["eth0v0", "eth0v1"]
    assert status.virtual_functions[1].pci == "0000:00:10.1"
    assert books(world, "kvm-1") == {"eth0v0": ("vm-1", "")}
    assert mac_of(world, "kvm-1") == MAC
    assert books(world, "kvm-2") == {}


@run_by(play, vms=(VM,), functions=CARDS)
async def test_live_move_takes_the_books_along(world: World) -> None:
    """Used at the source, reserved at the target; at arrival used there, and free here with its own address."""
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
    while vm_of(world).host == "kvm-1":
        await world.clock.sleep(0.05)
    move = vm_of(world).status.migration
    assert move is not None
    assert (move.functions, move.mode) == (("eth0v0",), "live")
    seen: list[MigrationPhase] = []
    while (move := vm_of(world).status.migration) is not None:
        seen.append(move.phase)
        if move.phase is not MigrationPhase.REQUESTED:
            assert books(world, "kvm-2") == {"eth0v0": ("", "vm-1")}
        assert books(world, "kvm-1") == {"eth0v0": ("vm-1", "")}
        await world.clock.sleep(0.05)
    assert MigrationPhase.TARGET_READY in seen
    await at(world, 30)
    assert world.running_hosts("vm-1") == ("kvm-2",)
    assert books(world, "kvm-2") == {"eth0v0": ("vm-1", "")}
    assert books(world, "kvm-1") == {}
    assert mac_of(world, "kvm-2") == MAC
    assert mac_of(world, "kvm-1") == "00:00:00:00:00:00"


@run_by(play, vms=(_replace(VM, functions=(PASSED,)),), functions=CARDS)
async def test_function_that_is_passed_through_moves_while_the_vm_is_down(world: World) -> None:
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": False})
    while vm_of(world).status.migration is None:
        await world.clock.sleep(0.05)
    move = vm_of(world).status.migration
    assert move is not None
    assert move.mode == "cold"
    answered = vm_of(world).status.answered
    assert answered is not None
    assert "eth0v0" in answered.message
    await at(world, 60)
    assert world.running_hosts("vm-1") == ("kvm-2",)
    assert books(world, "kvm-2") == {"eth0v0": ("vm-1", "")}
    assert books(world, "kvm-1") == {}


@run_by(play, vms=(VM, VmSpec(name="vm-2", host="kvm-2", functions=(NIC,))), functions=CARDS)
async def test_move_to_a_host_whose_function_is_taken_is_refused_with_the_reason(world: World) -> None:
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
    await at(world, 5)
    answered = vm_of(world).status.answered
    assert answered is not None
    assert answered.code == "node_not_allowed"
    assert "virtual function eth0v0 of kvm-2, which vm-1 needs, is of VM vm-2" in answered.message
    assert books(world, "kvm-1") == {"eth0v0": ("vm-1", "")}
    assert books(world, "kvm-2") == {"eth0v0": ("vm-2", "")}


@run_by(play, hosts=3, vms=(VM, VmSpec(name="vm-2", host="kvm-2", functions=(NIC,))), functions=CARDS)
async def test_two_moves_do_not_get_the_same_function(world: World) -> None:
    """The first one's request reserves it in its record, before its target has written anything."""
    await world.do("move", {"vm": "vm-1", "to": "kvm-3", "live": True})
    await world.do("move", {"vm": "vm-2", "to": "kvm-3", "live": True})
    await at(world, 40)
    there = [name for name in ("vm-1", "vm-2") if world.running_hosts(name) == ("kvm-3",)]
    assert len(there) == 1
    assert books(world, "kvm-3") == {"eth0v0": (there[0], "")}


@run_by(play, vms=(_replace(VM, migration_method="live"),), functions=CARDS)
async def test_aborted_move_leaves_the_books_as_they_were(world: World) -> None:
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
    reserved = False
    for _ in range(600):
        world.hosts["kvm-1"].hypervisor.faults.migration = "precopy"
        await world.clock.sleep(0.1)
        reserved = reserved or books(world, "kvm-2") == {"eth0v0": ("", "vm-1")}
    assert reserved
    move = vm_of(world).status.migration
    assert move is not None
    assert move.phase is MigrationPhase.ABORTED
    assert world.running_hosts("vm-1") == ("kvm-1",)
    assert books(world, "kvm-1") == {"eth0v0": ("vm-1", "")}
    assert books(world, "kvm-2") == {}
    assert mac_of(world, "kvm-1") == MAC


@pytest.mark.parametrize("after_s", [0.1, 0.3, 0.6, 0.9, 1.2, 1.6, 2.0, 3.0])
@pytest.mark.parametrize("host", ["kvm-1", "kvm-2"])
@run_by(play, vms=(VM,), functions=CARDS)
async def test_daemon_killed_at_any_moment_of_a_move_leaves_nothing_booked_for_ever(
    world: World, *, host: str, after_s: float
) -> None:
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
    await world.clock.sleep(after_s)
    world.hosts[host].daemon.kill()
    await at(world, 120)
    (runs,) = world.running_hosts("vm-1")
    other = "kvm-1" if runs == "kvm-2" else "kvm-2"
    assert books(world, runs) == {"eth0v0": ("vm-1", "")}
    assert books(world, other) == {}


@run_by(play, hosts=3, vms=(VM, VmSpec(name="vm-2", host="kvm-2", functions=(NIC,))), functions=CARDS)
async def test_drain_goes_to_the_host_that_has_the_function_free_and_back(world: World) -> None:
    await world.do("drain", {"host": "kvm-1"})
    await at(world, 60)
    assert world.running_hosts("vm-1") == ("kvm-3",)
    assert books(world, "kvm-1") == {}
    assert books(world, "kvm-3") == {"eth0v0": ("vm-1", "")}
    await world.do("ready", {"host": "kvm-1"})
    await at(world, 120)
    assert world.running_hosts("vm-1") == ("kvm-1",)
    assert books(world, "kvm-1") == {"eth0v0": ("vm-1", "")}
    assert books(world, "kvm-3") == {}


@run_by(play, vms=(VM,), functions=CARDS)
async def test_settings_are_programmed_at_every_start_and_at_every_change(world: World) -> None:
    """The first value always, though nothing has changed since the last daemon."""
    cards = world.hosts["kvm-1"].cards
    await want(world, "kvm-1", eth0v1=VirtualFunctionSettings(vlan=7, vlan_qos=3))
    await at(world, 10)
    assert cards.programmed == [("eth0", 1, VirtualFunctionSettings(vlan=7, vlan_qos=3))]
    assert host_of(world).status.virtual_functions[1].settings.vlan == 7
    world.hosts["kvm-1"].daemon.kill()
    await at(world, 30)
    assert cards.programmed[1:] == [("eth0", 1, VirtualFunctionSettings(vlan=7, vlan_qos=3))]
    await want(world, "kvm-1", eth0v1=VirtualFunctionSettings(vlan=9))
    await at(world, 40)
    assert cards.programmed[2:] == [("eth0", 1, VirtualFunctionSettings(vlan=9))]


@run_by(play, vms=(VM,), functions=CARDS, violations=True)
async def test_vm_starts_only_once_its_host_has_made_its_functions_again_after_a_boot(world: World) -> None:
    """The books are there from before, the function is not."""
    host = world.hosts["kvm-1"]
    host.machine.unplug()
    await world.clock.sleep(1)
    host.cards.making.clear()
    host.machine.plug()
    await world.clock.sleep(60)
    assert books(world, "kvm-1") == {"eth0v0": ("vm-1", "")}
    assert world.running_hosts("vm-1") == ()
    host.cards.making.set()
    await world.clock.sleep(30)
    assert world.running_hosts("vm-1") == ("kvm-1",)


@run_by(play, vms=(VM,), functions=CARDS)
async def test_function_that_its_card_does_not_show_is_free_for_nobody_and_stays_its_vm_s(world: World) -> None:
    """As after the card was given a smaller number of functions."""
    assert [one.name for one in free_functions(host_of(world))] == ["eth0v0", "eth0v1"]
    await world.hosts["kvm-1"].cards.set_count("eth0", 0, replace=True)
    await world.clock.sleep(30)
    hidden = host_of(world).status.virtual_functions
    assert [(one.missing, one.message) for one in hidden] == [(True, "its card does not show it")] * 2
    assert [(one.name, one.owner) for one in free_functions(host_of(world))] == [("eth0v0", "vm-1")]
    await world.hosts["kvm-1"].cards.set_count("eth0", 2, replace=True)
    await world.clock.sleep(30)
    assert not any(one.missing for one in host_of(world).status.virtual_functions)


@run_by(play, vms=(VM,), functions=CARDS)
async def test_settings_that_somebody_else_changes_on_a_card_are_programmed_again(world: World) -> None:
    """As libvirt takes a function out of its VLAN when it starts a guest."""
    cards = world.hosts["kvm-1"].cards
    await want(world, "kvm-1", eth0v0=VirtualFunctionSettings(vlan=7, vlan_qos=3))
    await at(world, 10)
    for moment_s in (30, 50):
        cards.lose_vlan("eth0", 0)
        await at(world, moment_s)
        settings = host_of(world).status.virtual_functions[0].settings
        assert (settings.vlan, settings.vlan_qos) == (7, 3)
    assert len(cards.programmed) == 3


@run_by(play, vms=(VM,), functions=CARDS)
async def test_setting_that_a_card_takes_and_does_not_follow_is_told_and_programmed_twice_only(world: World) -> None:
    cards = world.hosts["kvm-1"].cards
    cards.ignores.add("trust")
    await want(world, "kvm-1", eth0v0=VirtualFunctionSettings(trust=True))
    await at(world, 60)
    assert len(cards.programmed) == 2
    assert "eth0v0: trust: its card shows False" in message(world, "functions-refused.kvm-1")


@run_by(play, vms=(VM,), functions=CARDS)
async def test_card_that_is_down_is_brought_up(world: World) -> None:
    """libvirt gives no function of it to a guest otherwise."""
    cards = world.hosts["kvm-1"].cards
    await at(world, 10)
    cards.take_down("eth0")
    await at(world, 30)
    assert (await cards.read("eth0")).up


@run_by(play, vms=(VM,), functions=CARDS)
async def test_setting_that_a_card_refused_is_tried_again(world: World) -> None:
    """Some cards limit rates only while their link is up, which takes seconds after a boot."""
    cards = world.hosts["kvm-1"].cards
    cards.refuses.add("link_state")
    await want(world, "kvm-1", eth0v0=VirtualFunctionSettings(link_state="disable"))
    await at(world, 15)
    assert host_of(world).status.virtual_functions[0].message
    cards.refuses.clear()
    await at(world, 60)
    first = host_of(world).status.virtual_functions[0]
    assert (first.settings.link_state, first.message) == ("disable", "")
    assert "functions-refused.kvm-1" not in faults(world)


@run_by(play, vms=(VM,), functions=CARDS)
async def test_setting_that_a_card_refuses_is_a_fault_that_names_the_function(world: World) -> None:
    """What else is set of it is programmed, and so are the others."""
    cards = world.hosts["kvm-1"].cards
    cards.refuses.add("link_state")
    await want(
        world,
        "kvm-1",
        eth0v0=VirtualFunctionSettings(link_state="disable", trust=True),
        eth0v1=VirtualFunctionSettings(trust=True),
    )
    await at(world, 15)
    first, second = host_of(world).status.virtual_functions
    assert (first.settings.trust, first.settings.link_state, second.settings.trust) == (True, "auto", True)
    assert first.message == "linkState: Operation not supported"
    assert second.message == ""
    assert "eth0v0: linkState: Operation not supported" in message(world, "functions-refused.kvm-1")
    await want(world, "kvm-1", eth0v0=VirtualFunctionSettings(trust=True))
    await at(world, 40)
    assert "functions-refused.kvm-1" not in faults(world)


@run_by(play, vms=(VM,), functions=CARDS, violations=True)
async def test_function_in_a_guest_already_is_not_registered_and_told(world: World) -> None:
    host = host_of(world, "kvm-2")
    world.hosts["kvm-2"].cards.in_guests.add(("eth0", 1))
    kept = tuple(one for one in host.status.virtual_functions if one.name != "eth0v1")
    await world.store.replace_status(_replace(host, status=_replace(host.status, virtual_functions=kept)))
    await at(world, 15)
    assert [one.name for one in host_of(world, "kvm-2").status.virtual_functions] == ["eth0v0"]
    assert "eth0v1 is in a guest already" in message(world, "functions-missing.kvm-2")
    world.hosts["kvm-2"].cards.in_guests.clear()
    await at(world, 60)
    assert [one.name for one in host_of(world, "kvm-2").status.virtual_functions] == ["eth0v0", "eth0v1"]
    assert "functions-missing.kvm-2" not in faults(world)


def test_vm_whose_function_its_host_does_not_have_says_so_and_others_start() -> None:
    async def story(world: World) -> None:
        await at(world, 60)
        assert world.running_hosts("vm-1") == ()
        status = vm_of(world).status
        assert status.reason == "function-not-free"
        assert "kvm-1 has no virtual function eth7v0, which vm-1 needs" in status.message
        assert world.running_hosts("vm-2") == ("kvm-1",)

    lost = FunctionNeed(name="eth7v0", mac=MAC)
    vms = (_replace(VM, functions=(lost,)), VmSpec(name="vm-2", host="kvm-1"))
    play(story, vms=vms, functions=CARDS)


@run_by(play, vms=(VM,), functions=CARDS)
async def test_functions_of_a_card_that_is_not_configured_any_more_leave(world: World) -> None:
    host = world.hosts["kvm-2"]
    host.spec = _replace(host.spec, functions={"eth1": 1})
    host.cards._most = {"eth1": 1}
    host.daemon.kill()
    await at(world, 30)
    status = host_of(world, "kvm-2").status
    assert [one.name for one in status.physical_functions] == ["eth1"]
    names = [one.name for one in status.virtual_functions]
    assert "eth0v0" not in names


@run_by(play, vms=(VM,), functions=CARDS)
async def test_function_that_is_given_back_again_and_again_gets_its_own_address_each_time(world: World) -> None:
    """libvirt gives it the VM's; nobody else takes that away."""
    cards = world.hosts["kvm-1"].cards
    for target in ("kvm-2", "kvm-1", "kvm-2"):
        if target == "kvm-2":
            await cards.set_mac("eth0", 0, MAC)
        await world.do("move", {"vm": "vm-1", "to": target, "live": True})
        await world.clock.sleep(30)
        assert world.running_hosts("vm-1") == (target,)
    assert (await cards.read("eth0")).functions[0].mac == "00:00:00:00:00:00"
