"""What a client's request to a host writes, or why it is refused: the role of primary, emptying, taking back.

A request only writes what is wanted; the host acts on it (docs/design/node-decisions.md#noderequest).
"""

from __future__ import annotations

import enum
from typing import Final, Literal

import msgspec

from outlive.runtime import Decision

PRIMARY_KEY: Final = "base.config.primary_node"
"""Who is, or shall be, primary; ``none``: the winner of the election."""
DOMAIN_STATE_KEY: Final = "node.state.domain"
"""Whether the host takes virtual machines."""
ASKED: Final = {"flush": "flush", "ready": "unflush"}
"""The domain state that asks for it, by request."""
REACHED: Final = {"flush": "flushed", "ready": "ready"}
"""The domain state in which there is nothing to do, by request."""


class NodeRequestCode(enum.StrEnum):
    """How a request was answered."""

    ACCEPTED = "accepted"
    ALREADY = "already"
    UNKNOWN_NODE = "unknown_node"
    NOT_COORDINATOR = "not_coordinator"
    NOT_ACTIVE = "not_active"


class RequestedNode(msgspec.Struct, frozen=True, kw_only=True):
    """The host as it is."""

    name: str
    mode: str
    daemon_state: str
    router_state: str
    domain_state: str


class NodeRequestInput(msgspec.Struct, frozen=True, kw_only=True):
    """A request, and the host that it is about; null: there is no such host."""

    request: Literal["primary", "secondary", "flush", "ready"]
    node: RequestedNode | None


class NodeRequestResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, and what is written, by key."""

    ok: bool
    code: NodeRequestCode
    writes: dict[str, str]


def node_request(given: NodeRequestInput) -> NodeRequestResult:
    """Answer one request."""
    node, request = given.node, given.request
    of_role = request in ("primary", "secondary")
    if node is None:
        return _refuse(NodeRequestCode.UNKNOWN_NODE)
    if of_role and node.mode == "hypervisor":
        return _refuse(NodeRequestCode.NOT_COORDINATOR)
    if not of_role and node.domain_state == REACHED[request]:
        return _ALREADY
    if node.daemon_state != "run":
        return _refuse(NodeRequestCode.NOT_ACTIVE)
    if request == "primary":
        return _ALREADY if node.router_state == "primary" else _accept({PRIMARY_KEY: node.name})
    if request == "secondary":
        # Only who has the role, or is taking it, can give it up: another's request would depose the real primary.
        return _accept({PRIMARY_KEY: "none"}) if node.router_state in ("primary", "takeover") else _ALREADY
    return _accept({DOMAIN_STATE_KEY: ASKED[request]})


_ALREADY: Final = NodeRequestResult(ok=True, code=NodeRequestCode.ALREADY, writes={})


def _accept(writes: dict[str, str]) -> NodeRequestResult:
    return NodeRequestResult(ok=True, code=NodeRequestCode.ACCEPTED, writes=writes)


def _refuse(code: NodeRequestCode) -> NodeRequestResult:
    return NodeRequestResult(ok=False, code=code, writes={})


NODE_REQUEST: Final = Decision(
    "node.request", node_request, NodeRequestInput, NodeRequestResult, "What a request to a host writes"
)
