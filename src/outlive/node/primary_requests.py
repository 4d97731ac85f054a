"""Requests for the role of the primary coordinator: who asks for it, what became of it, how far a hand-over is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outlive.base import Clock, NotFound, Refused
from outlive.node.handover import PHASES
from outlive.node.operator import change_cluster
from outlive.node.primary_elector import ROLE
from outlive.node.requests import NodeRequestCode, NodeRequestInput, RequestedNode, node_request
from outlive.resources import Election, ElectionRecord, Hypervisor, Membership, PrimaryRequest
from outlive.store import Store, read


@dataclass(frozen=True, slots=True)
class Asked:
    """How a request was answered; ``id`` is empty where nothing is to be done."""

    id: str
    text: str


async def request_primary(
    store: Store, clock: Clock, request_id: str, verb: Literal["primary", "secondary"], host: str
) -> Asked:
    """Ask for the role to be handed over, or given up. ``NotFound``, ``Refused``."""
    found, election = await read(store, Hypervisor, host), await read(store, Election, ROLE)
    node = None
    if found is not None:
        member = await read(store, Membership, host)
        node = RequestedNode(
            name=host,
            mode=found.spec.mode,
            daemon_state="run" if member is not None and member.record.state == "Held" else "stop",
            router_state=role_of(host, found.spec.mode, election.record if election is not None else ElectionRecord()),
            domain_state=found.status.domain_state,
        )
    result = node_request(NodeRequestInput(request=verb, node=node))
    match result.code:
        case NodeRequestCode.UNKNOWN_NODE:
            raise NotFound(f"there is no host {host!r}", remedy="see outlive get hosts")
        case NodeRequestCode.NOT_COORDINATOR:
            raise Refused(f"{host} is no coordinator", remedy=f"outlive host promote {host}, and join it as one")
        case NodeRequestCode.NOT_ACTIVE:
            raise Refused(f"the daemon of {host} does not run", remedy="start it first")
        case NodeRequestCode.ALREADY:
            return Asked("", f"{host} is {verb} already")
    await change_cluster(store, clock, primary=PrimaryRequest(id=request_id, verb=verb, host=host))
    return Asked(request_id, f"{host}: {verb} is requested")


async def primary_is_settled(store: Store, request_id: str) -> str | None:
    """Who is primary once the request was answered and the hand-over is done; ``None`` before."""
    election = await read(store, Election, ROLE)
    record = election.record if election is not None else ElectionRecord()
    return record.holder if record.answered == request_id and record.holder and not record.phase else None


def role_of(host: str, mode: str, record: ElectionRecord) -> str:
    """A host's part in it: ``client``, ``secondary``, ``takeover``, ``primary`` or ``relinquish``."""
    if mode != "coordinator":
        return "client"
    return (record.phase or "primary") if record.holder == host else "secondary"


def describe_handover(record: ElectionRecord) -> str:
    """Return how far a hand-over is, as a sentence; who has the role, where none is going on."""
    found = record.handover
    if not record.holder:
        keeps = f"; {found.leaver} has its addresses" if found is not None and found.removed != PHASES[-1] else ""
        return f"nobody has the role of the primary coordinator{keeps}"
    if record.phase == "relinquish":
        return f"{record.holder} stops its duties"
    if record.phase != "takeover":
        return f"{record.holder} is the primary coordinator"
    if found is None or found.added == PHASES[-1]:
        return f"{record.holder} starts its duties"
    done = PHASES[: PHASES.index(found.added) + 1] if found.added else ()
    alone = f", and waits for {found.leaver} no more" if found.overtaken else ""
    return f"{record.holder} takes over the addresses ({len(done)} of {len(PHASES)} phases{alone})"
