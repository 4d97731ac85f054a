"""How hosts and VMs are, for commands: by the server where one answers, else as somebody knows who only reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlive.base import NotFound, as_datetime
from outlive.node import ClusterLiveness, sight_of_conditions, sight_without_server
from outlive.resources import CLUSTER, Cluster, Hypervisor, Membership, RenewalSight, convert
from outlive.store import list_all

if TYPE_CHECKING:
    from outlive.cli.access import Access
    from outlive.store import Store


async def read_liveness(store: Store, access: Access) -> ClusterLiveness:
    """How hosts and VMs are now; of a state file, how they were when it was taken."""
    hosts = {one.name: one async for one in list_all(store, Hypervisor)}
    members = {one.name: one async for one in list_all(store, Membership)}
    clusters = [one async for one in list_all(store, Cluster) if one.name == CLUSTER]
    sight = await read_sight(store, access, hosts)
    return ClusterLiveness(sight, clusters[0] if clusters else None, hosts.get, members.get)


async def read_sight(store: Store, access: Access, hosts: dict[str, Hypervisor]) -> RenewalSight:
    """What is seen of renewals: by the server, by the process that took the state file, or by nobody."""
    now = as_datetime(access.state_clock.now())
    if access.state is not None:
        return access.taken_sight or sight_of_conditions(hosts.values(), now)
    question = getattr(store, "question", None)
    if question is None:
        return sight_of_conditions(hosts.values(), now) if access.direct else sight_without_server(now)
    try:
        found: RenewalSight = convert(RenewalSight, await question("/liveness"))
    except NotFound:  # a server of an older version
        return sight_of_conditions(hosts.values(), now)
    return found
