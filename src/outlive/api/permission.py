"""Whether a token may make one write, judged on the objects as the store has them (``api.auth.check_write``)."""

from __future__ import annotations

import contextlib

from outlive.api.auth import CHECKED, HOSTS, Identity, Role, check_write, read_refusal, visible_part
from outlive.api.errors import Unauthenticated
from outlive.base import Forbidden, NotFound, get_logger
from outlive.node import ROLE, Facts, NeededFacts, needed_facts
from outlive.node.membership import member_view
from outlive.resources import (
    CLUSTER,
    OF_A_VM,
    Cluster,
    Election,
    Hypervisor,
    Membership,
    Resource,
    Token,
    VirtualMachine,
    vm_of_object,
)
from outlive.store import Store, list_all, read

_log = get_logger("api.tokens")


async def permit_write(store: Store, identity: Identity, before: Resource | None, after: Resource | None) -> None:
    """``Forbidden`` unless the token allows this very change; ``before`` is what the write then replaces.

    A coordinator is one as long as its ``Hypervisor`` says so, whatever its token says: that is read for what a plain
    host may not write. A host without a ``Hypervisor`` registers as what its token says, as long as that is stored:
    deleting a host revokes it (``revoke_tokens``), so that no deleted host comes back but by joining anew.
    """
    if identity.role not in CHECKED:
        return
    host = identity.host if identity.role in HOSTS else ""
    needed = needed_facts(host, before, after)
    facts = await _read_facts(store, needed)
    if host and before is None and isinstance(after, Hypervisor) and identity.digest:
        token = await read(store, Token, identity.name)  # the request may have begun before it was revoked
        if token is None or identity.digest not in (token.digest, token.next_digest, token.former_digest):
            raise Unauthenticated(
                f"the token {identity.name} was revoked",
                remedy=f"join again: outlive token create --join --host {identity.host}",
            )
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


async def shown_part(store: Store, identity: Identity, obj: Resource) -> Resource | None:
    """What the identity is shown of an object that it writes, or has written; ``None``: nothing."""
    of_a_vm = identity.role in HOSTS and isinstance(obj, OF_A_VM)
    vm = await read(store, VirtualMachine, vm_of_object(type(obj), obj.name)) if of_a_vm else None
    return visible_part(identity, obj, vm=vm)


async def require_readable(store: Store, identity: Identity, current: Resource) -> Resource:
    """What the writer is shown of the object; ``Forbidden``: nobody changes what it may not read."""
    seen = await shown_part(store, identity, current)
    if seen is None:
        raise read_refusal(identity, type(current), current.name)
    return seen


async def revoke_tokens(store: Store, host: str) -> None:
    """Delete every token with which the host writes; to be done before the host is deleted, so that a crash in between
    leaves a host without a token, and never a token that registers a deleted host."""
    for one in [one async for one in list_all(store, Token) if one.host == host and one.role in HOSTS]:
        with contextlib.suppress(NotFound):
            await store.delete(one.ref, uid=one.metadata.uid)
            _log.info("token.revoked", token=one.name, host=host)


async def _read_facts(store: Store, needed: NeededFacts) -> Facts:
    """What has to be known besides the object itself, read after it."""
    hosts: tuple[str, ...] = ()
    if needed.every_host:
        found = [one async for one in list_all(store, Membership, whole=True)]
        hosts = tuple(
            [one.name async for one in list_all(store, Hypervisor, whole=True) if one.spec.management == "node"]
        )
    else:
        named = [await read(store, Membership, host) for host in needed.members]
        found = [one for one in named if one is not None]
    return Facts(
        members=tuple(member_view(one) for one in found),
        vm=await read(store, VirtualMachine, needed.vm) if needed.vm else None,
        cluster=await read(store, Cluster, CLUSTER) if needed.cluster else None,
        hosts=hosts,
    )
