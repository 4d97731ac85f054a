"""Addresses of ports: as their users give them, as ports have them, or the next free ones of their network.

A port that has addresses keeps them for as long as it exists and its VM runs: what is wrong with them later, or with
others that its user then asks for, is told, and changes nothing until the VM is down. Two controllers may for a moment
give one address to two ports; the younger port is told so and gets no rows. A store that was restored from a backup may
lack addresses that were given since: a VM keeps those that its rows in OVN have, and nobody else gets them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Container, Iterable
from typing import Final, NamedTuple

import msgspec

from outlive.base import Clock, Invalid, LimitExceeded
from outlive.network.addressing import address_key, mac_key, parse_any, parse_mac
from outlive.network.informers import BY_ADDRESS, NetworkInformers, StatusWriter, granted_addresses
from outlive.network.names import NETWORK_KEY, OWN_CONTROLLER, OWN_NAMESPACE, OWNER_KEY
from outlive.network.operations import PORTS, Rows
from outlive.network.owners import external_ids, vm_in
from outlive.network.pool import address_problem, free_address
from outlive.network.ports import NorthboundDb
from outlive.network.views import VmPlace, add_masks, cidrs_for, gateways_for
from outlive.resources import (
    VirtualMachinePort,
    VirtualMachinePortStatus,
    VirtualNetwork,
    creation_order,
    present_network,
    wanted_mode,
)
from outlive.resources.reasons import NetworkReason, Reason, make_reason

RESERVED_LIMIT: Final = 10_000
"""Ports whose addresses are remembered until the cache has them …"""
RESERVED_S: Final = 60.0
"""… but no longer than this, so that what was not written in the end is free again."""
SUBNETS_LIMIT: Final = 10_000
"""Subnets of which is remembered which address was given last."""
ROWS_S: Final = 30.0
"""For how long addresses are given by the rows of OVN that were read last."""
_replace = msgspec.structs.replace


class AddressedPort(NamedTuple):
    """A port with addresses in its status."""

    port: VirtualMachinePort
    problem: Reason | None = None
    """What is wrong with them, or with those that its user wants instead; it keeps those that it has."""


class RowAddresses(NamedTuple):
    """Addresses that rows of OVN give to VMs of our own hosts."""

    ports: dict[tuple[str, str, str], tuple[str, ...]]
    """By VM, network and MAC."""
    owners: dict[tuple[str, str], str]
    """Network and address → VM."""


class _Reservation(NamedTuple):
    addresses: frozenset[tuple[str, str]]
    """Network and address of each."""
    end_s: float


class AddressBook:
    """See the module."""

    def __init__(
        self, informers: NetworkInformers, writer: StatusWriter, northbound: NorthboundDb, clock: Clock
    ) -> None:
        self._informers = informers
        self._writer = writer
        self._nb = northbound
        self._clock = clock
        self._allocating = asyncio.Lock()
        self._reserved: dict[str, _Reservation] = {}
        """By port, what it was given, and is perhaps not in the cache yet."""
        self._last: OrderedDict[tuple[str, str], str] = OrderedDict()
        """Network and subnet → the address that was given last: the next one is looked for after it."""
        self._rows = RowAddresses({}, {})
        self._rows_read_s = float("-inf")

    async def assign_addresses(
        self, port: VirtualMachinePort, network: VirtualNetwork, place: VmPlace
    ) -> AddressedPort | Reason:
        """The port with addresses: its user's, those that it has, or the next free ones; or why it has none."""
        problem = None
        is_to_change = wants_others(port, network)
        if port.spec.addresses or is_to_change:
            if is_to_change and _is_in_use(port, network):
                problem = self._claim_problem(port, network) or make_reason(
                    NetworkReason.ADDRESSES_CHANGED, vm=port.spec.vm
                )
                if not port.status.addresses:
                    return AddressedPort(port, problem)
            else:
                claimed = await self._claim(port, network)
                if not isinstance(claimed, Reason):
                    return AddressedPort(claimed)
                if not port.status.addresses:
                    return claimed
                problem = claimed
        elif network.spec.addressing == "none":
            return AddressedPort(port)
        if port.status.addresses:
            if (other := self._find_rival(port, network, port.status.addresses)) is not None:
                return other
            return AddressedPort(port, problem or _find_unfit(port, network, port.status.addresses))
        try:
            addresses, gateways = await self._allocate(port, network, place)
        except LimitExceeded as error:
            return make_reason(NetworkReason.NO_ADDRESS, problem=error.message, remedy=error.remedy or "")
        return AddressedPort(await self._write(port, network, addresses, gateways, are_new=True))

    async def release(self, port: VirtualMachinePort, network: VirtualNetwork | None) -> bool:
        """Take from a port what its user has changed since: its network, mode and addresses; and addresses that another
        port has too.

        To be called where its VM is down; ``network``: that it is on. True if it is another port now, which comes by
        its informer.
        """
        status = port.status
        is_elsewhere = present_network(port) != port.spec.network
        is_double = network is not None and self._find_rival(port, network, status.addresses) is not None
        loses_addresses = is_elsewhere or (is_double and not port.spec.addresses)
        loses_mode = False
        if network is not None:
            is_to_change = not loses_addresses and _is_in_use(port, network) and wants_others(port, network)
            if is_to_change and not isinstance(await self._claim(port, network), Reason):
                return True
            loses_mode = status.port_mode not in (None, wanted_mode(port, network))
        if not loses_addresses and not loses_mode:
            return False
        if loses_addresses:
            self._reserved.pop(port.name, None)

        def change(now: VirtualMachinePortStatus) -> VirtualMachinePortStatus:
            now = _replace(now, port_mode=None)
            return _replace(now, network="", addresses=(), gateways=()) if loses_addresses else now

        await self._writer.write_port(port.name, change)
        return True

    async def _claim(self, port: VirtualMachinePort, network: VirtualNetwork) -> VirtualMachinePort | Reason:
        """The port with the addresses that its user gives it; or why it does not get them."""
        async with self._allocating:
            problem = self._claim_problem(port, network)
            if problem is not None:
                return problem
            self._reserve(port, network.name, port.spec.addresses)
        addresses = add_masks(port.spec.addresses, network)
        gateways = gateways_for(addresses, network) or port.status.gateways
        return await self._write(port, network, addresses, gateways)

    def _claim_problem(self, port: VirtualMachinePort, network: VirtualNetwork) -> Reason | None:
        """Why the port does not get the addresses that its user gives it; those that it has already it may keep."""
        known = {address_key(one) for one in port.status.addresses}
        try:
            wanted = [one for one in port.spec.addresses if str(parse_any(one)) not in known]
        except Invalid as error:
            return make_reason(NetworkReason.NO_ADDRESS, problem=error.message, remedy="change spec.addresses")
        return _find_unfit(port, network, wanted) or self._find_rival(port, network, port.spec.addresses)

    def _find_rival(self, port: VirtualMachinePort, network: VirtualNetwork, addresses: Iterable[str]) -> Reason | None:
        """That another port has one of the addresses: one that was given it comes first, then the older one."""
        self._forget_reserved()
        for address in map(address_key, addresses):
            key = (network.name, address)

            def rank(one: VirtualMachinePort, key: tuple[str, str] = key) -> tuple[bool, tuple[float, str]]:
                return (key not in granted_addresses(one) and not self._reserves(one.name, key), creation_order(one))

            found = [*self._informers.ports.list_by_index(BY_ADDRESS, "/".join(key))]
            found += [
                one
                for name in self._reserved
                if self._reserves(name, key) and (one := self._informers.ports.get(name)) is not None
            ]
            first = min(found, key=rank, default=port)
            if first.name != port.name and rank(first) < rank(port):
                return make_reason(NetworkReason.ADDRESS_TWICE, other=first.name, address=address, network=network.name)
        return None

    async def _write(
        self,
        port: VirtualMachinePort,
        network: VirtualNetwork,
        addresses: tuple[str, ...],
        gateways: tuple[str, ...],
        *,
        are_new: bool = False,
    ) -> VirtualMachinePort:
        """The port with the addresses; where they are new, and another controller was first, with the other ones.

        Its mode is noted as well, before its guest can start: while OVN is away a changed one waits, too.
        """

        def change(now: VirtualMachinePortStatus) -> VirtualMachinePortStatus:
            if are_new and now.addresses:
                return now
            mode = now.port_mode or wanted_mode(port, network)
            return _replace(now, network=network.name, port_mode=mode, addresses=addresses, gateways=gateways)

        after = await self._writer.write_port(port.name, change)
        return _replace(port, status=after.status if after is not None else change(port.status))

    def _reserve(self, port: VirtualMachinePort, network: str, addresses: Iterable[str]) -> None:
        self._reserved.pop(port.name, None)
        keys = frozenset((network, address_key(one)) for one in addresses)
        self._reserved[port.name] = _Reservation(keys, self._clock.monotonic() + RESERVED_S)
        while len(self._reserved) > RESERVED_LIMIT:
            self._reserved.pop(next(iter(self._reserved)))

    def _reserves(self, port: str, key: tuple[str, str]) -> bool:
        found = self._reserved.get(port)
        return found is not None and key in found.addresses

    def _forget_reserved(self) -> None:
        """Forget addresses of ports that are gone, what the cache has, and what was not written in time."""
        now_s = self._clock.monotonic()
        for name, found in list(self._reserved.items()):
            port = self._informers.ports.get(name)
            if port is None or now_s >= found.end_s or found.addresses <= granted_addresses(port):
                del self._reserved[name]

    async def _allocate(
        self, port: VirtualMachinePort, network: VirtualNetwork, place: VmPlace
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        async with self._allocating:
            subnets = cidrs_for(network, place.host)
            if not subnets:
                raise LimitExceeded(
                    f"{place.host} has no subnet on network {network.name} yet", remedy="see its condition Programmed"
                )
            if self._clock.monotonic() - self._rows_read_s >= ROWS_S:  # a restored store may not know what OVN has
                self._rows = read_addresses(await self._nb.read_rows())
                self._rows_read_s = self._clock.monotonic()
            self._forget_reserved()
            taken = _TakenAddresses(self, port, network.name)
            in_ovn = self._rows.ports.get((port.spec.vm, network.name, mac_key(port.spec.mac)), ())
            kept = [one for one in in_ovn if one not in taken and not address_problem(one, network)]
            addresses = list(add_masks(kept, network))
            families = {parse_any(one).version for one in addresses}
            gateways = list(gateways_for(addresses, network))
            excluded = [one for subnet in network.spec.subnets for one in subnet.excluded]
            for cidr, gateway in subnets.items():
                version = parse_any(cidr).version
                if version in families:
                    continue
                families.add(version)
                found = free_address(cidr, taken, excluded, gateway, self._last.get((network.name, cidr), ""))
                addresses.append(found)
                self._last[network.name, cidr] = found.partition("/")[0]
                self._last.move_to_end((network.name, cidr))
                while len(self._last) > SUBNETS_LIMIT:
                    self._last.popitem(last=False)
                gateways += [gateway] if gateway else []
            self._reserve(port, network.name, addresses)
            return tuple(addresses), tuple(gateways)

    def is_taken(self, port: VirtualMachinePort, network: str, address: str) -> bool:
        """True if another port, or the rows of another VM, have the address."""
        key = (network, address)
        others = self._informers.ports.list_by_index(BY_ADDRESS, "/".join(key))
        return (
            any(one.name != port.name for one in others)
            or any(self._reserves(name, key) for name in self._reserved if name != port.name)
            or self._rows.owners.get(key, port.spec.vm) != port.spec.vm
        )


class _TakenAddresses(Container[str]):
    """Addresses without mask that a port cannot have, because others have them."""

    def __init__(self, book: AddressBook, port: VirtualMachinePort, network: str) -> None:
        self._book = book
        self._port = port
        self._network = network

    def __contains__(self, address: object) -> bool:
        return self._book.is_taken(self._port, self._network, str(address))


def read_addresses(rows: Rows) -> RowAddresses:
    """The addresses of logical ports of VMs of our own hosts. Pure."""
    found = RowAddresses({}, {})
    for row in rows.get(PORTS, ()):
        ids = external_ids(row)
        vm, network = vm_in(ids), ids.get(NETWORK_KEY, "")
        if vm is None or vm.namespace != OWN_NAMESPACE or ids.get(OWNER_KEY) != OWN_CONTROLLER:
            continue
        for text in row.get("addresses") or ():
            try:
                mac, *addresses = text.split()
                read = tuple(str(parse_any(one)) for one in addresses)
                found.ports[vm.name, network, parse_mac(mac)] = read
            except (Invalid, ValueError):
                continue  # somebody else wrote it, or it is ``unknown``
            found.owners.update({(network, one): vm.name for one in read})
    return found


def wants_others(port: VirtualMachinePort, network: VirtualNetwork) -> bool:
    """True if a port's user gives it other addresses than it has, or takes all from it where none are managed."""
    wanted = {address_key(one) for one in port.spec.addresses}
    is_given = bool(wanted) or network.spec.addressing == "none"
    return is_given and wanted != {address_key(one) for one in port.status.addresses}


def _is_in_use(port: VirtualMachinePort, network: VirtualNetwork) -> bool:
    """True if a guest may use the addresses that the port has, or on a network that manages none those that its guest
    has given itself."""
    return bool(port.status.addresses) or (network.spec.addressing == "none" and bool(port.status.interfaces))


def _find_unfit(port: VirtualMachinePort, network: VirtualNetwork, addresses: Iterable[str]) -> Reason | None:
    """That one of the addresses is none for a port of the network."""
    for one in addresses:
        if problem := address_problem(one, network):
            remedy = "change spec.addresses" if port.spec.addresses else "change the network, or make the port anew"
            return make_reason(NetworkReason.NO_ADDRESS, problem=problem, remedy=remedy)
    return None
