"""What operators want of this host and of the cluster, as the daemon last read it.

Read every few seconds rather than watched: a watch of all hosts would bring each daemon every other host's figures.
While the store is away the last reading stands.
"""

from __future__ import annotations

from outlive.base.errors import NotFound
from outlive.node.fencing.policy import Profile, profile_of
from outlive.resources import Cluster, FencingPolicy, FencingSpec, Hypervisor
from outlive.resources.cluster import CLUSTER, ClusterSpec
from outlive.resources.hosts import HypervisorSpec
from outlive.store import Store, answered


class DesiredState:
    """See the module."""

    def __init__(self, store: Store, host: str) -> None:
        self.host = host
        self.hypervisor: Hypervisor | None = None
        self.cluster: Cluster | None = None
        self._store = store
        self._profile: tuple[FencingPolicy, FencingSpec, Profile] | None = None
        """What the last timing was made of, and the timing."""

    async def look(self) -> None:
        """Read again; errors of the store are the caller's, except that there may be no ``Cluster``."""
        async with answered(f"Hypervisor/{self.host}"):
            self.hypervisor = await self._store.get(Hypervisor, self.host)
        try:
            async with answered(f"Cluster/{CLUSTER}"):
                self.cluster = await self._store.get(Cluster, CLUSTER)
        except NotFound:
            self.cluster = None

    @property
    def spec(self) -> HypervisorSpec:
        """Of the host."""
        return self.hypervisor.spec if self.hypervisor is not None else HypervisorSpec()

    @property
    def cluster_spec(self) -> ClusterSpec:
        """Of the cluster."""
        return self.cluster.spec if self.cluster is not None else ClusterSpec()

    @property
    def incarnation(self) -> str:
        """The store's present incarnation; empty while nobody has said."""
        return self.cluster.status.store_incarnation if self.cluster is not None else ""

    @property
    def profile(self) -> Profile:
        """Timing of this host."""
        policy, fencing = self.cluster_spec.fencing, self.spec.fencing
        made = self._profile
        if made is None or made[0] is not policy or made[1] is not fencing:
            self._profile = made = (policy, fencing, profile_of(policy, fencing))
        return made[2]
