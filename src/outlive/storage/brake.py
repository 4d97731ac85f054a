"""The brake on mass failovers, and who acts first: rules of our own about many losses, and about many survivors.

A loss is proven by quorum, so that neither rule is needed for the data. The brake gives a network that flaps the time
to come back before half of a cluster is moved; the stand-by keeps survivors from all doing the same at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from outlive.storage.drbd import CONNECTED, UP_TO_DATE, DrbdResource


def is_mass_loss(lost: Iterable[str], nodes: Iterable[str], domains: Mapping[str, str], fraction: float) -> bool:
    """Whether more than the fraction is lost, of all nodes and of their failure domains: a rack is one failure."""
    gone, everybody = set(lost), set(nodes)
    units = {domains.get(node, f"node {node}") for node in everybody}
    lost_units = {domains.get(node, f"node {node}") for node in gone}
    return len(gone) > fraction * len(everybody) and len(lost_units) > fraction * len(units)


def first_actor(resource: DrbdResource, own_name: str) -> str:
    """The survivor that acts first on losses of the resource: of those with current data that of the lowest node id.

    The own name where that is this node, or where nobody can say.
    """
    if resource.node_id is None:
        return own_name
    candidates = [(resource.node_id, own_name)]
    for connection in resource.connections:
        current = connection.peer_disk_states and set(connection.peer_disk_states) == {UP_TO_DATE}
        if connection.connection_state == CONNECTED and current and connection.peer_node_id is not None:
            candidates.append((connection.peer_node_id, connection.name))
    return min(candidates)[1]
