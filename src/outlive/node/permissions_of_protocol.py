"""What writes must keep to that the safety protocol rests on: of virtual machines, Memberships, hosts and the cluster.

Each rule is a function over who writes, the object before and after, and facts; it answers why not, as the end of a
sentence. Its docstring is in the manual (docs/reference/permissions.md#rules).
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.node.membership.join import is_nobodys
from outlive.node.membership.pause import waits_for
from outlive.node.membership.states import MemberView, is_fenced
from outlive.node.vm.states import reach_of
from outlive.resources import (
    CANDIDATE,
    DAEMON,
    FENCER,
    HEARD,
    HOST_LABEL,
    OBSERVED,
    PRIMARY,
    READY,
    RUN_FINALIZER,
    SHARES_LABEL,
    Cluster,
    Holder,
    Hypervisor,
    MemberRecord,
    Membership,
    Migration,
    Pause,
    Proof,
    VirtualMachine,
    VirtualMachineStatus,
    find_condition,
)

# Who writes as a host, and what has to be known to judge a write (``outlive.node.permissions``).


class HostWriter(msgspec.Struct, frozen=True):
    """A host that writes."""

    host: str
    coordinator: bool = False
    machine_id: str = ""
    """Of the machine that may use this name; empty: any."""
    term: int = 0
    """In which it is the primary coordinator; 0: it is not."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which it writes."""
        fencer = FENCER + CANDIDATE if self.coordinator else ()
        return DAEMON + fencer + (PRIMARY if self.term else ())

    @property
    def decider(self) -> str:
        """Who decided, in its records of decisions."""
        return f"node {self.host}"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the store says besides the object that is written, read after ``before`` or earlier (``needed_facts``)."""

    members: tuple[MemberView, ...] = ()
    vm: VirtualMachine | None = None
    """Whose console or fault is written."""
    cluster: Cluster | None = None
    hosts: tuple[str, ...] = ()
    """All hosts that have a daemon of ours."""


class NeededFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be read to judge one write."""

    members: tuple[str, ...] = ()
    """Hosts whose Memberships are needed."""
    vm: str = ""
    cluster: bool = False
    every_host: bool = False
    """All Memberships and all hosts."""
    term: bool = False
    """Whether only the primary coordinator writes it."""


NO_FACTS: Final = Facts()


OWN_PROOFS: Final = ("reboot", "self-cleaned")
"""Kinds of proof that a host gives about itself."""

_replace = msgspec.structs.replace


# Virtual machines


def is_related(host: str, vm: VirtualMachine) -> bool:
    """Whether the host is one of a virtual machine's: assigned, a holder, a side of its move, its home, or one that it
    prefers and comes back to by itself."""
    return _may_place(host, vm) or any(one.hypervisor == host for one in vm.status.holders)


def _may_place(host: str, vm: VirtualMachine) -> bool:
    """The same but for a holder: its own entry does not make a virtual machine a host's."""
    status, spec = vm.status, vm.spec
    move = (status.migration.source, status.migration.target) if status.migration is not None else ()
    prefers = spec.failback in ("planned", "auto") and host in spec.preferred_hosts.weights
    return host in (vm.host, status.home, *move) or prefers


def dropped_holders(host: str, before: VirtualMachine, after: VirtualMachine) -> tuple[Holder, ...]:
    """Entries of others than this host that are there before, and not after."""
    kept = frozenset(after.status.holders)
    return tuple([one for one in before.status.holders if one.hypervisor != host and one not in kept])


def entered_holders(host: str, before: VirtualMachine, after: VirtualMachine) -> list[Holder]:
    """Entries of this host that are there after, for a run or in an epoch for which none was there before."""
    known = {(one.hypervisor, one.member_uid, one.epoch, one.run_id) for one in before.status.holders}
    return [
        one
        for one in after.status.holders
        if one.hypervisor == host and (one.hypervisor, one.member_uid, one.epoch, one.run_id) not in known
    ]


def check_vm_of_host(who: HostWriter, what: str, before: VirtualMachine, after: VirtualMachine, facts: Facts) -> str:
    """A host writes the status of a VM that belongs to it. Among the holders it writes only its own entry, of its
    Membership and present epoch. The entry may be new only if the VM is assigned to the host and no other host holds
    it, if the VM is moving there, or if the host registers again what it runs after a restored backup. It removes the
    entry of another host only once that host's Membership proves it fenced. It adds the finalizer
    ``outlive.dev/may-run`` and never removes it. A host that merely holds the VM may assign it to itself, once no other
    host holds it, and decline a run of its own that never ran (``migration.declined``)."""
    finalizers = before.metadata.finalizers
    if after.metadata.finalizers not in (finalizers, (*finalizers, RUN_FINALIZER)):
        return f"may not write metadata.finalizers of {what}: a host adds {RUN_FINALIZER}, and removes none"
    related = is_related(who.host, before)
    label = after.metadata.labels.get(HOST_LABEL)
    if label != before.metadata.labels.get(HOST_LABEL) and not related and label != before.host:
        return f"may not label {what}: {who.host} has nothing to do with it"
    shares = [one.metadata.labels.get(SHARES_LABEL) for one in (before, after)]
    if shares[0] != shares[1] and after.marked is not after:
        return f"may not write metadata.labels.{SHARES_LABEL} of {what}: that says whether spec.sharedDisks names disks"
    if why := _check_holders(who.host, what, before, after, facts):
        return why
    old, new = before.status, after.status
    if not related and new != _replace(old, holders=new.holders):
        return f"may not write the status of {what}: {who.host} has nothing to do with it"
    moved = (old.assigned, old.home, old.migration) != (
        new.assigned,
        new.home,
        _move_besides_declined(who.host, old, new),
    )
    kept = after.host == who.host and all(one.hypervisor == who.host for one in new.holders)
    if moved and not (kept or _may_place(who.host, before)):
        return f"may not say where {what} is: {who.host} only holds it"
    return ""


def _move_besides_declined(host: str, old: VirtualMachineStatus, new: VirtualMachineStatus) -> Migration | None:
    """The new record of the move, without that a run of this host was declined: of a move that another one followed."""
    before, after = old.migration, new.migration
    runs = {one.run_id for one in old.holders if one.hypervisor == host}
    if before is None or after is None or after.declined not in runs:
        return after
    return _replace(after, declined=before.declined)


def _check_holders(host: str, what: str, before: VirtualMachine, after: VirtualMachine, facts: Facts) -> str:
    """Why entries may not become like that; ``host`` empty: nobody's are the writer's own."""
    foreign = [one for one in after.status.holders if one.hypervisor != host]
    known = frozenset(before.status.holders)
    added = next((one for one in foreign if one not in known), None)
    if added is not None:
        return f"may not write the entry of {added.hypervisor} among the holders of {what}: each host writes its own"
    for one in dropped_holders(host, before, after):
        if not is_fenced(one, facts.members, reach_of(before)):
            return (
                f"may not drop the entry of {one.hypervisor} among the holders of {what}: "
                f"nothing proves that epoch {one.epoch} is fenced"
            )
    member = next((one for one in facts.members if one.host == host), None)
    runs = {(one.member_uid, one.run_id) for one in before.status.holders}
    for one in entered_holders(host, before, after) if host else ():
        if member is None or one.member_uid != member.uid or one.epoch > member.record.epoch:
            return f"may not enter itself among the holders of {what}: that is no entry of its present membership"
        goes_on = (one.member_uid, one.run_id) in runs
        move = before.status.migration
        comes = move is not None and move.target == host
        alone = before.host == host and not foreign
        if not (goes_on or comes or alone or _registers(member.record, facts.cluster)):
            why = f"{foreign[0].hypervisor} holds it" if before.host == host else f"it is not assigned to {host}"
            return f"may not enter itself among the holders of {what}: {why}"
    return ""


def _registers(record: MemberRecord, cluster: Cluster | None) -> bool:
    """Whether the host has yet to register what it runs, in a store that was restored from a backup: others still wait
    for that, or it was registered in the store before."""
    if cluster is None or record.incarnation == cluster.status.store_incarnation:
        return False
    return cluster.paused or record.incarnation in cluster.status.former_incarnations


def check_vm_by_controller(
    names: tuple[str, ...], before: VirtualMachine | None, after: VirtualMachine, facts: Facts
) -> str:
    """A controller removes a holder only once the Membership of that host proves it fenced, and adds none. It removes
    the finalizer ``outlive.dev/may-run`` only if no host holds the VM. An import writes no VM that a host holds or
    moves."""
    if before is None:
        return ""
    what = f"VirtualMachine/{after.name}"
    if before.guarded and not after.guarded and before.status.holders:
        return f"may not remove {RUN_FINALIZER} of {what}: {before.status.holders[0].hypervisor} holds it"
    if before.status == after.status:
        return ""
    if "recovery" not in names and (before.status.holders or before.status.migration is not None):
        return f"may not write the status of {what}: a host holds it, and says itself how it is"
    return _check_holders("", what, before, after, facts)


# Memberships and hosts


def check_membership_of_host(
    who: HostWriter, what: str, before: Membership | None, after: Membership, facts: Facts
) -> str:
    """A host writes its own, as the machine that has joined. About itself it may prove only that it has booted
    (``reboot``) or has nothing left (``self-cleaned``). A coordinator condemns other hosts and proves them dead.
    ``deadThrough`` never falls."""
    old, new = before.record if before is not None else None, after.record
    if old is not None and new.dead_through < old.dead_through:
        return f"may not lower record.deadThrough of {what}: what is proven stays proven"
    if after.name != who.host:
        if old is not None and new.state not in (old.state, "Revoked"):
            return f"may not write record.state {new.state} of {what}: only {after.name} comes back or leaves"
        return ""
    if who.machine_id and new.machine_id != who.machine_id:
        return (
            f"may not write {what} for machine {new.machine_id or 'unknown'}: "
            f"{who.host} has joined as machine {who.machine_id}"
        )
    known = frozenset(_list_proofs(old)) if old is not None else frozenset()
    for proof in _list_proofs(new):
        if proof not in known and (proof.kind not in OWN_PROOFS or proof.by != who.host):
            return f"may not give a proof of kind {proof.kind} in {what}: others prove that of {who.host}"
    now = facts.cluster.status.store_incarnation if facts.cluster is not None else ""
    if old is not None and now and old.incarnation == now != new.incarnation:
        return f"may not write record.incarnation of {what}: {who.host} is registered in this store"
    was = old.incarnation if old is not None else ""
    if new.incarnation not in (was, now) and facts.cluster is not None and not facts.cluster.paused:
        return f"may not write record.incarnation of {what}: it names another store, and the cluster is not paused"
    return ""


def _list_proofs(record: MemberRecord) -> tuple[Proof, ...]:
    """Of what is over of the Membership, and of former ones."""
    return (*((record.proof,) if record.proof is not None else ()), *(one.proof for one in record.former))


def check_lost_membership(_names: tuple[str, ...], before: Membership | None, after: Membership, _facts: Facts) -> str:
    """People create one only for a host whose Membership is lost, for no machine, and as proven dead by their
    confirmation (``outlive fence --confirm-off``), or add such a confirmation to another one (``former``)."""
    what, record = f"Membership/{after.name}", after.record
    old = before.record if before is not None else None
    known = frozenset(_list_proofs(old)) if old is not None else frozenset()
    if any(one.kind != "operator" for one in _list_proofs(record) if one not in known):
        return f"may not give a proof of another kind than operator in {what}"
    if old is not None:
        changed = old.incarnation != record.incarnation and not is_nobodys(old)
        return f"may not write record.incarnation of {what}: its host does" if changed else ""
    lost = is_nobodys(record) and record.state == "Revoked" and record.dead_through >= record.epoch
    bare = _replace(record, machine_id="", boot_id="", cut=type(record.cut)(), guard=type(record.guard)())
    if not lost or bare != record or any(one.kind != "operator" for one in record.fence.findings):
        return (
            f"may not create {what}: its host does, or where it was lost outlive fence HOST --confirm-off --reason ..."
        )
    return ""


def check_hypervisor_of_host(
    who: HostWriter, what: str, before: Hypervisor | None, after: Hypervisor, _facts: Facts
) -> str:
    """A host registers itself if it is not registered, with labels and in the mode that its token names. Of its spec it
    writes only ``drain``."""
    if before is not None:
        return ""
    if after.name != who.host:
        return f"may not create {what}: that is another host's"
    if after.spec.management != "node":
        return f"may not create {what} with the management {after.spec.management}: it has a daemon of ours"
    if after.spec.mode == "coordinator" and not who.coordinator:
        return f"may not create {what} as a coordinator: {who.host} has joined as a plain host"
    return ""


def check_hypervisor_by_controller(
    names: tuple[str, ...], before: Hypervisor | None, after: Hypervisor, _facts: Facts
) -> str:
    """Of the conditions of a host a controller writes only ``Ready``, while it does not hear of the host, and withdraws
    that."""
    if before is None or before.status.conditions == after.status.conditions or {"import", "mirror"} & {*names}:
        return ""
    what = f"Hypervisor/{after.name}"
    old, new = find_condition(before.status.conditions, READY), find_condition(after.status.conditions, READY)
    if [one for one in before.status.conditions if one is not old] != [
        one for one in after.status.conditions if one is not new
    ]:
        return f"may not write conditions of {what} besides {READY}"
    if new is None or new.reason not in (HEARD, *OBSERVED.values()):
        return f"may not write condition {READY} of {what} but with what it observes ({', '.join(OBSERVED.values())})"
    if (new.status == "True") != (new.reason == HEARD):
        return f"may not write condition {READY}={new.status} of {what} with reason {new.reason}"
    if old is not None and old.status != "True" and old.reason not in OBSERVED.values():
        return f"may not write condition {READY} of {what}: the host says itself that it is {old.reason}"
    return ""


# The cluster


def check_cluster_of_host(who: HostWriter, what: str, before: Cluster, after: Cluster, facts: Facts) -> str:
    """A host says that the store went back, and that it has yet to register itself. It ends the wait for other hosts
    only if their Memberships say that they have registered."""
    old, new = before.status, after.status
    said = new.pause.waits_for if new.pause is not None else ()
    if old.store_incarnation != new.store_incarnation:
        became = (
            new.pause is not None
            and said == (who.host,)
            and new == old.with_incarnation(new.store_incarnation, new.pause)
        )
        became = became and not old.knows(new.store_incarnation)
        return "" if became else f"may not write the incarnation of {what} without a pause that waits for {who.host}"
    if old.former_incarnations != new.former_incarnations:
        return f"may not write status.formerIncarnations of {what} alone"
    if old.pause == new.pause:
        return ""
    members = {one.host: one.record for one in facts.members}
    waits = waits_for(before, members, facts.hosts)
    waited = old.pause.waits_for if old.pause is not None else ()
    known = members.get(who.host)
    registered = known is not None and known.incarnation == old.store_incarnation
    if set(waited) | {who.host} == set(said) and not registered:
        return ""
    if old.pause is None:
        return f"may not pause {what}: {who.host} is registered in this store"
    if (new.pause is None) != (said == ()) or not set(waits) <= set(said) <= {*waited, *waits, *members, *facts.hosts}:
        return f"may not end the pause of {what}: it waits for {', '.join(waits) or 'others'}"
    kept = new.pause is None or _replace(new.pause, waits_for=()) == _replace(old.pause or Pause(), waits_for=())
    return "" if kept else f"may not write the reason of the pause of {what}"
