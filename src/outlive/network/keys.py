"""What the network controller looks at again when an object changes: keys of its queues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from outlive.base.clock import Clock
from outlive.network.events import NetworkEvents
from outlive.network.informers import BY_NETWORK, BY_VM, NetworkInformers
from outlive.network.views import VmPlace, is_down, place_of
from outlive.resources import Cluster, Hypervisor, VirtualMachine, VirtualMachinePort, VirtualNetwork

NETWORK_PREFIX: Final = "network/"
VM_PREFIX: Final = "vm/"


class NetworkKeys:
    """See the module. The controller notes where VMs are, and which of them it left as they were."""

    def __init__(self, informers: NetworkInformers, events: NetworkEvents, clock: Clock) -> None:
        self._informers = informers
        self._events = events
        self._clock = clock
        self.seen_s: dict[str, float] = {}
        """VM → when the change was seen that it is looked at for."""
        self.places: dict[str, VmPlace] = {}
        """Of VMs with ports: where they were when they were looked at last."""
        self.frozen: dict[str, None] = {}
        """VMs whose rows were left as they are because the cluster was paused."""
        self.portless: dict[str, tuple[str, ...]] = {}
        """VMs that keep rows of interfaces without a port, and which."""

    def find_moving(self, old: VirtualMachine | None, new: VirtualMachine | None) -> Iterable[str]:
        """A VM whose migration began, went on or ended; only those that have ports."""
        name = changed_name(old, new)
        if place_of(old).move == place_of(new).move == "" or not self._informers.ports.by_index(BY_VM, name):
            return ()
        self.seen_s.setdefault(name, self._clock.monotonic())
        return (VM_PREFIX + name,)

    def find_vms(self, old: VirtualMachine | None, new: VirtualMachine | None) -> Iterable[str]:
        """A VM whose place, ports or definition changed outside of a migration, and those with an interface of it."""
        has_its_ports = old is not None and new is not None and old.spec.ports == new.spec.ports
        found = set() if has_its_ports else self._informers.rivals_of(old, new)
        has_its_place = place_of(old) == place_of(new) and is_down(old) == is_down(new)
        if not (place_of(old).move or place_of(new).move or (has_its_ports and has_its_place)):
            found.add(changed_name(old, new))
        has_rows = (name for name in found if name in self.portless or self._informers.ports.by_index(BY_VM, name))
        concerned = sorted(has_rows)
        for name in concerned:
            self.seen_s.setdefault(name, self._clock.monotonic())
        return [VM_PREFIX + name for name in concerned]

    def find_vms_of_port(self, old: VirtualMachinePort | None, new: VirtualMachinePort | None) -> Iterable[str]:
        """The VM of a port that came, went or changed, and those at its addresses."""
        facts = [
            (one.spec, one.status.network, one.status.addresses, one.status.port_mode)
            for one in (old, new)
            if one is not None
        ]
        if new is None:
            self._events.forget_ports([changed_name(old, new)])
        elif len(facts) == 2 and facts[0] == facts[1]:
            return ()
        vms = {port.spec.vm for port in (old, new) if port is not None}
        return [VM_PREFIX + vm for vm in sorted(vms | self._informers.vms_at(old, new))]

    def find_of_network(self, old: VirtualNetwork | None, new: VirtualNetwork | None) -> Iterable[str]:
        """The network, and VMs on it where it changed."""
        name = changed_name(old, new)
        facts = [(one.spec, one.status.type, one.status.host_subnets) for one in (old, new) if one is not None]
        changed = len(facts) < 2 or facts[0] != facts[1]
        ports = self._informers.ports.by_index(BY_NETWORK, name) if changed else ()
        return (NETWORK_PREFIX + name, *{VM_PREFIX + port.spec.vm: None for port in ports})

    def find_of_host(self, old: Hypervisor | None, new: Hypervisor | None) -> Iterable[str]:
        """A host that came, went, was labelled or is another chassis now: routed networks give it a subnet, and the
        ports of VMs that are there follow."""
        facts = [
            (one.metadata.labels, one.spec.chassis, one.status.chassis, one.spec.management)
            for one in (old, new)
            if one is not None
        ]
        if len(facts) == 2 and facts[0] == facts[1]:
            return ()
        name, networks = changed_name(old, new), self._informers.networks.items()
        return (
            *(NETWORK_PREFIX + one.name for one in networks if one.spec.type == "routed"),
            *(VM_PREFIX + vm for vm, place in self.places.items() if name in (place.host, place.target)),
        )

    def find_of_cluster(self, old: Cluster | None, new: Cluster | None) -> Iterable[str]:
        """Everything, where a pause began or ended."""
        facts = [(one.paused, one.status.store_incarnation) for one in (old, new) if one is not None]
        if len(facts) == 2 and facts[0] == facts[1]:
            return ()
        vms, networks = self.list_names()
        names = dict.fromkeys((*vms, *self.frozen))
        return (*(NETWORK_PREFIX + one for one in networks), *(VM_PREFIX + one for one in names))

    def list_names(self) -> tuple[list[str], list[str]]:
        """VMs with ports, and networks."""
        return self._informers.ports.index_keys(BY_VM), [one.name for one in self._informers.networks.items()]


def changed_name(old: Any, new: Any) -> str:
    """The name of an object that came, went or changed."""
    return str((new if new is not None else old).name)
