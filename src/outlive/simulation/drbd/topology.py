"""Who is linked to whom, and who has quorum: what is true of one replicated resource now, asked and never changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from outlive.base import NotFound
from outlive.simulation.drbd.network import DrbdNetwork
from outlive.simulation.drbd.quorum import Votes, has_quorum
from outlive.simulation.drbd.replicas import UP_TO_DATE, WITH_DISK, DrbdOptions, DrbdReplica


class ResourceTopology:
    """See the module. Two nodes are linked where both ends say ``Connected`` and packets pass both ways."""

    def __init__(self, name: str, options: DrbdOptions, network: DrbdNetwork, replicas: Iterable[DrbdReplica]) -> None:
        self.name = name
        self.options = options
        self.replicas = {one.node: one for one in replicas}
        self.port = 7000
        self.size_kib = 32728
        self.backing_device = ""
        """With ``{name}`` and ``{volume}``."""
        self.addresses: Mapping[str, str] = {}
        """Of nodes."""
        self.deleted = False
        self._network = network

    def address_of(self, node: str) -> str:
        """Of a node, on the storage network."""
        return self.addresses[node]

    def disk_path(self, volume: int) -> str:
        """The backing device of a volume."""
        return self.backing_device.format(name=self.name, volume=volume)

    def is_up(self, node: str) -> bool:
        """Whether it has the resource configured now."""
        return node in self.replicas and node not in self._network.down and not self.deleted

    def find_replica(self, node: str) -> DrbdReplica:
        """Of a node that is up, else ``NotFound``."""
        if not self.is_up(node):
            raise NotFound(f"{node} has no resource {self.name}", remedy=f"it is on {', '.join(self.replicas)}")
        return self.replicas[node]

    def is_linked(self, a: str, b: str) -> bool:
        """Whether what one of them sends is answered by the other."""
        return (
            self._network.is_working(a, b)
            and self.replicas[a].peers[b].is_connected
            and self.replicas[b].peers[a].is_connected
        )

    def linked_replicas(self, node: str) -> list[DrbdReplica]:
        """Replicas that it is linked to, in the order of node ids."""
        return [self.replicas[peer] for peer in self.replicas[node].peers if self.is_linked(node, peer)]

    def reachable_replicas(self, node: str) -> list[DrbdReplica]:
        """Itself and all that it is linked to, directly or through others."""
        found = {node: self.replicas[node]}
        queue = [node]
        while queue:
            for one in self.linked_replicas(queue.pop()):
                if one.node not in found:
                    found[one.node] = one
                    queue.append(one.node)
        return [one for one in self.replicas.values() if one.node in found]

    def stale_connections(self, node: str) -> list[tuple[str, str]]:
        """Connections of all that it reaches, that only one end believes in."""
        return [
            (one.node, peer.node)
            for one in self.reachable_replicas(node)
            for peer in one.peers.values()
            if peer.is_connected and not self.is_linked(one.node, peer.node)
        ]

    def reachable_primaries(self, node: str) -> list[DrbdReplica]:
        """Primaries that it reaches, itself among them."""
        return [one for one in self.reachable_replicas(node) if one.is_primary]

    def check_quorum(self, replica: DrbdReplica, volume: int, *, verified: bool = False) -> bool:
        """Whether this replica has quorum. ``verified``: without counting stale connections."""
        if not self.options.has_quorum:
            return True
        peers = [
            (peer, peer.is_connected and (not verified or self.is_linked(replica.node, peer.node)))
            for peer in replica.peers.values()
        ]
        own = replica.volumes[volume]
        if not own.votes:
            # A node without a disk has the quorum of its data.
            return any(
                connected
                and peer.disks[volume] == UP_TO_DATE
                and (
                    self.check_quorum(self.replicas[peer.node], volume, verified=True)
                    if verified
                    else peer.quorums[volume]
                )
                for peer, connected in peers
                if not verified or self.replicas[peer.node].volumes[volume].votes
            )
        voters = [
            (
                peer,
                connected
                and (self.replicas[peer.node].volumes[volume].votes or not verified)
                and peer.disks[volume] in WITH_DISK,
            )
            for peer, connected in peers
            if not peer.client
        ]
        clients = [connected for peer, connected in peers if peer.client]
        votes = Votes(
            present=1 + sum(present for _, present in voters),
            outdated=sum(peer.outdated[volume] for peer, present in voters if not present),
            unknown=sum(not peer.outdated[volume] for peer, present in voters if not present),
            tie_breakers=sum(clients),
            absent_tie_breakers=len(clients) - sum(clients),
        )
        return has_quorum(votes, self.options.quorum, before=own.quorum)

    def misses_writes(self, replica: DrbdReplica) -> bool:
        """Whether a primary that it reaches is not linked to it."""
        links = self.linked_replicas(replica.node)
        return any(one is not replica and one not in links for one in self.reachable_primaries(replica.node))

    def are_connected(self, one: DrbdReplica, other: DrbdReplica) -> bool:
        """Whether neither end has noticed yet that they are not linked; two nodes without disks never are."""
        if other.node not in one.peers:
            return True
        return one.peers[other.node].is_connected and other.peers[one.node].is_connected

    def is_frozen(self, replica: DrbdReplica) -> bool:
        """Whether its I/O waits for quorum or for data, so that a demotion loses nothing that was acknowledged."""
        return replica.suspended_quorum or replica.suspended_no_data
