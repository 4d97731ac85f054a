"""A model of DRBD 9: replicated resources with quorum, and what ``drbdsetup`` prints of them (``cluster``)."""

from __future__ import annotations

from outlive.simulation.drbd.cluster import DrbdCluster, WriteFailed, storage_address
from outlive.simulation.drbd.replicas import DrbdOpener, DrbdOptions, DrbdReplica, DrbdWrite

__all__ = ["DrbdCluster", "DrbdOpener", "DrbdOptions", "DrbdReplica", "DrbdWrite", "WriteFailed", "storage_address"]
