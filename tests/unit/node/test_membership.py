"""The membership of one host: how its daemon gets in, stays in, and comes back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.support.loops import run_by
from tests.support.node_worlds import at, condemn, faults, holders, host_of, narrated, play, record, vm_of

from outlive.base import Unavailable, Unknown
from outlive.node.membership import LEAVE, LeaseRenewer, LeaveView
from outlive.node.vm import LocalDomains
from outlive.resources import HOST_LABEL, Cut, Fault, Membership, ObjectMeta, ObjectRef, SilentPeer
from outlive.runtime import REPORTER_LABEL, FaultRecorder
from outlive.simulation import HistoryEvent, VmSpec, World

SEEN = datetime(2026, 1, 1, tzinfo=UTC)


@run_by(play)
async def test_host_registers_once_and_its_vms_are_held_in_epoch_one(world: World) -> None:
    assert (record(world).state, record(world).epoch, record(world).dead_through) == ("Held", 1, 0)
    assert holders(world) == [("kvm-1", 1, "running")]
    assert world.running_hosts("vm-1") == ("kvm-1",)


async def _order(world: World, requested: str) -> None:
    """What an operator asks to have fenced, where no coordinator would hear of it."""
    host = host_of(world)
    spec = msgspec.structs.replace(host.spec, fencing=msgspec.structs.replace(host.spec.fencing, requested=requested))
    await world.store.replace(msgspec.structs.replace(host, spec=spec))


async def _asked_to_be_fenced(world: World) -> None:
    """Somebody asks for it, and a fencer condemns ``kvm-1`` in that epoch."""
    member = world.store.find(Membership, "kvm-1")
    assert member is not None
    await _order(world, f"1@{member.metadata.uid}|somebody|asked for")
    await condemn(world)
    await at(world, 20)


@run_by(play)
async def test_living_host_that_is_to_be_fenced_does_not_come_back_before_somebody_could_switch_it_off(
    world: World,
) -> None:
    await _asked_to_be_fenced(world)
    assert (record(world).state, record(world).epoch) == ("Revoked", 1)
    assert world.running_hosts("vm-1") == ("kvm-1",)
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    await at(world, 40)
    assert record(world).state == "Revoked", "a daemon that starts anew does not know better"
    await world.do("power-off", {"hosts": ["kvm-1"]})
    await world.do("power-on", {"hosts": ["kvm-1"]})
    await at(world, 120)
    assert (record(world).state, record(world).epoch, record(world).dead_through) == ("Held", 2, 1)


@run_by(play)
async def test_daemon_that_has_sent_that_it_leaves_holds_nothing_any_more(world: World) -> None:
    role: Any = world.hosts["kvm-2"].daemon.role
    lease: LeaseRenewer = role.lease
    await world.do("store-outage", {"for": 4.0})
    left = await lease.leave(lambda now: LEAVE.attempt(LeaveView(host="kvm-2", record=now, nonce=now.nonce)).record)
    assert not left
    await at(world, 15)
    assert (record(world, "kvm-2").state, lease.connected) == ("Held", True)
    assert not lease.held
    assert not lease.me.held
    assert not await lease.is_current()


@run_by(play, violations=True)
async def test_host_that_is_silent_on_purpose_stays_so_when_condemned_and_ends_all_it_runs_once_it_is_proven_dead(
    world: World,
) -> None:
    role: Any = world.hosts["kvm-1"].daemon.role
    role.lease.withhold("its VMs have lost their storage and cannot be ended")
    role.lease.withhold = lambda why: None  # what looks at the storage finds nothing wrong
    await condemn(world)
    await at(world, 30)
    assert (record(world).state, record(world).epoch) == ("Revoked", 1)
    assert world.running_hosts("vm-1") == ("kvm-1",)
    await condemn(world, dead="operator")
    await at(world, 60)
    assert (record(world).state, record(world).epoch) == ("Held", 2)
    assert holders(world) == [("kvm-1", 2, "running")]  # ended, and started anew


@run_by(play)
async def test_silent_hosts_are_published_with_the_next_renewal_which_may_be_brought_forward(world: World) -> None:
    role: Any = world.hosts["kvm-2"].daemon.role
    lease: LeaseRenewer = role.lease
    silent = (SilentPeer(host="kvm-1", epoch=1, seq=7, silent_s=31.0),)
    before = record(world, "kvm-2").seq
    await world.clock.sleep(max(0.0, 0.5 - lease.own_age_s))
    lease.publish_silent(silent, soon=True)
    await world.clock.sleep(0.1)
    found = record(world, "kvm-2")
    assert found.silent == silent
    assert found.seq > before
    lease.publish_silent((), soon=False)
    await world.clock.sleep(0.1)
    assert record(world, "kvm-2") == found, "nothing is written but by the next renewal"
    await world.clock.sleep(1.5)
    assert record(world, "kvm-2").silent == ()


@run_by(play)
async def test_host_says_that_nothing_is_left_only_in_a_membership_that_it_renewed_after_all_was_taken_over(
    world: World,
) -> None:
    """So that the word fails where the store goes back to a backup of before, which would not have the VMs' entries."""
    await condemn(world)
    while holders(world) != [("kvm-1", 2, "running")]:
        await world.clock.sleep(0.01)
    seq = record(world).seq
    assert record(world).dead_through == 0
    while record(world).dead_through == 0:
        await world.clock.sleep(0.01)
    assert record(world).seq >= seq + 2


@run_by(play)
async def test_condemned_host_that_was_isolated_stays_out_in_the_same_boot_and_says_that_it_has_to_boot(
    world: World,
) -> None:
    member = world.store.find(Membership, "kvm-1")
    assert member is not None
    changed = msgspec.structs.replace(member.record, cut=Cut(through=1))
    await world.store.replace(msgspec.structs.replace(member, record=changed))
    await condemn(world)
    await at(world, 20)
    assert (record(world).state, record(world).epoch) == ("Revoked", 1)
    assert "host-isolated.kvm-1" in faults(world)
    assert world.running_hosts("vm-1") == ("kvm-1",)
    await world.do("power-off", {"hosts": ["kvm-1"]})
    await world.do("power-on", {"hosts": ["kvm-1"]})
    await at(world, 110)
    assert (record(world).state, record(world).epoch, record(world).dead_through) == ("Held", 2, 1)
    assert "host-isolated.kvm-1" not in faults(world)


@run_by(play)
async def test_guard_is_armed_before_the_membership_says_so_and_disarmed_after(world: World) -> None:
    guard = world.hosts["kvm-1"].answering_guard()
    assert guard is not None
    for verb, armed in (("arm", True), ("disarm", False)):
        await world.do(verb, {"hosts": ["kvm-1"]})
        deadline_s = world.clock.monotonic() + 30
        while record(world).guard.armed is not armed and world.clock.monotonic() < deadline_s:
            assert guard.state.armed or not record(world).guard.armed
            await world.clock.sleep(0.01)
        assert guard.state.armed
        await world.clock.sleep(12)
        assert guard.state.armed is armed


@pytest.mark.parametrize("then", ["disarm", "longer"])
@run_by(play, profile="fast")
async def test_guard_enforces_for_as_long_as_a_renewal_without_an_answer_may_have_said_so(
    world: World, *, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """Renewals of the host get no answer any more after the first that says that its guard is armed."""
    guard = world.hosts["kvm-1"].answering_guard()
    assert guard is not None
    role: Any = world.hosts["kvm-1"].daemon.role
    store, procedure, sent = role.lease._node.store, role.lease._procedure, list[str]()
    replace, read = store.replace, procedure.read

    async def unanswered(obj: Any) -> Any:
        if not isinstance(obj, Membership) or not (obj.record.guard.armed or sent):
            return await replace(obj)
        if not sent:
            sent.append(obj.name)
            await replace(obj)
        raise Unknown("no answer")

    async def unread() -> Any:
        if sent:
            raise Unavailable("no answer")
        return await read()

    monkeypatch.setattr(store, "replace", unanswered)
    monkeypatch.setattr(procedure, "read", unread)
    await world.do("arm", {"hosts": ["kvm-1"]})
    while not sent:
        await world.clock.sleep(0.1)
    said = record(world).guard
    assert said.armed
    if then == "disarm":
        await world.do("disarm", {"hosts": ["kvm-1"]})
    else:
        host = host_of(world)
        fencing = msgspec.structs.replace(host.spec.fencing, profile="steady")
        spec = msgspec.structs.replace(host.spec, fencing=fencing)
        await world.store.replace(msgspec.structs.replace(host, spec=spec))
    await role.lease._node.desired.refresh()
    for _ in range(30):
        await world.clock.sleep(0.1)
        assert guard.state.armed
        assert guard.state.timeout_s <= said.timeout_s


@run_by(play)
async def test_host_whose_guard_would_not_end_its_guests_does_not_arm_it(world: World) -> None:
    host = world.hosts["kvm-1"]
    host.machine.misses = "the guard ends what is below /other.slice"
    await world.do("arm", {"hosts": ["kvm-1"]})
    await world.clock.sleep(30)
    guard = host.answering_guard()
    assert guard is not None
    assert (record(world).guard.armed, guard.state.armed) == (False, False)
    fault = world.store.find(Fault, "guard-not-armed.kvm-1")
    assert fault is not None
    assert "the guard ends what is below /other.slice" in fault.message
    host.machine.misses = ""
    await world.clock.sleep(30)
    assert record(world).guard.armed
    assert "guard-not-armed.kvm-1" not in faults(world)


@run_by(play)
async def test_daemon_of_a_host_whose_own_disk_is_full_starts_again_because_nothing_is_new_to_it(world: World) -> None:
    world.hosts["kvm-1"].machine.disk_full = True
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    await at(world, 10)
    before = record(world).seq
    await at(world, 20)
    assert record(world).seq >= before + 8
    assert (record(world).epoch, faults(world)) == (1, set())
    assert holders(world) == [("kvm-1", 1, "running")]


@run_by(play)
async def test_host_whose_own_disk_is_full_enters_no_new_epoch_and_says_why_and_its_daemon_does_not_end(
    world: World,
) -> None:
    world.hosts["kvm-1"].machine.disk_full = True
    await world.do("power-off", {"hosts": ["kvm-1"]})
    await world.do("power-on", {"hosts": ["kvm-1"]})
    await at(world, 60)
    assert faults(world) == {"host-cannot-join.kvm-1"}
    assert world.running_hosts("vm-1") == ()
    assert not narrated(world, "kvm-1/daemon", "process")[2:]
    world.hosts["kvm-1"].machine.disk_full = False
    await at(world, 70)
    assert faults(world) == set()
    assert holders(world) == [("kvm-1", 2, "running")]


@pytest.mark.slow
def test_membership_does_not_end_with_the_writing_down_of_decisions() -> None:
    class Broken:
        async def create(self, obj: object) -> object:
            raise KeyError("a driver that breaks")

    async def story(world: World) -> None:
        role: Any = world.hosts["kvm-1"].daemon.role
        before, role._trail._store = record(world).nonce, Broken()
        await world.do("request", {"vm": "vm-1", "verb": "restart"})
        await at(world, 30)
        assert record(world).nonce == before
        assert holders(world) == [("kvm-1", 1, "running")]

    play(story)


@run_by(play)
async def test_that_a_host_could_not_join_is_reported_no_more_once_another_daemon_of_it_has_entered(
    world: World,
) -> None:
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    fault = Fault(
        metadata=ObjectMeta(name="host-not-empty.kvm-1", labels={REPORTER_LABEL: "daemon", HOST_LABEL: "kvm-1"}),
        code="host-not-empty",
        message="it is not",
        delta=25,
        first_seen=SEEN,
        last_seen=SEEN,
        subject=ObjectRef(kind="Hypervisor", name="kvm-1"),
    )
    await world.store.create(fault)
    await at(world, 30)
    assert faults(world) == set()


@pytest.mark.slow
def test_host_that_enters_renews_at_once_though_faults_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(self: FaultRecorder, active: object) -> None:
        await asyncio.sleep(10)

    async def story(world: World) -> None:
        before = record(world)
        monkeypatch.setattr(FaultRecorder, "record", hangs)
        await world.do("kill-daemon", {"hosts": ["kvm-1"]})
        for _ in range(1000):
            if record(world).nonce != before.nonce:
                break
            await world.clock.sleep(0.1)
        entered = record(world)
        assert entered.nonce != before.nonce
        await world.clock.sleep(5)
        assert record(world).seq > entered.seq

    play(story)


# Entries that a daemon left which was killed are taken back by the next one.


@pytest.mark.slow
@run_by(play, vms=(VmSpec(name="vm-1", host="kvm-1", migration_method="shutdown"),))
async def test_entry_that_a_killed_daemon_left_is_removed_though_the_first_listing_comes_late(world: World) -> None:
    """The guest of a cold move has ended, and its source's daemon is killed before it takes its entry back."""

    def destroyed(event: HistoryEvent) -> None:
        if event.kind == "domain" and event.text == "on kvm-1: destroyed":
            world.hosts["kvm-1"].daemon.kill()

    world.history.listen(destroyed)
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": False})
    for _ in range(3000):
        if not world.hosts["kvm-1"].daemon.alive:
            break
        await world.clock.sleep(0.01)
    await world.do("store-faults", {"rates": {"observer_delay": 1.0}})
    await world.clock.sleep(20)
    await world.do("store-faults", {"rates": {}})
    await world.clock.sleep(600)
    assert world.hosts["kvm-1"].daemon.alive
    assert not faults(world)
    assert world.running_hosts("vm-1") == ("kvm-2",), (holders(world), vm_of(world).status.migration)


# Whether a proof was wrong is judged by what is there after it, and not by what ran when the daemon was started.


@pytest.mark.parametrize("restarted", [False, True])
@run_by(play, armed=True)
async def test_host_that_its_guard_emptied_does_not_distrust_the_proof_though_its_daemon_was_restarted_before(
    world: World, *, restarted: bool
) -> None:
    if restarted:
        await world.do("kill-daemon", {"hosts": ("kvm-1",)})
    await at(world, 40)
    assert (record(world).epoch, record(world).guard.armed) == (1, True)
    assert world.running_hosts("vm-1") == ("kvm-1",)
    await world.do("cut", {"network": "store", "hosts": ["kvm-1"]})
    await at(world, 100)
    assert world.running_hosts("vm-1") == ()  # its guard saw to that
    await condemn(world, dead="watchdog")  # after T + W + g: rightly so
    await world.do("heal", {"network": "store", "hosts": ["kvm-1"]})
    await at(world, 130)
    found = record(world)
    assert (found.state, found.epoch) == ("Held", 2)
    assert found.distrusted == ()
    assert "proof-contradicted.kvm-1" not in faults(world)


@run_by(play)
async def test_host_whose_hypervisor_service_cannot_be_used_says_why_until_it_can(
    world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: LocalDomains) -> None:
        raise Unavailable("libvirt 8.0.0 is too old", remedy="install libvirt 9.0.0 or later")

    monkeypatch.setattr(LocalDomains, "start_and_refresh", broken)
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    await at(world, 20)
    found = world.store.find(Fault, "host-cannot-join.kvm-1")
    assert found is not None
    assert not found.ended
    assert "cannot see what runs on it: libvirt 8.0.0 is too old" in found.message
    assert found.remedy == "install libvirt 9.0.0 or later"
    monkeypatch.undo()
    await at(world, 40)
    assert not [name for name in faults(world) if "host-cannot-join" in name]
