"""What the real server would refuse a process of the virtual cluster: by the table of writers, and by the rules.

The same functions over the same facts as the server's (``api.permission``), asked of the store as it is when a write
would count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from outlive.node import ROLE, Facts, HostWriter, NeededFacts, host_refusal, needed_facts, write_refusal
from outlive.node.membership import member_view
from outlive.resources import (
    CLUSTER,
    Cluster,
    Election,
    Hypervisor,
    Membership,
    R,
    Resource,
    VirtualMachine,
    table_refusal,
)
from outlive.store import Write

OF_HOSTS = frozenset({"daemon", "fencer"})
"""Names under which a process writes with the token of its host."""
NOTHING_ELSE = NeededFacts()
"""The write is judged by the object alone."""


class WriteRefusal(NamedTuple):
    """Why a write is refused."""

    why: str
    """The end of a sentence that begins with who writes."""
    by_facts: bool
    """Whether it rests on more than the object that is written, of which the writer has seen this very version: then
    the writer may have yet to notice what the server knows."""


class Readable(Protocol):
    """Objects as they are now."""

    def find(self, kind: type[R], name: str) -> R | None:
        """One object, if it is there."""
        ...

    def list_all(self, kind: type[R]) -> Sequence[R]:
        """All objects of a kind."""
        ...


def refusal_of(store: Readable, write: Write, host: str, names: tuple[str, ...]) -> WriteRefusal | None:
    """Why the server would refuse this write to a process on that host that writes under these names; ``None`` where it
    would not."""
    before, after, host = write.before, _result_of(write), host if OF_HOSTS.intersection(names) else ""
    needed = needed_facts(host, before, after)
    facts = _read_facts(store, needed)
    if not host:
        why = write_refusal(names, before, after, facts)
        return WriteRefusal(why, needed != NOTHING_ELSE) if why else None
    own, election = store.find(Hypervisor, host), store.find(Election, ROLE)
    fences = "fencer" in names
    coordinates = fences and (own is None or own.spec.mode == "coordinator")
    leads = election is not None and election.record.holder == host
    who = HostWriter(host, coordinator=coordinates, term=election.record.term if election is not None and leads else 0)
    # a host's token allows what all its programs may: each keeps to its own names as well
    why = table_refusal(names, before, after) if who.names != names else ""
    why = why or host_refusal(who, before, after, facts)
    return WriteRefusal(why, needed != NOTHING_ELSE or fences != coordinates) if why else None


def _result_of(write: Write) -> Resource | None:
    """The object after the write, as the server judges it: ``None`` for a deletion, also one that only marks it, and
    the last state of one that goes because its last finalizer is removed."""
    if write.before is not None and write.before.deleting:
        return write.answer
    return write.after if write.after is not None and not write.after.deleting else None


def _read_facts(store: Readable, needed: NeededFacts) -> Facts:
    if needed == NOTHING_ELSE:
        return Facts()
    found = store.list_all(Membership) if needed.every_host else [store.find(Membership, one) for one in needed.members]
    return Facts(
        members=tuple(member_view(one) for one in found if one is not None),
        vm=store.find(VirtualMachine, needed.vm) if needed.vm else None,
        cluster=store.find(Cluster, CLUSTER) if needed.cluster else None,
        hosts=tuple(one.name for one in store.list_all(Hypervisor) if one.spec.management == "node")
        if needed.every_host
        else (),
    )
