"""Whose an address is: copied to the target, reserved for a VM that travels, released when the VM is gone.

On a routed network each hypervisor has subnets of its own, and a VM keeps the address of the one where it was born
(docs/design/network-decisions.md#addresses).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_network
from typing import Any, Final

import msgspec

from outlive.base import BadInput
from outlive.network.addressing import Address, Subnet, is_within, parse_any, parse_host, parse_subnet
from outlive.network.annotation import encode_entry
from outlive.network.copies import (
    Copy,
    CopyQuestion,
    all_completed,
    find_migratable,
    find_siblings,
    group_by_vm,
    is_stale,
)
from outlive.network.names import DEFAULT_NETWORK, port_name
from outlive.runtime import Decision

SubnetTexts = str | tuple[str, ...]
"""Cidrs; a bare one is a list of one."""


class SourceAddressMissing(BadInput):
    """No sibling of a target has addresses that can be read."""

    code = "source-address-missing"


def parse_subnets(texts: SubnetTexts) -> list[Subnet]:
    """The subnets of a list of cidrs, or of a bare one."""
    return [parse_subnet(text) for text in ((texts,) if isinstance(texts, str) else texts)]


class SubnetIndex:
    """Finds the switch whose subnets contain an address; of several the first one."""

    def __init__(self, tracked: Mapping[str, SubnetTexts]) -> None:
        self._switches = list(tracked)
        self._masks: dict[tuple[int, int], dict[int, int]] = {}
        """By family and length of the prefix: the prefix as a number to the switch's place."""
        for place, texts in enumerate(tracked.values()):
            for subnet in parse_subnets(texts):
                spare = subnet.max_prefixlen - subnet.prefixlen
                prefixes = self._masks.setdefault((subnet.version, spare), {})
                prefixes.setdefault(int(subnet.network_address) >> spare, place)

    def find(self, addresses: Iterable[Address]) -> str | None:
        """The first switch that contains any of the addresses; ``None``: none does."""
        places = [
            prefixes[int(address) >> spare]
            for address in addresses
            for (version, spare), prefixes in self._masks.items()
            if version == address.version and int(address) >> spare in prefixes
        ]
        return self._switches[min(places)] if places else None


def find_addresses(copy: Copy, network: str) -> list[Address]:
    """The addresses of a copy on a network, without masks."""
    port = copy.networks.get(network)
    return [parse_any(text) for text in port.addresses] if port is not None else []


class CopyAddressesInput(CopyQuestion, frozen=True, kw_only=True, rename="camel"):
    """A copy that is to get addresses, and the others of its VM."""

    network: str = DEFAULT_NETWORK


class CopyAddressesResult(msgspec.Struct, frozen=True, kw_only=True):
    """The entry of a copy's annotation."""

    entry: dict[str, Any] | None
    """``None``: addresses are allocated, not copied."""
    patched: bool
    """Whether it has to be written to the asked copy."""


def copy_addresses(given: CopyAddressesInput) -> CopyAddressesResult:
    """The entry that a copy has, or gets from the first sibling that has one; gateways and all stay those of the home.

    ``SourceAddressMissing`` where there are siblings and none has addresses that can be read.
    """
    asked = given.find_asked()
    own = asked.networks.get(given.network)
    siblings = find_siblings(asked, given.copies)
    if not asked.migratable or (own is None and not siblings):
        return CopyAddressesResult(entry=None, patched=False)
    if own is not None:
        return CopyAddressesResult(entry=encode_entry(own), patched=False)
    found = next((one.networks[given.network] for one in siblings if given.network in one.networks), None)
    if found is None:
        raise SourceAddressMissing(
            f"no other copy of {asked.vm} has addresses on network {given.network[:80]!r}",
            remedy="wait until the source has them",
        )
    return CopyAddressesResult(entry=encode_entry(found), patched=True)


class ZoneInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Subnets that a zone has, those of all hypervisors, and addresses."""

    tracked: dict[str, SubnetTexts] = {}
    """By switch."""
    host_subnets: tuple[str, ...] | dict[str, SubnetTexts] = ()
    addresses: tuple[str, ...] = ()
    """With or without mask."""


class ZoneResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where the addresses are at home."""

    switch: str | None
    zone_contains: bool
    zone_contains_or_untracked: bool
    """Or nobody's: their home was removed, and its subnet has not been given to another hypervisor."""


def find_zone(addresses: Sequence[Address], tracked: SubnetIndex, everywhere: SubnetIndex | None = None) -> ZoneResult:
    """The switch of this zone that contains the addresses, and whether they are nobody's.

    ``tracked``: of the zone's switches, ``everywhere``: of all hypervisors.
    """
    switch = tracked.find(addresses)
    is_known = switch is not None or (everywhere is not None and everywhere.find(addresses[:1]) is not None)
    return ZoneResult(
        switch=switch,
        zone_contains=switch is not None,
        zone_contains_or_untracked=switch is not None or (bool(addresses) and not is_known),
    )


def decide_zone(given: ZoneInput) -> ZoneResult:
    """As ``find_zone``, from subnets as texts."""
    subnets = given.host_subnets if isinstance(given.host_subnets, dict) else {"": given.host_subnets}
    addresses = [parse_any(text) for text in given.addresses]
    return find_zone(addresses, SubnetIndex(given.tracked), SubnetIndex(subnets))


class ReserveInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Subnets that a hypervisor has just got, and all copies."""

    subnets: SubnetTexts = ()
    copies: tuple[Copy, ...] = ()
    network: str = DEFAULT_NETWORK


class ReserveResult(msgspec.Struct, frozen=True, kw_only=True):
    """Single addresses, as /32 and /128."""

    reserve: tuple[str, ...]


def reserve_addresses(given: ReserveInput) -> ReserveResult:
    """The addresses in new subnets that VMs have which travel: nobody else may get them."""
    subnets = parse_subnets(given.subnets)
    found: set[Address] = set()
    for group in group_by_vm(given.copies).values():
        for copy in find_migratable(group):
            if not is_stale(copy, [other for other in group if other.id != copy.id]):
                found.update(one for one in find_addresses(copy, given.network) if is_within(one, subnets))
    ordered = sorted(found, key=lambda address: (address.version, int(address)))
    return ReserveResult(reserve=tuple(str(ip_network(address)) for address in ordered))


class SyncAddressesInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All copies, as a controller finds them when it starts, and the subnets of its zone."""

    network: str = DEFAULT_NETWORK
    local_hypervisors: tuple[str, ...] = ()
    tracked: dict[str, SubnetTexts] = {}
    """By switch."""
    copies: tuple[Copy, ...] = ()


class SwitchReservation(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of one VM that are taken in a switch; that they are already is no error."""

    switch: str
    addresses: tuple[str, ...]
    """With the subnet's mask."""


class SyncAddressesResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a controller knows before it deletes anything."""

    vms: dict[str, bool]
    """Every VM that runs, by ``namespace/name``: whether here."""
    ports: tuple[str, ...]
    """Logical ports of living copies; others of the switches may go."""
    reserve: tuple[SwitchReservation, ...]


def sync_addresses(given: SyncAddressesInput) -> SyncAddressesResult:
    """The VMs, ports and addresses that are in use when a controller starts.

    The newest living copy that has addresses decides for its VM. Ports are those of all living copies: the source of a
    migration still runs, and its port must stay.
    """
    local = frozenset(given.local_hypervisors)
    index = SubnetIndex(given.tracked)
    vms: dict[str, bool] = {}
    ports: list[str] = []
    reserve: list[SwitchReservation] = []
    for vm, group in group_by_vm(find_migratable(given.copies)).items():
        living = [one for one in group if not one.completed and given.network in one.networks]
        ports += [port_name(one.namespace, one.name, given.network) for one in living if one.hypervisor in local]
        if living:
            newest = living[-1]
            vms[str(vm)] = newest.hypervisor in local
            switch = find_zone(find_addresses(newest, given.network), index).switch
            if switch is not None:
                hosts = map(parse_host, newest.networks[given.network].addresses)
                reserve.append(SwitchReservation(switch=switch, addresses=tuple(map(str, hosts))))
    return SyncAddressesResult(vms=vms, ports=tuple(sorted(ports)), reserve=tuple(reserve))


class ReleaseInput(CopyQuestion, frozen=True, kw_only=True, rename="camel"):
    """A copy that is completed, and all pods of the network."""

    network: str = DEFAULT_NETWORK
    tracked: dict[str, SubnetTexts] = {}
    """By switch."""
    released: bool = False
    """Whether its addresses were released before the last start."""


class ReleaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the addresses are free again, and in which switch."""

    release: bool
    switch: str | None


def decide_release(given: ReleaseInput) -> ReleaseResult:
    """Release addresses once nobody has them: the VM runs nowhere, and no other pod that lives has one of them.

    The switch is the one that contains them, wherever the copy ran; none of this zone: nothing is released. To be
    decided and done under the allocator's lock.
    """
    asked = given.find_asked()
    addresses = find_addresses(asked, given.network)
    switch = find_zone(addresses, SubnetIndex(given.tracked)).switch
    siblings = find_siblings(asked, given.copies)
    if switch is None or given.released or not all_completed(asked, siblings):
        return ReleaseResult(release=False, switch=None)
    everywhere = asked.migratable or given.network != DEFAULT_NETWORK
    for other in given.copies:
        has_port = other.hypervisor is not None and not other.completed and not other.host_network
        is_near = everywhere or other.hypervisor == asked.hypervisor
        if other.id == asked.id or not has_port or not is_near:
            continue
        if not set(addresses).isdisjoint(find_addresses(other, given.network)):
            return ReleaseResult(release=False, switch=None)
    return ReleaseResult(release=True, switch=switch)


COPY_ADDRESSES: Final = Decision(
    "network.copy_addresses",
    copy_addresses,
    CopyAddressesInput,
    CopyAddressesResult,
    "The addresses that a copy takes over from its VM",
    nulls_are_absent=True,
)
ZONE_CONTAINS: Final = Decision(
    "network.zone_contains",
    decide_zone,
    ZoneInput,
    ZoneResult,
    "Which switch of a zone contains addresses",
    nulls_are_absent=True,
)
RESERVE: Final = Decision(
    "network.reserve",
    reserve_addresses,
    ReserveInput,
    ReserveResult,
    "Which addresses of new subnets VMs have already",
    nulls_are_absent=True,
)
SYNC_ADDRESSES: Final = Decision(
    "network.sync_addresses",
    sync_addresses,
    SyncAddressesInput,
    SyncAddressesResult,
    "Which VMs, ports and addresses are in use when a controller starts",
    nulls_are_absent=True,
)
RELEASE: Final = Decision(
    "network.release",
    decide_release,
    ReleaseInput,
    ReleaseResult,
    "Whether a VM's addresses are free again",
    nulls_are_absent=True,
)
