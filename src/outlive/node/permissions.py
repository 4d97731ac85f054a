"""What a write must keep to besides the table of writers: pure functions over who writes, the object before and after.

The table says which fields belong to whom (``resources.writers``). A host writes them of objects that are its own, and
of virtual machines that it has to do with; a coordinator also what fencing owns of other hosts. Nobody drops an entry
among the holders of a virtual machine that is not fenced by its Membership (S2). The server asks this of every write
with a token, and the store of the simulation of every write of every process, so that what a program needs and what
its token allows are the same (docs/reference/permissions.md#rules).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from outlive.base import Forbidden
from outlive.node.permissions_of_protocol import (
    NO_FACTS,
    Facts,
    HostWriter,
    NeededFacts,
    check_cluster_of_host,
    check_hypervisor_by_controller,
    check_hypervisor_of_host,
    check_lost_membership,
    check_membership_of_host,
    check_vm_by_controller,
    check_vm_of_host,
    dropped_holders,
    entered_holders,
)
from outlive.node.permissions_of_reports import (
    STORAGE,
    check_console_of_host,
    check_election_by_controller,
    check_election_of_host,
    check_fault_by_controller,
    check_fault_of_host,
    check_record_of_host,
    check_storage_of_host,
    ended_reporter,
    writes_as_primary,
)
from outlive.node.primary_elector import ROLE
from outlive.resources import (
    FENCER,
    PRIMARY,
    Cluster,
    Console,
    DecisionRecord,
    Election,
    Fault,
    HostLog,
    Hypervisor,
    HypervisorUsage,
    Membership,
    Resource,
    StorageCluster,
    StorageDaemon,
    StoragePool,
    VirtualMachine,
    may_write_some,
    table_refusal,
)

NAMED_AFTER_HOSTS: Final = (Hypervisor, HypervisorUsage, HostLog, Membership)
"""Kinds with one object for each host, of the host's name."""


def needed_facts(host: str, before: Resource | None, after: Resource | None) -> NeededFacts:
    """What has to be read to judge this write; ``host``: that writes, empty for others."""
    term = any(one is not None and writes_as_primary(one) for one in (before, after))
    if isinstance(before, VirtualMachine) and isinstance(after, VirtualMachine):
        members = {one.hypervisor for one in dropped_holders(host, before, after)}
        entered = host != "" and any(entered_holders(host, before, after))
        return NeededFacts(members=tuple(sorted(members | ({host} if entered else set()))), cluster=entered)
    if host == "":
        return NeededFacts()
    if isinstance(after, Membership):
        was = before.record.incarnation if isinstance(before, Membership) else ""
        return NeededFacts(cluster=was != after.record.incarnation)
    if isinstance(before, Cluster) and isinstance(after, Cluster):
        return NeededFacts(every_host=before.status.pause != after.status.pause)
    if isinstance(after, Console):
        return NeededFacts(vm=after.name)
    if isinstance(after, Fault) and after.subject.kind == VirtualMachine.kind():
        gone = ended_reporter(before, after)
        return NeededFacts(vm=after.subject.name, term=term, members=(gone,) if gone not in ("", host) else ())
    return NeededFacts(term=term)


def write_refusal(
    names: tuple[str, ...], before: Resource | None, after: Resource | None, facts: Facts = NO_FACTS
) -> str:
    """Why a person or program that is no host may not write that, as the end of a sentence; empty where they may.

    ``before`` is ``None`` for a creation, ``after`` for a deletion.
    """
    why = table_refusal(names, before, after)
    rule = RULES_OF_OTHERS.get(type(after))
    return why if why or rule is None or after is None else rule(names, before, after, facts)


def host_refusal(who: HostWriter, before: Resource | None, after: Resource | None, facts: Facts = NO_FACTS) -> str:
    """The same for a host."""
    obj = after if after is not None else before
    assert obj is not None
    what = f"{obj.kind()}/{obj.name}" if obj.name else obj.kind()
    names = who.names
    if isinstance(obj, NAMED_AFTER_HOSTS) and obj.name != who.host:
        names = FENCER if who.coordinator else ()
        if not names:
            return f"may not write {what}: that is another host's, and {who.host} is no coordinator"
    why, rule = table_refusal(names, before, after), RULES_OF_HOSTS.get(type(obj))
    return why if why or rule is None else rule(who, what, before, after, facts)


def build_forbidden(who: str, why: str) -> Forbidden:
    """The error that a refused writer gets; ``who``: ``host kvm-1``, ``controller ctl-1``."""
    return Forbidden(f"the token of {who} {why}", remedy="who may is in docs/reference/permissions.md#table")


def kind_refusal(who: HostWriter, kind: type[Resource], name: str = "", verb: str = "update") -> str:
    """Why this host may write no object of the kind (of this name, if one is given), as far as that can be said before
    the object is known; empty where it may write some."""
    # whether a coordinator is the primary is known only when it writes
    names = who.names + (PRIMARY if who.coordinator else ())
    if not any(may_write_some(kind, names, verb, status=half) for half in (False, True)):
        plain = kind in STORAGE and not who.coordinator
        return f"may not {verb} {kind.info.plural}" + (f": {who.host} is no coordinator" if plain else "")
    if kind is Election and name not in ("", ROLE):
        return f"may not {verb} {kind.info.plural}: coordinators are candidates for Election/{ROLE} alone"
    foreign = name not in ("", who.host) and kind in NAMED_AFTER_HOSTS
    if foreign and not (who.coordinator and may_write_some(kind, FENCER, verb, status=kind.has_status())):
        return f"may not write {kind.kind()}/{name}: that is another host's"
    return ""


_HostRule = Callable[[HostWriter, str, Any, Any, Facts], str]
RULES_OF_HOSTS: Final[Mapping[type[Resource], _HostRule]] = {
    VirtualMachine: check_vm_of_host,
    Membership: check_membership_of_host,
    Hypervisor: check_hypervisor_of_host,
    Fault: check_fault_of_host,
    Cluster: check_cluster_of_host,
    Election: check_election_of_host,
    StorageCluster: check_storage_of_host,
    StorageDaemon: check_storage_of_host,
    StoragePool: check_storage_of_host,
    Console: check_console_of_host,
    DecisionRecord: check_record_of_host,
}
RULES_OF_OTHERS: Final[Mapping[type[Resource] | type[None], Callable[[tuple[str, ...], Any, Any, Facts], str]]] = {
    VirtualMachine: check_vm_by_controller,
    Membership: check_lost_membership,
    Hypervisor: check_hypervisor_by_controller,
    Fault: check_fault_by_controller,
    Election: check_election_by_controller,
}
"""Besides the table; their docstrings are in the manual (docs/reference/permissions.md#rules)."""
