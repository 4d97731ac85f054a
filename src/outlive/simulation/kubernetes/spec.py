"""What a virtual Kubernetes is made of: a ``cluster.yaml`` with ``nodes`` and ``workloads`` instead of hosts and VMs.

Each pod has one DRBD volume of its own (docs/reference/scenarios-storage.md). Nodes are listed, or counted and then
named ``node-1``, ``node-2``, and so on.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from outlive.resources import Problems
from outlive.simulation.spec import FromFile, Number, Seconds, Some, read_as
from outlive.storage import AgentFlags, BadOption, parse_options

REMEDY: Final = "see docs/reference/scenarios-storage.md"
NAMESPACE: Final = "default"
"""The namespace of all pods of a story."""


class NodeSpecification(FromFile, frozen=True, kw_only=True):
    """A node."""

    name: str
    domain: str = ""
    """Its failure domain, such as a rack."""
    boot_s: Seconds = 40.0
    """From power to a kubelet that runs."""
    agent: bool = True
    """Whether a storage agent runs there."""


class NodeCount(FromFile, frozen=True, kw_only=True):
    """So many nodes that are all the same, one after the other in so many failure domains."""

    count: Some
    domains: Number = 0


class WorkloadSpec(FromFile, frozen=True, kw_only=True):
    """A StatefulSet or a Deployment; a Deployment has one volume, whatever its replicas."""

    name: str
    kind: Literal["statefulset", "deployment"] = "statefulset"
    replicas: Annotated[int, Meta(ge=0, le=1000)] = 1
    parallel: bool = False
    """Of a StatefulSet: all pods at once, instead of one after the other."""
    disks: tuple[str, ...]
    """Nodes with a replica of each volume."""
    diskless: tuple[str, ...] = ()
    """Nodes with the resource and no disk: tie-breakers and clients."""
    quorum: str = "majority"
    grace_s: Annotated[int, Meta(ge=0, le=3600)] = 30
    """terminationGracePeriodSeconds."""
    min_available: Number | None = None
    """Of a disruption budget."""
    refuses_eviction: bool = False
    """An admission webhook answers each eviction with 429, as KubeVirt's does."""
    ignore: bool = False
    """The pods opt out of the agent."""


class StorageSpec(FromFile, frozen=True, kw_only=True):
    """One cluster file."""

    nodes: tuple[NodeSpecification, ...] | NodeCount
    workloads: tuple[WorkloadSpec, ...] = ()
    agent: dict[str, str | float | bool] = {}
    """Options of the storage agent by their names without dashes, such as ``profile: compat``."""
    not_ready_after: Seconds = 40.0
    """Silence of a kubelet after which its node is not ready; 50 s since Kubernetes 1.32."""
    tolerates: Seconds = 300.0
    """Pods tolerate a node that is not ready or unreachable for so long."""
    force_detach_after: Seconds = 360.0
    """The attach-detach controller waits so long for an unmount by a node that is not ready."""
    attachments_checked_every: Seconds = 60.0
    """How often the attach-detach controller compares what it believes with what there is."""
    down_in_silence: Seconds = 600.0
    """A pod that cannot run for so long must be shown."""
    seed: Number = 1


def nodes_of(spec: StorageSpec) -> tuple[NodeSpecification, ...]:
    """All nodes, counted ones named."""
    if not isinstance(spec.nodes, NodeCount):
        return spec.nodes
    domains = spec.nodes.domains
    return tuple(
        NodeSpecification(name=f"node-{number}", domain=f"rack-{(number - 1) % domains + 1}" if domains else "")
        for number in range(1, spec.nodes.count + 1)
    )


def pods_of(workload: WorkloadSpec) -> tuple[str, ...]:
    """Names of the pods of a StatefulSet; of a Deployment the beginnings of names."""
    if workload.kind == "deployment":
        return (workload.name,)
    return tuple(f"{workload.name}-{ordinal}" for ordinal in range(workload.replicas))


def volumes_of(workload: WorkloadSpec) -> tuple[str, ...]:
    """Names of its claims, volumes and DRBD resources, one for each of ``pods_of``."""
    return tuple(f"data-{pod}" for pod in pods_of(workload))


def agent_flags(spec: StorageSpec, node: str) -> AgentFlags:
    """The options of the agent of a node; ``BadOption``."""
    return parse_options((), {"NODE_NAME": node}, spec.agent)


def is_storage_cluster(value: Any) -> bool:
    """Whether the content of a cluster file is a storage cluster."""
    return isinstance(value, dict) and "nodes" in value


def read_storage_spec(value: Any, place: str, problems: Problems) -> StorageSpec | None:
    """The cluster of a file; what is wrong goes to ``problems``."""
    spec = read_as(value, StorageSpec, place, problems, REMEDY)
    if spec is None:
        return None
    names = [node.name for node in nodes_of(spec)]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.add(f"{place}: nodes", f"{name!r} is there twice", "keep one of them")
    for workload in spec.workloads:
        at = f"{place}: workloads: {workload.name}"
        for name in (*workload.disks, *workload.diskless):
            if name not in names:
                problems.add(at, f"there is no node {name!r}", f"there are {', '.join(names[:12])}")
        if not workload.disks:
            problems.add(at, "has no disks", "name the nodes with a replica")
        if twice := set(workload.disks) & set(workload.diskless):
            problems.add(at, f"{sorted(twice)[0]!r} has a disk and none", "name it once")
    try:
        agent_flags(spec, "node")
    except BadOption as error:
        problems.add(f"{place}: agent: {error.place}", error.message, error.remedy)
    workloads = [workload.name for workload in spec.workloads]
    for name in sorted({name for name in workloads if workloads.count(name) > 1}):
        problems.add(f"{place}: workloads", f"{name!r} is there twice", "keep one of them")
    return spec
