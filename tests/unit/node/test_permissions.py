"""What a host's token may write, as properties over random objects, and the sentences that say why not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.field_writers import changed_paths

from outlive.api import Identity, Role, check_write, may_write
from outlive.base import Forbidden
from outlive.node import (
    NAMED_AFTER_HOSTS,
    Facts,
    HostWriter,
    check_hypervisor_by_controller,
    dropped_holders,
    host_refusal,
    is_related,
    needed_facts,
    write_refusal,
)
from outlive.node.membership import MemberView, is_fenced
from outlive.node.vm import reach_of
from outlive.resources import (
    CANDIDATE,
    CONTROLLER,
    DAEMON,
    FENCER,
    HOST_LABEL,
    HUMANS,
    KINDS,
    PRIMARY,
    RUN_FINALIZER,
    WRITER_LABEL,
    Assigned,
    Cluster,
    ClusterStatus,
    Condition,
    Console,
    Coverage,
    CoverageStatus,
    Cut,
    DecisionRecord,
    Election,
    Fault,
    FenceRecord,
    Flavor,
    FlavorSpec,
    FormerMembership,
    Holder,
    HostLog,
    HostUsage,
    Hypervisor,
    HypervisorStatus,
    HypervisorUsage,
    MemberRecord,
    Membership,
    Migration,
    ObjectMeta,
    ObjectRef,
    Pause,
    Proof,
    Resource,
    StorageDaemon,
    StorageDaemonStatus,
    StorageDevice,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
    created_fields,
    encode,
    owners_of,
    to_builtins,
)
from outlive.resources.reasons import FaultCode
from outlive.store import owner_of

ME, OTHER, THIRD = "kvm-1", "kvm-2", "kvm-3"
HOSTS = (ME, OTHER, THIRD)
WHO = HostWriter(ME)
AT = datetime(2026, 1, 1, tzinfo=UTC)
_replace = msgspec.structs.replace

hosts = st.sampled_from(HOSTS)
holders = st.lists(
    st.builds(
        Holder,
        hypervisor=hosts,
        member_uid=st.just("u"),
        epoch=st.integers(1, 3),
        run_id=st.sampled_from(("r1", "r2")),
        role=st.sampled_from(("", "incoming")),
    ),
    max_size=3,
    unique=True,
).map(tuple)
assigned = st.none() | st.builds(Assigned, hypervisor=hosts)
moves = st.none() | st.builds(Migration, id=st.just("m"), source=hosts, target=hosts)
statuses = st.builds(
    VirtualMachineStatus,
    phase=st.sampled_from(("", "start")),
    assigned=assigned,
    holders=holders,
    migration=moves,
    home=st.sampled_from(("", *HOSTS)),
)
specs = st.builds(VirtualMachineSpec, disks=st.just(("d",)), project=st.sampled_from(("a", "b")))
labels = st.sampled_from(({}, {HOST_LABEL: ME}, {HOST_LABEL: OTHER}, {"a": "b"}))
vms = st.builds(
    VirtualMachine, metadata=st.builds(ObjectMeta, name=st.just("vm"), labels=labels), spec=specs, status=statuses
)
views = st.lists(
    st.builds(
        MemberView,
        host=hosts,
        uid=st.sampled_from(("u", "v")),
        record=st.builds(MemberRecord, machine_id=st.just("m"), boot_id=st.just("b"), dead_through=st.integers(0, 3)),
    ),
    max_size=3,
).map(tuple)
writers = st.builds(HostWriter, hosts, st.booleans())


def vm(**status: Any) -> VirtualMachine:
    return VirtualMachine(metadata=ObjectMeta(name="vm"), status=VirtualMachineStatus(**status))


def member(host: str = ME, **record: Any) -> Membership:
    given = {"machine_id": "m", "boot_id": "b"} | record
    return Membership(metadata=ObjectMeta(name=host), record=MemberRecord(**given))


@pytest.mark.slow
@given(writers, vms, vms, views)
def test_what_is_allowed_keeps_every_entry_of_others_that_is_not_fenced(
    who: HostWriter, before: VirtualMachine, after: VirtualMachine, members: tuple[MemberView, ...]
) -> None:
    if host_refusal(who, before, after, Facts(members=members)):
        return
    theirs = [one for one in before.status.holders if one.hypervisor != who.host]
    assert all(one in after.status.holders or is_fenced(one, members, reach_of(before)) for one in theirs)
    assert all(one in theirs for one in after.status.holders if one.hypervisor != who.host)
    assert after.spec == before.spec
    if not is_related(who.host, before):
        assert _replace(after.status, holders=()) == _replace(before.status, holders=())
    own = next((one for one in members if one.host == who.host), None)
    for one in after.status.holders:
        if one.hypervisor == who.host and one not in before.status.holders:
            known = (one.member_uid, one.epoch, one.run_id)
            again = any(known == (it.member_uid, it.epoch, it.run_id) for it in before.status.holders)
            assert again or (own is not None and own.uid == one.member_uid and one.epoch <= own.record.epoch)


@pytest.mark.slow
@given(writers, vms, vms, views)
def test_what_is_allowed_belongs_to_the_daemon(
    who: HostWriter, before: VirtualMachine, after: VirtualMachine, members: tuple[MemberView, ...]
) -> None:
    if not host_refusal(who, before, after, Facts(members=members)):
        for path in changed_paths(to_builtins(before), to_builtins(after)):
            assert "daemon" in owners_of(VirtualMachine, path)


OWN: tuple[Resource, ...] = (
    vm(),
    member(),
    Cluster(metadata=ObjectMeta(name="default")),
    Hypervisor(metadata=ObjectMeta(name=ME)),
    HypervisorUsage(metadata=ObjectMeta(name=ME), usage=HostUsage()),
    Coverage(metadata=ObjectMeta(name="vm"), status=CoverageStatus(required=1, covered=True)),
    Flavor(metadata=ObjectMeta(name="m"), spec=FlavorSpec(flavor_name="m")),
)
FOREIGN: tuple[Resource, ...] = (
    member(OTHER),
    HypervisorUsage(metadata=ObjectMeta(name=OTHER), usage=HostUsage()),
    Election(metadata=ObjectMeta(name="failover")),
)


@given(writers, st.sampled_from((*OWN, *FOREIGN)))
def test_a_host_deletes_nothing(who: HostWriter, obj: Resource) -> None:
    assert "may not delete" in host_refusal(who, obj, None) or "another host's" in host_refusal(who, obj, None)


@given(st.sampled_from((*OWN, *FOREIGN)))
def test_an_object_that_stays_as_it_is_is_refused_only_for_what_it_is(obj: Resource) -> None:
    assert (host_refusal(WHO, obj, obj) == "") == (obj in OWN)


MINE = MemberView(host=ME, uid="w", record=MemberRecord(machine_id="m", boot_id="b", epoch=1, incarnation="now"))
NOW = Cluster(metadata=ObjectMeta(name="default"), status=ClusterStatus(store_incarnation="now"))
ENTRY = Holder(hypervisor=ME, member_uid="w", epoch=1, run_id="s")
THEIRS = Holder(hypervisor=OTHER, member_uid="u", epoch=2, run_id="r")


def test_an_entry_goes_with_the_proof_that_it_is_fenced() -> None:
    before = vm(assigned=Assigned(hypervisor=ME), holders=(THEIRS,))
    after = vm(assigned=Assigned(hypervisor=ME), holders=(ENTRY,))
    assert dropped_holders(ME, before, after) == (THEIRS,)
    assert "nothing proves that epoch 2 is fenced" in host_refusal(WHO, before, after, Facts(members=(MINE,)))
    assert "nothing proves that epoch 2 is fenced" in write_refusal(CONTROLLER, before, vm(), Facts())
    record = MemberRecord(machine_id="m", boot_id="b", epoch=3, dead_through=2)
    facts = Facts(members=(MINE, MemberView(host=OTHER, uid="u", record=record)))
    assert host_refusal(WHO, before, after, facts) == ""
    assert write_refusal(CONTROLLER, before, vm(assigned=Assigned(hypervisor=ME)), facts) == ""


def test_a_controller_lets_a_deleted_vm_go_only_once_nobody_holds_it() -> None:
    guarded = ObjectMeta(name="vm", finalizers=(RUN_FINALIZER,))
    for holders, allowed in (((THEIRS,), False), ((), True)):
        before = _replace(vm(holders=holders), metadata=guarded)
        why = write_refusal(CONTROLLER, before, vm(holders=holders), Facts())
        assert why == ("" if allowed else f"may not remove {RUN_FINALIZER} of VirtualMachine/vm: kvm-2 holds it")


@pytest.mark.parametrize(
    ("before", "entry", "why"),
    [
        (vm(assigned=Assigned(hypervisor=ME)), ENTRY, ""),
        (vm(migration=Migration(id="m", source=OTHER, target=ME), holders=(THEIRS,)), ENTRY, ""),
        (vm(migration=Migration(id="m", source=ME, target=OTHER), holders=(THEIRS,)), ENTRY, "not assigned to kvm-1"),
        (vm(assigned=Assigned(hypervisor=ME), holders=(THEIRS,)), ENTRY, "kvm-2 holds it"),
        (vm(assigned=Assigned(hypervisor=OTHER)), ENTRY, "not assigned to kvm-1"),
        (vm(home=ME), ENTRY, "not assigned to kvm-1"),
        (vm(assigned=Assigned(hypervisor=ME)), _replace(ENTRY, member_uid="x"), "no entry of its present membership"),
        (vm(assigned=Assigned(hypervisor=ME)), _replace(ENTRY, epoch=2), "no entry of its present membership"),
    ],
)
def test_a_host_enters_itself_where_the_protocol_lets_it_hold_a_vm(
    before: VirtualMachine, entry: Holder, why: str
) -> None:
    after = _replace(before, status=_replace(before.status, holders=(*before.status.holders, entry)))
    found = host_refusal(WHO, before, after, Facts(members=(MINE,), cluster=NOW))
    assert why in found
    assert bool(why) == bool(found)


def test_target_of_a_move_that_is_over_says_that_its_run_never_ran_and_nothing_else_of_the_next_move() -> None:
    move = Migration(id="next", source=OTHER, target=THIRD)
    before = vm(assigned=Assigned(hypervisor=THIRD), migration=move, holders=(ENTRY, THEIRS))
    for changes, allowed in (
        ({"declined": ENTRY.run_id}, True),
        ({"declined": THEIRS.run_id}, False),
        ({"id": "x"}, False),
    ):
        after = _replace(before.status, holders=(THEIRS,), migration=_replace(move, **changes))
        assert (host_refusal(WHO, before, _replace(before, status=after)) == "") is allowed


def test_after_a_restore_a_host_says_that_it_runs_what_nobody_knows_of_it_and_nothing_else() -> None:
    before = vm(phase="start", assigned=Assigned(hypervisor=OTHER))
    restored = _replace(NOW, status=ClusterStatus(store_incarnation="restored", former_incarnations=("now",)))
    facts = Facts(members=(MINE,), cluster=restored)
    after = vm(phase="start", assigned=Assigned(hypervisor=OTHER), holders=(ENTRY,))
    assert host_refusal(WHO, before, after, facts) == ""
    assert "not assigned to kvm-1" in host_refusal(WHO, before, after, Facts(members=(MINE,), cluster=NOW))
    why = host_refusal(WHO, before, _replace(after, status=_replace(after.status, phase="stop")), facts)
    assert why == "may not write the status of VirtualMachine/vm: kvm-1 has nothing to do with it"
    kept = vm(phase="start", assigned=Assigned(hypervisor=ME), home=ME, holders=(ENTRY,))
    assert host_refusal(WHO, after, kept) == ""
    both = vm(assigned=Assigned(hypervisor=OTHER), holders=(ENTRY, THEIRS))
    taken = _replace(both, status=_replace(both.status, assigned=Assigned(hypervisor=ME)))
    for one in (taken, _replace(both, status=_replace(both.status, home=ME))):
        assert "kvm-1 only holds it" in host_refusal(WHO, both, one)


def test_a_host_registers_what_it_runs_only_where_the_store_has_gone_back_or_was_the_one_that_it_names() -> None:
    before = vm(assigned=Assigned(hypervisor=OTHER), holders=(THEIRS,))
    after = _replace(before, status=_replace(before.status, holders=(THEIRS, ENTRY)))
    paused = ClusterStatus(store_incarnation="now", pause=Pause())
    later = ClusterStatus(store_incarnation="now", former_incarnations=("then",))
    for incarnation, status, allowed in (
        ("anything", NOW.status, False),
        ("anything", ClusterStatus(), False),
        ("", NOW.status, False),
        ("then", later, True),
        ("", paused, True),
        ("anything", paused, True),
    ):
        mine = _replace(MINE, record=_replace(MINE.record, incarnation=incarnation))
        facts = Facts(members=(mine,), cluster=_replace(NOW, status=status))
        assert (host_refusal(WHO, before, after, facts) == "") == allowed, (incarnation, status)


def test_a_host_does_not_become_unregistered_and_gives_no_proofs_of_others() -> None:
    mine = member(incarnation="now")
    why = host_refusal(WHO, mine, member(incarnation="then"), Facts(cluster=NOW))
    assert why == "may not write record.incarnation of Membership/kvm-1: kvm-1 is registered in this store"
    assert host_refusal(WHO, member(incarnation="then"), mine, Facts(cluster=NOW)) == ""
    for before in (None, member()):
        assert host_refusal(WHO, before, mine, Facts(cluster=NOW)) == ""
        assert "names another store" in host_refusal(WHO, before, member(incarnation="then"), Facts(cluster=NOW))
        paused = _replace(NOW, status=_replace(NOW.status, pause=Pause()))
        assert host_refusal(WHO, before, member(incarnation="then"), Facts(cluster=paused)) == ""
    for kind, by, allowed in (("reboot", ME, True), ("self-cleaned", ME, True), ("power", ME, False)):
        proven = member(dead_through=1, proof=Proof(kind=kind, by=by))
        assert (host_refusal(WHO, member(), proven) == "") == allowed
    assert "what is proven stays proven" in host_refusal(WHO, member(dead_through=2), member(dead_through=1))
    assert "record.cut.through" in host_refusal(WHO, member(), member(cut=Cut(through=1)))


def test_the_label_of_the_host_is_set_right_by_anybody_and_set_wrong_by_nobody() -> None:
    before = vm(assigned=Assigned(hypervisor=OTHER))
    right, wrong = (_replace(before, metadata=ObjectMeta(name="vm", labels={HOST_LABEL: one})) for one in (OTHER, ME))
    assert host_refusal(WHO, before, right) == ""
    assert "kvm-1 has nothing to do with it" in host_refusal(WHO, before, wrong)


def test_a_host_labels_a_vm_that_shares_disks_and_takes_that_label_from_none_that_does() -> None:
    alone = vm(assigned=Assigned(hypervisor=ME))
    shares = _replace(alone, spec=_replace(alone.spec, disks=("d",), shared_disks=("d",)))
    assert host_refusal(WHO, shares, shares.marked) == ""
    assert "spec.sharedDisks names disks" in host_refusal(WHO, shares.marked, shares)
    labelled = _replace(alone, metadata=shares.marked.metadata)
    assert "spec.sharedDisks names disks" in host_refusal(WHO, alone, labelled)
    assert host_refusal(WHO, labelled, alone) == ""


def test_a_membership_is_its_hosts_and_of_its_machine() -> None:
    assert host_refusal(WHO, None, member()) == ""
    assert host_refusal(WHO, member(), member(seq=2)) == ""
    assert "kvm-1 is no coordinator" in host_refusal(WHO, member(OTHER), member(OTHER, state="Revoked"))
    assert "kvm-1 is no coordinator" in host_refusal(WHO, None, member(OTHER))
    cloned = host_refusal(HostWriter(ME, machine_id="m"), None, member(machine_id="n"))
    assert cloned == "may not write Membership/kvm-1 for machine n: kvm-1 has joined as machine m"


def test_a_coordinator_condemns_others_and_renews_for_none() -> None:
    fencer = HostWriter(ME, coordinator=True)
    condemned = member(OTHER, state="Revoked", fence=FenceRecord(id="f", epoch=1, by=ME))
    assert host_refusal(fencer, member(OTHER), condemned) == ""
    assert "record.seq" in host_refusal(fencer, member(OTHER), member(OTHER, seq=2))
    assert "may not create" in host_refusal(fencer, None, member(OTHER))
    revoked = member(OTHER, state="Revoked")
    assert "only kvm-2 comes back or leaves" in host_refusal(fencer, revoked, member(OTHER))


def test_hypervisors_and_figures() -> None:
    def hypervisor(name: str, **status: Any) -> Hypervisor:
        return Hypervisor(metadata=ObjectMeta(name=name), status=HypervisorStatus(**status))

    fencer = HostWriter(ME, coordinator=True)
    assert host_refusal(WHO, hypervisor(ME), hypervisor(ME, num_instances=2)) == ""
    assert "another host's" in host_refusal(WHO, hypervisor(OTHER), hypervisor(OTHER, num_instances=2))
    assert "status.rehearsed" in host_refusal(WHO, hypervisor(ME), hypervisor(ME, rehearsed="ok"))
    assert host_refusal(fencer, hypervisor(OTHER), hypervisor(OTHER, rehearsed="ok")) == ""
    assert "status.numInstances" in host_refusal(fencer, hypervisor(OTHER), hypervisor(OTHER, num_instances=2))
    for name, allowed in ((ME, True), (OTHER, False)):
        usage = HypervisorUsage(metadata=ObjectMeta(name=name), usage=HostUsage(running=1))
        log = HostLog(metadata=ObjectMeta(name=name), process="p", written_at=datetime(2026, 1, 1, tzinfo=UTC))
        assert (host_refusal(WHO, None, log) == "") == allowed
        assert (host_refusal(fencer, None, usage) == "") == allowed


def test_a_controller_writes_of_the_conditions_of_a_host_only_ready_while_it_does_not_hear_of_it() -> None:
    def hypervisor(*conditions: tuple[str, str, str]) -> Hypervisor:
        found = tuple(Condition(type=kind, status=word, reason=why) for kind, word, why in conditions)  # type: ignore[arg-type]
        return Hypervisor(metadata=ObjectMeta(name=ME), status=HypervisorStatus(conditions=found))

    def refusal(before: Hypervisor, after: Hypervisor, names: tuple[str, ...] = ("failover",)) -> str:
        return check_hypervisor_by_controller(names, before, after, Facts())

    well = hypervisor(("Ready", "True", "HostRenews"), ("Tainted", "False", ""))
    silent = hypervisor(("Ready", "Unknown", "HostSilent"), ("Tainted", "False", ""))
    for after in (
        silent,
        *(hypervisor(("Ready", "False", why), ("Tainted", "False", "")) for why in ("HostCondemned", "HostDead")),
    ):
        assert refusal(well, after) == ""
        assert refusal(after, well) == "", "what it wrote it takes back"
    assert "besides Ready" in refusal(well, hypervisor(("Ready", "True", "HostRenews"), ("Tainted", "True", "")))
    assert "besides Ready" in refusal(well, hypervisor(("Ready", "True", "HostRenews")))
    assert "what it observes" in refusal(well, hypervisor(("Tainted", "False", "")))
    assert "what it observes" in refusal(well, hypervisor(("Ready", "False", "Shutdown"), ("Tainted", "False", "")))
    assert "with reason HostDead" in refusal(well, hypervisor(("Ready", "True", "HostDead"), ("Tainted", "False", "")))
    assert "with reason HostRenews" in refusal(
        silent, hypervisor(("Ready", "False", "HostRenews"), ("Tainted", "False", ""))
    )
    gone = hypervisor(("Ready", "False", "Shutdown"), ("Tainted", "False", ""))
    assert "the host says itself" in refusal(gone, silent), "how a host went is never overwritten"
    assert refusal(gone, well) != ""
    for source in ("import", "mirror"):
        assert refusal(well, hypervisor(("Ready", "False", "disabled")), (source,)) == ""


def fault(reporter: str, host: str = "", *, kind: str = "VirtualMachine", name: str = "vm", **more: Any) -> Fault:
    tags = {"outlive.dev/reporter": reporter}
    if host:
        tags[WRITER_LABEL if reporter in ("fencer", "primary") else HOST_LABEL] = host
    subject = ObjectRef(kind=kind, name=name)
    meta = ObjectMeta(name=f"c.{name}", labels=tags)
    given = {"code": "c", "message": "m", "first_seen": AT, "last_seen": AT} | more
    return Fault(metadata=meta, subject=subject, **given)


OURS = vm(assigned=Assigned(hypervisor=ME))


@pytest.mark.parametrize(
    ("who", "before", "after", "allowed"),
    [
        (WHO, None, fault("daemon", ME), True),
        (WHO, None, fault("daemon", OTHER), False),
        (WHO, None, fault("fencer"), False),
        (WHO, None, fault("recovery"), False),
        (WHO, fault("daemon", OTHER), fault("daemon", ME), True),  # the VM has moved
        (WHO, fault("fencer", name=ME, kind="Hypervisor"), fault("daemon", ME, name=ME, kind="Hypervisor"), False),
        (WHO, None, fault("daemon", ME, name=OTHER, kind="Hypervisor"), False),
        (HostWriter(ME, coordinator=True), None, fault("fencer", ME), True),
        (HostWriter(ME, coordinator=True), None, fault("fencer"), False),
        (HostWriter(ME, coordinator=True), None, fault("fencer", OTHER), False),
        (HostWriter(ME, coordinator=True), fault("fencer", OTHER), fault("fencer", ME), True),  # its fencer goes on
        (HostWriter(ME, coordinator=True), fault("fencer", OTHER), fault("fencer", OTHER, delta=1), False),
        (HostWriter(ME, coordinator=True, term=2), None, fault("primary", ME), True),
        (HostWriter(ME, coordinator=True, term=2), None, fault("primary"), False),
        (HostWriter(ME, coordinator=True), fault("recovery"), fault("fencer", ME), False),
        (HostWriter(ME, coordinator=True), fault("recovery", ended=True), fault("fencer", ME), True),
        (WHO, fault("daemon", OTHER), fault("daemon", ME, ended=True), False),
        (WHO, None, fault("daemon", ME, kind="Cluster", name="default"), False),
        (WHO, None, _replace(fault("daemon", ME), metadata=ObjectMeta(name="d.vm")), False),
    ],
)
def test_faults_are_of_who_reports_them(who: HostWriter, before: Fault | None, after: Fault, allowed: bool) -> None:
    assert (host_refusal(who, before, after, Facts(vm=OURS)) == "") == allowed


def test_a_host_has_faults_of_vms_that_it_has_to_do_with_with_the_weight_of_their_code() -> None:
    theirs = Facts(vm=vm(assigned=Assigned(hypervisor=OTHER)))
    assert "nothing to do with the VM" in host_refusal(WHO, None, fault("daemon", ME), theirs)
    assert host_refusal(WHO, fault("daemon", ME), fault("daemon", ME, ended=True), theirs) == ""
    code = FaultCode.UNKNOWN_VM
    named = ObjectMeta(name=f"{code}.vm", labels=fault("daemon", ME).metadata.labels)
    for delta, allowed in ((code.delta, True), (100, False)):
        heavy = _replace(fault("daemon", ME, code=code, delta=delta), metadata=named)
        assert (host_refusal(WHO, None, heavy) == "") == allowed


@pytest.mark.parametrize(
    ("who", "dead_through", "changes", "allowed"),
    [
        (HostWriter(ME, coordinator=True), 1, {}, True),
        (HostWriter(ME, coordinator=True), 0, {}, False),  # it may still run what it reported
        (HostWriter(ME, coordinator=True), 1, {"message": "another"}, False),
        (HostWriter(ME, coordinator=True), 1, {"ended": False}, False),
        (HostWriter(ME, coordinator=True), None, {}, False),  # its Membership is not there
        (WHO, 1, {}, False),
    ],
)
def test_a_coordinator_ends_what_a_host_reported_that_is_proven_dead(
    who: HostWriter, dead_through: int | None, changes: dict[str, Any], allowed: bool
) -> None:
    before = fault("daemon", OTHER)
    after = _replace(before, **({"ended": True} | changes))
    record = MemberRecord(machine_id="m", boot_id="b", epoch=1, dead_through=dead_through or 0)
    members = (MemberView(host=OTHER, uid="u", record=record),) if dead_through is not None else ()
    assert needed_facts(ME, before, _replace(before, ended=True)).members == (OTHER,)
    assert (host_refusal(who, before, after, Facts(members=members)) == "") == allowed


def test_people_acknowledge_faults_and_controllers_leave_those_of_hosts_alone() -> None:
    there = fault("daemon", OTHER)
    assert write_refusal(HUMANS, there, _replace(there, acknowledged=True)) == ""
    assert "ended" in write_refusal(HUMANS, there, _replace(there, ended=True))
    assert "daemon kvm-2 reports it" in write_refusal(CONTROLLER, there, _replace(there, ended=True))
    assert write_refusal(CONTROLLER, None, fault("recovery")) == ""


def test_records_are_the_hosts_own_and_stay() -> None:
    mine = DecisionRecord(metadata=ObjectMeta(name="r"), decision="d", by="node kvm-1", at=AT)
    assert host_refusal(WHO, None, mine) == ""
    assert "records stay" in host_refusal(WHO, mine, _replace(mine, decision="e"))
    assert "its own are by 'node kvm-1'" in host_refusal(WHO, None, _replace(mine, by="node kvm-2"))


def test_a_host_says_that_the_store_went_back_and_ends_the_wait_only_for_hosts_that_have_registered() -> None:
    def paused(*hosts: str, incarnation: str = "now") -> Cluster:
        return _replace(NOW, status=ClusterStatus(store_incarnation=incarnation, pause=Pause(waits_for=hosts)))

    def facts(*registered: str) -> Facts:
        record = MemberRecord(machine_id="m", boot_id="b")
        members = [
            MemberView(host=one, uid="u", record=_replace(record, incarnation="now" if one in registered else "then"))
            for one in HOSTS
        ]
        return Facts(members=tuple(members), hosts=HOSTS)

    went_back = _replace(NOW, status=NOW.status.with_incarnation("new", Pause(waits_for=(ME,))))
    assert host_refusal(WHO, NOW, went_back) == ""
    silent = _replace(NOW, status=NOW.status.with_incarnation("new", Pause()))
    assert "without a pause that waits for kvm-1" in host_refusal(WHO, NOW, silent)
    assert host_refusal(WHO, NOW, paused(ME), facts(OTHER, THIRD)) == ""
    assert "kvm-1 is registered in this store" in host_refusal(WHO, NOW, paused(ME), facts(*HOSTS))
    assert "registered in this store" in host_refusal(WHO, NOW, paused(OTHER), facts(ME, THIRD))
    there = paused(ME, OTHER)
    assert "it waits for kvm-2" in host_refusal(WHO, there, NOW, facts(ME, THIRD))
    assert host_refusal(WHO, there, paused(OTHER), facts(ME, THIRD)) == ""
    assert host_refusal(WHO, there, NOW, facts(*HOSTS)) == ""
    assert "it waits for" in host_refusal(WHO, there, paused(ME, OTHER, "stranger"), facts(*HOSTS))
    assert host_refusal(WHO, there, paused(OTHER, THIRD), facts(ME, THIRD)) == ""  # it has registered just now
    assert "status.sealingKey" in host_refusal(WHO, NOW, _replace(NOW, status=_replace(NOW.status, sealing_key="k")))
    assert "status.sealingKey" in write_refusal(
        CONTROLLER, NOW, _replace(NOW, status=_replace(NOW.status, sealing_key="k"))
    )


def test_an_import_says_nothing_of_a_vm_that_a_host_holds() -> None:
    there = vm(source="import")
    assert write_refusal(HUMANS, there, vm(phase="ACTIVE", source="import", assigned=Assigned(hypervisor=OTHER))) == ""
    held = vm(assigned=Assigned(hypervisor=OTHER), holders=(THEIRS,))
    moved = _replace(held, status=_replace(held.status, assigned=Assigned(hypervisor=ME)))
    assert "a host holds it" in write_refusal(HUMANS, held, moved)
    assert "status.holders" in write_refusal(HUMANS, held, vm(assigned=Assigned(hypervisor=OTHER)))


def test_people_create_a_membership_only_for_one_that_was_lost() -> None:
    word = Proof(kind="operator", evidence="ann: it burned", epoch=1, by="ann")
    lost = member(machine_id="", boot_id="", state="Revoked", dead_through=1, proof=word)
    assert write_refusal(HUMANS, None, lost) == ""
    for one in (
        member(),
        member(machine_id="", boot_id="", state="Revoked", dead_through=0, proof=word),
        member(machine_id="", boot_id="", state="Revoked", dead_through=1, proof=_replace(word, kind="power")),
        member(machine_id="", boot_id="", state="Held", dead_through=1, proof=word),
    ):
        assert write_refusal(HUMANS, None, one)
    said = FormerMembership(uid="gone", dead_through=3, proof=word)
    assert write_refusal(HUMANS, member(), member(former=(said,))) == ""
    assert "another kind" in write_refusal(
        HUMANS, member(), member(former=(_replace(said, proof=_replace(word, kind="reboot")),))
    )
    assert "record.deadThrough" in write_refusal(HUMANS, member(), member(dead_through=1))
    assert "record.incarnation" in write_refusal(HUMANS, member(), member(incarnation="x"))


def test_what_is_given_at_a_creation() -> None:
    assert created_fields(member(state="Revoked")) == ["record.machineId", "record.bootId", "record.state"]
    assert created_fields(vm(phase="start")) == []  # the store drops it


def test_a_controller_writes_what_controllers_do() -> None:
    controller = Identity("c", Role.CONTROLLER)
    may_write(controller, VirtualMachine, status=True)
    check_write(controller, vm(), vm(assigned=Assigned(hypervisor=ME)))
    with pytest.raises(Forbidden, match=r"controller c may not write record\.seq of Membership/kvm-1"):
        check_write(controller, member(), member(seq=2))
    with pytest.raises(Forbidden, match="may not update the spec of flavors"):
        may_write(controller, Flavor)
    for kind in (VirtualMachine, Hypervisor):
        with pytest.raises(Forbidden):
            may_write(controller, kind, verb="delete")


def test_a_host_is_refused_by_name_before_anything_is_read() -> None:
    host = Identity("h", Role.HOST, host=ME)
    may_write(host, Membership, name=ME)
    may_write(host, VirtualMachine)  # its label
    for kind, verb in ((Membership, "update"), (HypervisorUsage, "update"), (Membership, "delete")):
        with pytest.raises(Forbidden, match=r"host (kvm-1 )?may not"):
            may_write(host, kind, name=OTHER, verb=verb)
    may_write(host, Hypervisor, name=ME)  # whether it is to be emptied
    with pytest.raises(Forbidden):
        may_write(host, Flavor)
    may_write(host, Hypervisor, name=ME, status=True)
    may_write(Identity("h", Role.COORDINATOR, host=ME), Membership, name=OTHER)


def osd(host: str = "", *, reported: bool = False) -> StorageDaemon:
    device = StorageDevice(host=host) if host else None
    status = StorageDaemonStatus() if reported else None
    return StorageDaemon(metadata=ObjectMeta(name="7"), device=device, status=status, term=int(reported))


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        (None, osd(ME), True),
        (None, osd(OTHER), False),
        (None, osd(), False),  # nobody's share would count it
        (osd(ME), osd(), False),
        (osd(ME, reported=True), osd(reported=True), True),
    ],
)
def test_a_storage_daemon_that_the_primary_does_not_know_is_always_of_its_host(
    before: StorageDaemon | None, after: StorageDaemon, allowed: bool
) -> None:
    assert (host_refusal(WHO, before, after) == "") == allowed


def test_what_hosts_create_is_counted_by_the_host_that_creates_it() -> None:
    """So no host fills the room of others: it has a share, one object of its name, or a role that one host has."""
    created = [one for one in KINDS.values() if {*DAEMON, *FENCER, *CANDIDATE, *PRIMARY} & {*one.info.writers.creates}]
    assert {Fault, StorageDaemon, DecisionRecord, Console, Membership} <= set(created)
    for kind in created:
        quota, of_hosts = kind.info.quota, {*DAEMON, *FENCER, *CANDIDATE} & {*kind.info.writers.creates}
        if quota.owners:
            assert quota.shares > 1, kind
        elif of_hosts:
            assert kind in NAMED_AFTER_HOSTS or kind is Election, f"{kind.kind()} has no owner"
        else:
            assert quota.mebibytes <= 64, f"the primary alone fills the store with {kind.info.plural}"


@pytest.mark.parametrize(
    "created",
    [
        osd(ME),
        fault("daemon", ME),
        fault("fencer", ME),
        fault("primary", ME),
        DecisionRecord(decision="d", by=HostWriter(ME).decider, at=AT),
        Console(metadata=ObjectMeta(name="vm"), host=ME, text="", changed_at=AT),
    ],
    ids=lambda one: f"{one.kind()}-{one.metadata.labels.get('outlive.dev/reporter', '')}",
)
def test_what_a_host_may_create_counts_to_its_own_share(created: Resource) -> None:
    who = HostWriter(ME, coordinator=True, term=1)
    assert host_refusal(who, None, created, Facts(vm=OURS)) == ""
    assert owner_of(encode(created), type(created).info.quota.owners) in (ME, who.decider)
