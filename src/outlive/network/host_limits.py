"""The hosts that a VM may run on by where its networks are.

A network reaches the hosts that have its labels (``VirtualNetwork.spec.hostLabels``); one in OVN reaches no host that
says that it runs no OVN. Of each VM that has a port on one that does not reach all hosts this writes
``VirtualMachine.status.networkHosts``, and everybody who sends a VM anywhere goes by it as by its other limits
(``VirtualMachine.allowed_hosts``). It needs no OVN: bridged networks are limited too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from outlive.base.clock import Clock
from outlive.network.informers import BY_NETWORK, BY_VM, NetworkInformers
from outlive.network.views import lacks_ovn, reaches_host
from outlive.resources import Hypervisor, Resource, VirtualMachine, VirtualMachinePort, VirtualNetwork
from outlive.runtime.controller import Requeue, Watch
from outlive.runtime.election import Elector
from outlive.runtime.manager import Manager
from outlive.store import Store, compare_and_swap

MAX_PARALLEL: Final = 8
"""VMs that are written at once."""
_replace = msgspec.structs.replace


def reached_hosts(
    ports: Iterable[VirtualMachinePort], networks: Mapping[str, VirtualNetwork], hosts: Iterable[Hypervisor]
) -> dict[str, tuple[str, ...]]:
    """Each network of these ports that does not reach all hosts → the hosts that it reaches, both by name."""
    known = list(hosts)
    found = {}
    for network in [networks[name] for name in sorted({port.spec.network for port in ports}) if name in networks]:
        reached = tuple(sorted(host.name for host in known if reaches_host(network, host)))
        if network.spec.host_labels or len(reached) < len(known):
            found[network.name] = reached
    return found


def with_host_limits(objects: Iterable[Resource]) -> Iterator[Resource]:
    """The same objects, with the limits that their networks mean for VMs: of a state that nobody keeps up to date."""
    found = list(objects)
    ports: dict[str, list[VirtualMachinePort]] = {}
    for one in found:
        if isinstance(one, VirtualMachinePort):
            ports.setdefault(one.spec.vm, []).append(one)
    networks = {one.name: one for one in found if isinstance(one, VirtualNetwork)}
    hosts = [one for one in found if isinstance(one, Hypervisor)]
    for one in found:
        yield (
            _limited(one, reached_hosts(ports.get(one.name, ()), networks, hosts))
            if isinstance(one, VirtualMachine)
            else one
        )


def _limited(vm: VirtualMachine, hosts: dict[str, tuple[str, ...]]) -> VirtualMachine:
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
        self._without_ovn: set[str] = set()
        """Hosts that say that they run no OVN."""

    def attach(self, manager: Manager, elector: Elector | None) -> None:
        """Have the manager run it."""
        informers = self._informers
        watches = (
            Watch(informers.ports, self._port_keys),
            Watch(informers.networks, self._network_keys),
            Watch(informers.hosts, self._host_keys),
            Watch(informers.vms, self._vm_keys),
        )
        manager.add_controller(self, watches, MAX_PARALLEL, elector=elector)

    async def reconcile(self, vm: str) -> Requeue | None:
        """Write what the networks of one VM reach, where it is not written."""
        informers = self._informers
        networks = {one.name: one for one in informers.networks.items()}
        is_limited = self._without_ovn or any(one.spec.host_labels for one in networks.values())
        known = informers.hosts.items() if is_limited else ()
        hosts = reached_hosts(informers.ports.by_index(BY_VM, vm), networks, known)
        cached = informers.vms.get(vm)
        if cached is None or cached.status.network_hosts == hosts:
            return None

        def write(now: VirtualMachine | None) -> VirtualMachine | None:
            return None if now is None or now.status.network_hosts == hosts else _limited(now, hosts)

        await compare_and_swap(self._store, VirtualMachine, vm, write, clock=self._clock, cache=informers.vms.get)
        return None

    def _port_keys(self, old: VirtualMachinePort | None, new: VirtualMachinePort | None) -> Iterable[str]:
        if old is not None and new is not None and old.spec == new.spec:
            return ()
        return {port.spec.vm: None for port in (old, new) if port is not None}

    def _network_keys(self, old: VirtualNetwork | None, new: VirtualNetwork | None) -> Iterable[str]:
        labels = [one.spec.host_labels if one is not None else {} for one in (old, new)]
        network = new if new is not None else old
        return self._vms_on(network.name) if network is not None and labels[0] != labels[1] else ()

    def _host_keys(self, old: Hypervisor | None, new: Hypervisor | None) -> Iterable[str]:
        facts = [(one.metadata.labels, lacks_ovn(one)) for one in (old, new) if one is not None]
        if len(facts) == 2 and facts[0] == facts[1]:
            return ()
        some_lacked = bool(self._without_ovn)
        if old is not None:
            self._without_ovn.discard(old.name)
        if new is not None and lacks_ovn(new):
            self._without_ovn.add(new.name)
        is_everywhere = not (some_lacked or self._without_ovn)
        networks = [one for one in self._informers.networks.items() if one.spec.host_labels or not is_everywhere]
        return {vm: None for one in networks for vm in self._vms_on(one.name)}

    def _vm_keys(self, old: VirtualMachine | None, new: VirtualMachine | None) -> Iterable[str]:
        """A VM that is new, or of which somebody wrote something else."""
        before: Any = old.status.network_hosts if old is not None else None
        if new is None or before == new.status.network_hosts:
            return ()
        is_limited = bool(new.status.network_hosts) or bool(self._informers.ports.by_index(BY_VM, new.name))
        return (new.name,) if is_limited else ()

    def _vms_on(self, network: str) -> dict[str, None]:
        return {port.spec.vm: None for port in self._informers.ports.by_index(BY_NETWORK, network)}
