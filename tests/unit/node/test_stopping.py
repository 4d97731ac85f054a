"""The end of a daemon in good order, and of its machine."""

from __future__ import annotations

import pytest
from tests.support.node_worlds import at, condemn, hears, holders, host_of, narrated, play, record
from tests.support.node_worlds import vm_of as _vm

from outlive.node.primary_elector import ROLE
from outlive.node.stop import HURRY_S
from outlive.resources import Election, ElectionRecord
from outlive.resources.meta import condition
from outlive.roles.node import NodeRole
from outlive.simulation.spec import VmSpec
from outlive.simulation.world import World

TWO = (VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-2", host="kvm-1"))


def test_daemon_of_a_host_that_runs_something_is_not_stopped_unless_told_to_leave_it() -> None:
    async def story(world: World) -> None:
        await world.do("stop-daemon", {"hosts": ["kvm-1"]})
        await at(world, 20)
        assert world.hosts["kvm-1"].daemon.alive
        await world.do("stop-daemon", {"hosts": ["kvm-1"], "leaveVms": True})
        await at(world, 60)
        assert not world.hosts["kvm-1"].daemon.alive
        assert world.running("vm-1") == ("kvm-1",)
        assert record(world).state == "Held"

    play(story)


def test_guests_of_a_machine_that_goes_down_are_asked_to_end_and_stay_held() -> None:
    async def story(world: World) -> None:
        await world.do("stop-daemon", {"hosts": ["kvm-1"], "goingDown": True})
        await at(world, 30)
        assert not world.hosts["kvm-1"].daemon.alive
        for name in ("vm-1", "vm-2"):
            assert world.running(name) == ()
            assert narrated(world, name, "domain")[-1].endswith("shut down")
            assert holders(world, name) == [("kvm-1", 1, "")], "held, and nobody believes that it runs"
            assert _vm(world, name).status.phase == "start"
        assert record(world).state == "Held"

    play(story, vms=TWO)


@pytest.mark.slow
def test_vms_of_a_machine_that_went_down_start_again_when_it_is_back() -> None:
    async def story(world: World) -> None:
        await world.do("stop-daemon", {"hosts": ["kvm-1"], "goingDown": True})
        await at(world, 30)
        await world.do("power-off", {"hosts": ["kvm-1"]})
        await at(world, 31)
        await condemn(world)
        await world.do("power-on", {"hosts": ["kvm-1"]})
        await at(world, 200)
        assert world.running("vm-1") == ("kvm-1",)
        assert holders(world) == [("kvm-1", 2, "running")]

    play(story)


def test_guests_of_a_machine_that_goes_down_are_left_to_it_where_the_settings_say_so() -> None:
    async def story(world: World) -> None:
        await world.do("stop-daemon", {"hosts": ["kvm-1"], "goingDown": True})
        await at(world, 60)
        assert not world.hosts["kvm-1"].daemon.alive
        assert world.running("vm-1") == ("kvm-1",)

    play(story, node={"goingDown": "leave"})


def test_guest_that_does_not_end_delays_its_machine_only_so_long() -> None:
    async def story(world: World) -> None:
        await world.do("guest-ignores-shutdown", {"vms": ["vm-1"]})
        await world.do("stop-daemon", {"hosts": ["kvm-1"], "goingDown": True})
        await at(world, 15)
        assert world.hosts["kvm-1"].daemon.alive
        assert (holders(world), holders(world, "vm-2")) == ([("kvm-1", 1, "running")], [("kvm-1", 1, "")])
        await at(world, 40)
        assert not world.hosts["kvm-1"].daemon.alive
        assert world.running("vm-1") == ("kvm-1",)

    play(story, vms=TWO, node={"shutdownLimit": "20s"})


def test_guest_that_was_not_ready_to_hear_that_its_machine_goes_down_is_asked_again() -> None:
    async def story(world: World) -> None:
        await world.do("guest-ignores-shutdown", {"vms": ["vm-1"]})
        await world.do("stop-daemon", {"hosts": ["kvm-1"], "goingDown": True})
        await at(world, 5)
        hears(world)
        await at(world, 30)
        assert (world.hosts["kvm-1"].daemon.alive, world.running("vm-1")) == (False, ())

    play(story)


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


def test_a_hypervisor_that_does_not_answer_for_a_moment_ends_no_guest_hard() -> None:
    async def story(world: World) -> None:
        await world.do("laggy-hypervisor", {"hosts": ["kvm-1"], "by": 6.0})
        await world.do("stop-daemon", {"hosts": ["kvm-1"], "goingDown": True})
        await at(world, 4)
        await world.do("laggy-hypervisor", {"hosts": ["kvm-1"], "by": 0.0})
        await at(world, 30)
        assert (world.hosts["kvm-1"].daemon.alive, world.running("vm-1")) == (False, ())

    play(story, node={"callLimit": "5s"})


def test_a_second_request_does_not_wait_for_the_guests_of_a_machine_that_goes_down() -> None:
    async def story(world: World) -> None:
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
        assert world.running("vm-1") == ("kvm-1",)
        ready = condition(host_of(world).status.conditions, "Ready")
        assert ready is not None
        assert "unsupervised: vm-1" in ready.message, "the last steps are taken all the same"

    play(story, vms=TWO)


def test_primary_whose_daemon_stops_hands_its_role_over_while_it_still_renews() -> None:
    async def story(world: World) -> None:
        first, then = ("kvm-1", "kvm-2") if election(world).holder == "kvm-1" else ("kvm-2", "kvm-1")
        await world.do("hang-duty", {"hosts": [first]})
        await world.do("stop-daemon", {"hosts": [first], "leaveVms": True})
        await at(world, 8)
        assert world.hosts[first].daemon.alive, "it waits for the end of its duty"
        assert record(world, first).state == "Held"
        await at(world, 60)
        assert not world.hosts[first].daemon.alive
        assert election(world).holder == then

    play(story, primary_role=True, mode="coordinator")


def election(world: World) -> ElectionRecord:
    found = world.store.find(Election, ROLE)
    assert found is not None
    return found.record
