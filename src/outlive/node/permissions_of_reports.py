"""What writes of faults, elections, storage, consoles and records of decisions must keep to.

As in ``outlive.node.permissions_of_protocol``.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from outlive.node.membership.states import is_dead
from outlive.node.permissions_of_protocol import Facts, HostWriter, is_related
from outlive.node.primary_elector import ROLE
from outlive.resources import (
    HOST_LABEL,
    PRIMARY,
    WRITER_LABEL,
    Console,
    DecisionRecord,
    DhcpLease,
    Election,
    Fault,
    Hypervisor,
    Resource,
    StorageCluster,
    StorageDaemon,
    StoragePool,
    VirtualMachine,
    VirtualNetwork,
)
from outlive.resources.reasons import FaultCode
from outlive.runtime import REPORTER_LABEL, fault_name

STORAGE: Final = (StorageCluster, StorageDaemon, StoragePool)
"""Kinds that the primary coordinator writes, and deletes."""

_replace = msgspec.structs.replace


def writes_as_primary(obj: Resource) -> bool:
    """Whether it is an object that the primary coordinator writes, or a part of, so that its term is to be known."""
    return isinstance(obj, (*STORAGE, VirtualNetwork, DhcpLease)) or (
        isinstance(obj, Fault) and obj.metadata.labels.get(REPORTER_LABEL) == PRIMARY[0]
    )


def check_fault_of_host(who: HostWriter, what: str, before: Fault | None, after: Fault, facts: Facts) -> str:
    """A host reports faults of itself and of its VMs; a coordinator also those of fencing, and the primary those of
    storage. Each fault has the name and the weight of its code. A host ends no fault of others; a coordinator also ends
    those that a host proven dead had reported."""
    gone = ended_reporter(before, after)
    if who.coordinator and any(one.host == gone and is_dead(one.record) for one in facts.members):
        return ""
    if not _is_reporter(who, after):
        return f"may not write {what}: {_reporter_text(after)} reports it"
    if after.metadata.labels.get(REPORTER_LABEL) != "daemon" and after.metadata.labels.get(WRITER_LABEL) != who.host:
        return f"may not write {what} without the label {WRITER_LABEL}={who.host}, by which its share is counted"
    if after.name != fault_name(after.code, after.subject):
        return f"may not write {what}: the fault is {fault_name(after.code, after.subject)}"
    code = after.code if after.code in list(FaultCode) else None
    if code is not None and after.delta != FaultCode(code).delta:
        return f"may not write {what} with delta {after.delta}: that of {code} is {FaultCode(code).delta}"
    goes_on = before is not None and _is_reporter(who, before)
    if after.metadata.labels.get(REPORTER_LABEL) == "daemon" and not goes_on:
        if after.subject.kind == VirtualMachine.kind():
            if facts.vm is not None and not is_related(who.host, facts.vm):
                return f"may not write {what}: {who.host} has nothing to do with the VM"
        elif (after.subject.kind, after.subject.name) != (Hypervisor.kind(), who.host):
            return f"may not write {what}: it is not about {who.host}"
    if before is None or before.ended or goes_on:
        return ""
    # a VM that has moved takes its faults with it
    moved = before.metadata.labels.get(REPORTER_LABEL) == "daemon" and before.subject.kind == VirtualMachine.kind()
    return "" if moved and not after.ended else f"may not write {what}: {_reporter_text(before)} reports it"


def _is_reporter(who: HostWriter, fault: Fault) -> bool:
    labels = fault.metadata.labels
    if labels.get(REPORTER_LABEL) == "fencer":
        return who.coordinator and HOST_LABEL not in labels
    if writes_as_primary(fault):
        return who.term > 0 and HOST_LABEL not in labels
    return labels.get(REPORTER_LABEL) == "daemon" and labels.get(HOST_LABEL) == who.host


def ended_reporter(before: Resource | None, after: Resource | None) -> str:
    """The host whose daemon reported the fault, where the write does nothing but end it; else empty."""
    if not (isinstance(before, Fault) and isinstance(after, Fault)):
        return ""
    if before.ended or _replace(before, ended=True, last_seen=after.last_seen, metadata=after.metadata) != after:
        return ""
    labels = before.metadata.labels
    ours = labels.get(REPORTER_LABEL) == "daemon" and after.metadata.labels == labels
    return labels.get(HOST_LABEL, "") if ours else ""


def _reporter_text(fault: Fault) -> str:
    labels = fault.metadata.labels
    return f"{labels.get(REPORTER_LABEL, 'somebody')} {labels.get(HOST_LABEL, '')}".strip()


def check_fault_by_controller(_names: tuple[str, ...], before: Fault | None, after: Fault, _facts: Facts) -> str:
    """Controllers report faults of their own, and people acknowledge any. Only hosts write those that hosts report."""
    if before is not None and _replace(before, acknowledged=after.acknowledged) == after:
        return ""
    for one in (before, after):
        if one is not None and one.metadata.labels.get(REPORTER_LABEL) in ("daemon", "fencer", "primary"):
            return f"may not write Fault/{after.name}: {_reporter_text(one)} reports it"
    return ""


def check_election_of_host(who: HostWriter, what: str, before: Election | None, after: Election, _facts: Facts) -> str:
    """A coordinator is a candidate for ``Election/primary``, and writes only its own name into it."""
    if after.name != ROLE:
        return f"may not write {what}: coordinators are candidates for Election/{ROLE} alone"
    kept = before is not None and before.record.holder == after.record.holder
    if after.record.holder not in ("", who.host) and not kept:
        return f"may not write {what} for {after.record.holder}: {who.host} is a candidate for itself"
    return ""


def check_election_by_controller(
    _names: tuple[str, ...], _before: Election | None, after: Election, _facts: Facts
) -> str:
    """Controllers are candidates for every role but that of the primary coordinator."""
    return f"may not write Election/{ROLE}: coordinators are its candidates" if after.name == ROLE else ""


def check_storage_of_host(who: HostWriter, what: str, before: Any, after: Any, _facts: Facts) -> str:
    """The primary writes what the storage cluster reports, under its term. Each host writes where its own daemons
    lie."""
    if after is None:
        return "" if who.term else f"may not delete {what}: only the primary coordinator does"
    if isinstance(after, StorageDaemon):
        given = before if before is not None else StorageDaemon(metadata=after.metadata)
        if after.device is None and not who.term and (before is None or before.status is None):
            return f"may not write {what} without a device: nothing else says whose it is"
        named = after.device if after.device is not None else given.device
        if given.device != after.device and named is not None and named.host != who.host:
            owner = named.host or "nobody"
            return f"may not write the device of {what}: {owner} is named there, and not {who.host}"
        if (given.term, given.status) == (after.term, after.status):
            return ""
    if after.term != who.term:
        return f"may not write {what} under term {after.term}: {who.host} is the primary in term {who.term}"
    return ""


def check_console_of_host(who: HostWriter, what: str, _before: object, after: Console, facts: Facts) -> str:
    """A host writes those of its VMs, in its own name."""
    if after.host != who.host:
        return f"may not write {what} as {after.host[:80]}"
    related = facts.vm is not None and is_related(who.host, facts.vm)
    return "" if related else f"may not write {what}: {who.host} has nothing to do with the VM"


def check_record_of_host(who: HostWriter, what: str, before: Any, after: DecisionRecord, _facts: Facts) -> str:
    """A host creates records of its own decisions, and changes none."""
    if before is not None:
        return f"may not change {what}: records stay as they are"
    return "" if after.by == who.decider else f"may not write a record of {after.by!r}: its own are by {who.decider!r}"
