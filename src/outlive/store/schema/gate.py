"""``schema.gate``: whether a cluster may go on to a newer schema, and who keeps it from that."""

from __future__ import annotations

import msgspec

from outlive.base import natural_key


class GateNode(msgspec.Struct, frozen=True, kw_only=True):
    """What one host says of itself."""

    active: int | None = None
    """The schema by which it works."""
    latest: int = 0
    """The newest schema that its installed version knows."""
    daemon_state: str = ""
    """The state of its daemon. It has no effect: who excludes a host judges by it."""


class GateInput(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's schema and its hosts."""

    cluster: int
    """The schema by which the cluster works."""
    nodes: dict[str, GateNode] = {}
    """All registered hosts by name."""
    exclude: tuple[str, ...] = ()
    """Hosts that are not waited for."""


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """Where the cluster goes, or who has to follow first."""

    advance_to: int | None = None
    """The schema that the cluster goes to now; absent: it stays."""
    waiting_for: tuple[str, ...] = ()
    """Hosts whose newest schema is older than that of others, in natural order."""


def open_gate(given: GateInput) -> GateResult:
    """Return the newest schema of any host if it is newer than the cluster's and all hosts know it."""
    excluded = set(given.exclude)
    considered = {name: node for name, node in given.nodes.items() if name not in excluded}
    newest = max((node.latest for node in considered.values()), default=given.cluster)
    if newest <= given.cluster:
        return GateResult()
    behind = [name for name, node in considered.items() if node.latest < newest]
    if behind:
        return GateResult(waiting_for=tuple(sorted(behind, key=natural_key)))
    return GateResult(advance_to=newest)
