"""DHCP: the options with which OVN answers a guest, wherever its port is bound.

OVN answers on the hypervisor of the port, so the guest's lease is served alike everywhere as long as all ports of the
VM refer to equal options: one row for each family of a VM, found by its id. Rows of two VMs are never shared, since the
hostname differs (docs/design/network-decisions.md#dhcp).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Interface
from typing import Final, Literal

import msgspec

from outlive.base import BadInput
from outlive.network.addressing import HostAddress, find_ipv4, parse_address, parse_host
from outlive.network.copies import VmKey, VmNameMissing
from outlive.network.names import (
    CIDR_KEY,
    DHCPV6_SERVER_ID,
    ID_KEY,
    LAYER2,
    LEASE_S,
    LOCAL,
    NAME_KEY,
    OWNER_KEY,
    OWNER_TYPE,
    OWNER_TYPE_KEY,
    PROXY_IPV4,
    PROXY_MAC,
    ROUTED,
    ZONE_KEY,
)
from outlive.network.operations import DHCP, PORTS, Columns, Op, Rows, RowsChange, change_rows, delete, find, upsert
from outlive.runtime import Decision

DhcpRouter = Literal["link-local", "subnet"]
"""What guests of routed networks get as their router: the proxy address or the gateway of the home subnet."""
SECONDARY: Final = "secondary"
PRIMARY: Final = "primary"


class AddressesMissing(BadInput):
    """A VM without addresses has nothing to be told by DHCP."""

    code = "addresses-missing"


class PortMissing(BadInput):
    """The database has no such logical port."""

    code = "port-missing"


class ServiceMissing(BadInput):
    """There is no DNS service whose addresses guests could be told."""

    code = "service-missing"


class DnsAddresses(msgspec.Struct, frozen=True, kw_only=True):
    """Where guests ask for names; empty: nowhere."""

    ipv4: str = ""
    ipv6: str = ""


class DhcpQuestion(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a VM is to be told by DHCP."""

    controller: str
    """The owner of the rows."""
    namespace: str = ""
    vm: str = ""
    """Its name."""
    addresses: tuple[str, ...] = ()
    """Host addresses with the mask of the home subnet, on every hypervisor."""
    ipv4_router: str = ""
    ipv4_mtu: int = 0
    ipv4_dns: str = ""
    ipv6_dns: str = ""
    fqdn: bool = True
    """Whether OVN knows the option: one that does not (before 23.09) would serve no DHCPv6 at all."""


class DhcpRows(msgspec.Struct, frozen=True, kw_only=True):
    """One row for each family; ``None``: the VM has no address of it."""

    v4: Columns | None
    v6: Columns | None


class DhcpPortInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A port whose guest is to be served, and the rows that there are."""

    controller: str
    topology: str = ""
    namespace: str = ""
    vm: str = ""
    """Its name."""
    port: str = ""
    """Name of the logical port, which must exist."""
    addresses: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    dns_service_ips: tuple[str, ...] = msgspec.field(default=(), name="dnsServiceIPs")
    mtu: int = 0
    dhcp_router: DhcpRouter = "link-local"
    fqdn: bool = True
    rows: Rows = {}


class DhcpReferences(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that a port refers to, by their ids."""

    dhcpv4_options: str | None
    dhcpv6_options: str | None


class DhcpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a VM, what its port refers to, and what has to be done for it in one transaction."""

    v4: Columns | None
    v6: Columns | None
    port: DhcpReferences
    ops: tuple[Op, ...]
    rows: Rows
    """All tables after it."""


class DhcpDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """A VM that is served no longer, and the rows that there are."""

    vm: VmKey
    rows: Rows = {}


class DnsServiceInput(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of the cluster's DNS service."""

    cluster_ips: tuple[str, ...] | None = msgspec.field(default=None, name="clusterIPs")
    """``None``: there is no such service."""


class DhcpNeedInput(msgspec.Struct, frozen=True, kw_only=True):
    """A port's network and guest."""

    topology: str = ""
    role: str = ""
    """Of the network: ``primary`` or ``secondary``."""
    vm: bool = False
    """Whether the guest is a copy of a VM."""
    migratable: bool = False


class DhcpNeed(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the port refers to DHCP rows."""

    dhcp: bool


def compose_dhcp(question: DhcpQuestion) -> DhcpRows:
    """The rows of a VM; of several addresses of one family the last counts.

    ``AddressesMissing``, ``VmNameMissing``, ``Invalid``.
    """
    if not question.addresses:
        raise AddressesMissing(
            f"VM {question.namespace}/{question.vm} has no addresses", remedy="wait until they are allocated"
        )
    if not question.vm:
        raise VmNameMissing("a row needs the VM's name, which is its guest's hostname", remedy="give vm")
    v4: Columns | None = None
    v6: Columns | None = None
    for host in map(parse_host, question.addresses):
        if isinstance(host, IPv4Interface):
            options = {
                "server_id": PROXY_IPV4,
                "server_mac": PROXY_MAC,
                "lease_time": str(LEASE_S),
                "hostname": f'"{question.vm}"',
                "router": str(parse_address(question.ipv4_router)) if question.ipv4_router else "",
                "dns_server": str(parse_address(question.ipv4_dns)) if question.ipv4_dns else "",
                "mtu": str(question.ipv4_mtu) if question.ipv4_mtu > 0 else "",
            }
            v4 = _build_row(question, host, options)
        else:
            options = {
                "server_id": DHCPV6_SERVER_ID,
                "fqdn": f'"{question.vm}"' if question.fqdn else "",
                "dns_server": str(parse_address(question.ipv6_dns)) if question.ipv6_dns else "",
            }
            v6 = _build_row(question, host, options)
    return DhcpRows(v4=v4, v6=v6)


def _build_row(question: DhcpQuestion, host: HostAddress, options: dict[str, str]) -> Columns:
    vm = VmKey(question.namespace, question.vm)
    cidr = str(host.network)
    key = cidr.replace(":", ".")
    external_ids = {
        OWNER_KEY: question.controller,
        OWNER_TYPE_KEY: OWNER_TYPE,
        NAME_KEY: str(vm),
        CIDR_KEY: key,
        ID_KEY: f"{question.controller}:{OWNER_TYPE}:{vm}:{key}",
        ZONE_KEY: LOCAL,
    }
    # an option with an empty value makes OVN drop the whole flow, without a word
    given = {name: value for name, value in options.items() if value}
    return {"cidr": cidr, "options": given, "external_ids": external_ids}


def choose_router(topology: str, gateways: Iterable[str], dhcp_router: DhcpRouter = "link-local") -> str:
    """The router that DHCP gives to the guest; empty: none.

    Only routed networks have a proxy that answers for the link-local address.
    """
    if topology == ROUTED and dhcp_router == "link-local":
        return PROXY_IPV4
    gateway = find_ipv4(gateways)
    return str(gateway) if gateway is not None else ""


def choose_dns(cluster_ips: Sequence[str] | None) -> DnsAddresses:
    """The last address of each family of the DNS service; ``ServiceMissing`` for ``None``."""
    if cluster_ips is None:
        raise ServiceMissing("the cluster has no DNS service", remedy="create it, or name another one")
    found = {"ipv4": "", "ipv6": ""}
    for text in cluster_ips:
        if text and text != "None":  # a headless service
            address = parse_address(text)
            found["ipv4" if isinstance(address, IPv4Address) else "ipv6"] = str(address)
    return DnsAddresses(**found)


def needs_dhcp(topology: str, role: str, *, vm: bool, migratable: bool) -> bool:
    """True if the port of such a guest on such a network refers to DHCP rows."""
    if not vm or role == SECONDARY:
        return False
    return migratable if topology == ROUTED else topology == LAYER2 and role == PRIMARY


def plan_dhcp(given: DhcpPortInput) -> DhcpPlan:
    """Make the VM's rows right and the port refer to them; errors of ``compose_dhcp``, and ``PortMissing``."""
    dns = choose_dns(given.dns_service_ips)
    wanted = compose_dhcp(
        DhcpQuestion(
            controller=given.controller,
            namespace=given.namespace,
            vm=given.vm,
            addresses=given.addresses,
            ipv4_router=choose_router(given.topology, given.gateways, given.dhcp_router),
            ipv4_mtu=given.mtu,
            ipv4_dns=dns.ipv4,
            ipv6_dns=dns.ipv6,
            fqdn=given.fqdn,
        )
    )
    port = {"name": given.port}
    if not find(given.rows.get(PORTS, []), [port]):
        raise PortMissing(f"there is no port {given.port[:80]!r}", remedy="make the port first")
    references = {"dhcpv4_options": _id_of(wanted.v4), "dhcpv6_options": _id_of(wanted.v6)}
    ops = [ensure_dhcp_row(given.rows, row) for row in (wanted.v4, wanted.v6) if row is not None]
    change = change_rows(given.rows, [*ops, upsert(PORTS, port, references)])
    return DhcpPlan(v4=wanted.v4, v6=wanted.v6, port=DhcpReferences(**references), ops=change.ops, rows=change.rows)


def ensure_dhcp_row(rows: Rows, row: Columns) -> Op:
    """Make a row as wanted in the one of its id: options that it has too many are removed, other keys stay."""
    where = {"external_ids": {ID_KEY: _id_of(row)}}
    found = find(rows.get(DHCP, []), [where])
    surplus = {name: None for name in (found[0].get("options", {}) if found else {}) if name not in row["options"]}
    return upsert(DHCP, where, {**row, "options": {**row["options"], **surplus}})


def _id_of(row: Columns | None) -> str | None:
    return str(row["external_ids"][ID_KEY]) if row is not None else None


def delete_dhcp(vm: VmKey) -> Op:
    """Delete all DHCP rows of a VM; OVSDB empties what ports refer to."""
    return delete(DHCP, {"external_ids": {NAME_KEY: str(vm)}})


DHCP_COMPOSE: Final = Decision(
    "network.dhcp_compose",
    compose_dhcp,
    DhcpQuestion,
    DhcpRows,
    "What OVN tells a guest by DHCP",
    nulls_are_absent=True,
)
DHCP_ENSURE: Final = Decision(
    "network.dhcp_ensure",
    plan_dhcp,
    DhcpPortInput,
    DhcpPlan,
    "How a port comes to the DHCP rows of its VM",
    nulls_are_absent=True,
)
DHCP_DELETE: Final[Decision[DhcpDeletion, RowsChange]] = Decision(
    "network.dhcp_delete",
    lambda given: change_rows(given.rows, [delete_dhcp(given.vm)]),
    DhcpDeletion,
    RowsChange,
    "Which DHCP rows go with a VM",
    nulls_are_absent=True,
)
DNS_SERVICE: Final[Decision[DnsServiceInput, DnsAddresses]] = Decision(
    "network.dns_service",
    lambda given: choose_dns(given.cluster_ips),
    DnsServiceInput,
    DnsAddresses,
    "Where guests ask for names",
    nulls_are_absent=True,
)
NEEDS_DHCP: Final[Decision[DhcpNeedInput, DhcpNeed]] = Decision(
    "network.needs_dhcp",
    lambda given: DhcpNeed(dhcp=needs_dhcp(given.topology, given.role, vm=given.vm, migratable=given.migratable)),
    DhcpNeedInput,
    DhcpNeed,
    "Whether a port refers to DHCP rows",
    nulls_are_absent=True,
)
