"""Compares OVN with what should be, and follows packets through it; it changes nothing.

It works on the server, whose caches and connections it uses.
What differs is looked at a second time a moment later: the controller may just be at work on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final

from outlive.base import Clock, NotFound, Refused, Unavailable
from outlive.network.informers import BY_NETWORK, BY_VM, NetworkInformers
from outlive.network.inspection import (
    FINDINGS_LIMIT,
    NetworkFinding,
    NetworkInspection,
    build_finding,
    compare_rows,
    find_named,
    find_row_conflicts,
    judge_binding,
    judge_learned,
)
from outlive.network.names import CLUSTER_ROUTER, ROUTED
from outlive.network.operations import PORTS, ROUTER_PORTS, Rows
from outlive.network.own_vms import OwnPort, OwnVmInput, own_vm_scope, plan_own_vm, set_rows
from outlive.network.packets import TracePacket, TracePort, compose_packet, compose_packets, trace_port
from outlive.network.ports import (
    Chassis,
    NorthboundDb,
    PacketTracer,
    Receipt,
    Scope,
    SouthboundDb,
    last_change,
)
from outlive.network.switches import NetworkSwitches
from outlive.network.topology import plan_topology, topology_scope
from outlive.network.traces import TraceAnswer, read_trace, traced_ports
from outlive.network.views import (
    VmPlace,
    foreign_reason,
    host_chassis,
    is_programmed,
    network_problem,
    obstacle_of,
    own_port,
    place_of,
    portless_interfaces,
    present_port,
    row_names,
    wants_address,
    was_prepared,
)
from outlive.resources import VirtualMachinePort, interface_id
from outlive.resources.reasons import NetworkReason, Reason, make_reason, render

SETTLE_S: Final = 1.0
"""After so long what differs is looked at again."""
ANSWER_S: Final = 2.0
"""How long chassis may take to have OVN's last change."""
PACKETS_LIMIT: Final = 16
"""Packets of one trace; each takes seconds where OVN has many logical flows."""
OTHERS_LIMIT: Final = 200
"""Ports among which neighbours and receivers are looked for."""


class NetworkInspector:
    """See the module."""

    def __init__(
        self,
        informers: NetworkInformers,
        switches: NetworkSwitches,
        northbound: NorthboundDb,
        southbound: SouthboundDb,
        clock: Clock,
        tracer: PacketTracer | None = None,
    ) -> None:
        self._informers = informers
        self._switches = switches
        self._nb = northbound
        self._sb = southbound
        self._clock = clock
        self._tracer = tracer
        self._tracing = asyncio.Lock()

    async def inspect(self, name: str = "") -> NetworkInspection:
        """All networks and VMs, or one of them; ``NotFound``. ``Unavailable`` where OVN does not answer."""
        rows = await self._nb.read_rows()
        vms, networks = self._scope_of(name, rows)
        chassis = await self._sb.list_chassis()
        found = await self._compare(vms, networks, chassis)
        if found:
            await self._clock.sleep(SETTLE_S)
            again = {one.about.partition("/")[2] for one in found}
            ports = self._informers.ports
            again |= {port.spec.vm for one in again if (port := ports.get(one)) is not None}
            chassis = await self._sb.list_chassis()
            found = await self._compare(
                [one for one in vms if one in again], [one for one in networks if one in again], chassis
            )
            rows = await self._nb.read_rows()
        abouts = {*(f"VirtualMachine/{one}" for one in vms), *(f"VirtualNetwork/{one}" for one in networks)}
        found += find_row_conflicts(rows, abouts if name else None)
        change = await last_change(self._nb)
        found += await self._find_silent_chassis(chassis, change, vms)
        ports_count = sum(len(self._ports_of(one)) for one in vms)
        return NetworkInspection(
            networks=len(networks),
            vms=len(vms),
            ports=ports_count,
            change=change,
            findings=tuple(found[:FINDINGS_LIMIT]),
            more=max(0, len(found) - FINDINGS_LIMIT),
        )

    async def trace(self, name: str, to: str = "", sender: str = "") -> list[TraceAnswer]:
        """The ways of packets of a VM or port: those that must work, or one ``to`` an address, or from a ``sender``, a
        VM or port. ``NotFound``; ``Refused`` where none of its ports can be programmed; ``Unavailable``."""
        if self._tracer is None:
            raise Unavailable("this server cannot run ovn-trace", remedy="ask a server that has network.southbound")
        ports = self._trace_ports(name)
        packets: list[TracePacket] = []
        if sender:
            sources = self._trace_ports(sender)
            targets = [to] if to else [one.partition("/")[0] for port in ports for one in port.addresses]
            packets = [compose_packet(sources[0], one, (*ports, *self._other_ports(sources[0]))) for one in targets]
        for port in ports if not sender else ():
            others = self._other_ports(port)
            packets += [compose_packet(port, to, others)] if to else compose_packets(port, others)
        names: dict[str, str] = {}
        for own in self._informers.ports.items() if packets else ():
            for host, interface in own.status.interfaces.items():
                names[interface] = f"{own.name} on {host}" if len(own.status.interfaces) > 1 else own.name
        return [await self._follow(packet, names) for packet in packets[:PACKETS_LIMIT]]

    async def _follow(self, packet: TracePacket, names: Mapping[str, str]) -> TraceAnswer:
        """The way of one packet. The program reads all of OVN's logical flows, so one of it runs at a time."""
        assert self._tracer is not None
        async with self._tracing:
            text = await self._tracer.trace(packet.switch, packet.flow)
        passed = traced_ports(text)
        rows = await self._nb.read_rows(Scope(ports=passed, names=passed))
        places = {row["name"]: row.get("switch", "") for row in rows.get(PORTS, ())}
        places |= {row["name"]: row.get("router") or CLUSTER_ROUTER for row in rows.get(ROUTER_PORTS, ())}
        return read_trace(packet, text, names, places)

    def _trace_ports(self, name: str) -> list[TracePort]:
        """The ports of a VM, or one by name, at their places."""
        port = self._informers.ports.get(name)
        vm = port.spec.vm if port is not None else name
        if self._informers.vms.get(vm) is None:
            raise NotFound(f"there is no VM or port {name[:80]!r}", remedy="see outlive get virtualmachineports")
        place, planned = place_of(self._informers.vms.get(vm)), self.planned_ports(vm)
        mine = {one: own for one, own in planned.items() if port is None or one == name}
        found = [trace_port(one, own, place) for one, own in mine.items() if isinstance(own, OwnPort)]
        if not found:
            why = next((render(one) for one in mine.values() if isinstance(one, Reason)), None)
            if why is None:
                raise NotFound(f"{name} has no port on a network in OVN", remedy="see outlive get virtualmachineports")
            raise Refused(f"{name} cannot be traced: {why.text}", remedy=why.remedy)
        return found

    def _other_ports(self, port: TracePort) -> list[TracePort]:
        """Some further ports, those of its own network first, and of these those of other hosts."""
        found: list[TracePort] = []
        mine = self._informers.ports.list_by_index(BY_NETWORK, port.network)
        routed = [
            one for one in self._informers.ports.items() if port.type == ROUTED and one.spec.network != port.network
        ]
        for one in [*mine, *routed][:OTHERS_LIMIT]:
            if one.name != port.name:
                own = self.planned_ports(one.spec.vm).get(one.name)
                if isinstance(own, OwnPort):
                    found.append(trace_port(one.name, own, place_of(self._informers.vms.get(one.spec.vm))))
        return sorted(found, key=lambda one: (one.network != port.network, one.switch == port.switch))

    def planned_ports(self, vm: str) -> dict[str, OwnPort | Reason]:
        """Of each port of a VM that is meant to be in OVN, its plan or why there is none."""
        record, place = self._informers.vms.get(vm), place_of(self._informers.vms.get(vm))
        found: dict[str, OwnPort | Reason] = {}
        for each in self._ports_of(vm):
            port = present_port(each, record)
            network = self._informers.networks.get(port.spec.network)
            overlaps = self._switches.overlap_of(port.spec.network)
            problem = obstacle_of(self._informers.facts_of(port, record, place, overlaps))
            if problem is None and network is not None and record is not None:
                found[port.name] = wants_address(port, network) or own_port(port, network, record)
            elif problem is not None:
                found[port.name] = problem
        return found

    def _ports_of(self, vm: str) -> list[VirtualMachinePort]:
        ports = self._informers.ports.list_by_index(BY_VM, vm)
        return [one for one in ports if is_programmed(self._informers.networks.get(one.spec.network))]

    def _scope_of(self, name: str, rows: Rows) -> tuple[list[str], list[str]]:
        """The VMs and networks that are looked at, also those that only rows name."""
        row_vms, row_networks = find_named(rows)
        vms = row_vms | {one.spec.vm for one in self._informers.ports.items()}
        networks = row_networks | {one.name for one in self._informers.networks.items() if is_programmed(one)}
        if not name:
            return sorted(vms), sorted(networks)
        if name in networks:
            ports = self._informers.ports.list_by_index(BY_NETWORK, name)
            return sorted({one.spec.vm for one in ports}), [name]
        if name in vms or self._informers.vms.get(name) is not None:
            return [name], []
        raise NotFound(
            f"{name[:80]!r} is no network in OVN and no VM", remedy="see outlive get virtualnetworks, virtualmachines"
        )

    async def _compare(self, vms: list[str], networks: list[str], chassis: list[Chassis]) -> list[NetworkFinding]:
        found: list[NetworkFinding] = []
        for name in networks:
            found += await self._inspect_network(name)
        for name in vms:
            found += await self._inspect_vm(name, chassis)
        return found

    async def _inspect_network(self, name: str) -> Iterator[NetworkFinding]:
        network, about = self._informers.networks.get(name), f"VirtualNetwork/{name}"
        if network is not None:
            problem = network_problem(network, self._switches.overlap_of(name))
            if problem is not None:
                return iter((build_finding(about, problem),))
        features = self._nb.read_features()
        rows = await self._nb.read_rows(topology_scope(self._switches.topology_of(name, network, {}, features)))
        result = plan_topology(self._switches.topology_of(name, network, rows, features))
        others = [build_finding(about, foreign_reason(one)) for one in result.foreign]
        return iter((*others, *compare_rows(about, result.ops, rows)))

    async def _inspect_vm(self, name: str, chassis: list[Chassis]) -> list[NetworkFinding]:
        place, planned = place_of(self._informers.vms.get(name)), self.planned_ports(name)
        found = [
            build_finding(f"VirtualMachinePort/{port}", why) for port, why in planned.items() if isinstance(why, Reason)
        ]
        good = {port: own for port, own in planned.items() if isinstance(own, OwnPort)}
        is_ready = all(was_prepared(self._informers.ports.get(one), place.move) for one in good)
        if not is_ready and self._informers.find_unreached(good, place.target):
            place = place._replace(target="")
        hosts = [one for one in (place.host, place.target) if one]
        given = OwnVmInput(
            vm=name,
            host=place.host or None,
            target=place.target or None,
            ports=tuple(good.values()),
            kept=tuple(sorted(self._kept_names(name, place, planned))),
            portless=tuple(
                portless_interfaces(
                    self._informers.vms.get(name), self._informers.ports.list_by_index(BY_VM, name)
                ).values()
            ),
            chassis={one: self._chassis_of(one, chassis) for one in hosts},
        )
        rows = await self._nb.read_rows(own_vm_scope(given))
        result = plan_own_vm(set_rows(given, rows, self._nb.read_features()))
        found += compare_rows(f"VirtualMachine/{name}", result.ops, rows)
        found += [
            build_finding(f"VirtualMachine/{name}", make_reason(NetworkReason.NO_PORT, vm=name, interface=one))
            for one in result.portless
        ]
        for port, own in good.items():
            about = f"VirtualMachinePort/{port}"
            if own.interface in result.foreign:
                found.append(build_finding(about, foreign_reason(result.foreign[own.interface])))
            else:
                found += [
                    one
                    for one in await self._inspect_binding(about, port, own, place, given.chassis)
                    if one is not None
                ]
        return found

    def _kept_names(self, vm: str, place: VmPlace, planned: Mapping[str, OwnPort | Reason]) -> set[str]:
        """Logical ports that stay as they are though they cannot be planned, because the VM is on a host."""
        refused = [self._informers.ports.get(port) for port, why in planned.items() if isinstance(why, Reason)]
        record = self._informers.vms.get(vm)
        found = [row_names(port, record, place) for port in refused if port is not None and place.host]
        return set().union(*found)

    async def _inspect_binding(
        self, about: str, name: str, own: OwnPort, place: VmPlace, chassis: dict[str, str]
    ) -> list[NetworkFinding | None]:
        """The binding of a port; after a switch-over also what routers have learned of its addresses."""
        vm, port = self._informers.vms.get(name.rpartition(".")[0]), self._informers.ports.get(name)
        if vm is not None and vm.spec.power_state == "stopped":
            return []
        interface = interface_id(own.interface, own.mode, place.host)
        binding = await self._sb.read_binding(interface)
        found = [judge_binding(about, interface, place.host, chassis[place.host], binding)]
        if port is not None and port.status.switched_at is not None:
            for cidr in own.addresses:
                address = cidr.partition("/")[0]
                found.append(judge_learned(about, address, own.mac, await self._sb.mac_bindings(address)))
        return found

    def _chassis_of(self, host: str, known: list[Chassis]) -> str:
        return host_chassis(self._informers.hosts.get(host), host, known)

    async def _find_silent_chassis(self, chassis: list[Chassis], change: int, vms: list[str]) -> list[NetworkFinding]:
        """Chassis of hosts of these VMs that do not follow OVN's changes."""
        places = [place_of(self._informers.vms.get(one)) for one in vms if self._ports_of(one)]
        hosts = sorted({host for place in places for host in (place.host, place.target) if host})
        by_chassis = {self._chassis_of(host, chassis): host for host in hosts}
        known = {one.name: one for one in chassis}
        found = [
            build_finding(f"Hypervisor/{host}", make_reason(NetworkReason.NO_CHASSIS, host=host))
            for name, host in by_chassis.items()
            if name not in known
        ]
        applied = await self._nb.wait_applied(
            Receipt(nb_cfg=change), on=[one for one in by_chassis if one in known], limit_s=ANSWER_S
        )
        if len(applied.behind) > 1 and len({known[one].nb_cfg for one in applied.behind}) == 1 == len(
            {one.nb_cfg for one in chassis}
        ):
            since = known[applied.behind[0]].nb_cfg
            return [
                *found,
                build_finding("OVN/northd", make_reason(NetworkReason.NORTHD_BEHIND, change=since, now=change)),
            ]
        for name in applied.behind:
            why = make_reason(
                NetworkReason.CHASSIS_SILENT,
                chassis=name,
                change=known[name].nb_cfg,
                now=change,
                host=by_chassis[name],
            )
            found.append(build_finding(f"Hypervisor/{by_chassis[name]}", why))
        return found
