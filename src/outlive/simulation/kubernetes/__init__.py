"""A virtual Kubernetes around a virtual DRBD cluster: what the storage agent is played against."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.simulation.kubernetes.connection import GIVEN_UP_S, LATENCY_S, ApiConnection, ClientEvents, ClientStore
    from outlive.simulation.kubernetes.parts import storage_story, storage_world
    from outlive.simulation.kubernetes.server import ApiServer, is_ready, is_terminating
    from outlive.simulation.kubernetes.spec import NodeCount, NodeSpecification, StorageSpec, WorkloadSpec
    from outlive.simulation.kubernetes.spec import is_storage_cluster, nodes_of
    from outlive.simulation.kubernetes.stories import StorageEnded, read_storage_scenario, storage_proposal
    from outlive.simulation.kubernetes.verbs import STORAGE_VERBS
    from outlive.simulation.kubernetes.world import StorageWorld
else:
    __getattr__ = load_exports(__name__)
