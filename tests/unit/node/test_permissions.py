"""What a host's token may write, as properties over random objects, and the sentences that say why not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.field_writers import changed_paths

from outlive.api.auth import Identity, Role, check_write, may_write
from outlive.base.errors import Forbidden
from outlive.node.membership.states import MemberView, fenced
from outlive.node.permissions import HostWriter, dropped, given_fields, host_refusal, is_related
from outlive.node.vm.states import reach_of
from outlive.resources import (
    HOST_LABEL,
    Assigned,
    Cluster,
    Coverage,
    CoverageStatus,
    DecisionRecord,
    Election,
    Fault,
    FenceRecord,
    Flavor,
    FlavorSpec,
    Holder,
    HostLog,
    Hypervisor,
    HypervisorStatus,
    HypervisorUsage,
    MemberRecord,
    Membership,
    Migration,
    ObjectMeta,
    ObjectRef,
    Resource,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)
from outlive.resources.cluster import ClusterStatus
from outlive.resources.codec import to_builtins
from outlive.resources.hosts import HostUsage
from outlive.resources.writers import owners_of

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


@given(writers, vms, vms, views)
def test_what_is_allowed_keeps_every_entry_of_others_that_is_not_fenced(
    who: HostWriter, before: VirtualMachine, after: VirtualMachine, members: tuple[MemberView, ...]
) -> None:
    if host_refusal(who, before, after, members):
        return
    theirs = [one for one in before.status.holders if one.hypervisor != who.host]
    assert all(one in after.status.holders or fenced(one, members, reach_of(before)) for one in theirs)
    assert all(one in theirs for one in after.status.holders if one.hypervisor != who.host)
    assert after.spec == before.spec
    if not is_related(who.host, before):
        assert _replace(after.status, holders=()) == _replace(before.status, holders=())


@given(writers, vms, vms, views)
def test_what_is_allowed_belongs_to_the_daemon(
    who: HostWriter, before: VirtualMachine, after: VirtualMachine, members: tuple[MemberView, ...]
) -> None:
    if not host_refusal(who, before, after, members):
        for path in changed_paths(to_builtins(before), to_builtins(after)):
            assert "daemon" in owners_of(VirtualMachine, path)


OWN: tuple[Resource, ...] = (
    vm(),
    member(),
    Cluster(metadata=ObjectMeta(name="default")),
    Hypervisor(metadata=ObjectMeta(name=ME)),
    HypervisorUsage(metadata=ObjectMeta(name=ME), usage=HostUsage()),
)
FOREIGN: tuple[Resource, ...] = (
    Coverage(metadata=ObjectMeta(name="vm"), status=CoverageStatus(required=1, covered=True)),
    Flavor(metadata=ObjectMeta(name="m"), spec=FlavorSpec(flavor_name="m")),
    Election(metadata=ObjectMeta(name="failover")),
)


@given(writers, st.sampled_from((*OWN, *FOREIGN)))
def test_a_host_deletes_nothing(who: HostWriter, obj: Resource) -> None:
    assert "may not delete" in host_refusal(who, obj, None)


@given(st.booleans(), st.sampled_from((*OWN, *FOREIGN)))
def test_an_object_that_stays_as_it_is_is_refused_only_for_what_it_is(coordinator: bool, obj: Resource) -> None:
    assert (host_refusal(HostWriter(ME, coordinator), obj, obj) == "") == (obj in OWN)


def test_an_entry_goes_with_the_proof_that_it_is_fenced() -> None:
    there = Holder(hypervisor=OTHER, member_uid="u", epoch=2, run_id="r")
    before = vm(assigned=Assigned(hypervisor=ME), holders=(there,))
    after = vm(assigned=Assigned(hypervisor=ME), holders=(Holder(hypervisor=ME, member_uid="w", epoch=1, run_id="s"),))
    assert dropped(ME, before, after) == (there,)
    assert "nothing proves that epoch 2 is fenced" in host_refusal(WHO, before, after)
    record = MemberRecord(machine_id="m", boot_id="b", epoch=3, dead_through=2)
    assert host_refusal(WHO, before, after, [MemberView(host=OTHER, uid="u", record=record)]) == ""


def test_a_host_may_say_that_it_runs_what_nobody_knows_of_it_and_nothing_else() -> None:
    """After a restored backup: a VM may run on a host of which its document does not speak."""
    before = vm(phase="start", assigned=Assigned(hypervisor=OTHER))
    mine = Holder(hypervisor=ME, member_uid="w", epoch=1, run_id="s")
    assert host_refusal(WHO, before, vm(phase="start", assigned=Assigned(hypervisor=OTHER), holders=(mine,))) == ""
    why = host_refusal(WHO, before, vm(phase="stop", assigned=Assigned(hypervisor=OTHER), holders=(mine,)))
    assert why == "may not write the status of VirtualMachine/vm: kvm-1 has nothing to do with it"


def test_the_label_of_the_host_is_set_right_by_anybody_and_set_wrong_by_nobody() -> None:
    before = vm(assigned=Assigned(hypervisor=OTHER))
    right, wrong = (_replace(before, metadata=ObjectMeta(name="vm", labels={HOST_LABEL: one})) for one in (OTHER, ME))
    assert host_refusal(WHO, before, right) == ""
    assert "kvm-1 has nothing to do with it" in host_refusal(WHO, before, wrong)


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


def fault(
    reporter: str, host: str = "", *, kind: str = "VirtualMachine", name: str = "vm", ended: bool = False
) -> Fault:
    tags = {"outlive.dev/reporter": reporter} | ({HOST_LABEL: host} if host else {})
    subject = ObjectRef(kind=kind, name=name)
    meta = ObjectMeta(name=f"c.{name}", labels=tags)
    return Fault(metadata=meta, code="c", subject=subject, message="m", first_seen=AT, last_seen=AT)


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
        (HostWriter(ME, coordinator=True), None, fault("fencer"), True),
        (HostWriter(ME, coordinator=True), fault("recovery"), fault("fencer"), True),
    ],
)
def test_faults_are_of_who_reports_them(who: HostWriter, before: Fault | None, after: Fault, allowed: bool) -> None:
    assert (host_refusal(who, before, after) == "") == allowed


def test_records_are_the_hosts_own_and_stay() -> None:
    mine = DecisionRecord(metadata=ObjectMeta(name="r"), decision="d", by="node kvm-1", at=AT)
    assert host_refusal(WHO, None, mine) == ""
    assert "records stay" in host_refusal(WHO, mine, _replace(mine, decision="e"))
    assert "its own are by 'node kvm-1'" in host_refusal(WHO, None, _replace(mine, by="node kvm-2"))


def test_the_pause_of_the_cluster_and_nothing_else_of_it() -> None:
    cluster = Cluster(metadata=ObjectMeta(name="default"))
    assert host_refusal(WHO, cluster, _replace(cluster, status=ClusterStatus(store_incarnation="i"))) == ""
    assert "status.schemaVersion" in host_refusal(
        WHO, cluster, _replace(cluster, status=ClusterStatus(schema_version=2))
    )


def test_what_is_given_at_a_creation() -> None:
    assert given_fields(member(state="Revoked")) == ["record.machineId", "record.bootId", "record.state"]
    assert given_fields(vm(phase="start")) == ["status.phase"]


def test_a_controller_writes_what_controllers_do() -> None:
    controller = Identity("c", Role.CONTROLLER)
    may_write(controller, VirtualMachine, status=True)
    check_write(controller, vm(), vm(assigned=Assigned(hypervisor=ME)))
    with pytest.raises(Forbidden, match=r"controller c may not write record\.seq of Membership/kvm-1"):
        check_write(controller, member(), member(seq=2))
    with pytest.raises(Forbidden, match="may not write the spec of flavors"):
        may_write(controller, Flavor)


def test_a_host_is_refused_by_name_before_anything_is_read() -> None:
    host = Identity("h", Role.HOST, host=ME)
    may_write(host, Membership, name=ME)
    may_write(host, VirtualMachine)  # its label
    for kind, verb in ((Membership, "update"), (HypervisorUsage, "update"), (Membership, "delete")):
        with pytest.raises(Forbidden, match="the token of host kvm-1 may not"):
            may_write(host, kind, name=OTHER, verb=verb)
    with pytest.raises(Forbidden):
        may_write(host, Hypervisor, name=ME)  # its spec is the users'
    may_write(host, Hypervisor, name=ME, status=True)
    may_write(Identity("h", Role.COORDINATOR, host=ME), Membership, name=OTHER)
