"""Ports that somebody was seen deleting.

A store that was restored may lack ports of VMs that run, and a listing that lacks a port does not say that somebody
deleted it. So a VM that runs loses the rows of an interface only for a deletion that was seen in the store as it is
now, while the cluster was not paused. What was deleted while nobody looked stays until the VM is down.
"""

from __future__ import annotations

from typing import Final

from outlive.network.informers import NetworkInformers
from outlive.network.pause import ClusterPause
from outlive.resources import VirtualMachinePort
from outlive.resources.cluster import CLUSTER

DELETIONS_KEPT: Final = 10_000
"""Ports of which is remembered that they were deleted."""


class PortDeletions:
    """See the module. Begins with its making, and goes on whoever leads."""

    def __init__(self, informers: NetworkInformers) -> None:
        self._informers = informers
        self._incarnations: dict[str, str] = {}
        """Port → the store's incarnation in which it was deleted."""
        informers.ports.subscribe(self._note, replay=False)

    def has_seen(self, port: str, pause: ClusterPause) -> bool:
        """Whether the port was seen being deleted from the store as it is now; ``pause``: as it was just read."""
        return not pause.paused and self._incarnations.get(port) == pause.incarnation

    def _note(self, old: VirtualMachinePort | None, new: VirtualMachinePort | None) -> None:
        name = (new or old).name  # type: ignore[union-attr]
        self._incarnations.pop(name, None)
        cluster = self._informers.clusters.get(CLUSTER)
        is_paused = cluster is not None and cluster.paused
        if new is None and not is_paused and not self._informers.ports.in_doubt:
            self._incarnations[name] = cluster.status.store_incarnation if cluster is not None else ""
            while len(self._incarnations) > DELETIONS_KEPT:
                self._incarnations.pop(next(iter(self._incarnations)))
