"""DHCP of a managed network: the arguments of its dnsmasq, its files, and the changes that its lease script writes.

One dnsmasq serves one network, on its bridge and nowhere else: with its bridge named, DHCP sockets are bound to that
device, and router advertisements are sent at all. Naming a bridge makes dnsmasq add the loopback, where other servers
are, so that this is taken away (docs/how-to/network-services.md#dhcp).
"""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from outlive.node.services.served_networks import V6_LENGTH, ServedNetwork
from outlive.resources import DhcpLease

V4_LEASE: Final = "48h"
V6_LEASE: Final = "24h"
_WORD: Final = re.compile(r"[!-~]+", re.ASCII)
_SERVERS: Final = uuid.UUID("6f75746c-6976-5e00-8000-646863700001")
"""Of the DUIDs of DHCPv6 servers."""


class DhcpFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server of one network finds its files."""

    hosts: str
    """Folder with one file for each reservation."""
    script: str
    """Program that it runs for each change of a lease."""


class ServedLease(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A lease of one network, by its address."""

    address: str
    mac: str = ""
    hostname: str = ""
    client_id: str = ""
    """Of IPv6 the DUID of the guest."""
    iaid: str = ""
    """Of IPv6 the number of its interface."""
    expires: int = 0
    """Seconds since 1970; 0: never."""


class LeaseChange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One line of the spool: what dnsmasq has passed to the lease script."""

    vni: int
    action: str
    """``add``, ``del`` or ``old``."""
    lease: ServedLease
    time: int = 0
    """When, in seconds since 1970."""


def dhcp_arguments(network: ServedNetwork, files: DhcpFiles) -> tuple[str, ...]:
    """Return the arguments of dnsmasq for this network, without the name of the program."""
    given = [
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--pid-file=",
        "--user=nobody",
        "--group=nogroup",
        "--no-hosts",
        "--domain-needed",
        "--bogus-priv",
        "--dhcp-authoritative",
        f"--domain={network.domain}",
        f"--local=/{network.domain}/",
        "--log-facility=-",
        "--log-dhcp",
        "--leasefile-ro",
        f"--dhcp-script={files.script}",
        f"--dhcp-hostsdir={files.hosts}",
        "--bind-interfaces",
        f"--interface={network.bridge}",
        "--except-interface=lo",
    ]
    given += [f"--listen-address={one.gateway}" for one in network.subnets]
    zone = ",".join([network.domain, *(one.cidr for one in network.subnets)])
    given += [f"--auth-zone={zone}", f"--auth-server=ns.{network.domain}"]
    given += [f"--auth-peer={','.join(one.gateway for one in network.subnets)}"]
    v4, v6 = network.v4, network.v6
    if v4 is not None and v4.dhcp:
        mask = ipaddress.ip_network(v4.cidr).netmask
        given += [f"--dhcp-option=option:ntp-server,{v4.gateway}"]
        if network.mtu:  # also to guests that do not ask for it: what is larger does not get through the tunnels
            given += [f"--dhcp-option-force=option:mtu,{network.mtu}"]
        given += [f"--dhcp-range={v4.start},{v4.end},{mask},{V4_LEASE}"]
    if v6 is not None and v6.dhcp:
        given += ["--enable-ra", f"--dhcp-option=option6:dns-server,[{v6.gateway}]"]
        given += [f"--dhcp-option=option6:sntp-server,[{v6.gateway}]"]
        if v4 is not None:
            given += [f"--dhcp-range={v6.network[0]},ra-stateless,ra-names,{V6_LENGTH},{V6_LEASE}"]
        else:
            first, last = v6.network[2], v6.network[-1]
            given += [f"--dhcp-range={first},{last},{V6_LENGTH},{V6_LEASE}"]
    return tuple(given)


def reservation_files(network: ServedNetwork) -> dict[str, str]:
    """Return the files of the hosts folder: name → content."""
    files: dict[str, str] = {}
    for kept in network.reservations:
        address = f"[{kept.address}]" if ":" in kept.address else kept.address
        parts = [kept.mac.lower().replace("-", ":"), address, *([kept.hostname] if kept.hostname else [])]
        name = kept.mac.lower().replace(":", "-")
        files[name] = files.get(name, "") + ",".join(parts) + "\n"
    return files


def lease_name(network: str, address: str) -> str:
    """Return the name of the ``DhcpLease`` of an address."""
    return f"{network}.{ipaddress.ip_address(address).exploded.replace(':', '-')}"


def is_address(text: str) -> bool:
    """Return whether a text is an address: what the store has may be anybody's."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def lease_lines(network: ServedNetwork, leases: Iterable[ServedLease]) -> str:
    """Return what dnsmasq reads of its script when it starts: its own DUID, and a line for each lease.

    The DUID is made from the network, so that guests see one DHCPv6 server whichever coordinator is the primary.
    """
    duid = bytes((0, 4)) + uuid.uuid5(_SERVERS, f"{network.vni}.{network.domain}").bytes
    lines = [f"duid {duid.hex(':')}"] if network.v6 is not None else []
    numbered = [(ipaddress.ip_address(one.address), one) for one in leases if is_address(one.address)]
    for address, one in sorted(numbered, key=lambda pair: (pair[0].version, int(pair[0]))):
        if address.version == 4:
            words = (str(one.expires), one.mac, one.address, one.hostname or "*", one.client_id or "*")
        elif one.iaid and one.client_id:
            words = (str(one.expires), one.iaid, one.address, one.hostname or "*", one.client_id)
        else:
            continue
        if all(_WORD.fullmatch(word) for word in words):  # else it would be more than one line, or another lease
            lines.append(" ".join(words))
    return "".join(f"{line}\n" for line in lines)


def view_lease(lease: DhcpLease) -> ServedLease:
    """Return a stored lease as services see it."""
    expires = 0 if lease.expires_at is None else int(lease.expires_at.timestamp())
    return ServedLease(
        address=lease.address,
        mac=lease.mac.lower(),
        hostname=lease.hostname,
        client_id=lease.client_id,
        iaid=lease.iaid,
        expires=expires,
    )


def add_mac(lease: ServedLease) -> ServedLease:
    """Return the lease with the MAC address of its guest's DUID, where the server of IPv6 has not seen that."""
    if lease.mac or not lease.iaid:
        return lease
    parts = lease.client_id.lower().split(":")
    length = {"00:01:00:01": 14, "00:03:00:01": 10}.get(":".join(parts[:4]), 0)  # by time and address, or by address
    return msgspec.structs.replace(lease, mac=":".join(parts[-6:])) if len(parts) == length else lease


def merge_changes(leases: Mapping[str, ServedLease], changes: Iterable[LeaseChange]) -> dict[str, ServedLease]:
    """Return the leases of one network by address after these changes, in their order.

    An address belongs to one interface, and an interface may have several: one of each family, and one for each
    identity that it shows, such as that of its firmware. ``old`` is a renewal. A change that is older than what is
    there, such as one that waited on a host that was not the primary meanwhile, changes nothing.
    """
    merged = dict(leases)
    for change in changes:
        lease, before = change.lease, merged.get(change.lease.address)
        if before is not None and lease.expires != 0 and (before.expires == 0 or before.expires > lease.expires):
            continue  # it ends later
        is_same = before is not None and (before.mac, before.iaid) == (lease.mac, lease.iaid)
        if change.action != "del":
            kept = before.hostname if before is not None and is_same and not lease.hostname else lease.hostname
            merged[lease.address] = msgspec.structs.replace(lease, hostname=kept)
        elif is_same:
            del merged[lease.address]
    return merged


def count_free(network: ServedNetwork, leases: Iterable[ServedLease]) -> int | None:
    """Return how many addresses of the IPv4 range are free; ``None`` where DHCP gives none.

    A reserved address of the range is given to nobody else.
    """
    v4 = network.v4
    if v4 is None or not v4.dhcp:
        return None
    first, last = int(ipaddress.ip_address(v4.start)), int(ipaddress.ip_address(v4.end))
    taken = {one.address for one in leases if is_address(one.address)} | {one.address for one in network.reservations}
    numbers = {int(ipaddress.ip_address(one)) for one in (*taken, v4.gateway) if ":" not in one}
    return last - first + 1 - sum(first <= one <= last for one in numbers)


def needs_restart(before: ServedNetwork, after: ServedNetwork) -> bool:
    """Return whether the DHCP server has to be started again: whether what it reads only at its start has changed."""
    files = DhcpFiles(hosts="", script="")
    return before.bridge != after.bridge or dhcp_arguments(before, files) != dhcp_arguments(after, files)
