"""What the role of ``outlive up`` is built from: drivers of the command line, or those of a simulation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from outlive.commitments import CommitmentSource, DomainSource, Offload, ProjectSource, run_inline
from outlive.failover import Computer, PlacementPort
from outlive.failover.reconciler import Informers
from outlive.inventory import InventoryCluster, InventorySource
from outlive.network import NeighbourTable, NorthboundDb, PacketTracer, SouthboundDb
from outlive.placement import VmMoves, VMSource
from outlive.recovery import ASSIGNED_INDEX
from outlive.resources import Flavor, Hypervisor, VirtualMachine
from outlive.runtime import ClusterEvents, ClusterVerbs, Informer, NotifierPorts
from outlive.store import Store
from outlive.store.schema import SchemaStorage


@dataclass(frozen=True, slots=True)
class Limes:
    """Who lists commitments, and the projects that have some."""

    projects: ProjectSource
    commitments: CommitmentSource


@dataclass(frozen=True, slots=True)
class NetworkDatabases:
    """OVN's databases."""

    northbound: NorthboundDb
    southbound: SouthboundDb
    tracer: PacketTracer | None = None
    """Follows packets for ``outlive network trace``."""


@dataclass(frozen=True, slots=True)
class PodCluster:
    """A Kubernetes cluster whose pods are VMs that networks follow."""

    store: Store
    verbs: ClusterVerbs
    events: ClusterEvents
    write_events: Callable[[], Awaitable[None]]
    """Writes what was emitted, until cancelled."""
    neighbours: NeighbourTable | None = None
    """Of this machine, where an EVPN fabric carries networks."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside, as the role needs it; ``None``: what is inside the process."""

    computer: Computer
    source: VMSource | None = None
    placement: PlacementPort | None = None
    inventory: InventorySource | None = None
    """Who hosts, VMs and flavors are kept from; ``None``: nobody but users and imports."""
    clusters: tuple[InventoryCluster, ...] = ()
    """Where ``Hypervisor`` objects are that hosts are kept from."""
    limes: Limes | None = None
    """Whose commitments are kept; ``None``: those of batches alone."""
    domains: DomainSource | None = None
    """Who tells the names of domains; ``None``: nobody but LIQUID."""
    nova: VmMoves | None = None
    """Moves Nova's VMs for the descheduler."""
    network: NetworkDatabases | None = None
    """Where the networks of VMs are programmed; ``None``: nobody programs them."""
    pods: PodCluster | None = None
    """Whose pods networks follow (``network.pods``); ``None``: there are none."""
    notify: NotifierPorts | None = None
    """The targets of notifications of faults; ``None``: none."""
    offload: Offload = run_inline
    """Where long work runs, so that the event loop stays free."""
    schema: SchemaStorage | None = None
    """Changes the storage schema, where the store has a tree; ``None``: it has none."""


@dataclass(frozen=True, slots=True)
class InventoryCache:
    """``Objects`` of an inventory, from informers."""

    informers: Informers
    of_flavors: Informer[Flavor]

    def find_host(self, name: str) -> Hypervisor | None:
        """One host."""
        return self.informers.hypervisors.get(name)

    def find_vm(self, name: str) -> VirtualMachine | None:
        """One VM."""
        return self.informers.vms.get(name)

    def list_hosts(self) -> list[Hypervisor]:
        """All hosts."""
        return self.informers.hypervisors.items()

    def list_vms(self) -> list[VirtualMachine]:
        """All VMs."""
        return self.informers.vms.items()

    def list_flavors(self) -> list[Flavor]:
        """All flavors."""
        return self.of_flavors.items()

    def vms_on(self, host: str) -> list[VirtualMachine]:
        """The VMs that are assigned to a host."""
        return self.informers.vms.list_by_index(ASSIGNED_INDEX, host)
