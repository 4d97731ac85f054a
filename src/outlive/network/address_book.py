"""Addresses of ports: as their users give them, as ports have them, or the next free ones of their network.

Two controllers may for a moment give one address to two ports; the younger port is told so and gets no rows.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from outlive.base.errors import LimitExceeded
from outlive.network.addressing import parse_any
from outlive.network.informers import BY_ADDRESS, BY_NETWORK, NetworkInformers, StatusWriter, addresses_of
from outlive.network.pool import free_address
from outlive.network.views import VmPlace, cidrs_for, given_addresses
from outlive.resources import VirtualMachinePort, VirtualNetwork
from outlive.resources.meta import creation_order
from outlive.resources.reasons import NetworkReason, Reason, reason

RESERVED_KEPT: Final = 10_000
"""Addresses that are remembered until the cache has them."""
_replace = msgspec.structs.replace


class AddressBook:
    """See the module."""

    def __init__(self, informers: NetworkInformers, writer: StatusWriter) -> None:
        self._informers = informers
        self._writer = writer
        self._allocating = asyncio.Lock()
        self._reserved: dict[tuple[str, str], str] = {}
        """Network and address → port: allocated, and perhaps not in the cache yet."""

    async def address(
        self, port: VirtualMachinePort, network: VirtualNetwork, place: VmPlace
    ) -> VirtualMachinePort | Reason:
        """The port with addresses in its status: given by its user, as it has them, or the next free ones."""
        if network.spec.addressing == "none" and not port.spec.addresses:
            return port
        if port.spec.addresses:
            try:
                addresses, gateways = given_addresses(port, network)
            except ValueError as error:
                return reason(NetworkReason.NO_ADDRESS, problem=str(error), remedy="change spec.addresses")
            for address in addresses:
                if (other := self._other_owner(port, network.name, address)) is not None:
                    return reason(NetworkReason.ADDRESS_TWICE, other=other.name, address=address, network=network.name)
        elif port.status.addresses:
            return port
        else:
            try:
                addresses, gateways = await self._allocate(port, network, place)
            except LimitExceeded as error:
                return reason(NetworkReason.NO_ADDRESS, problem=error.message, remedy=error.remedy or "")
        if addresses == port.status.addresses:
            return port
        gateways = gateways or port.status.gateways
        status = _replace(port.status, addresses=addresses, gateways=gateways)
        await self._writer.write_port(port.name, lambda now: _replace(now, addresses=addresses, gateways=gateways))
        return _replace(port, status=status)

    def _other_owner(self, port: VirtualMachinePort, network: str, address: str) -> VirtualMachinePort | None:
        """An older port that has the address."""
        found = self._informers.ports.by_index(BY_ADDRESS, f"{network}/{address.partition('/')[0]}")
        return next((one for one in found if creation_order(one) < creation_order(port)), None)

    async def _allocate(
        self, port: VirtualMachinePort, network: VirtualNetwork, place: VmPlace
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        async with self._allocating:
            subnets = cidrs_for(network, place.host)
            if not subnets:
                raise LimitExceeded(
                    f"{place.host} has no subnet on network {network.name} yet", remedy="see its condition Programmed"
                )
            excluded = [one for subnet in network.spec.subnets for one in subnet.excluded]
            used = {
                one.partition("/")[0]
                for other in self._informers.ports.by_index(BY_NETWORK, network.name)
                for one in addresses_of(other)
            }
            used |= {address for (of, address), owner in self._reserved.items() if of == network.name}
            addresses, families = [], set()
            for cidr, gateway in subnets.items():
                address = free_address(cidr, used, excluded, gateway)
                version = parse_any(address).version
                if version not in families:
                    families.add(version)
                    addresses.append(address)
            for one in addresses:
                self._reserved[network.name, one.partition("/")[0]] = port.name
            while len(self._reserved) > RESERVED_KEPT:
                self._reserved.pop(next(iter(self._reserved)))
            return tuple(addresses), tuple(one for one in subnets.values() if one)
