"""What a host may write: pure functions over who it is, the object as it was and as it is to be.

A host writes what its daemon owns (``KindInfo.writers``) of the objects that are its own, and of virtual machines that
it has to do with; a coordinator also what fencing owns of other hosts. Entries of other holders stay, unless they are
fenced by their Memberships (S2). The server asks this of every write that comes with a host's token, and the judge of
the simulation of every write of a daemon, so that what a daemon needs and what its token allows are the same
(docs/reference/http-api.md#hosts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from outlive.node.membership.states import MemberView, fenced
from outlive.node.primary import ROLE
from outlive.node.vm.states import reach_of
from outlive.resources import (
    HOST_LABEL,
    Cluster,
    Console,
    DecisionRecord,
    Election,
    Fault,
    Holder,
    HostLog,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    HypervisorUsage,
    Membership,
    Resource,
    StorageCluster,
    StorageDaemon,
    StorageDevice,
    StoragePool,
    VirtualMachine,
)
from outlive.resources.writers import ADMIN, CANDIDATE, DAEMON, FENCER, PRIMARY, changed_fields, everybody, owners_of
from outlive.runtime.faults import REPORTER_LABEL

_replace = msgspec.structs.replace


STORAGE: Final = (StorageCluster, StorageDaemon, StoragePool)
"""Kinds that the primary coordinator writes, and deletes."""


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
        return DAEMON + FENCER if self.coordinator else DAEMON

    @property
    def by(self) -> str:
        """Who decided, in its records of decisions."""
        return f"node {self.host}"


def host_refusal(
    who: HostWriter,
    before: Resource | None,
    after: Resource | None,
    members: Iterable[MemberView] = (),
    vm: VirtualMachine | None = None,
) -> str:
    """Why this host may not write that, as the end of a sentence; empty where it may.

    ``before`` is ``None`` for a creation, ``after`` for a deletion. ``members``: Memberships of the hosts whose
    holders' entries are dropped (``dropped``), read after ``before`` or earlier. ``vm``: whose console is written.
    """
    obj = after if after is not None else before
    assert obj is not None
    what = f"{obj.kind()}/{obj.name}" if obj.name else obj.kind()
    if after is None and not isinstance(obj, STORAGE):
        return f"may not delete {what}: hosts delete nothing"
    if isinstance(after, Console):
        return _console(who, what, after, vm)
    rule = _RULES.get(type(obj))
    if rule is None:
        return f"may not write {what}: it is none of a host's objects"
    return rule(who, what, before, after, tuple(members))


def kind_refusal(who: HostWriter, kind: type[Resource], name: str = "", verb: str = "update") -> str:
    """Why this host may write no object of the kind (of this name, if one is given), as far as that can be said before
    the object is known; empty where it may write some."""
    deletes = verb == "deletecollection" or (verb == "delete" and kind not in STORAGE)
    if kind not in (*_RULES, Console) or deletes or (verb == "create" and kind in _NEVER_MADE):
        return f"may not {verb} {kind.info.plural}"
    if kind in STORAGE and not who.coordinator and (kind is not StorageDaemon or verb == "delete"):
        return f"may not {verb} {kind.info.plural}: {who.host} is no coordinator"
    if kind is Election and (not who.coordinator or name not in ("", ROLE)):
        return f"may not {verb} {kind.info.plural}: coordinators are candidates for Election/{ROLE} alone"
    foreign = name not in ("", who.host)
    if foreign and (kind in (HypervisorUsage, HostLog) or (kind in (Membership, Hypervisor) and not who.coordinator)):
        return f"may not write {kind.kind()}/{name}: that is another host's"
    return ""


def writes_as_primary(obj: Resource) -> bool:
    """Whether it is an object that only the primary coordinator writes, so that its term is to be known."""
    return isinstance(obj, STORAGE) or (
        isinstance(obj, Fault) and obj.metadata.labels.get(REPORTER_LABEL) == PRIMARY[0]
    )


def writes_refusal(names: tuple[str, ...], before: Resource | None, after: Resource | None) -> str:
    """Why whoever writes under these names may not write that, as the end of a sentence; empty where they may."""
    obj = after if after is not None else before
    assert obj is not None
    what = f"{obj.kind()}/{obj.name}" if obj.name else obj.kind()
    if after is not None:
        return _fields(what, before, after, names)
    owners = everybody(type(obj))
    return (
        "" if any(name in owners for name in names) else f"may not delete {what}: that belongs to {' or '.join(owners)}"
    )


def admin_refusal(before: Resource | None, after: Resource | None) -> str:
    """Why only an administrator may write that, as the end of a sentence; empty where others may as well."""
    if after is None:
        return ""
    if isinstance(after, Console):
        return f"may not write {after.kind()}/{after.name}: its host does; others only delete it"
    paths = changed_fields(before, after) if before is not None else given_fields(after)
    path = next((one for one in paths if owners_of(type(after), one) == (ADMIN,)), "")
    return f"may not write {path} of {after.kind()}/{after.name}: that belongs to administrators" if path else ""


def dropped(host: str, before: VirtualMachine, after: VirtualMachine) -> tuple[Holder, ...]:
    """Entries of other hosts that are there before, and not after."""
    return tuple(one for one in before.status.holders if one.hypervisor != host and one not in after.status.holders)


def is_related(host: str, vm: VirtualMachine) -> bool:
    """Whether the host is one of a virtual machine's: assigned, a holder, a side of its move, its home, or one that it
    prefers and comes back to by itself."""
    return host in vm.related_hosts()


def _fields(what: str, before: Resource | None, after: Resource, names: tuple[str, ...]) -> str:
    """Why these names may not write what differs."""
    kind = type(after)
    paths = changed_fields(before, after) if before is not None else given_fields(after)
    for path in paths:
        if not owned(kind, path, names):
            owners = " or ".join(owners_of(kind, path)) or "nobody"
            return f"may not write {path} of {what}: that belongs to {owners}"
    return ""


@lru_cache(maxsize=16_384)
def owned(kind: type[Resource], path: str, names: tuple[str, ...]) -> bool:
    """Whether the field belongs to one of the names."""
    owners = owners_of(kind, path)
    return any(name in owners for name in names)


def given_fields(obj: Resource) -> list[str]:
    """The fields that whoever creates the object writes: those that are not as they are by default."""
    metadata = [f"metadata.{name}" for name in ("labels", "annotations", "finalizers") if getattr(obj.metadata, name)]
    given: list[str] = list(metadata)
    for field in msgspec.structs.fields(type(obj)):
        if field.name in ("metadata", "api_version"):
            continue
        value = getattr(obj, field.name)
        if isinstance(value, msgspec.Struct):
            given += [f"{field.encode_name}.{name}" for name in _non_default(value)]
        elif value != field.default:
            given.append(field.encode_name)
    return given


def _non_default(value: msgspec.Struct, usual: msgspec.Struct | None = None) -> Iterable[str]:
    """The fields that are not as in ``usual``, by default as their type has them; parts are looked into."""
    for field in msgspec.structs.fields(type(value)):
        default = field.default_factory() if callable(field.default_factory) else field.default
        expected = default if usual is None else getattr(usual, field.name)
        found = getattr(value, field.name)
        if found == expected:
            continue
        if isinstance(found, msgspec.Struct) and type(expected) is type(found):
            yield from (f"{field.encode_name}.{name}" for name in _non_default(found, expected))
        else:
            yield field.encode_name


def _membership(who: HostWriter, what: str, before: Any, after: Membership, _members: object) -> str:
    if after.name == who.host:
        if who.machine_id and after.record.machine_id != who.machine_id:
            return (
                f"may not write {what} for machine {after.record.machine_id or 'unknown'}: "
                f"{who.host} has joined as machine {who.machine_id}"
            )
        return _fields(what, before, after, who.names)
    if not who.coordinator:
        return f"may not write {what}: that is another host's, and {who.host} is no coordinator"
    return f"may not create {what}" if before is None else _fields(what, before, after, FENCER)


def _hypervisor(who: HostWriter, what: str, before: Any, after: Hypervisor, _members: object) -> str:
    if before is None:
        return _newcomer(who, what, after)
    if after.name == who.host:
        return _fields(what, before, after, who.names)
    return _fields(what, before, after, FENCER) if who.coordinator else f"may not write {what}: that is another host's"


def _newcomer(who: HostWriter, what: str, after: Hypervisor) -> str:
    """A host registers itself where nobody has, with labels, and as what its token says that it is."""
    if after.name != who.host:
        return f"may not create {what}: that is another host's"
    plain = HypervisorSpec(management="node", mode=after.spec.mode)
    if after.spec != plain or after.status != HypervisorStatus():
        return f"may not create {what} with more than labels and a mode: the rest belongs to users"
    if after.spec.mode == "coordinator" and not who.coordinator:
        return f"may not create {what} as a coordinator: {who.host} has joined as a plain host"
    return ""


def _own(who: HostWriter, what: str, before: Any, after: HypervisorUsage | HostLog, _members: object) -> str:
    if after.name != who.host:
        return f"may not write {what}: that is another host's"
    return _fields(what, before, after, DAEMON)


def _fault(who: HostWriter, what: str, before: Fault | None, after: Fault, _members: object) -> str:
    if not _reports(who, after):
        return f"may not write {what}: {_reporter(after)} reports it"
    about_host = after.subject.kind == "Hypervisor" and after.metadata.labels.get(REPORTER_LABEL) == "daemon"
    if about_host and after.subject.name != who.host:
        return f"may not write {what}: it is about another host"
    taken = before is not None and not before.ended and not _reports(who, before)
    # a VM that has moved takes its faults with it, whoever of its hosts raised them
    if taken and before is not None and (about_host or before.subject.kind != "VirtualMachine"):
        return f"may not write {what}: {_reporter(before)} reports it, and it has not ended"
    return _fields(what, before, after, DAEMON + FENCER + PRIMARY)


def _reports(who: HostWriter, fault: Fault) -> bool:
    labels = fault.metadata.labels
    if labels.get(REPORTER_LABEL) == "fencer":
        return who.coordinator and HOST_LABEL not in labels
    if writes_as_primary(fault):
        return who.term > 0 and HOST_LABEL not in labels
    return labels.get(REPORTER_LABEL) == "daemon" and labels.get(HOST_LABEL) == who.host


def _reporter(fault: Fault) -> str:
    labels = fault.metadata.labels
    return f"{labels.get(REPORTER_LABEL, 'somebody')} {labels.get(HOST_LABEL, '')}".strip()


def _cluster(_who: HostWriter, what: str, before: Any, after: Cluster, _members: object) -> str:
    """Any host may say that the store went back, and end a pause that it saw all hosts register in."""
    return f"may not create {what}: a controller does" if before is None else _fields(what, before, after, DAEMON)


def _election(who: HostWriter, what: str, before: Election | None, after: Election, _members: object) -> str:
    """A coordinator is a candidate for the role of the primary, and writes nobody else's name into it."""
    if not who.coordinator or after.name != ROLE:
        return f"may not write {what}: coordinators are candidates for Election/{ROLE} alone"
    kept = before is not None and before.record.holder == after.record.holder
    if after.record.holder not in ("", who.host) and not kept:
        return f"may not write {what} for {after.record.holder}: {who.host} is a candidate for itself"
    return _fields(what, before, after, CANDIDATE)


def _storage(who: HostWriter, what: str, before: Any, after: Any, _members: object) -> str:
    """What the storage cluster says is the primary's, under its term; each host says where its own daemons lie."""
    if after is None:
        return "" if who.term else f"may not delete {what}: only the primary coordinator does"
    if isinstance(after, StorageDaemon):
        given = before if before is not None else StorageDaemon(metadata=after.metadata)
        if why := _device(who, what, given.device, after.device):
            return why
        if (given.term, given.status) == (after.term, after.status):
            return _fields(what, before, after, DAEMON)
    if who.term == 0:
        return f"may not write {what}: only the primary coordinator does, and {who.host} is not"
    if after.term != who.term:
        return f"may not write {what} under term {after.term}: {who.host} is the primary in term {who.term}"
    return _fields(what, before, after, DAEMON + PRIMARY)


def _device(who: HostWriter, what: str, before: StorageDevice | None, after: StorageDevice | None) -> str:
    named = after if after is not None else before
    if before == after or named is None or named.host == who.host:
        return ""
    return f"may not write the device of {what}: {named.host or 'nobody'} is named there, and not {who.host}"


def _console(who: HostWriter, what: str, after: Console, vm: VirtualMachine | None) -> str:
    if after.host != who.host:
        return f"may not write {what} as {after.host[:80]}"
    related = vm is not None and is_related(who.host, vm)
    return "" if related else f"may not write {what}: {who.host} has nothing to do with the VM"


def _record(who: HostWriter, what: str, before: Any, after: DecisionRecord, _members: object) -> str:
    if before is not None:
        return f"may not change {what}: records stay as they are"
    return "" if after.by == who.by else f"may not write a record of {after.by!r}: its own are by {who.by!r}"


def _vm(
    who: HostWriter, what: str, before: VirtualMachine | None, after: VirtualMachine, members: tuple[MemberView, ...]
) -> str:
    if before is None:
        return f"may not create {what}: users do"
    if why := _fields(what, before, after, DAEMON):
        return why
    related = is_related(who.host, before)
    label = after.metadata.labels.get(HOST_LABEL)
    if label != before.metadata.labels.get(HOST_LABEL) and not related and label != before.host:
        return f"may not label {what}: {who.host} has nothing to do with it"
    foreign = [one for one in after.status.holders if one.hypervisor != who.host]
    added = next((one for one in foreign if one not in before.status.holders), None)
    if added is not None:
        return f"may not write the entry of {added.hypervisor} among the holders of {what}: each host writes its own"
    for one in dropped(who.host, before, after):
        if not fenced(one, members, reach_of(before)):
            return (
                f"may not drop the entry of {one.hypervisor} among the holders of {what}: "
                f"nothing proves that epoch {one.epoch} is fenced"
            )
    if not related and after.status != _replace(before.status, holders=after.status.holders):
        return f"may not write the status of {what}: {who.host} has nothing to do with it"
    return ""


_Rule = Callable[[HostWriter, str, Any, Any, tuple[MemberView, ...]], str]
_NEVER_MADE: Final = (Cluster, VirtualMachine)
_RULES: Final[Mapping[type[Resource], _Rule]] = {
    Cluster: _cluster,
    Membership: _membership,
    Hypervisor: _hypervisor,
    HypervisorUsage: _own,
    HostLog: _own,
    Election: _election,
    Fault: _fault,
    DecisionRecord: _record,
    StorageCluster: _storage,
    StorageDaemon: _storage,
    StoragePool: _storage,
    VirtualMachine: _vm,
}
"""Kinds of which a host writes any object."""
