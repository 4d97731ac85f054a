"""Whether a token may make one write, judged on the objects as the store has them (``api.auth.check_write``)."""

from __future__ import annotations

from outlive.api.auth import CHECKED, HOSTS, Identity, Role, check_write
from outlive.base.errors import Forbidden
from outlive.node.membership.states import member_view
from outlive.node.permission_facts import Facts, NeededFacts
from outlive.node.permissions import needed_facts
from outlive.node.primary import ROLE
from outlive.resources import Cluster, Election, Hypervisor, Membership, Resource, VirtualMachine
from outlive.resources.cluster import CLUSTER
from outlive.store import Store, list_all, read


async def permit_write(store: Store, identity: Identity, before: Resource | None, after: Resource | None) -> None:
    """``Forbidden`` unless the token allows this very change; ``before`` is what the write then replaces.

    A coordinator is one as long as its ``Hypervisor`` says so, whatever its token says: that is read for what a plain
    host may not write.
    """
    if identity.role not in CHECKED:
        return
    host = identity.host if identity.role in HOSTS else ""
    needed = needed_facts(host, before, after)
    facts = await _read_facts(store, needed)
    if identity.role is not Role.COORDINATOR:
        check_write(identity, before, after, facts)
        return
    try:
        check_write(identity, before, after, facts, coordinates=False)
    except Forbidden:
        found = await read(store, Hypervisor, host)
        registers = found is None and before is None and isinstance(after, Hypervisor)
        if not registers and (found is None or found.spec.mode != "coordinator"):
            raise
        election = await read(store, Election, ROLE) if needed.term else None
        leads = election is not None and election.record.holder == host
        term = election.record.term if election is not None and leads else 0
        check_write(identity, before, after, facts, term=term)


async def _read_facts(store: Store, needed: NeededFacts) -> Facts:
    """What has to be known besides the object itself, read after it."""
    hosts: tuple[str, ...] = ()
    if needed.every_host:
        found = [one async for one in list_all(store, Membership)]
        hosts = tuple([one.name async for one in list_all(store, Hypervisor) if one.spec.management == "node"])
    else:
        named = [await read(store, Membership, host) for host in needed.members]
        found = [one for one in named if one is not None]
    return Facts(
        members=tuple(member_view(one) for one in found),
        vm=await read(store, VirtualMachine, needed.vm) if needed.vm else None,
        cluster=await read(store, Cluster, CLUSTER) if needed.cluster else None,
        hosts=hosts,
    )
