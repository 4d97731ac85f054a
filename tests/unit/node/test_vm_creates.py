"""Creates that outlive the process that asked for them: nothing is decided about a virtual machine that may yet run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.loops import run_by
from tests.support.node_worlds import at, condemn, faults, holders, narrated, play, record, vm_of

import outlive.node
from outlive.guard import CreateBegin
from outlive.node.ports import DomainState, GuardPort
from outlive.resources.reasons import FaultCode
from outlive.roles import NodeRole
from outlive.simulation import World


async def _starting_slowly(world: World, *, for_s: float) -> str:
    """The guest is being started, and that takes so long; the run."""
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 5)
    await world.do("slow-starts", {"hosts": ["kvm-1"], "for": for_s})
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 8)
    (shown,) = await world.hosts["kvm-1"].hypervisor.list_domains()
    assert shown.state is DomainState.STARTING
    return shown.run_id


@pytest.mark.slow
@pytest.mark.parametrize("for_s", [6.0, 40.0, 200.0])
@run_by(play)
async def test_create_of_a_killed_daemon_is_waited_for_and_its_run_taken_over(world: World, *, for_s: float) -> None:
    run_id = await _starting_slowly(world, for_s=for_s)
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    await at(world, 15 + for_s)
    assert [one.run_id for one in vm_of(world).status.holders] == [run_id]
    assert holders(world) == [("kvm-1", 1, "running")]
    assert world.running_hosts("vm-1") == ("kvm-1",)


@run_by(play, node={"createLimit": "3s"})
async def test_create_that_takes_longer_than_its_limit_keeps_its_entry_until_it_has_ended(world: World) -> None:
    run_id = await _starting_slowly(world, for_s=20.0)
    await at(world, 20)
    assert [one.run_id for one in vm_of(world).status.holders] == [run_id]
    await at(world, 40)
    assert [one.run_id for one in vm_of(world).status.holders] == [run_id]
    assert world.running_hosts("vm-1") == ("kvm-1",)


@run_by(play)
async def test_host_does_not_say_that_its_old_epoch_is_empty_while_a_create_of_a_killed_daemon_is_under_way(
    world: World,
) -> None:
    await _starting_slowly(world, for_s=20.0)
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    await condemn(world)
    await at(world, 20)
    assert record(world).epoch == 2
    assert record(world).dead_through == 0
    await at(world, 40)
    assert record(world).dead_through == 1
    assert holders(world) == [("kvm-1", 2, "running")]


@run_by(play, violations=True)
async def test_host_that_was_proven_dead_waits_for_a_create_of_a_killed_daemon_before_it_comes_back(
    world: World,
) -> None:
    await _starting_slowly(world, for_s=20.0)
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    await condemn(world, dead="operator")
    await at(world, 20)
    assert record(world).epoch == 1
    await at(world, 80)
    assert record(world).epoch == 2
    assert "destroyed" in " ".join(narrated(world, "vm-1", "domain"))


def _counted(world: World, host: str = "kvm-1") -> list[str]:
    """Runs that the guard of the host counts as being created."""
    guard = world.hosts[host].answering_guard()
    assert guard is not None
    return [create.run_id for create in guard.state.creates]


@run_by(play)
async def test_create_of_a_killed_daemon_counts_at_the_guard_until_the_hypervisor_has_ended_it_and_no_longer(
    world: World,
) -> None:
    run_id = await _starting_slowly(world, for_s=30.0)
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    await at(world, 30)
    assert holders(world) == [("kvm-1", 1, "")]
    assert _counted(world) == [run_id]
    await at(world, 60)
    assert holders(world) == [("kvm-1", 1, "running")]
    assert _counted(world) == []


@run_by(play)
async def test_create_that_a_killed_daemon_was_about_to_ask_for_is_ended_by_the_next_daemon(world: World) -> None:
    guard = world.hosts["kvm-1"].answering_guard()
    assert guard is not None
    assert guard.handle(CreateBegin("never-handed-on")) is None
    await at(world, 20)
    assert _counted(world) == []
    assert holders(world) == [("kvm-1", 1, "running")]


@run_by(play)
async def test_create_that_is_under_way_is_not_ended_by_the_look_for_those_of_killed_daemons(world: World) -> None:
    run_id = await _starting_slowly(world, for_s=30.0)
    await at(world, 30)
    assert _counted(world) == [run_id]
    await at(world, 60)
    assert _counted(world) == []


@run_by(play, armed=True)
async def test_armed_host_whose_daemon_was_killed_while_it_created_lives_on_empty_when_its_gate_is_shut_later(
    world: World,
) -> None:
    await _starting_slowly(world, for_s=5.0)
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    await at(world, 60)
    assert holders(world) == [("kvm-1", 1, "running")]
    boots = world.hosts["kvm-1"].machine.boots
    await world.do("cut", {"hosts": ["kvm-1"], "network": "store"})
    await at(world, 150)
    assert not world.hosts["kvm-1"].hypervisor.domains
    assert world.hosts["kvm-1"].machine.boots == boots


@pytest.mark.parametrize("destroyed", [True, False])
@run_by(play, armed=True)
async def test_guard_counts_a_create_until_its_guest_outside_the_slice_is_gone_or_nobody_counts_on_the_guard(
    world: World, *, monkeypatch: pytest.MonkeyPatch, destroyed: bool
) -> None:
    """Where the daemon is stalled right after its look, the guard must not call the host empty."""
    hypervisor = world.hosts["kvm-1"].hypervisor
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 5)
    hypervisor.faults.outside = True
    seen: list[bool] = []
    destroy = hypervisor.destroy

    async def watched(vm: str, run_id: str, uuid: str = "") -> None:
        if vm in hypervisor.domains:
            seen.append(_counted(world) != [] or not record(world).guard.armed)
        if destroyed:
            await destroy(vm, run_id, uuid)

    monkeypatch.setattr(hypervisor, "destroy", watched)
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    for _ in range(300):
        await world.clock.sleep(0.1)
        left = any(not one.guarded for one in hypervisor.domains.values())
        assert not left or _counted(world) or not record(world).guard.armed
    assert seen
    assert all(seen)


@run_by(play)
async def test_host_whose_hypervisor_starts_domains_by_itself_starts_nothing_and_says_so(world: World) -> None:
    hypervisor = world.hosts["kvm-1"].hypervisor
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 5)
    hypervisor.faults.autostart = ("the service starts domain vm-1 by itself: disable that",)
    await at(world, 15)
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 25)
    assert hypervisor.domains == {}
    assert [name for name in faults(world) if FaultCode.HYPERVISOR_AUTOSTART in name]
    hypervisor.faults.autostart = ()
    await at(world, 60)
    assert not [name for name in faults(world) if FaultCode.HYPERVISOR_AUTOSTART in name]


class _ShutsAtTheLastMoment:
    """A guard whose gate is open when it is looked at, and shut, for a while, when a domain is to be created."""

    def __init__(self, guard: GuardPort, refusals: int) -> None:
        self._guard = guard
        self.left = refusals
        self.refused: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guard, name)

    async def begin_create(self, run_id: str) -> bool:
        if self.left:
            self.left -= 1
            self.refused.append(run_id)
            return False
        return await self._guard.begin_create(run_id)


def _shut(world: World, host: str, refusals: int) -> _ShutsAtTheLastMoment:
    shared = cast(NodeRole, world.hosts[host].daemon.role).daemon.shared
    guard = _ShutsAtTheLastMoment(shared.guard, refusals)
    shared.guard = guard
    return guard


@run_by(play)
async def test_start_whose_gate_shuts_after_the_hold_gives_the_hold_back_and_creates_nothing(world: World) -> None:
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 5)
    guard = _shut(world, "kvm-1", 1_000)
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 30)
    assert 990 < guard.left < 1_000
    assert holders(world) == []
    assert not any("running" in text for text in narrated(world, "vm-1", "domain")[-1:])
    guard.left = 0
    await at(world, 60)
    assert holders(world) == [("kvm-1", 1, "running")]


@run_by(play)
async def test_target_of_a_move_whose_gate_shuts_after_it_entered_gives_its_entry_back_and_listens_to_nobody(
    world: World,
) -> None:
    guard = _shut(world, "kvm-2", 1)
    await world.do("request", {"vm": "vm-1", "verb": "move", "target": "kvm-2"})
    while not guard.refused:
        await world.clock.sleep(0.01)
    assert guard.refused[0] in {one.run_id for one in vm_of(world).status.holders}
    await at(world, 60)
    assert holders(world) == [("kvm-2", 1, "running")]
    assert not any(guard.refused[0] in text for text in narrated(world, "vm-1", "domain"))


@pytest.mark.slow
@run_by(play)
async def test_target_of_a_move_whose_gate_shuts_after_its_entry_asks_again_with_growing_pauses(world: World) -> None:
    guard = _shut(world, "kvm-2", 1000)
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
    await at(world, 30)
    assert 2 <= len(guard.refused) <= 10
    await at(world, 80)
    assert holders(world) == [("kvm-1", 1, "running")]
    move = vm_of(world).status.migration
    assert move is not None
    assert (move.phase, move.reason) == ("aborted", "peer-timeout")


class _DiesAtTheLastMoment(_ShutsAtTheLastMoment):
    """An armed guard that dies when a domain is to be created; the one that follows knows nothing of it."""

    def __init__(self, guard: GuardPort, world: World) -> None:
        super().__init__(guard, 0)
        self._world = world
        self.asked: list[str] = []

    async def begin_create(self, run_id: str) -> bool:
        if not self.asked:
            await self._world.do("cut", {"hosts": ["kvm-1"], "network": "store"})
            await self._world.do("kill-guard", {"hosts": ["kvm-1"]})
            await self._world.clock.sleep(4.0)
        self.asked.append(run_id)
        return await self._guard.begin_create(run_id)


@run_by(play, armed=True)
async def test_guard_that_is_not_armed_any_more_lets_nobody_start_where_fencers_count_on_it(world: World) -> None:
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 10)
    shared = cast(NodeRole, world.hosts["kvm-1"].daemon.role).daemon.shared
    guard = _DiesAtTheLastMoment(shared.guard, world)
    shared.guard = guard
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 60)
    assert len(guard.asked) == 1
    assert not any(guard.asked[0] in text for text in narrated(world, "vm-1", "domain"))


def test_only_one_place_goes_past_the_gate() -> None:
    node = Path(outlive.node.__file__).parent
    asks = [path.name for path in node.rglob("*.py") if ".begin_create(" in path.read_text()]
    decides = [path.name for path in node.rglob("*.py") if "CREATE.decision" in path.read_text()]
    assert asks == decides == ["start.py"]
