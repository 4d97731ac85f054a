"""What holds only at rest: judges find what was planted, and let what is right pass."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import msgspec
import pytest
from tests.support.judges import (
    judged,
    judged_at_rest,
    make_condemned,
    make_coverage,
    make_holder,
    make_host,
    make_registered,
    make_slot,
    make_vm,
)
from tests.support.virtual_hosts import Bench

from outlive.base import as_datetime
from outlive.node.ports import DomainState
from outlive.resources import (
    Assigned,
    Condition,
    Cut,
    Fault,
    Holder,
    Membership,
    Migration,
    MigrationPhase,
    ObjectMeta,
    ObjectRef,
    Recovery,
    RecoveryPolicy,
)
from outlive.resources.reasons import VmReason
from outlive.simulation import domain_of

_replace = msgspec.structs.replace


def test_vm_that_does_not_run_and_is_not_held_with_a_remedy_is_found_at_rest() -> None:
    assert judged_at_rest(make_vm()) == ["L1"]
    held = Recovery(fence="f", phase="held", reason="no-slot", remedy="add a host")
    assert judged_at_rest(make_vm(recovery=held)) == []
    assert judged_at_rest(make_vm(recovery=_replace(held, remedy=""))) == ["L1"]


def test_vm_that_only_a_drain_stopped_is_to_run_where_its_host_is_ready_and_nobody_has_condemned_it() -> None:
    vm = _replace(make_vm(), status=_replace(make_vm().status, phase="stop", reason=VmReason.STOPPED_BY_DRAIN))
    host = make_host("h1")
    host = _replace(host, status=_replace(host.status, domain_state="ready"))
    assert judged_at_rest(vm, host, make_registered("h1")) == ["L1"]
    assert judged_at_rest(vm, host, make_condemned("h1")) == []


def test_ignored_vm_is_excused_only_where_its_host_does_not_live() -> None:
    vm = make_vm()
    ignored = _replace(vm, spec=_replace(vm.spec, recovery=RecoveryPolicy(mode="ignore")))
    assert judged_at_rest(ignored, make_condemned("h1")) == []
    assert judged_at_rest(ignored, make_registered("h1")) == ["L1"]
    moving = _replace(ignored, status=_replace(ignored.status, holders=(make_holder("h2"), make_holder("h1"))))
    assert judged_at_rest(moving, make_registered("h1"), make_condemned("h2")) == [], "its move's source may run it"

    async def off(bench: Bench) -> None:
        bench.store.load((ignored, make_registered("h1")))
        bench.hypervisors["h1"].powered = False
        bench.judge.judge_rest()

    assert judged(off) == []


def test_vm_that_waits_for_the_end_of_a_pause_is_held_while_a_fault_says_what_that_waits_for() -> None:
    vm = _replace(make_vm(), status=_replace(make_vm().status, phase="start", reason=VmReason.CLUSTER_PAUSED))
    fault = Fault(
        metadata=ObjectMeta(name="store-restored.default"),
        code="store-restored",
        subject=ObjectRef(kind="Cluster", name="default"),
        message="the cluster is paused",
        remedy="start the daemons of the hosts",
        first_seen=as_datetime(0.0),
        last_seen=as_datetime(0.0),
    )
    assert judged_at_rest(vm, fault) == []
    assert judged_at_rest(vm, _replace(fault, ended=True)) == ["L1"]
    assert judged_at_rest(make_vm(), fault) == ["L1"]


def test_vm_that_waits_on_a_host_that_stays_isolated_is_held_while_a_fault_says_so() -> None:
    status = _replace(make_vm().status, phase="start", reason=VmReason.ISOLATION_UNCONFIRMED)
    vm = _replace(make_vm(), status=status)
    fault = Fault(
        metadata=ObjectMeta(name="isolation-unrecorded.h1"),
        code="isolation-unrecorded",
        subject=ObjectRef(kind="Hypervisor", name=vm.host),
        message="it is isolated",
        remedy="let it in by hand",
        first_seen=as_datetime(0.0),
        last_seen=as_datetime(0.0),
    )
    assert judged_at_rest(vm, fault) == []
    assert judged_at_rest(vm, _replace(fault, ended=True)) == ["L1"]
    assert judged_at_rest(vm, _replace(fault, subject=ObjectRef(kind="Hypervisor", name="h9"))) == ["L1"]
    nobody = _replace(fault, code="no-coordinator", subject=ObjectRef(kind="Cluster", name="default"))
    member = make_registered(vm.host)
    isolated = _replace(member, record=_replace(member.record, cut=Cut(through=1)))
    assert judged_at_rest(vm, nobody, isolated) == []
    assert judged_at_rest(vm, nobody, member) == ["L1"]
    host = make_host("h9")
    coordinator = _replace(host, spec=_replace(host.spec, mode="coordinator"))
    assert judged_at_rest(vm, nobody, isolated, coordinator, make_registered("h9")) == ["L1"], "one lives"
    assert judged_at_rest(make_vm(), nobody, isolated) == ["L1"]


def test_vm_is_not_excused_by_the_phase_of_imported_ones_where_there_are_daemons() -> None:
    vm = _replace(make_vm(), status=_replace(make_vm().status, phase="ACTIVE"))
    assert judged_at_rest(vm) == ["L1"]


def test_coverage_that_is_not_so_is_found_at_rest() -> None:
    stopped = _replace(make_vm(), spec=_replace(make_vm().spec, power_state="stopped"))
    there = make_host("h1", "vm-1", "vm-2")

    def _rested(*objects: Any) -> list[str]:
        return judged_at_rest(there, *objects)

    slot = make_slot("s1", "h2", {"vm-1": "h1"})
    assert _rested(stopped, slot, make_coverage("s1")) == []
    assert _rested(stopped, make_coverage("s1")) == ["S3"]
    assert _rested(stopped, make_slot("s1", "h1", {"vm-1": "h1"}), make_coverage("s1")) == ["S3"]
    other = _replace(stopped, metadata=ObjectMeta(name="vm-2"))
    assert _rested(stopped, other, make_slot("s1", "h2", {"vm-1": "h1", "vm-2": "h1"}), make_coverage("s1")) == ["S3"]
    small = make_slot("s1", "h2", {"vm-1": "h1"}, size=0)
    assert _rested(stopped, small, make_coverage("s1")) == ["S3"]
    assert _rested(stopped, make_slot("s1", "h2", {"vm-1": "h1"}, consumer="vm-2"), make_coverage("s1")) == ["S3"]
    held = Recovery(fence="f", phase="held", reason="no-slot", remedy="add a host")
    shared = make_slot("s1", "h3", {"vm-1": "h1", "vm-2": "h2"})
    elsewhere = _replace(other, status=_replace(other.status, assigned=Assigned(hypervisor="h2")))
    assert judged_at_rest(make_host("h1", "vm-1"), elsewhere, shared, make_coverage("s1"), stopped) == []
    assert judged_at_rest(make_host("h1", "vm-1"), other, shared, make_coverage("s1"), stopped) == ["S3"]
    being_moved = _replace(other.status, recovery=_replace(held, origin="h2"))
    assert (
        judged_at_rest(
            make_host("h1", "vm-1"), _replace(other, status=being_moved), shared, make_coverage("s1"), stopped
        )
        == []
    )


@pytest.mark.parametrize("cut", [False, True])
def test_vm_that_two_hosts_list_is_found_at_rest_unless_one_of_them_is_shut_out_of_it(cut: bool) -> None:
    async def story(bench: Bench) -> None:
        held = Holder(hypervisor="h2", member_uid="uid-h2", epoch=1, run_id="r2", seen="running")
        vm = _replace(make_vm(), status=_replace(make_vm().status, holders=(held,), assigned=Assigned(hypervisor="h2")))
        bench.store.load(
            [make_host("h1", "vm-1"), make_host("h2", "vm-1"), make_registered("h1"), make_registered("h2"), vm]
        )
        for host in ("h1", "h2"):
            bench.hypervisors[host].add_domain(domain_of(vm, f"r{host[1]}", 1, DomainState.RUNNING))
        if cut:
            bench.disks.cut("h1", 1, ("disk:vm-1-root", "port:vm-1-net"))
        bench.judge.judge_rest()

    assert ("room" in judged(story)) is not cut


def test_vm_between_two_living_hosts_claims_a_slot_only_where_both_fail() -> None:
    stopped = _replace(make_vm(), spec=_replace(make_vm().spec, power_state="stopped"))
    other = _replace(stopped, metadata=ObjectMeta(name="vm-2"))
    moving = _replace(other, status=_replace(other.status, assigned=Assigned(hypervisor="h2")))
    shared = make_slot("s1", "h3", {"vm-1": "h1", "vm-2": "h2"})
    there = (
        make_host("h1", "vm-1", "vm-2"),
        make_registered("h1"),
        make_host("h2"),
        stopped,
        moving,
        shared,
        make_coverage("s1"),
    )
    assert judged_at_rest(*there) == ["S3"], "nobody knows of h2 that it can start it"
    assert judged_at_rest(*there, make_registered("h2")) == []
    assert judged_at_rest(*there, make_registered("h2", incarnation="another")) == [], "its failure would be one more"
    assert judged_at_rest(*there, make_condemned("h2")) == ["S3"], "nothing waits for h2: it is not a holder"
    both = _replace(moving, status=_replace(moving.status, holders=(make_holder("h1"), make_holder("h2"))))
    assert judged_at_rest(*there[:4], both, *there[5:], make_condemned("h2")) == [], (
        "h2 may still run it: nobody restarts it before both are proven dead"
    )
    over = _replace(make_condemned("h2"), record=_replace(make_condemned("h2").record, epoch=2, dead_through=1))
    assert judged_at_rest(*there[:4], both, *there[5:], over) == ["S3"], "what h2 held it in is proven dead"
    holder = Holder(hypervisor="h1", member_uid="u", epoch=1, run_id="r", seen="running")
    held = _replace(moving, status=_replace(moving.status, holders=(holder,)))
    unheard = (make_registered("h1", incarnation="another"), make_registered("h2", incarnation="another"))
    assert judged_at_rest(there[0], *unheard, *there[2:4], held, *there[5:]) == [], (
        "no host has spoken since the restoring"
    )
    fenced = (there[0], make_condemned("h1"), *there[2:4], held, *there[5:])
    assert judged_at_rest(*fenced, make_registered("h2")) == [], "it starts on h2 once h1 is proven dead"
    assert judged_at_rest(*fenced, make_condemned("h2")) == ["S3"]
    emptied = _replace(make_host("h2"), status=_replace(make_host("h2").status, domain_state="flush"))
    assert judged_at_rest(*there[:2], emptied, *there[3:], make_registered("h2")) == [], "also if h2 is being emptied"
    back = (
        make_host("h1", "vm-1"),
        make_host("h2", "vm-2"),
        make_registered("h1"),
        make_registered("h2"),
        stopped,
        other,
    )
    assert judged_at_rest(*back, shared, make_coverage("s1")) == [], "it runs on h2 when h1 fails"


def test_vm_that_is_moved_back_is_where_it_runs_until_the_other_host_is_ready_for_it() -> None:
    stopped = _replace(make_vm(), spec=_replace(make_vm().spec, power_state="stopped"))
    move = Migration(id="m", source="h2", target="h1")
    back = _replace(stopped, metadata=ObjectMeta(name="vm-2"), status=_replace(stopped.status, migration=move))
    there = (
        make_host("h1", "vm-1", "vm-2"),
        make_host("h2", "vm-2"),
        make_registered("h1"),
        make_registered("h2"),
        stopped,
        make_slot("s1", "h3", {"vm-1": "h1", "vm-2": "h2"}),
        make_coverage("s1"),
    )
    assert "S3" not in judged_at_rest(*there, back), "what h1 lists of vm-2 it ran before"
    ready = _replace(back, status=_replace(back.status, migration=_replace(move, phase=MigrationPhase.TRANSFERRING)))
    assert "S3" in judged_at_rest(*there, ready)
    assert judged_at_rest(there[0], make_host("h2"), *there[2:], back) == ["S3"], "nobody else lists it"


def test_vm_that_is_to_be_stopped_needs_no_slot_once_its_host_is_proven_dead() -> None:
    stopped = _replace(make_vm(), spec=_replace(make_vm().spec, power_state="stopped"))
    other = _replace(stopped, metadata=ObjectMeta(name="vm-2"))
    shared = make_slot("s1", "h2", {"vm-1": "h1", "vm-2": "h1"})
    host = make_host("h1", "vm-1", "vm-2")
    lost = _replace(host, status=_replace(host.status, lost="h1.1"))
    assert judged_at_rest(host, stopped, other, shared, make_coverage("s1")) == ["S3"]
    held = _replace(stopped, status=_replace(stopped.status, holders=(make_holder("h1"),)))
    assert judged_at_rest(lost, held, other, shared, make_coverage("s1")) == []
    assert judged_at_rest(lost, stopped, make_coverage("s1")) == ["S3"], "its holders are dropped already"


def test_vm_between_two_living_hosts_takes_a_slot_from_no_other_while_one_of_them_lives() -> None:
    stopped = _replace(make_vm(), spec=_replace(make_vm().spec, power_state="stopped"))
    other = _replace(stopped, metadata=ObjectMeta(name="vm-2"))
    moving = _replace(other, status=_replace(other.status, assigned=Assigned(hypervisor="h2")))
    both = _replace(make_coverage("s1", "s2"), status=_replace(make_coverage("s1", "s2").status, required=2))
    slots = (make_slot("s1", "h2", {"vm-1": "h1"}), make_slot("s2", "h4", {"vm-1": "h1", "vm-2": "h2"}))
    there = (make_host("h1", "vm-1"), make_host("h3", "vm-2"), make_host("h2"), stopped, moving, *slots, both)
    lives = (make_registered("h2"), make_registered("h3"))
    assert judged_at_rest(*there, *lives) == [], "h1 and h2 may fail: the other runs on, on h3"
    emptied = make_host("h3", "vm-2")
    emptied = _replace(emptied, status=_replace(emptied.status, domain_state="flush"))
    assert judged_at_rest(make_host("h1", "vm-1"), emptied, *there[2:], *lives) == [], "also if h3 is being emptied"
    settled = _replace(other, status=_replace(other.status, assigned=Assigned(hypervisor="h2")))
    assert judged_at_rest(make_host("h1", "vm-1"), make_host("h2", "vm-2"), stopped, settled, *slots, both, *lives) == [
        "S3"
    ]


def test_slot_that_is_not_ready_holds_no_room_and_covers_nobody() -> None:
    stopped = _replace(make_vm(), spec=_replace(make_vm().spec, power_state="stopped"))
    slot = make_slot("s1", "h2", {"vm-1": "h1"}, size=4)
    idle = _replace(slot, status=_replace(slot.status, conditions=(Condition(type="Ready", status="False"),)))
    full = make_host("h2", "vm-9", used=1)
    assert judged_at_rest(make_host("h1", "vm-1"), full, stopped, slot) == ["room"]
    assert judged_at_rest(make_host("h1", "vm-1"), full, stopped, idle) == []
    assert judged_at_rest(make_host("h1", "vm-1"), full, stopped, idle, make_coverage("s1")) == ["S3"]


def test_room_that_is_counted_twice_is_found_at_rest() -> None:
    slots = [make_slot(f"s{number}", "h2", {}, size=2) for number in range(2)]
    assert judged_at_rest(make_host("h2", "vm-9", used=1), *slots) == ["room"]
    landed = [slots[0], make_slot("s1", "h2", {}, size=2, consumer="vm-9")]
    assert judged_at_rest(make_host("h2", "vm-9", used=2), *landed) == []
    bound = [slots[0], make_slot("s1", "h2", {}, size=2, consumer="vm-8")]
    assert judged_at_rest(make_host("h2", "vm-9", used=3), *bound) == [], (
        "its VMs alone are too many, one of them on its way"
    )
    twice = (make_host("h1", "vm-9"), make_host("h2", "vm-9"), make_registered("h1"))
    assert judged_at_rest(*twice, make_registered("h2")) == ["room"]
    assert judged_at_rest(*twice) == [], "what h2 reported before its Membership was deleted may be long past"

    async def silent(bench: Bench, silent_s: float) -> None:
        bench.store.load((*twice, make_registered("h2")))
        uid = bench.store.find(Membership, "h2").metadata.uid
        bench.judge.truth.renewed_s[uid] = asyncio.get_running_loop().time() - silent_s
        bench.judge.judge_rest()

    assert judged(lambda bench: silent(bench, 20.0)) == ["room"]
    assert judged(lambda bench: silent(bench, 40.0)) == [], "h2 went silent, and nobody is left to condemn it"


def test_vm_that_only_a_condemned_host_still_lists_is_where_it_is_assigned() -> None:
    stopped = _replace(make_vm(), spec=_replace(make_vm().spec, power_state="stopped"))
    other = _replace(stopped, metadata=ObjectMeta(name="vm-2"))
    moved = _replace(other, status=_replace(other.status, assigned=Assigned(hypervisor="h2")))
    old = make_registered("h1")
    condemned = _replace(old, record=_replace(old.record, state="Revoked"))
    there = (make_host("h1", "vm-1", "vm-2"), stopped, moved, make_slot("s1", "h3", {"vm-1": "h1", "vm-2": "h2"}))
    assert judged_at_rest(*there, condemned, make_coverage("s1")) == []


def test_vm_that_a_condemned_host_and_a_living_one_list_is_on_the_living_one_though_both_hold_it() -> None:
    stopped = _replace(make_vm(), spec=_replace(make_vm().spec, power_state="stopped"))
    status = _replace(
        stopped.status, assigned=Assigned(hypervisor="h4"), holders=(make_holder("h1"), make_holder("h2"))
    )
    moved_on = _replace(stopped, metadata=ObjectMeta(name="vm-2"), status=status)
    condemned = _replace(make_registered("h1"), record=_replace(make_registered("h1").record, state="Revoked"))
    hosts = (make_host("h1", "vm-1", "vm-2"), make_host("h2", "vm-2"), condemned, make_registered("h2"))
    assert (
        judged_at_rest(
            *hosts, stopped, moved_on, make_slot("s1", "h3", {"vm-1": "h1", "vm-2": "h2"}), make_coverage("s1")
        )
        == []
    )


def test_vm_that_came_to_its_target_before_its_source_was_lost_is_there_though_its_recovery_is_held() -> None:
    stopped = _replace(make_vm(), spec=_replace(make_vm().spec, power_state="stopped"))
    held = Recovery(fence="f", phase="held", origin="h2", reason="membership-missing", remedy="restore it")

    def _beside(seen: Literal["", "running"]) -> list[str]:
        target = _replace(make_holder("h1", "r2"), seen=seen)
        status = _replace(stopped.status, holders=(make_holder("h2"), target), recovery=held)
        other = _replace(stopped, metadata=ObjectMeta(name="vm-2"), status=status)
        slot = make_slot("s1", "h3", {"vm-1": "h1", "vm-2": "h2"})
        hosts = (make_host("h1", "vm-1", "vm-2"), make_registered("h1"))
        return judged_at_rest(*hosts, stopped, other, slot, make_coverage("s1"))

    assert _beside("running") == ["S3"]
    assert _beside("") == []
