"""The clean end of a daemon, and of its machine."""

from __future__ import annotations

from tests.support.loops import run_by
from tests.support.node_worlds import at, hears, holders, host_of, play, record

from outlive.node import HURRY_S, ROLE
from outlive.resources import Election, ElectionRecord, find_condition
from outlive.roles import NodeRole
from outlive.simulation import VmSpec, World

TWO = (VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-2", host="kvm-1"))


@run_by(play)
async def test_daemon_of_a_host_that_runs_something_is_not_stopped_unless_told_to_leave_it(world: World) -> None:
    await world.do("stop-daemon", {"hosts": ["kvm-1"]})
    await at(world, 20)
    assert world.hosts["kvm-1"].daemon.alive
    await world.do("stop-daemon", {"hosts": ["kvm-1"], "leaveVms": True})
    await at(world, 60)
    assert not world.hosts["kvm-1"].daemon.alive
    assert world.running_hosts("vm-1") == ("kvm-1",)
    assert record(world).state == "Held"


@run_by(play, vms=TWO, node={"shutdownLimit": "20s"})
async def test_guest_that_does_not_end_delays_its_machine_only_so_long(world: World) -> None:
    await world.do("guest-ignores-shutdown", {"vms": ["vm-1"]})
    await world.do("stop-daemon", {"hosts": ["kvm-1"], "goingDown": True})
    await at(world, 15)
    assert world.hosts["kvm-1"].daemon.alive
    assert (holders(world), holders(world, "vm-2")) == ([("kvm-1", 1, "running")], [("kvm-1", 1, "")])
    await at(world, 40)
    assert not world.hosts["kvm-1"].daemon.alive
    assert world.running_hosts("vm-1") == ("kvm-1",)


@run_by(play)
async def test_guest_that_was_not_ready_to_hear_that_its_machine_goes_down_is_asked_again(world: World) -> None:
    await world.do("guest-ignores-shutdown", {"vms": ["vm-1"]})
    await world.do("stop-daemon", {"hosts": ["kvm-1"], "goingDown": True})
    await at(world, 5)
    hears(world)
    await at(world, 30)
    assert (world.hosts["kvm-1"].daemon.alive, world.running_hosts("vm-1")) == (False, ())


def test_guests_that_nobody_can_ask_to_end_delay_their_machine_no_longer_than_others() -> None:
    many = tuple(VmSpec(name=f"vm-{n}", host="kvm-1") for n in range(1, 7))

    async def story(world: World) -> None:
        await world.do("guest-ignores-shutdown", {"vms": [one.name for one in many[1:]]})
        await world.do("laggy-hypervisor", {"hosts": ["kvm-1"], "by": 9.0})
        await world.do("stop-daemon", {"hosts": ["kvm-1"], "goingDown": True})
        await at(world, 35)
        assert holders(world) == [("kvm-1", 1, "")], "what has ended is reported while others are asked"
        await at(world, 60)
        assert not world.hosts["kvm-1"].daemon.alive

    play(story, vms=many, node={"shutdownLimit": "20s"})


@run_by(play, node={"callLimit": "5s"})
async def test_a_hypervisor_that_does_not_answer_for_a_moment_ends_no_guest_hard(world: World) -> None:
    await world.do("laggy-hypervisor", {"hosts": ["kvm-1"], "by": 6.0})
    await world.do("stop-daemon", {"hosts": ["kvm-1"], "goingDown": True})
    await at(world, 4)
    await world.do("laggy-hypervisor", {"hosts": ["kvm-1"], "by": 0.0})
    await at(world, 30)
    assert (world.hosts["kvm-1"].daemon.alive, world.running_hosts("vm-1")) == (False, ())


@run_by(play, vms=TWO)
async def test_a_second_request_does_not_wait_for_the_guests_of_a_machine_that_goes_down(world: World) -> None:
    await world.do("guest-ignores-shutdown", {"vms": ["vm-1"]})
    await world.do("stop-daemon", {"hosts": ["kvm-1"], "goingDown": True})
    await at(world, 5)
    role = world.hosts["kvm-1"].daemon.role
    assert isinstance(role, NodeRole)
    role.hurry()
    await at(world, 5 + HURRY_S - 1)
    assert world.hosts["kvm-1"].daemon.alive
    await at(world, 5 + HURRY_S + 3)
    assert not world.hosts["kvm-1"].daemon.alive
    assert world.running_hosts("vm-1") == ("kvm-1",)
    ready = find_condition(host_of(world).status.conditions, "Ready")
    assert ready is not None
    assert "unsupervised: vm-1" in ready.message, "the last steps are taken all the same"


@run_by(play, primary_role=True, mode="coordinator")
async def test_primary_whose_daemon_stops_hands_its_role_over_while_it_still_renews(world: World) -> None:
    first, then = ("kvm-1", "kvm-2") if election(world).holder == "kvm-1" else ("kvm-2", "kvm-1")
    await world.do("hang-duty", {"hosts": [first]})
    await world.do("stop-daemon", {"hosts": [first], "leaveVms": True})
    await at(world, 8)
    assert world.hosts[first].daemon.alive, "it waits for the end of its duty"
    assert record(world, first).state == "Held"
    await at(world, 60)
    assert not world.hosts[first].daemon.alive
    assert election(world).holder == then


def election(world: World) -> ElectionRecord:
    found = world.store.find(Election, ROLE)
    assert found is not None
    return found.record
