"""The hosts that a VM may run on by where its networks are.

A network reaches the hosts that have its labels (``VirtualNetwork.spec.hostLabels``); one in OVN reaches no host that
says that it runs no OVN, and one that hosts make themselves only those that say that they have made it. Of each VM that
has a port on one that does not reach all hosts, or names its bridge, this writes
``VirtualMachine.status.networkHosts``, and everybody who sends a VM anywhere goes by it as by its other limits
(``VirtualMachine.allowed_hosts``). It needs no OVN: bridged networks are limited too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from outlive.base import Clock
from outlive.network.informers import BY_BRIDGE, BY_NETWORK, BY_VM, NetworkInformers
from outlive.network.views import lacks_ovn, reaches_host
from outlive.resources import (
    IN_OVN,
    Hypervisor,
    Resource,
    VirtualMachine,
    VirtualMachinePort,
    VirtualNetwork,
    bridge_name,
    bridges_in,
    is_made_by_hosts,
    present_type,
)
from outlive.runtime import ControllerOptions, ControllerRun, Elector, Manager, Requeue, Watch
from outlive.store import Store, compare_and_swap

MAX_PARALLEL: Final = 8
"""VMs that are written at once."""
HOSTS_KEY: Final = "/hosts"
"""Stands for all hosts; no VM has such a name."""
_Selector = tuple[tuple[tuple[str, str], ...], bool, str]
"""Labels, whether it is in OVN, and the name of one that hosts make themselves."""
_replace = msgspec.structs.replace


class NetworkNames(NamedTuple):
    """How networks are found."""

    network_named: Callable[[str], VirtualNetwork | None]
    by_bridge: Callable[[str], str]
    """Bridge on hosts → name of the network; empty: of none."""


def names_by_bridge(networks: Iterable[VirtualNetwork]) -> dict[str, str]:
    """Bridge on hosts → name of the network."""
    return {bridge_name(one.spec.vni): one.name for one in networks if is_made_by_hosts(one)}


class ReachedHosts:
    """The hosts that networks reach, of these hosts. Those with the same labels reach the same, found once."""

    def __init__(self, hosts: Iterable[Hypervisor]) -> None:
        self._hosts = sorted(hosts, key=lambda host: host.name)
        self._found: dict[_Selector, tuple[str, ...] | None] = {}

    def find(self, network: VirtualNetwork) -> tuple[str, ...] | None:
        """The names of the hosts that it reaches; ``None``: it is limited to none."""
        selector = _selector_of(network)
        if selector not in self._found:
            reached = tuple(host.name for host in self._hosts if reaches_host(network, host))
            is_limited = bool(network.spec.host_labels) or len(reached) < len(self._hosts)
            self._found[selector] = reached if is_limited else None
        return self._found[selector]


def _selector_of(network: VirtualNetwork) -> _Selector:
    """All of a network that decides which hosts it reaches."""
    own = network.name if is_made_by_hosts(network) else ""
    return tuple(sorted(network.spec.host_labels.items())), present_type(network) in IN_OVN, own


def reached_hosts(
    vm: VirtualMachine,
    ports: Iterable[VirtualMachinePort],
    networks: NetworkNames,
    reached: ReachedHosts,
) -> dict[str, tuple[str, ...]]:
    """Each network of a VM that does not reach all hosts → the hosts that it reaches, both by name.

    Its networks are those of its ports, and those whose bridges its definition names.
    """
    found = {}
    network_named, by_bridge = networks
    attached = {by_bridge(bridge) for bridge in bridges_in(vm.spec.definition)}
    for name in sorted({*(port.spec.network for port in ports), *attached} - {""}):
        network = network_named(name)
        hosts = reached.find(network) if network is not None else None
        if hosts is not None:
            found[name] = hosts
    return found


def with_host_limits(objects: Iterable[Resource]) -> Iterator[Resource]:
    """The same objects, with the limits that their networks mean for VMs: of a state that nobody keeps up to date."""
    found = list(objects)
    ports: dict[str, list[VirtualMachinePort]] = {}
    for one in found:
        if isinstance(one, VirtualMachinePort):
            ports.setdefault(one.spec.vm, []).append(one)
    networks = {one.name: one for one in found if isinstance(one, VirtualNetwork)}
    bridges = names_by_bridge(networks.values())
    names = NetworkNames(networks.get, lambda bridge: bridges.get(bridge, ""))
    reached = ReachedHosts(one for one in found if isinstance(one, Hypervisor))
    for one in found:
        yield (
            _set_hosts(one, reached_hosts(one, ports.get(one.name, ()), names, reached))
            if isinstance(one, VirtualMachine)
            else one
        )


def _set_hosts(vm: VirtualMachine, hosts: dict[str, tuple[str, ...]]) -> VirtualMachine:
    if vm.status.network_hosts == hosts:
        return vm
    return _replace(vm, status=_replace(vm.status, network_hosts=hosts))


class NetworkHostLimits:
    """Keeps these limits; see the module. ``attach`` has a manager run it."""

    name = "network-hosts"

    def __init__(self, store: Store, informers: NetworkInformers, clock: Clock) -> None:
        self._store = store
        self._informers = informers
        self._clock = clock
        self._run: ControllerRun
        self._reached: ReachedHosts | None = None
        """By what VMs were looked at."""
        self._bridges: dict[str, str] | None = None
        """Bridge → network; ``None``: some network has changed since."""

    def attach(self, manager: Manager, elector: Elector | None) -> None:
        """Have the manager run it."""
        informers = self._informers
        watches = (
            Watch(informers.ports, self._port_keys),
            Watch(informers.networks, self._network_keys),
            Watch(informers.hosts, self._host_keys),
            Watch(informers.vms, self._vm_keys),
        )
        options = ControllerOptions(keys=(HOSTS_KEY,))
        self._run = manager.add_controller(self, watches, MAX_PARALLEL, elector=elector, options=options)

    async def reconcile(self, key: str) -> Requeue | None:
        """Write what the networks of one VM reach, where it is not written; or find the VMs that hosts concern."""
        informers = self._informers
        if key == HOSTS_KEY or self._reached is None:
            self._reached = self._read_hosts()
        if key == HOSTS_KEY:
            return None
        cached = informers.vms.get(key)
        if cached is None:
            return None
        names = NetworkNames(informers.networks.get, self._network_of)
        hosts = reached_hosts(cached, informers.ports.list_by_index(BY_VM, key), names, self._reached)
        if cached.status.network_hosts == hosts:
            return None

        def write(now: VirtualMachine | None) -> VirtualMachine | None:
            return None if now is None or now.status.network_hosts == hosts else _set_hosts(now, hosts)

        await compare_and_swap(self._store, VirtualMachine, key, write, clock=self._clock, cache=informers.vms.get)
        return None

    def _network_of(self, bridge: str) -> str:
        if self._bridges is None:
            self._bridges = names_by_bridge(self._informers.networks.items())
        return self._bridges.get(bridge, "")

    def _read_hosts(self) -> ReachedHosts:
        """What the hosts are now; VMs on networks that reach others than before are looked at."""
        before, now = self._reached, ReachedHosts(self._informers.hosts.items())
        for network in self._informers.networks.items():
            if before is not None and before.find(network) != now.find(network):
                for vm in self._vms_on(network):
                    self._run.add(vm)
        return now

    def _port_keys(self, old: VirtualMachinePort | None, new: VirtualMachinePort | None) -> Iterable[str]:
        if old is not None and new is not None and old.spec == new.spec:
            return ()
        return {port.spec.vm: None for port in (old, new) if port is not None}

    def _network_keys(self, old: VirtualNetwork | None, new: VirtualNetwork | None) -> Iterable[str]:
        selectors = [_selector_of(one) if one is not None else None for one in (old, new)]
        self._bridges = None
        bridges = [bridge_name(one.spec.vni) for one in (old, new) if one is not None and is_made_by_hosts(one)]
        if selectors[0] == selectors[1] and len(set(bridges)) < 2:
            return ()
        return {vm: None for one in (old, new) if one is not None for vm in self._vms_on(one)}

    def _host_keys(self, old: Hypervisor | None, new: Hypervisor | None) -> Iterable[str]:
        facts = [(one.metadata.labels, lacks_ovn(one), one.status.networks) for one in (old, new) if one is not None]
        return () if len(facts) == 2 and facts[0] == facts[1] else (HOSTS_KEY,)

    def _vm_keys(self, old: VirtualMachine | None, new: VirtualMachine | None) -> Iterable[str]:
        """A VM that is new, or of which somebody wrote something else."""
        if new is None:
            return ()
        before: Any = (old.status.network_hosts, bridges_in(old.spec.definition)) if old is not None else None
        attached = bridges_in(new.spec.definition)
        if before == (new.status.network_hosts, attached):
            return ()
        is_limited = bool(new.status.network_hosts or attached or self._informers.ports.list_by_index(BY_VM, new.name))
        if before is not None and before[1] != attached:
            is_limited = True
        return (new.name,) if is_limited else ()

    def _vms_on(self, network: VirtualNetwork) -> dict[str, None]:
        found = {port.spec.vm: None for port in self._informers.ports.list_by_index(BY_NETWORK, network.name)}
        if is_made_by_hosts(network):
            bridge = bridge_name(network.spec.vni)
            found |= {vm.name: None for vm in self._informers.vms.list_by_index(BY_BRIDGE, bridge)}
        return found
