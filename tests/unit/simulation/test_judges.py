"""Every judge finds a violation that was planted, and lets what is right pass."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.support.loops import run
from tests.support.virtual_hosts import GIB, Bench, author, small_vm

from outlive.base.clock import LoopClock, as_datetime
from outlive.node.ports import DomainState
from outlive.resources import (
    Amounts,
    Assigned,
    Condition,
    Consumer,
    Coverage,
    CoverageStatus,
    FailoverStatus,
    Fault,
    Holder,
    Hypervisor,
    HypervisorStatus,
    Instance,
    MemberRecord,
    Membership,
    ObjectMeta,
    ObjectRef,
    Proof,
    Reservation,
    ReservationSpec,
    ReservationStatus,
    VirtualMachine,
)
from outlive.resources.memberships import Cut, FenceRecord
from outlive.resources.reasons import VmReason
from outlive.resources.vms import Recovery, RecoveryStep
from outlive.simulation.hypervisors import domain_of
from outlive.simulation.judges.judge import PACE_WRITES
from outlive.simulation.judges.writes import FINDINGS_LIMIT, HOLDERS_LIMIT
from outlive.simulation.stores import Author, _author

_replace = msgspec.structs.replace
DEAD = Proof(kind="power", evidence="off, twice", epoch=1)


def _holder(host: str, run_id: str = "r1", epoch: int = 1) -> Holder:
    return Holder(hypervisor=host, member_uid=f"uid-{host}", epoch=epoch, run_id=run_id)


def _member(host: str, **changes: Any) -> Membership:
    record = MemberRecord(machine_id="m", boot_id="b", **changes)
    return Membership(metadata=ObjectMeta(name=host, uid=f"uid-{host}"), record=record)


def _vm(*holders: Holder, **status: Any) -> VirtualMachine:
    vm = small_vm()
    return _replace(
        vm, status=_replace(vm.status, holders=holders, phase="start", assigned=Assigned(hypervisor="h1"), **status)
    )


async def _write(
    bench: Bench, by: Author, change: Any, *, kind: type[Any] = VirtualMachine, name: str = "vm-1"
) -> None:
    token = _author.set(by)
    try:
        found = await bench.store.get(kind, name)
        changed = change(found)
        await (bench.store.replace_status(changed) if kind.has_status() else bench.store.replace(changed))
    finally:
        _author.reset(token)


def _drop(vm: VirtualMachine) -> VirtualMachine:
    return _replace(vm, status=_replace(vm.status, holders=()))


def _domain(bench: Bench, host: str, run_id: str = "r1", epoch: int = 1, vm: VirtualMachine | None = None) -> None:
    hypervisor = bench.hypervisors[host]
    made = vm or small_vm()
    hypervisor.domains[made.name] = domain_of(made, run_id, epoch, DomainState.RUNNING)
    bench._changed(host, made.name, "running")


def _judged(story: Any) -> list[str]:
    async def reported() -> list[str]:
        bench = Bench()
        bench.boot()
        await story(bench)
        return bench.broken()

    return run(reported())


def test_two_running_domains_are_two_writers_and_two_presences() -> None:
    async def story(bench: Bench) -> None:
        _domain(bench, "h1")
        _domain(bench, "h2", "r2")

    assert _judged(story) == ["S1a", "S1b"]


def test_domain_that_is_shut_out_of_disks_and_network_is_neither() -> None:
    async def story(bench: Bench) -> None:
        _domain(bench, "h1")
        bench.disks.cut("h1", 1, ("disk:vm-1-root", "port:vm-1-net"))
        _domain(bench, "h2", "r2")

    assert _judged(story) == []


def test_domain_that_is_shut_out_of_its_disks_alone_still_answers() -> None:
    async def story(bench: Bench) -> None:
        _domain(bench, "h1")
        bench.disks.cut("h1", 1, ("disk:vm-1-root",))
        _domain(bench, "h2", "r2")

    assert _judged(story) == ["S1b"]


def test_vm_that_accepts_duplicates_is_excepted_where_it_is_off_its_disks() -> None:
    async def story(bench: Bench) -> None:
        vm = small_vm(accept_duplicate=True)
        _domain(bench, "h1", vm=vm)
        bench.disks.cut("h1", 1, ("disk:vm-1-root",))
        _domain(bench, "h2", "r2", vm=vm)

    assert _judged(story) == []


def test_lifted_cut_is_looked_at_like_any_event() -> None:
    async def story(bench: Bench) -> None:
        _domain(bench, "h1")
        bench.disks.cut("h1", 1, ("disk:vm-1-root", "port:vm-1-net"))
        _domain(bench, "h2", "r2")
        bench.disks.lift("h1", 1)

    assert _judged(story) == ["S1a", "S1b"]


def test_host_that_goes_on_after_its_vm_was_started_elsewhere_is_found() -> None:
    async def story(bench: Bench) -> None:
        _domain(bench, "h1")
        bench.hypervisors["h1"].pause()
        _domain(bench, "h2", "r2")
        assert bench.broken() == []
        bench.hypervisors["h1"].go_on()

    assert _judged(story) == ["S1a", "S1b"]


def test_domain_that_runs_again_after_its_state_ran_elsewhere_is_found() -> None:
    async def story(bench: Bench) -> None:
        _domain(bench, "h1")
        source = bench.hypervisors["h1"]
        bench.hypervisors["h2"].domains["vm-1"] = domain_of(small_vm(), "r2", 1, DomainState.INCOMING)
        await source.migrate("vm-1", "h2")
        await bench.hypervisors["h2"].destroy("vm-1", "")
        assert bench.broken() == []
        await source.resume("vm-1", run_id="r1")

    assert _judged(story) == ["S1a"]


def test_running_domain_without_an_entry_is_found() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load([_vm(_holder("h2")), _member("h1"), _member("h2")])
        _domain(bench, "h1")

    assert _judged(story) == ["held"]


def test_entry_of_a_host_that_is_not_proven_dead_must_not_go() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load([_vm(_holder("h1")), _member("h1")])
        await _write(bench, author("h2", "recovery"), _drop)

    assert _judged(story) == ["S2"]


def test_entry_of_another_membership_of_the_same_name_must_not_go() -> None:
    async def story(bench: Bench) -> None:
        other = _replace(_holder("h1"), member_uid="gone")
        bench.store.load([_vm(other), _member("h1", dead_through=1, proof=DEAD)])
        await _write(bench, author("h2", "recovery"), _drop)

    assert _judged(story) == ["S2"]


def test_entry_of_a_host_that_is_proven_dead_may_go() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load([_vm(_holder("h1")), _member("h1", dead_through=1, proof=DEAD)])
        await _write(bench, author("h2", "recovery"), _drop)

    assert _judged(story) == []


def test_entry_of_a_host_that_is_cut_off_needs_all_of_the_scope() -> None:
    def story(scope: tuple[str, ...]) -> Any:
        async def reported(bench: Bench) -> None:
            finding = Proof(kind="cut", evidence="read back", epoch=1)
            cut = Cut(through=1, scope=scope, proof=finding)
            bench.store.load([_vm(_holder("h1")), _member("h1", cut=cut)])
            await _write(bench, author("h2", "recovery"), _drop)

        return reported

    assert _judged(story(("disk:vm-1-root", "port:vm-1-net"))) == []
    assert _judged(story(("disk:vm-1-root",))) == ["S2"]


def test_own_entry_goes_only_without_a_domain() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load([_vm(_holder("h1")), _member("h1")])
        _domain(bench, "h1")
        await _write(bench, author("h1", "daemon"), _drop)

    assert "S2" in _judged(story)


def test_recovery_assigns_only_what_every_holder_has_lost() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load([_vm(_holder("h1")), _member("h1")])

        def moved(vm: VirtualMachine) -> VirtualMachine:
            return _replace(vm, status=_replace(vm.status, assigned=Assigned(hypervisor="h2", fence="f")))

        await _write(bench, author("ctl", "recovery"), moved)

    assert _judged(story) == ["S2"]


def test_dead_through_grows_only_with_a_proof_and_never_shrinks() -> None:
    def story(before: dict[str, Any], after: dict[str, Any]) -> Any:
        async def reported(bench: Bench) -> None:
            bench.store.load([_member("h1", epoch=3, **before)])
            await _write(
                bench,
                author("h2", "fencer"),
                lambda one: _replace(one, record=_replace(one.record, **after)),
                kind=Membership,
                name="h1",
            )

        return reported

    assert _judged(story({}, {"dead_through": 1})) == ["S2"]
    assert _judged(story({}, {"dead_through": 3, "proof": DEAD})) == ["S2"]
    assert _judged(story({"dead_through": 2, "proof": DEAD}, {"dead_through": 1})) == ["S2"]
    assert _judged(story({}, {"dead_through": 1, "proof": DEAD})) == []


def test_proof_that_is_not_true_is_found() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load([_vm(_holder("h1")), _member("h1")])
        _domain(bench, "h1")
        await _write(
            bench,
            author("h2", "fencer"),
            lambda one: _replace(one, record=_replace(one.record, dead_through=1, proof=DEAD)),
            kind=Membership,
            name="h1",
        )

    assert _judged(story) == ["proof"]


def test_field_of_another_writer_is_found() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load([_vm(), _member("h1")])
        await _write(bench, author("h1", "fencer"), lambda vm: _replace(vm, status=_replace(vm.status, home="h2")))

    assert _judged(story) == ["one-writer"]


def test_lists_beyond_their_limits_are_found() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load([_vm()])
        step = RecoveryStep(at=as_datetime(LoopClock().now()), what="x")
        long = Recovery(fence="f", steps=(step,) * 33)
        await _write(
            bench, author("ctl", "recovery"), lambda vm: _replace(vm, status=_replace(vm.status, recovery=long))
        )

    assert _judged(story) == ["limits"]


def test_answer_that_the_store_does_not_have_is_found() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load([_vm()])
        kept = await bench.store.get(VirtualMachine, "vm-1")
        bench.judge.acknowledged(kept)
        assert bench.broken() == []
        bench.judge.acknowledged(_replace(kept, metadata=_replace(kept.metadata, resource_version="99")))

    assert _judged(story) == ["S5"]


def _host(name: str, *instances: str, used: int = 0) -> Hypervisor:
    return Hypervisor(
        metadata=ObjectMeta(name=name),
        status=HypervisorStatus(
            capacity=Amounts(cpu=4000, memory=4 * GIB),
            allocation=Amounts(cpu=used * 1000, memory=used * GIB),
            instances=tuple(Instance(id=one) for one in instances),
        ),
    )


def _slot(name: str, host: str, members: dict[str, str], size: int = 1, consumer: str = "") -> Reservation:
    return Reservation(
        metadata=ObjectMeta(name=name),
        spec=ReservationSpec(
            type="FailoverReservation", resources=Amounts(cpu=size * 1000, memory=size * GIB), target_host=host
        ),
        status=ReservationStatus(
            host=host,
            failover_reservation=FailoverStatus(allocations=members),
            consumer=Consumer(vm=consumer, fence="f") if consumer else None,
        ),
    )


def _covered(*slots: str) -> Coverage:
    return Coverage(metadata=ObjectMeta(name="vm-1"), status=CoverageStatus(covered=True, required=1, slots=slots))


def _at_rest(*objects: Any) -> list[str]:
    async def story(bench: Bench) -> None:
        bench.store.load(objects)
        bench.judge.rest()

    return _judged(story)


def test_vm_that_does_not_run_and_is_not_held_with_a_remedy_is_found_at_rest() -> None:
    assert _at_rest(_vm()) == ["L1"]
    held = Recovery(fence="f", phase="held", reason="no-slot", remedy="add a host")
    assert _at_rest(_vm(recovery=held)) == []
    assert _at_rest(_vm(recovery=_replace(held, remedy=""))) == ["L1"]


def test_vm_that_waits_for_the_end_of_a_pause_is_held_while_a_fault_says_what_that_waits_for() -> None:
    vm = _replace(_vm(), status=_replace(_vm().status, phase="start", reason=VmReason.CLUSTER_PAUSED))
    fault = Fault(
        metadata=ObjectMeta(name="store-restored.default"),
        code="store-restored",
        subject=ObjectRef(kind="Cluster", name="default"),
        message="the cluster is paused",
        remedy="start the daemons of the hosts",
        first_seen=as_datetime(0.0),
        last_seen=as_datetime(0.0),
    )
    assert _at_rest(vm, fault) == []
    assert _at_rest(vm, _replace(fault, ended=True)) == ["L1"]
    assert _at_rest(_vm(), fault) == ["L1"]


def test_vm_is_not_excused_by_the_phase_of_imported_ones_where_there_are_daemons() -> None:
    vm = _replace(_vm(), status=_replace(_vm().status, phase="ACTIVE"))
    assert _at_rest(vm) == ["L1"]


def test_coverage_that_is_not_so_is_found_at_rest() -> None:
    stopped = _replace(_vm(), spec=_replace(_vm().spec, power_state="stopped"))
    there = _host("h1", "vm-1", "vm-2")

    def _rested(*objects: Any) -> list[str]:
        return _at_rest(there, *objects)

    slot = _slot("s1", "h2", {"vm-1": "h1"})
    assert _rested(stopped, slot, _covered("s1")) == []
    assert _rested(stopped, _covered("s1")) == ["S3"]
    assert _rested(stopped, _slot("s1", "h1", {"vm-1": "h1"}), _covered("s1")) == ["S3"]
    other = _replace(stopped, metadata=ObjectMeta(name="vm-2"))
    assert _rested(stopped, other, _slot("s1", "h2", {"vm-1": "h1", "vm-2": "h1"}), _covered("s1")) == ["S3"]
    small = _slot("s1", "h2", {"vm-1": "h1"}, size=0)
    assert _rested(stopped, small, _covered("s1")) == ["S3"]
    assert _rested(stopped, _slot("s1", "h2", {"vm-1": "h1"}, consumer="vm-2"), _covered("s1")) == ["S3"]
    held = Recovery(fence="f", phase="held", reason="no-slot", remedy="add a host")
    shared = _slot("s1", "h3", {"vm-1": "h1", "vm-2": "h2"})
    elsewhere = _replace(other, status=_replace(other.status, assigned=Assigned(hypervisor="h2")))
    assert _at_rest(_host("h1", "vm-1"), elsewhere, shared, _covered("s1"), stopped) == []
    assert _at_rest(_host("h1", "vm-1"), other, shared, _covered("s1"), stopped) == ["S3"]
    being_moved = _replace(other.status, recovery=_replace(held, origin="h2"))
    assert _at_rest(_host("h1", "vm-1"), _replace(other, status=being_moved), shared, _covered("s1"), stopped) == []


@pytest.mark.parametrize("cut", [False, True])
def test_vm_that_two_hosts_list_is_found_at_rest_unless_one_of_them_is_shut_out_of_it(cut: bool) -> None:
    async def story(bench: Bench) -> None:
        held = Holder(hypervisor="h2", member_uid="uid-h2", epoch=1, run_id="r2", seen="running")
        vm = _replace(_vm(), status=_replace(_vm().status, holders=(held,), assigned=Assigned(hypervisor="h2")))
        bench.store.load([_host("h1", "vm-1"), _host("h2", "vm-1"), _registered("h1"), _registered("h2"), vm])
        for host in ("h1", "h2"):
            bench.hypervisors[host].has(domain_of(vm, f"r{host[1]}", 1, DomainState.RUNNING))
        if cut:
            bench.disks.cut("h1", 1, ("disk:vm-1-root", "port:vm-1-net"))
        bench.judge.rest()

    assert ("room" in _judged(story)) is not cut


def test_vm_between_two_living_hosts_claims_a_slot_only_where_both_fail() -> None:
    stopped = _replace(_vm(), spec=_replace(_vm().spec, power_state="stopped"))
    other = _replace(stopped, metadata=ObjectMeta(name="vm-2"))
    moving = _replace(other, status=_replace(other.status, assigned=Assigned(hypervisor="h2")))
    shared = _slot("s1", "h3", {"vm-1": "h1", "vm-2": "h2"})
    there = (_host("h1", "vm-1", "vm-2"), _registered("h1"), _host("h2"), stopped, moving, shared, _covered("s1"))
    assert _at_rest(*there) == ["S3"], "nobody knows of h2 that it can start it"
    assert _at_rest(*there, _registered("h2")) == []
    assert _at_rest(*there, _registered("h2", incarnation="another")) == [], "its failure would be one more"
    assert _at_rest(*there, _condemned("h2")) == ["S3"]
    holder = Holder(hypervisor="h1", member_uid="u", epoch=1, run_id="r", seen="running")
    held = _replace(moving, status=_replace(moving.status, holders=(holder,)))
    unheard = (_registered("h1", incarnation="another"), _registered("h2", incarnation="another"))
    assert _at_rest(there[0], *unheard, *there[2:4], held, *there[5:]) == [], "no host has spoken since the restoring"
    fenced = (there[0], _condemned("h1"), *there[2:4], held, *there[5:])
    assert _at_rest(*fenced, _registered("h2")) == [], "it starts on h2 once h1 is proven dead"
    assert _at_rest(*fenced, _condemned("h2")) == ["S3"]
    emptied = _replace(_host("h2"), status=_replace(_host("h2").status, domain_state="flush"))
    assert _at_rest(*there[:2], emptied, *there[3:], _registered("h2")) == [], "also if h2 is being emptied"
    back = (_host("h1", "vm-1"), _host("h2", "vm-2"), _registered("h1"), _registered("h2"), stopped, other)
    assert _at_rest(*back, shared, _covered("s1")) == [], "it runs on h2 when h1 fails"


def test_vm_between_two_living_hosts_takes_a_slot_from_no_other_while_one_of_them_lives() -> None:
    stopped = _replace(_vm(), spec=_replace(_vm().spec, power_state="stopped"))
    other = _replace(stopped, metadata=ObjectMeta(name="vm-2"))
    moving = _replace(other, status=_replace(other.status, assigned=Assigned(hypervisor="h2")))
    both = _replace(_covered("s1", "s2"), status=_replace(_covered("s1", "s2").status, required=2))
    slots = (_slot("s1", "h2", {"vm-1": "h1"}), _slot("s2", "h4", {"vm-1": "h1", "vm-2": "h2"}))
    there = (_host("h1", "vm-1"), _host("h3", "vm-2"), _host("h2"), stopped, moving, *slots, both)
    lives = (_registered("h2"), _registered("h3"))
    assert _at_rest(*there, *lives) == [], "h1 and h2 may fail: the other runs on, on h3"
    emptied = _host("h3", "vm-2")
    emptied = _replace(emptied, status=_replace(emptied.status, domain_state="flush"))
    assert _at_rest(_host("h1", "vm-1"), emptied, *there[2:], *lives) == [], "also if h3 is being emptied"
    settled = _replace(other, status=_replace(other.status, assigned=Assigned(hypervisor="h2")))
    assert _at_rest(_host("h1", "vm-1"), _host("h2", "vm-2"), stopped, settled, *slots, both, *lives) == ["S3"]


def _condemned(host: str) -> Membership:
    """A host that is condemned, and not proven dead."""
    member = _registered(host)
    return _replace(member, record=_replace(member.record, state="Revoked"))


def _registered(host: str, incarnation: str = "") -> Membership:
    """A host that lives; by default it registered in this very store."""
    member = _member(host)
    wanted = incarnation or Bench().store.incarnation
    return _replace(member, record=_replace(member.record, state="Held", incarnation=wanted))


def test_slot_that_is_not_ready_holds_no_room_and_covers_nobody() -> None:
    stopped = _replace(_vm(), spec=_replace(_vm().spec, power_state="stopped"))
    slot = _slot("s1", "h2", {"vm-1": "h1"}, size=4)
    idle = _replace(slot, status=_replace(slot.status, conditions=(Condition(type="Ready", status="False"),)))
    full = _host("h2", "vm-9", used=1)
    assert _at_rest(_host("h1", "vm-1"), full, stopped, slot) == ["room"]
    assert _at_rest(_host("h1", "vm-1"), full, stopped, idle) == []
    assert _at_rest(_host("h1", "vm-1"), full, stopped, idle, _covered("s1")) == ["S3"]


def test_room_that_is_counted_twice_is_found_at_rest() -> None:
    slots = [_slot(f"s{number}", "h2", {}, size=2) for number in range(2)]
    assert _at_rest(_host("h2", "vm-9", used=1), *slots) == ["room"]
    landed = [slots[0], _slot("s1", "h2", {}, size=2, consumer="vm-9")]
    assert _at_rest(_host("h2", "vm-9", used=2), *landed) == []
    bound = [slots[0], _slot("s1", "h2", {}, size=2, consumer="vm-8")]
    assert _at_rest(_host("h2", "vm-9", used=3), *bound) == [], "its VMs alone are too many, one of them on its way"
    twice = (_host("h1", "vm-9"), _host("h2", "vm-9"), _registered("h1"))
    assert _at_rest(*twice, _registered("h2")) == ["room"]
    assert _at_rest(*twice) == [], "what h2 reported before its Membership was deleted may be long past"


def test_vm_that_only_a_condemned_host_still_lists_is_where_it_is_assigned() -> None:
    stopped = _replace(_vm(), spec=_replace(_vm().spec, power_state="stopped"))
    other = _replace(stopped, metadata=ObjectMeta(name="vm-2"))
    moved = _replace(other, status=_replace(other.status, assigned=Assigned(hypervisor="h2")))
    old = _registered("h1")
    condemned = _replace(old, record=_replace(old.record, state="Revoked"))
    there = (_host("h1", "vm-1", "vm-2"), stopped, moved, _slot("s1", "h3", {"vm-1": "h1", "vm-2": "h2"}))
    assert _at_rest(*there, condemned, _covered("s1")) == []


def test_vm_that_a_condemned_host_and_a_living_one_list_is_on_the_living_one_though_both_hold_it() -> None:
    stopped = _replace(_vm(), spec=_replace(_vm().spec, power_state="stopped"))
    status = _replace(stopped.status, assigned=Assigned(hypervisor="h4"), holders=(_holder("h1"), _holder("h2")))
    moved_on = _replace(stopped, metadata=ObjectMeta(name="vm-2"), status=status)
    condemned = _replace(_registered("h1"), record=_replace(_registered("h1").record, state="Revoked"))
    hosts = (_host("h1", "vm-1", "vm-2"), _host("h2", "vm-2"), condemned, _registered("h2"))
    assert _at_rest(*hosts, stopped, moved_on, _slot("s1", "h3", {"vm-1": "h1", "vm-2": "h2"}), _covered("s1")) == []


def test_violation_says_what_happened_before_and_how_to_see_it_again() -> None:
    async def reported() -> str:
        bench = Bench()
        bench.boot()
        _domain(bench, "h1")
        _domain(bench, "h2", "r2")
        return str(bench.judge.violations[0])

    text = run(reported())
    assert "h1 and h2 write its disks" in text
    assert "on h1: running" in text
    assert "outlive simulate --seed 1" in text


def test_process_that_writes_one_object_without_a_pause_is_found() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load([_vm()])
        for number in range(PACE_WRITES - 1):
            await _write(bench, author("ctl", "recovery"), _home(str(number)))
        assert "limits" not in bench.broken()
        await _write(bench, author("ctl", "recovery"), _home("h1"))

    assert _judged(story) == ["limits"]


def test_slot_that_many_join_one_after_the_other_is_no_loop_until_nobody_joins_any_more() -> None:
    members = PACE_WRITES

    async def story(bench: Bench) -> None:
        bench.store.load([_slot("slot", "h2", {})])
        joined = {f"vm-{number}": "h1" for number in range(members)}
        for number in range(members):
            await _into(bench, dict(list(joined.items())[: number + 1]), number)
            await _into(bench, dict(list(joined.items())[: number + 1]), number + 1)
        for number in range(PACE_WRITES - 1):
            await _into(bench, joined, number)
        assert "limits" not in bench.broken()
        await _into(bench, joined, PACE_WRITES)

    assert _judged(story) == ["limits"]


async def _into(bench: Bench, joined: dict[str, str], second: int) -> None:
    at = datetime.fromtimestamp(second, UTC)
    status = ReservationStatus(host="h2", failover_reservation=FailoverStatus(allocations=joined, acknowledged_at=at))
    await _write(
        bench, author("ctl", "failover"), lambda one: _replace(one, status=status), kind=Reservation, name="slot"
    )


def _home(host: str) -> Any:
    return lambda vm: _replace(vm, status=_replace(vm.status, home=host))


def test_entries_and_findings_beyond_their_limits_are_found() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load([_vm(), _member("h1")])
        many = tuple(_holder("h1", f"r{number}") for number in range(HOLDERS_LIMIT + 1))
        await _write(bench, author("h1", "daemon"), lambda vm: _replace(vm, status=_replace(vm.status, holders=many)))
        found = FenceRecord(id="f", epoch=1, findings=(DEAD,) * (FINDINGS_LIMIT + 1))
        await _write(
            bench,
            author("h2", "fencer"),
            lambda one: _replace(one, record=_replace(one.record, fence=found)),
            kind=Membership,
            name="h1",
        )

    assert _judged(story) == ["limits", "limits"]


def test_restored_store_is_not_blamed_for_what_a_host_has_not_registered_yet_and_is_afterwards() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load([_vm(_holder("h2")), _member("h1", incarnation="before"), _member("h2")])
        bench.judge.truth.restored = True
        _domain(bench, "h1")
        assert bench.broken() == []
        joined = bench.store.incarnation
        await _write(
            bench,
            author("h1", "daemon"),
            lambda one: _replace(one, record=_replace(one.record, incarnation=joined)),
            kind=Membership,
            name="h1",
        )
        bench._changed("h1", "vm-1", "looked at")

    assert _judged(story) == ["held"]


def test_proof_is_not_untrue_because_of_a_vm_that_a_restored_store_does_not_know_or_that_was_deleted() -> None:
    def story(restored: bool = False, deleted: bool = False) -> Any:
        async def reported(bench: Bench) -> None:
            bench.store.load([_member("h1"), *([_vm()] if deleted else [])])
            bench.judge.truth.restored = restored
            if deleted:
                await bench.store.delete(_vm().ref)
            _domain(bench, "h1")
            await _write(
                bench,
                author("h1", "fencer"),
                lambda one: _replace(one, record=_replace(one.record, dead_through=1, proof=DEAD)),
                kind=Membership,
                name="h1",
            )

        return reported

    assert _judged(story(restored=True)) == []
    assert _judged(story(deleted=True)) == []
    assert _judged(story()) == ["proof"]
