"""A model of DRBD 9: replicated resources with quorum, and what ``drbdsetup`` prints of them (``cluster``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

from outlive.simulation.drbd.cluster import DrbdCluster, WriteFailed, storage_address
from outlive.simulation.drbd.replicas import DrbdOpener, DrbdOptions, DrbdReplica, DrbdWrite

if TYPE_CHECKING:
    from outlive.simulation.drbd.quorum import Votes, has_quorum
else:
    __getattr__ = load_exports(__name__)

__all__ = ["DrbdCluster", "DrbdOpener", "DrbdOptions", "DrbdReplica", "DrbdWrite", "WriteFailed", "storage_address"]
