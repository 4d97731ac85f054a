"""Moves: either side may die at any moment, and afterwards the virtual machine runs exactly once, or is recovered."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
from tests.support.loops import run_by
from tests.support.node_worlds import assigned, at, condemn, holders, narrated, play, set_status, vm_of

from outlive.base import Unavailable
from outlive.node.membership import MemberView
from outlive.node.migration import SOURCE, TARGET, Here
from outlive.node.ports import DomainState, MigrationSettings
from outlive.node.vm import VmContext, relocate_status, set_phase, settings_for_attempt
from outlive.resources import HOST_LABEL, AffinityRule, Holder, Membership, MigrationPhase, VirtualMachine, VmState
from outlive.roles import NodeRole
from outlive.simulation import HistoryEvent, HypervisorClient, SimHypervisor, VmSpec, World


def _ended_well(world: World, host: str) -> None:
    vm = vm_of(world)
    assert world.running_hosts("vm-1") == (host,)
    assert [(one, seen) for one, _, seen in holders(world)] == [(host, "running")]
    assert vm.status.assigned is not None
    assert (vm.status.assigned.hypervisor, vm.status.phase) == (host, "start")
    assert vm.metadata.labels[HOST_LABEL] == host


def test_target_of_a_live_move_says_anew_where_it_listens_before_each_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    phases: list[MigrationPhase] = []
    real = HypervisorClient.migrate

    async def story(world: World) -> None:
        async def failing(
            self: HypervisorClient, vm: str, target: str, *, listens: str, settings: MigrationSettings
        ) -> None:
            world.hosts["kvm-1"].hypervisor.faults.migration = "precopy"
            await real(self, vm, target, listens=listens, settings=settings)

        monkeypatch.setattr(HypervisorClient, "migrate", failing)
        await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
        while world.clock.monotonic() < 60:
            await world.clock.sleep(0.01)
            move = vm_of(world).status.migration
            if move is not None and (not phases or phases[-1] is not move.phase):
                phases.append(move.phase)
        _ended_well(world, "kvm-2")

    play(story)
    ready = [at for at, phase in enumerate(phases) if phase is MigrationPhase.TARGET_READY]
    sent = [at for at, phase in enumerate(phases) if phase is MigrationPhase.TRANSFERRING]
    assert len(sent) == len(ready) - 1 == 3, "the fourth time it is ready for the guest to start there"
    assert sent == [at + 1 for at in ready[:-1]]


@pytest.mark.parametrize(("asked", "given"), [(None, 300), (900, 900), (-1, 300)])
def test_guest_stands_still_no_longer_than_its_owner_allows(
    asked: int | None, given: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_ms: list[int] = []
    real = HypervisorClient.migrate

    async def recorded(
        self: HypervisorClient, vm: str, target: str, *, listens: str, settings: MigrationSettings
    ) -> None:
        given_ms.append(settings.downtime_ms)
        await real(self, vm, target, listens=listens, settings=settings)

    async def story(world: World) -> None:
        await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
        await at(world, 20)
        _ended_well(world, "kvm-2")

    monkeypatch.setattr(HypervisorClient, "migrate", recorded)
    play(story, vms=(VmSpec(name="vm-1", host="kvm-1", migration_downtime_ms=asked),))
    assert given_ms == [given]


@pytest.mark.parametrize("phase", ["target-ready", "transferring"])
@run_by(play)
async def test_target_of_a_vm_whose_source_dies_leaves_it_to_recovery_and_keeps_nothing_of_it(
    world: World, *, phase: str
) -> None:
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
    while (move := vm_of(world).status.migration) is None or move.phase != phase:
        await world.clock.sleep(0.01)
    await world.do("power-off", {"hosts": ["kvm-1"]})
    await at(world, 15)
    await condemn(world, "kvm-1", dead="power")
    await at(world, 20)
    assert world.running_hosts("vm-1") == ()
    assert [host for host, _, _ in holders(world)] == ["kvm-1"], "so that recovery may assign it"
    move, where = vm_of(world).status.migration, vm_of(world).status.assigned
    assert (move.phase, where and where.hypervisor) == (phase, "kvm-2"), "which says where room is kept for it"
    assert "running" not in narrated(world, "vm-1", "domain")[-1]


@run_by(play)
async def test_target_that_is_silent_gives_the_vm_back_to_its_source(world: World) -> None:
    await world.do("pause-daemon", {"hosts": ["kvm-2"], "for": 1000})
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
    await at(world, 5)
    await condemn(world, "kvm-2")
    await at(world, 30)
    _ended_well(world, "kvm-1")
    move = vm_of(world).status.migration
    assert move is not None
    assert (move.phase, move.reason) == ("aborted", "target-lost")


def _domains(world: World, host: str) -> list[str]:
    return [text for text in narrated(world, "vm-1", "domain") if text.startswith(f"on {host}")]


@pytest.mark.parametrize("phase", ["sent", "last", ""])
@run_by(play)
async def test_guest_that_was_handed_over_to_a_target_that_died_starts_anew_at_its_source(
    world: World, *, phase: str
) -> None:
    world.hosts["kvm-1"].hypervisor.latencies.downtime = (0.5, 0.5)
    await world.do("migration-fails", {"hosts": ["kvm-1"], "phase": phase or "last"})
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
    while not any("kvm-1: handed over" in text for text in _domains(world, "kvm-1")):
        await world.clock.sleep(0.05)
    await world.clock.sleep({"sent": 3.0, "last": 0.6, "": 0.2}[phase])
    await world.do("power-off", {"hosts": ["kvm-2"]})
    await world.clock.sleep(15)
    assert world.running_hosts("vm-1") == ()
    await condemn(world, "kvm-2", dead="power")
    await world.clock.sleep(20)
    _ended_well(world, "kvm-1")
    assert "running as run" in _domains(world, "kvm-1")[-1]


@run_by(play)
async def test_guest_whose_target_process_dies_when_all_was_sent_runs_on_from_its_memory_within_seconds(
    world: World,
) -> None:
    await world.do("migration-fails", {"hosts": ["kvm-1"], "phase": "sent"})
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
    source, target = (world.hosts[host].hypervisor for host in ("kvm-1", "kvm-2"))
    run_id = source.domains["vm-1"].run_id
    while source.domains["vm-1"].state is not DomainState.HANDED_OVER:
        await world.clock.sleep(0.05)
    target.crash("vm-1")
    died_s = world.clock.monotonic()
    while not source.runs("vm-1"):
        await world.clock.sleep(0.05)
    assert world.clock.monotonic() - died_s < 4
    await at(world, 60)
    _ended_well(world, "kvm-1")
    assert source.domains["vm-1"].run_id == run_id


POST_COPY = {"migrationPostCopy": True, "migrationPostCopyAfter": "1s"}


async def _split(world: World) -> tuple[SimHypervisor, SimHypervisor]:
    """Both hypervisors once the guest runs at its target and takes the rest of its memory from its source."""
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
    source, target = (world.hosts[host].hypervisor for host in ("kvm-1", "kvm-2"))
    while not ("vm-1" in target.domains and target.domains["vm-1"].split):
        await world.clock.sleep(0.01)
    return source, target


@pytest.mark.parametrize("side", ["source", "target"])
@run_by(play, node=POST_COPY)
async def test_guest_of_which_a_side_ends_during_post_copy_is_started_anew_once(world: World, *, side: str) -> None:
    source, target = await _split(world)
    runs = {source.domains["vm-1"].run_id, target.domains["vm-1"].run_id}
    (source if side == "source" else target).crash("vm-1")
    await at(world, 120)
    (host,) = world.running_hosts("vm-1")
    _ended_well(world, host)
    assert world.hosts[host].hypervisor.domains["vm-1"].run_id not in runs
    assert not world.hosts[host].hypervisor.domains["vm-1"].split


@run_by(play, node=POST_COPY)
async def test_guest_whose_memory_arrives_no_more_although_both_hosts_live_is_started_anew_within_minutes(
    world: World,
) -> None:
    source, target = await _split(world)
    runs = {source.domains["vm-1"].run_id, target.domains["vm-1"].run_id}
    source.peer = lambda other: None
    await at(world, 120)
    (host,) = world.running_hosts("vm-1")
    _ended_well(world, host)
    assert world.hosts[host].hypervisor.domains["vm-1"].run_id not in runs


@run_by(play, node=POST_COPY)
async def test_neither_side_of_a_broken_post_copy_waits_for_the_other_where_the_target_never_let_it_run(
    world: World,
) -> None:
    """The daemon of the target ends after it had decided that the guest runs, and before it does."""
    world.hosts["kvm-1"].hypervisor.latencies.migrate = (15.0, 15.0)
    _, target = await _split(world)
    await world.do("pause-daemon", {"hosts": ["kvm-2"], "for": 8})
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    while (move := vm_of(world).status.migration) is None or move.phase is not MigrationPhase.TRANSFERRED:
        await world.clock.sleep(0.01)
    run_id = target.domains["vm-1"].run_id
    target.domains["vm-1"].state = DomainState.PAUSED
    await at(world, 150)
    (host,) = world.running_hosts("vm-1")
    _ended_well(world, host)
    assert world.hosts[host].hypervisor.domains["vm-1"].run_id != run_id


@pytest.mark.parametrize("phase", ["precopy", "split"])
def test_store_that_does_not_answer_for_a_moment_ends_no_transfer(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[str] = []
    real = VmContext.read_members

    async def story(world: World) -> None:
        source, target = (world.hosts[host].hypervisor for host in ("kvm-1", "kvm-2"))

        async def failing(self: VmContext, vm: VirtualMachine) -> tuple[MemberView, ...]:
            received = target.domains.get("vm-1")
            now = "split" if received is not None and received.split else "precopy"
            move = vm_of(world).status.migration
            asks = self.host == "kvm-1" and "vm-1" in source.sending and move is not None and move.attempts == 2
            if asks and now == phase and len(failures) < 3:
                failures.append(now)
                raise Unavailable("the store does not answer", remedy="wait")
            return await real(self, vm)

        monkeypatch.setattr(VmContext, "read_members", failing)
        await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
        await at(world, 60)
        assert failures
        _ended_well(world, "kvm-2")
        assert not any("shut down" in text for text in _domains(world, "kvm-1"))
        assert len([text for text in _domains(world, "kvm-2") if "running as run" in text]) == 0

    play(story, node=POST_COPY)


@run_by(play)
async def test_guest_that_stands_still_on_its_way_says_so(world: World) -> None:
    world.hosts["kvm-1"].hypervisor.latencies.downtime = (50.0, 50.0)
    await world.do("move", {"vm": "vm-1", "to": "kvm-2"})
    await at(world, 50)
    assert vm_of(world).status.reason == ""
    await at(world, 90)
    status = vm_of(world).status
    assert (status.reason, "kvm-2" in status.message) == ("handover-late", True)
    await at(world, 200)
    assert (world.running_hosts("vm-1"), vm_of(world).status.reason) == (("kvm-2",), "")


@run_by(play)
async def test_target_keeps_nothing_of_a_run_that_ended_while_it_waited_though_its_move_is_over(world: World) -> None:
    target = world.hosts["kvm-2"].hypervisor
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
    while not ("vm-1" in target.domains and holders(world)[-1][0] == "kvm-2"):
        await world.clock.sleep(0.01)
    await world.do("pause-daemon", {"hosts": ["kvm-2"], "for": 2})
    target.crash("vm-1")
    assert target._never_ran
    move = vm_of(world).status.migration
    assert move is not None
    ended = msgspec.structs.replace(move, phase=MigrationPhase.ABORTED, reason="live-failed")
    await set_status(world, migration=ended, assigned=assigned("kvm-1"), phase="start")
    await at(world, 60)
    _ended_well(world, "kvm-1")
    assert not target._never_ran


@pytest.mark.parametrize(
    ("attempt", "limit_s", "given"),
    [(1, 0.0, (False, 30.0)), (1, 20.0, (False, 20.0)), (2, 20.0, (True, 20.0)), (3, 0.0, (False, 0.0))],
)
def test_only_the_second_attempt_is_by_post_copy(attempt: int, limit_s: float, given: tuple[bool, float]) -> None:
    found = settings_for_attempt(MigrationSettings(post_copy=True, time_limit_s=limit_s), attempt, 30.0)
    assert (found.post_copy, found.time_limit_s) == given
    plain = MigrationSettings(time_limit_s=limit_s)
    assert settings_for_attempt(plain, attempt, 30.0) == plain


@pytest.mark.slow
def test_guest_that_arrives_while_its_target_gives_up_runs_once_and_never_from_the_past() -> None:
    async def story(world: World) -> None:
        source = world.hosts["kvm-1"].hypervisor
        source.latencies.downtime = (4.0, 4.0)
        await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
        await at(world, 60)
        (host,) = world.running_hosts("vm-1")
        _ended_well(world, host)

    for limit in ("3500ms", "4s", "4200ms", "4400ms", "4800ms", "5s"):
        play(story, node={"moveLimit": limit})


@run_by(play)
async def test_source_does_not_run_on_after_its_target_ran_the_guest_and_was_emptied(world: World) -> None:
    await world.do("migration-fails", {"hosts": ["kvm-1"], "phase": "last"})
    await world.do("pause-daemon", {"hosts": ["kvm-1"], "for": 3})
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
    while world.running_hosts("vm-1") != ("kvm-2",):
        await world.clock.sleep(0.02)
    await world.do("kill-daemon", {"hosts": ["kvm-2"]})
    world.hosts["kvm-2"].hypervisor.kill_all()
    await world.clock.sleep(90)
    (host,) = world.running_hosts("vm-1")
    _ended_well(world, host)
    assert not any(text.endswith("resumed") for text in _domains(world, "kvm-1"))


@run_by(play, vms=(VmSpec(name="vm-1", host="kvm-1", migration_method="shutdown"),))
async def test_cold_move_goes_on_although_its_source_dies_between_the_release_and_saying_so(world: World) -> None:
    def released(event: HistoryEvent) -> None:
        if event.kind == "hold" and "is held by nobody" in event.text:
            world.hosts["kvm-1"].machine.unplug()

    world.history.listen(released)
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": False})
    await at(world, 60)
    assert not world.hosts["kvm-1"].lives
    _ended_well(world, "kvm-2")


@run_by(play)
async def test_host_that_has_nothing_to_do_with_a_vm_any_more_does_not_label_it(world: World) -> None:
    shared = cast(NodeRole, world.hosts["kvm-2"].daemon.role).daemon.shared
    await shared.relabel("vm-1", "kvm-2")
    assert vm_of(world).metadata.labels[HOST_LABEL] == "kvm-1"
    _ended_well(world, "kvm-1")


@run_by(play)
async def test_host_that_has_nothing_to_do_with_a_vm_any_more_does_not_write_its_status(world: World) -> None:
    shared = cast(NodeRole, world.hosts["kvm-2"].daemon.role).daemon.shared
    before = vm_of(world)
    await shared.change("vm-1", lambda now: set_phase(now.status, VmState.STOP))
    assert vm_of(world) == before
    _ended_well(world, "kvm-1")


@run_by(play, vms=(VmSpec(name="vm-1", host="kvm-1", migration_method="shutdown"),))
async def test_target_that_a_label_does_not_show_a_cold_move_hears_of_it_from_the_source(world: World) -> None:
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": False})
    for _ in range(200):
        move = vm_of(world).status.migration
        if move is not None and move.phase == "stopping":
            break
        await world.clock.sleep(0.05)
    vm = vm_of(world)
    metadata = msgspec.structs.replace(vm.metadata, labels={**vm.metadata.labels, HOST_LABEL: "kvm-1"})
    await world.store.replace(msgspec.structs.replace(vm, metadata=metadata))
    await world.do("kill-daemon", {"hosts": ["kvm-2"]})
    await at(world, 80)
    _ended_well(world, "kvm-2")


@run_by(play)
async def test_guest_that_was_handed_over_starts_anew_when_it_is_killed_at_its_source_and_its_target_never_ran_it(
    world: World,
) -> None:
    await world.do("migration-fails", {"hosts": ["kvm-1"], "phase": "sent"})
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
    await at(world, 10)
    world.hosts["kvm-1"].hypervisor.kill_all()
    await at(world, 70)
    (host,) = world.running_hosts("vm-1")
    _ended_well(world, host)


@run_by(play)
async def test_guest_that_stands_still_is_not_said_to_run_when_the_entry_of_a_dead_host_could_go(world: World) -> None:
    domain = world.hosts["kvm-1"].hypervisor.domains["vm-1"]
    domain.state = DomainState.PAUSED
    (mine,) = vm_of(world).status.holders
    await set_status(world, holders=(msgspec.structs.replace(mine, seen=""),))
    await at(world, 30)
    assert holders(world) == [("kvm-1", 1, "paused")]
    (mine,) = vm_of(world).status.holders
    member = world.store.find(Membership, "kvm-2")
    assert member is not None
    world.hosts["kvm-2"].daemon.kill(again=False)
    other = Holder(hypervisor="kvm-2", member_uid=member.metadata.uid, epoch=1, run_id="past")
    await set_status(world, holders=(mine, other))
    await condemn(world, "kvm-2", dead="operator")
    await at(world, 60)
    assert holders(world) == [("kvm-1", 1, "paused"), ("kvm-2", 1, "")]
    domain.state = DomainState.RUNNING
    await at(world, 90)
    assert holders(world) == [("kvm-1", 1, "running")]


def test_every_phase_of_a_move_under_way_has_a_step_on_both_sides() -> None:
    under_way = set(MigrationPhase) - {MigrationPhase.ABORTED}
    assert set(SOURCE) == set(TARGET) == under_way
    assert all(set(row) == set(Here) for row in SOURCE.values())


APART = (AffinityRule(group="db", policy="anti-affinity"),)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["live", "shutdown"])
@pytest.mark.parametrize("late", ["vm-1", "vm-2"])
@pytest.mark.parametrize("phase", ["requested", "target-ready", "transferring", "stopping"])
def test_two_of_a_group_do_not_arrive_on_one_host_whichever_move_was_chosen_by_an_old_look(
    phase: str, late: str, method: str
) -> None:
    """The move of one is written when the other has come so far, by a host that looked before."""

    async def story(world: World) -> None:
        first = "vm-2" if late == "vm-1" else "vm-1"
        sources = {"vm-1": "kvm-1", "vm-2": "kvm-2"}
        await world.do("move", {"vm": first, "to": "kvm-3"})
        while (move := vm_of(world, first).status.migration) is None or move.phase != phase:
            if vm_of(world, first).host == "kvm-3" and move is None:
                return  # its move has no such phase
            await world.clock.sleep(0.01)
        vm = vm_of(world, late)
        moved = relocate_status(vm, target="kvm-3", home="", phase="migrate", move_id="late")
        metadata = msgspec.structs.replace(vm.metadata, labels={**vm.metadata.labels, HOST_LABEL: "kvm-3"})
        labelled = await world.store.replace(msgspec.structs.replace(vm, metadata=metadata))
        await world.store.replace_status(msgspec.structs.replace(labelled, status=moved))
        for _ in range(900):
            await world.clock.sleep(0.1)
            assert any("kvm-3" not in world.running_hosts(name) for name in sources)
        runs = {name: world.running_hosts(name) for name in sources}
        assert sorted(runs.values()) in ([("kvm-1",), ("kvm-3",)], [("kvm-2",), ("kvm-3",)])
        assert all(vm_of(world, name).status.phase == "start" for name in sources)

    play(
        story,
        hosts=3,
        vms=tuple(VmSpec(name=f"vm-{n}", host=f"kvm-{n}", affinity=APART, migration_method=method) for n in (1, 2)),
    )


@pytest.mark.parametrize("phase", ["requested", "target-ready", "transferring", "done"])
@run_by(
    play,
    hosts=3,
    vms=tuple(VmSpec(name=f"vm-{n}", host=f"kvm-{n}", affinity=APART, migration_method="live") for n in (1, 2)),
)
async def test_vm_that_was_recovered_to_the_target_of_a_move_does_not_run_beside_one_that_it_is_kept_apart_from(
    world: World, *, phase: str
) -> None:
    """The recovery had looked before the move was written."""
    await world.do("power-off", {"hosts": ["kvm-1"]})
    await condemn(world, "kvm-1", dead="power")
    await world.do("move", {"vm": "vm-2", "to": "kvm-3"})
    while (move := vm_of(world, "vm-2").status.migration) is None or move.phase != phase:
        if vm_of(world, "vm-2").host == "kvm-3" and move is None:
            break
        await world.clock.sleep(0.01)
    vm = vm_of(world)
    metadata = msgspec.structs.replace(vm.metadata, labels={**vm.metadata.labels, HOST_LABEL: "kvm-3"})
    await world.store.replace(msgspec.structs.replace(vm, metadata=metadata))
    await set_status(world, "vm-1", holders=(), assigned=assigned("kvm-3", "kvm-1.1.abc"))
    for _ in range(900):
        await world.clock.sleep(0.1)
        assert any("kvm-3" not in world.running_hosts(name) for name in ("vm-1", "vm-2"))
    rejection = vm_of(world).status.rejection
    if world.running_hosts("vm-1") == ("kvm-3",):
        assert world.running_hosts("vm-2") == ("kvm-2",)
    else:
        assert world.running_hosts("vm-2") == ("kvm-3",)
        assert rejection is not None
        assert (rejection.hypervisor, rejection.reason) == ("kvm-3", "against-affinity")
    assert vm_of(world, "vm-2").status.phase == "start"


@run_by(play)
async def test_label_is_not_changed_where_the_assignment_is_not(world: World) -> None:
    shared = cast(NodeRole, world.hosts["kvm-1"].daemon.role).daemon.shared
    before = vm_of(world)
    assert await shared.assign("vm-1", "kvm-2", lambda now: None) == before
    assert vm_of(world).metadata.resource_version == before.metadata.resource_version
