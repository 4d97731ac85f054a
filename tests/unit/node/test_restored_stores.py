"""What hosts and fencers believe of a store that was restored from a backup, until everybody has been heard again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.loops import run_by
from tests.support.node_worlds import (
    assigned,
    at,
    cluster_of,
    condemn,
    faults,
    holders,
    narrated,
    play,
    record,
    set_status,
    vm_of,
    waits,
    without_finalizer,
)

from outlive.base import LoopClock, Random, SeededIds, Unavailable
from outlive.node.fencing import PROVE_OPERATOR, PROVE_POWER, PROVE_WATCHDOG, OperatorView, PowerView, WatchdogView
from outlive.node.membership import LEAVE, LeaveView, PauseGate, waits_for
from outlive.node.vm import VmContext
from outlive.resources import (
    Cluster,
    ClusterStatus,
    Cut,
    FenceRecord,
    GuardRecord,
    Holder,
    MemberRecord,
    Membership,
    ObjectMeta,
    Pause,
)
from outlive.resources.reasons import VmReason
from outlive.runtime import ActiveFault, FaultRecorder
from outlive.simulation import HostSpec, VmSpec, World, WorldSpec
from outlive.store import MemoryStore

CONDEMNED = MemberRecord(
    machine_id="m",
    boot_id="b",
    epoch=2,
    state="Revoked",
    fence=FenceRecord(id="a.2.n", epoch=2, phase="condemned"),
    guard=GuardRecord(armed=True, timeout_s=5, watchdog_s=10),
    incarnation="old",
)
SILENT = WatchdogView(host="a", record=CONDEMNED, observer="c", epoch=2, unchanged_s=100.0)
OFF = PowerView(
    host="a",
    record=CONDEMNED,
    observer="c",
    epoch=2,
    system_uuid="u",
    expected_uuid="u",
    rehearsed=True,
    off_after_command=(0.2, 2.3),
)
SAID = OperatorView(host="a", record=CONDEMNED, observer="c", epoch=2, fence="a.2.n", name="ann", reason="unplugged")

_replace = msgspec.structs.replace


def _attested(incarnation: str) -> bool:
    """Whether the guard's word counts in a store of that incarnation."""
    return PROVE_WATCHDOG.attempt(_replace(SILENT, incarnation=incarnation)).refused is None


def test_what_a_backup_says_of_a_guard_proves_nothing() -> None:
    assert _attested("old")
    assert _attested("")
    assert not _attested("new")


def test_a_host_that_is_proven_dead_in_a_restored_store_has_nothing_left_to_register() -> None:
    for outcome in (
        PROVE_POWER.attempt(_replace(OFF, incarnation="new")),
        PROVE_OPERATOR.attempt(_replace(SAID, incarnation="new")),
    ):
        assert outcome.record is not None
        assert (outcome.record.dead_through, outcome.record.incarnation) == (2, "new")
    unsaid = PROVE_POWER.attempt(OFF).record
    assert unsaid is not None
    assert unsaid.incarnation == "old"


def test_one_kind_of_proof_of_two_says_nothing_of_the_store() -> None:
    found = PROVE_POWER.attempt(_replace(OFF, incarnation="new", demanded=2)).record
    assert found is not None
    assert (found.dead_through, found.incarnation) == (0, "old")


def test_a_host_that_leaves_has_nothing_left_to_register() -> None:
    held = MemberRecord(machine_id="m", boot_id="b", epoch=1, nonce="n", incarnation="old")
    left = LEAVE.attempt(LeaveView(host="a", record=held, nonce="n", incarnation="new")).record
    assert left is not None
    assert (left.state, left.incarnation) == ("Released", "new")


@pytest.mark.slow
@run_by(play)
async def test_host_that_misses_a_write_in_a_store_that_nobody_says_was_restored_has_the_cluster_paused(
    world: World,
) -> None:
    before = world.store.incarnation
    await world.do("store-snapshot", {})
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
    await at(world, 15)
    assert world.running_hosts("vm-1") == ("kvm-2",)
    await world.do("cut", {"network": "store", "hosts": ["kvm-2"]})
    await world.do("store-restore", {})
    await _says(world, before)
    await at(world, 60)
    status = cluster_of(world).status
    assert status.store_incarnation not in (before, world.store.incarnation)
    assert status.former_incarnations[0] == before
    assert status.pause is not None
    assert status.pause.reason == "went-back"
    assert record(world).incarnation == status.store_incarnation
    assert waits(world) == ("kvm-2",)
    assert not [text for text in narrated(world, "vm-1", "hold") if "kvm-1 epoch 2" in text]
    assert "store-went-back.kvm-1" in faults(world)
    await world.do("heal", {"network": "store", "hosts": ["kvm-2"]})
    await at(world, 100)
    assert waits(world) == ()
    assert world.running_hosts("vm-1") == ("kvm-2",)
    assert [one.hypervisor for one in vm_of(world).status.holders] == ["kvm-2"]


@run_by(play)
async def test_cluster_goes_on_by_itself_once_every_host_has_registered_in_a_store_that_went_back(world: World) -> None:
    before = world.store.incarnation
    await world.do("store-snapshot", {})
    await at(world, 5)
    await world.do("store-restore", {})
    await _says(world, before)
    await at(world, 10)
    await world.do("guest-crash", {"vms": ["vm-1"]})
    await at(world, 60)
    assert world.running_hosts("vm-1") == ("kvm-1",)
    assert cluster_of(world).status.pause is None


async def _paused_with_a_guest_to_start(world: World) -> None:
    """The store was restored, and ``kvm-2`` does not register: it does not reach the store."""
    await world.do("store-snapshot", {})
    await world.do("cut", {"network": "store", "hosts": ["kvm-2"]})
    await at(world, 5)
    await world.do("store-restore", {})
    await at(world, 10)
    await world.do("guest-crash", {"vms": ["vm-1"]})


@run_by(play)
async def test_paused_cluster_starts_nothing_until_an_operator_confirms_that_the_missing_host_is_lost(
    world: World,
) -> None:
    await _paused_with_a_guest_to_start(world)
    await at(world, 60)
    assert world.running_hosts("vm-1") == ()
    pause = cluster_of(world).status.pause
    assert pause is not None
    assert (pause.reason, pause.waits_for) == ("restored", ("kvm-2",))
    assert vm_of(world).status.reason == VmReason.CLUSTER_PAUSED
    await world.do("confirm-incarnation", {})
    await at(world, 100)
    assert world.running_hosts("vm-1") == ("kvm-1",)
    assert vm_of(world).status.reason == ""


@run_by(play)
async def test_deleting_the_cluster_does_not_end_its_pause(world: World) -> None:
    await _paused_with_a_guest_to_start(world)
    await world.store.delete(cluster_of(world).ref)
    await at(world, 60)
    assert world.running_hosts("vm-1") == ()


async def test_cluster_whose_document_is_missing_is_paused_where_hosts_have_registered_in_it() -> None:
    clock, ids = LoopClock(), SeededIds(Random(1))
    store = MemoryStore(clock, ids)
    gate = PauseGate(store, clock, ids)
    assert not await gate.is_paused()
    await store.create(Membership(metadata=ObjectMeta(name="a"), record=_replace(CONDEMNED, incarnation="")))
    assert not await gate.is_paused()
    await store.create(Membership(metadata=ObjectMeta(name="b"), record=CONDEMNED))
    assert await gate.is_paused()


def test_hosts_are_waited_for_that_have_not_registered_in_this_store_whatever_the_backup_says_of_them() -> None:
    def member(incarnation: str, **how: Any) -> MemberRecord:
        return _replace(CONDEMNED, incarnation=incarnation, **how)

    cluster = Cluster(metadata=ObjectMeta(name="default"), status=ClusterStatus(store_incarnation="now", pause=Pause()))
    members = {
        "back": member("then", state="Held"),
        "dead": member("then", dead_through=2),
        "left": member("then", state="Released", dead_through=2),
        "here": member("now", state="Held"),
        "off": member("now", dead_through=2),
    }
    assert waits_for(cluster, members, ["back", "here", "new"]) == ("back", "dead", "left", "new")
    lacked = _replace(cluster, status=_replace(cluster.status, pause=Pause(waits_for=("lacked", "here"))))
    assert waits_for(lacked, {"here": members["here"]}, []) == ("lacked",)


@run_by(play)
async def test_run_that_ends_while_its_host_registers_it_gets_no_entry(world: World) -> None:
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 15)
    await world.do("store-snapshot", {})
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 30)
    assert world.running_hosts("vm-1") == ("kvm-1",)
    await world.do("slow-store", {"hosts": ["kvm-1"], "by": 1.0})
    await world.do("store-restore", {})
    assert holders(world) == []
    await at(world, 34.9)  # it was listed, and its document is being read
    role: Any = world.hosts["kvm-1"].daemon.role
    assert await role.daemon.shared.domains.destroy("vm-1")
    before = len(narrated(world, "vm-1", "hold"))
    await at(world, 80)
    assert narrated(world, "vm-1", "hold")[before:] == []


@pytest.mark.slow
@run_by(play, vms=(VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-2", host="kvm-2")))
async def test_host_that_was_found_dead_in_the_restored_store_starts_its_vms_once_it_has_booted(world: World) -> None:
    """What it remembers is later than the backup, and its membership speaks of the present store: somebody proved."""
    await world.do("store-snapshot", {})
    for _ in range(2):
        await world.do("power-off", {"hosts": ["kvm-2"]})
        await world.clock.sleep(1.0)
        await world.do("power-on", {"hosts": ["kvm-2"]})
        await world.clock.sleep(60.0)
    assert record(world, "kvm-2").epoch == 3
    await world.do("power-off", {"hosts": ["kvm-2"]})
    await world.do("store-restore", {})
    await condemn(world, "kvm-2", dead="power")
    found = world.store.find(Membership, "kvm-2")
    assert found is not None
    await world.store.replace(_replace(found, record=_replace(found.record, incarnation=world.store.incarnation)))
    await world.do("power-on", {"hosts": ["kvm-2"]})
    await world.clock.sleep(90.0)
    assert (record(world, "kvm-2").state, record(world, "kvm-2").epoch) == ("Held", 4)
    assert world.running_hosts("vm-2") == ("kvm-2",)


@run_by(play, violations=True)
async def test_host_that_is_isolated_while_it_registers_what_it_runs_stays_out_until_it_has_booted(
    world: World,
) -> None:
    """What it had read of itself was from before it was condemned, and others may have been given its VM since."""
    role: Any = world.hosts["kvm-1"].daemon.role
    await world.do("laggy-hypervisor", {"hosts": ["kvm-1"], "by": 4.0})
    await _says(world, "another")
    for _ in range(200):
        if role.daemon.registration.needed:
            break
        await world.clock.sleep(0.1)
    await world.clock.sleep(0.2)  # its domains are being listed
    await world.do("laggy-hypervisor", {"hosts": ["kvm-1"], "by": 0.0})
    uid = _member(world, "kvm-2").metadata.uid
    taken = Holder(hypervisor="kvm-2", member_uid=uid, epoch=1, run_id="theirs", seen="running")
    await set_status(world, holders=(taken,), assigned=assigned("kvm-2"))
    await condemn(world)
    found = _member(world, "kvm-1")
    await world.store.replace(_replace(found, record=_replace(found.record, cut=Cut(through=1))))
    await world.clock.sleep(20.0)
    assert (record(world).state, record(world).epoch) == ("Revoked", 1)
    assert "host-isolated.kvm-1" in faults(world)
    assert not [text for text in narrated(world, "vm-1", "hold") if "kvm-1 epoch 2" in text]
    await world.do("power-off", {"hosts": ["kvm-1"]})
    await world.do("power-on", {"hosts": ["kvm-1"]})
    await world.clock.sleep(90.0)
    assert (record(world).state, record(world).epoch) == ("Held", 2)
    assert "host-isolated.kvm-1" not in faults(world)
    assert world.running_hosts("vm-1") == ()


@run_by(play)
async def test_host_whose_hypervisor_service_is_stopped_registers_what_it_runs(world: World) -> None:
    role: Any = world.hosts["kvm-1"].daemon.role
    await _says(world, "another")
    world.hosts["kvm-1"].hypervisor.stop_service()
    await world.clock.sleep(20.0)
    assert (record(world).incarnation, role.daemon.registration.needed) == ("another", False)


def _member(world: World, host: str) -> Membership:
    found = world.store.find(Membership, host)
    assert found is not None
    return found


async def _says(world: World, incarnation: str) -> None:
    """The store has this written down of itself, and no pause."""
    status = _replace(cluster_of(world).status, store_incarnation=incarnation, former_incarnations=(), pause=None)
    await world.store.replace_status(_replace(cluster_of(world), status=status))


async def _made_since_the_backup(world: World) -> None:
    """``vm-new`` runs on ``kvm-1``, and the store does not know it any more."""
    await world.do("store-snapshot", {})
    await world.do("create-vm", {"vm": "vm-new", "host": "kvm-1"})
    await at(world, 20)
    assert world.running_hosts("vm-new") == ("kvm-1",)
    await world.do("store-restore", {})
    await at(world, 60)
    assert world.running_hosts("vm-new") == ("kvm-1",)
    assert faults(world) == {"unknown-vm.vm-new"}


@pytest.mark.slow
@run_by(play)
async def test_host_registers_only_once_the_store_has_what_it_reports_of_runs_that_the_backup_does_not_know(
    world: World,
) -> None:
    await world.do("store-snapshot", {})
    await world.do("create-vm", {"vm": "vm-new", "host": "kvm-1"})
    await at(world, 20)
    role: Any = world.hosts["kvm-1"].daemon.role
    recorder = role.daemon.shared.faults._recorder
    write, refuses = recorder._write, True

    async def refused(name: str, one: ActiveFault | None) -> None:
        if refuses:
            raise Unavailable("not now")
        await write(name, one)

    recorder._write = refused
    await world.do("store-restore", {})
    await at(world, 60)
    assert waits(world) == ("kvm-1",)
    refuses = False
    await at(world, 80)
    assert waits(world) == ()
    assert faults(world) == {"unknown-vm.vm-new"}


@pytest.mark.slow
@run_by(play)
async def test_vm_that_a_restored_store_does_not_know_runs_on_though_its_daemon_is_started_again(world: World) -> None:
    await _made_since_the_backup(world)
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    await at(world, 150)
    assert world.running_hosts("vm-new") == ("kvm-1",)
    assert faults(world) == {"unknown-vm.vm-new"}


@pytest.mark.slow
@run_by(play)
async def test_vm_that_a_restored_store_does_not_know_runs_on_though_its_host_is_condemned_later(world: World) -> None:
    await _made_since_the_backup(world)
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    await at(world, 80)
    await condemn(world)
    await at(world, 150)
    assert (record(world).state, record(world).epoch) == ("Held", 3)
    assert world.running_hosts("vm-new") == ("kvm-1",)


@run_by(play)
async def test_vm_that_is_deleted_in_a_restored_store_is_destroyed(world: World) -> None:
    await world.do("store-snapshot", {})
    await at(world, 5)
    await world.do("store-restore", {})
    await at(world, 60)
    assert world.running_hosts("vm-1") == ("kvm-1",)
    await world.do("delete-vm", {"vm": "vm-1"})
    await at(world, 90)
    assert world.running_hosts("vm-1") == ()


@run_by(play, violations=True)
async def test_vm_whose_document_went_while_its_daemon_was_away_runs_on_until_somebody_stops_it(world: World) -> None:
    await world.do("stop-daemon", {"hosts": ["kvm-1"], "leaveVms": True})
    await at(world, 5)
    await without_finalizer(world)  # as a store of an earlier version has it
    await world.do("delete-vm", {"vm": "vm-1"})
    await world.do("start-daemon", {"hosts": ["kvm-1"]})
    await at(world, 60)
    assert world.running_hosts("vm-1") == ("kvm-1",)
    assert faults(world) == {"unknown-vm.vm-1"}
    await world.hosts["kvm-1"].hypervisor.destroy("vm-1", "")
    await at(world, 120)
    assert faults(world) == set()


@pytest.mark.slow
@run_by(play, vms=(VmSpec(name="vm-1", host="kvm-1", migration_method="shutdown"),))
async def test_guest_that_runs_where_it_was_moved_cold_is_not_ended_because_a_restored_store_has_it_on_the_way(
    world: World,
) -> None:
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": False})
    while (move := vm_of(world).status.migration) is None or move.phase != "stopping":
        await world.clock.sleep(0.001)
    await world.do("store-snapshot", {})
    await at(world, 40)
    assert world.running_hosts("vm-1") == ("kvm-2",)
    before = len(narrated(world, "vm-1", "domain"))
    await world.do("store-restore", {})
    await at(world, 300)
    assert len(world.running_hosts("vm-1")) == 1
    assert narrated(world, "vm-1", "domain")[before:] == []


# Entries that a restored store brings back are taken back again by their host.


@pytest.mark.slow
async def test_vm_is_recovered_though_a_restored_store_has_brought_back_an_entry_that_its_host_had_removed() -> None:
    """The store loses its last second: the source of a move had taken its entry back, and had not renewed since."""
    hosts = tuple(HostSpec(name=f"kvm-{n}", rack=f"r{n}", mode="coordinator", profile="steady") for n in range(1, 5))
    spec = WorldSpec(hosts=hosts, vms=(VmSpec(name="vm-1", host="kvm-1"),), controllers=1)
    world = World(spec, seed=1)
    await world.build()
    await world.start()
    await world.clock.sleep(20)
    seq = record(world).seq
    while record(world).seq == seq:
        await world.clock.sleep(0.01)
    await world.clock.sleep(START)
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
    while not (len(holders(world)) == 2 and vm_of(world).status.migration is None):
        await world.clock.sleep(0.001)
    await world.do("store-snapshot", {})
    seq = record(world).seq
    while len(holders(world)) == 2:
        await world.clock.sleep(0.001)
    await world.clock.sleep(0.1)
    assert record(world).seq == seq
    await world.do("store-restore", {})
    await world.clock.sleep(60)
    await world.do("power-off", {"hosts": ["kvm-2"]})
    await world.clock.sleep(600)
    assert record(world, "kvm-2").dead_through == record(world, "kvm-2").epoch
    assert world.running_hosts("vm-1"), (holders(world), vm_of(world).status.recovery, faults(world))
    await world.stop()


START = 1.0


def test_host_has_not_registered_before_its_report_of_what_the_store_does_not_know_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the pause may end, and another host start a VM of that name, before it can see the report."""
    written = FaultRecorder._write
    away = True

    async def slow(self: FaultRecorder, name: str, one: ActiveFault | None) -> None:
        if not (away and name == "unknown-vm.late"):
            await written(self, name, one)

    monkeypatch.setattr(FaultRecorder, "_write", slow)

    async def story(world: World) -> None:
        nonlocal away
        await world.do("store-snapshot", {})
        await world.do("create-vm", {"vm": "late", "host": "kvm-1"})
        await at(world, 20)
        await world.do("store-restore", {})
        await at(world, 80)
        assert record(world, "kvm-1").incarnation != world.store.incarnation
        assert cluster_of(world).paused
        assert world.running_hosts("late") == ("kvm-1",)
        away = False
        await at(world, 110)
        assert "unknown-vm.late" in faults(world)
        assert record(world, "kvm-1").incarnation == world.store.incarnation

    play(story)


def test_host_takes_over_its_run_where_a_document_was_made_before_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host of that document may have looked for reports before there was one, and looks once."""
    seen = VmContext.unknown_run
    stores: list[World] = []

    async def unknown_run(self: VmContext, vm: str) -> str:
        why = await seen(self, vm)
        if self.host == "kvm-1" and why and stores:
            await stores.pop().do("create-vm", {"vm": vm, "host": "kvm-2"})
        return why

    monkeypatch.setattr(VmContext, "unknown_run", unknown_run)

    async def story(world: World) -> None:
        await world.do("store-snapshot", {})
        await world.do("create-vm", {"vm": "late", "host": "kvm-1"})
        await at(world, 20)
        stores.append(world)
        await world.do("store-restore", {})
        await at(world, 80)
        assert not stores
        assert holders(world, "late") == [("kvm-1", 2, "running")]
        assert world.running_hosts("late") == ("kvm-1",)

    play(story)
