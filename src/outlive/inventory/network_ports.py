"""Ports of VMs with addresses that somebody else has given, as an import writes them. Pure.

All rows are checked, with each other and with what is there, before the first is written: a VM and a network that
exist, an interface of the VM, a MAC and addresses that nobody else has, and addresses of the network's subnets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from outlive.base import BadInput, Invalid
from outlive.network import (
    add_mask,
    address_key,
    address_problem,
    check_network,
    is_group,
    mac_key,
    parse_any,
    parse_mac,
    read_subnet,
)
from outlive.resources import (
    PORTS_LIMIT,
    ObjectMeta,
    Problems,
    VirtualMachine,
    VirtualMachinePort,
    VirtualMachinePortSpec,
    VirtualNetwork,
    parse,
    port_object_name,
    vm_and_index,
)

IMPORT_PORTS_LIMIT: Final = 1_000_000
"""Ports of one import."""
ADDRESSES_LIMIT: Final = 8


class PortRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One row."""

    place: str
    vm: str
    """Its object's name, or the name that its users gave it."""
    network: str
    mac: str
    addresses: tuple[str, ...] = ()
    interface: int | None = None
    """Number of the interface in the VM's definition; ``None``: the one with this MAC."""


class KnownNetworks(NamedTuple):
    """What is there."""

    vms: Mapping[str, VirtualMachine]
    networks: Mapping[str, VirtualNetwork]
    ports: Mapping[str, VirtualMachinePort]


def plan_ports(records: Sequence[PortRecord], known: KnownNetworks, problems: Problems) -> list[VirtualMachinePort]:
    """The ports that are to be created, or changed, in the order of the rows; ``problems`` gets what is wrong."""
    by_name: dict[str, list[str]] = {}
    for vm in known.vms.values():
        for name in {vm.name, vm.spec.display_name} - {""}:
            by_name.setdefault(name, []).append(vm.name)
    planned: dict[str, VirtualMachinePort] = {}
    macs: Owners = {}
    addresses: Owners = {}
    for there in known.ports.values():
        macs[there.spec.network, mac_key(there.spec.mac)] = there.name
        for one in (*there.spec.addresses, *there.status.addresses):
            addresses[there.spec.network, address_key(one)] = there.name
    rows: dict[str, str] = {}
    for record in records:
        try:
            port = _build_port(record, by_name, known, planned)
            if port.name in planned:
                raise BadInput(f"{port.name} is there twice", remedy=f"see {rows[port.name]}, and leave one out")
            _check_taken(port, macs, addresses)
        except BadInput as error:
            problems.take(record.place, error)
            continue
        planned[port.name], rows[port.name] = port, record.place
        macs[port.spec.network, port.spec.mac] = port.name
        addresses.update({(port.spec.network, address_key(one)): port.name for one in port.spec.addresses})
    return [port for name, port in planned.items() if name not in known.ports or known.ports[name].spec != port.spec]


def _build_port(
    record: PortRecord,
    by_name: Mapping[str, list[str]],
    known: KnownNetworks,
    planned: Mapping[str, VirtualMachinePort],
) -> VirtualMachinePort:
    named = by_name.get(record.vm, [])
    if len(named) != 1:
        what = f"{len(named)} VMs are" if named else "no VM is"
        raise BadInput(f"{what} called {record.vm[:80]!r}", remedy="write the id of one, as outlive vm list shows it")
    vm, network = known.vms[named[0]], known.networks.get(record.network)
    if network is None:
        raise BadInput(f"there is no VirtualNetwork {record.network[:80]!r}", remedy="create it before its ports")
    try:
        mac = parse_mac(record.mac)
    except Invalid:
        mac = ""
    if not mac or is_group(mac):
        raise BadInput(f"{record.mac[:40]!r} is no MAC address of an interface", remedy="such as 52:54:00:12:34:56")
    number = _interface_number(record, vm, mac, planned)
    name = port_object_name(vm.name, number)
    spec = VirtualMachinePortSpec(
        vm=vm.name, network=network.name, mac=mac, addresses=_check_addresses(record, network)
    )
    before = known.ports.get(name)
    if before is None:
        return VirtualMachinePort(metadata=ObjectMeta(name=name), spec=spec)
    kept = msgspec.structs.replace(
        before.spec, vm=spec.vm, network=spec.network, mac=spec.mac, addresses=spec.addresses or before.spec.addresses
    )
    return msgspec.structs.replace(before, spec=kept)


def _interface_number(
    record: PortRecord, vm: VirtualMachine, mac: str, planned: Mapping[str, VirtualMachinePort]
) -> int:
    """The number of the interface: as the row says, else by its MAC, else the next one of the VM in this import."""
    defined = parse(vm.spec.definition).ports if vm.spec.definition else ()
    found = next((number for number, one in enumerate(defined) if one.mac.lower() == mac), None)
    if record.interface is not None:
        number = record.interface
        if found not in (None, number):
            raise BadInput(f"{mac} is interface {found} of {vm.name}, not {number}", remedy="correct one of them")
    elif found is not None:
        number = found
    elif defined:
        raise BadInput(f"no interface in the definition of {vm.name} has MAC {mac}", remedy="correct one of them")
    else:
        number = 1 + max((vm_and_index(name)[1] for name in planned if vm_and_index(name)[0] == vm.name), default=-1)
    if not 0 <= number < PORTS_LIMIT or (defined and number >= len(defined)):
        most = min(PORTS_LIMIT, len(defined) or PORTS_LIMIT) - 1
        raise BadInput(f"{vm.name} has no interface {number}", remedy=f"write 0 to {most}")
    return number


def _check_addresses(record: PortRecord, network: VirtualNetwork) -> tuple[str, ...]:
    """Each address checked, and once; one that lies in a subnet has no mask, which it takes from there."""
    if len(record.addresses) > ADDRESSES_LIMIT:
        raise BadInput(f"{len(record.addresses)} addresses", remedy=f"at most {ADDRESSES_LIMIT} for one port")
    try:
        check_network(network.spec)
    except BadInput as error:
        raise BadInput(f"network {network.name}: {error.message}", remedy=error.remedy) from None
    subnets = [read_subnet(one) for one in network.spec.subnets]
    found: dict[str, None] = {}
    for text in record.addresses:
        try:
            address, problem = parse_any(text), address_problem(text, network)
        except Invalid as error:
            raise BadInput(error.message, remedy=error.remedy) from None
        if problem:
            remedy = f"choose another one of {', '.join(map(str, subnets))}"
            raise BadInput(problem, remedy=remedy)
        is_inside = any(one.version == address.version and address in one for one in subnets)
        found[str(address) if is_inside else add_mask(text, ())] = None
    return tuple(found)


Owners = dict[tuple[str, str], str]
"""Network and MAC, or address → port."""


def _check_taken(port: VirtualMachinePort, macs: Owners, addresses: Owners) -> None:
    network = port.spec.network
    if macs.get((network, port.spec.mac), port.name) != port.name:
        raise BadInput(
            f"MAC {port.spec.mac} is that of port {macs[network, port.spec.mac]} on {network}",
            remedy="change one of them",
        )
    for one in port.spec.addresses:
        owner = addresses.get((network, address_key(one)), port.name)
        if owner != port.name:
            raise BadInput(
                f"{address_key(one)} is an address of port {owner} on {network}", remedy="change one of them"
            )
