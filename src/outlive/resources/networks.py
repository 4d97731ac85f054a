"""Networks of virtual machines, and their ports there: ``VirtualNetwork`` and ``VirtualMachinePort``.

Users write what a network is and which VM is on it with which addresses; the network controller programs OVN and writes
what it did (docs/roles/network.md). Where a port is follows from its VM: from the host that the VM is assigned to, and
from its migration.
"""

from __future__ import annotations

import re
import uuid
from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from outlive.resources.meta import Condition, KindInfo, Part, Quota, Resource, Writers, at_most

NetworkType = Literal["routed", "layer2", "localnet", "bridged", "managed"]
IN_OVN: Final[frozenset[NetworkType]] = frozenset({"routed", "layer2", "localnet"})
"""Types that the network controller programs; hosts make the others themselves."""
MADE_BY_HOSTS: Final[frozenset[NetworkType]] = frozenset({"bridged", "managed"})
"""Types that hosts make themselves."""
PortMode = Literal["shared", "twin"]
SMALLEST_MTU: Final = 576
"""What every IPv4 host takes."""
PORTS_LIMIT: Final = 32
"""Ports of one VM on networks."""
_PORT_SPACE: Final = uuid.UUID("6f75746c-6976-5e00-8000-706f72740001")
"""Of ids of interfaces whose ports each host has for itself."""
_BRIDGE: Final = re.compile(r"<source\b[^<>]*?\bbridge\s*=\s*['\"](vmbr[0-9]{1,8})['\"]", re.ASCII)
_MAC: Final = re.compile(r"[0-9a-f]{2}([:-][0-9a-f]{2}){5}", re.IGNORECASE | re.ASCII)
MacText = Annotated[str, Meta(extra_json_schema={"pattern": "^[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}$"})]
"""A MAC address as users write it. Decoding takes any text: a port that the store has already stays readable."""


class DhcpRange(Part, frozen=True, kw_only=True):
    """Addresses that the DHCP server of a managed network gives to guests without a reservation."""

    start: str = ""
    """The first of them; of IPv6 none is written, as guests make theirs themselves or get one of the whole subnet."""
    end: str = ""
    """The last of them."""


class Subnet(Part, frozen=True, kw_only=True):
    """Addresses of one family."""

    cidr: str
    """Such as ``10.44.0.0/16``, with all host bits zero."""
    host_prefix: Annotated[int, Meta(ge=1, le=128)] | None = None
    """On a routed network: length of the part that each host gets of it; absent: 24, or 64."""
    gateway: str = ""
    """Address that guests send to for what is elsewhere; on a routed network each host's first address is."""
    excluded: Annotated[tuple[str, ...], at_most(64)] = ()
    """Addresses, and subnets, that no port is given."""
    dhcp: DhcpRange | None = None
    """On a managed network: what its DHCP server gives; absent: it serves none of this family."""


class NetworkDhcp(Part, frozen=True, kw_only=True):
    """What OVN answers guests that ask for their address."""

    enabled: bool | None = None
    """Whether OVN answers; absent: on routed and layer2 networks whose addresses are managed."""
    router: Literal["link-local", "subnet"] = "link-local"
    """On a routed network, the gateway that guests are given: ``169.254.1.1``, which is the same on every host, or the
    one of the host where the VM was born."""
    dns_servers: Annotated[tuple[str, ...], at_most(8)] = ()
    """Addresses of name servers; the last one of each family is given."""


class DhcpReservation(Part, frozen=True, kw_only=True):
    """An address that a managed network keeps for one interface."""

    mac: MacText
    """MAC address of the interface."""
    address: str
    """Address that it is given, of one of the network's subnets."""
    hostname: str = ""
    """Name that the network's name server answers with this address; empty: as the guest says."""


class FirewallRule(Part, frozen=True, kw_only=True):
    """A rule of a managed network for what is routed to or from it."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    """What people call the rule; no other rule of the network has the same name, in either direction."""
    direction: Literal["in", "out"]
    """``in``: for what is sent to the network from elsewhere; ``out``: for what leaves it."""
    order: Annotated[int, Meta(ge=0)] = 0
    """Rules of a direction are tried from the smallest on."""
    rule: Annotated[str, Meta(min_length=1, max_length=1000)]
    """The rule as nftables has it, without chain, such as ``tcp dport 22 accept``."""


class VirtualNetworkSpec(Part, frozen=True, kw_only=True):
    """What a network is."""

    type: NetworkType
    """``routed``: each host has a subnet of its own, and VMs keep their address when they leave it; ``layer2``: one
    switch for all hosts; ``localnet``: one switch that leads to a physical network; ``bridged`` and ``managed``: made
    by the hosts themselves, without OVN."""
    subnets: Annotated[tuple[Subnet, ...], at_most(8)] = ()
    """Where its addresses come from; none: addresses are not managed."""
    addressing: Literal["managed", "none"] = "managed"
    """``none``: somebody else gives addresses, such as a DHCP server of the physical network; ports have a MAC only."""
    mtu: Annotated[int, Meta(ge=0, le=65535)] = 0
    """That guests are given; 0: none."""
    port_security: bool = True
    """Whether a port takes only frames with its own MAC and addresses; false for nested virtualisation and VRRP."""
    dhcp: NetworkDhcp = NetworkDhcp()
    """What OVN answers guests that ask for their address."""
    physical_network: str = ""
    """On a localnet network: name of the physical network, as ``ovn-bridge-mappings`` of the hosts have it."""
    vlan: Annotated[int, Meta(ge=0, le=4094)] = 0
    """On a localnet network: its VLAN there; 0: untagged."""
    host_labels: Annotated[dict[str, str], at_most(64)] = {}
    """Labels of the hosts that it reaches; empty: all. VMs with a port on it are placed on no other host."""
    vni: Annotated[int, Meta(ge=0, le=16_777_215)] = 0
    """On a bridged network its VLAN, on a managed one its VXLAN network identifier; no other network of its type has
    the same. 0: it is of another type."""
    domain: Annotated[str, Meta(max_length=200)] = ""
    """On a managed network: DNS domain of its guests; empty: ``<name>.local``."""
    name_servers: Annotated[tuple[str, ...], at_most(8)] = ()
    """On a managed network: names of the name servers of its domain, as the world sees them."""
    reservations: Annotated[tuple[DhcpReservation, ...], at_most(4096)] = ()
    """On a managed network: addresses that are kept for interfaces."""
    rules: Annotated[tuple[FirewallRule, ...], at_most(1000)] = ()
    """On a managed network: what its firewall lets pass beside its own services, in order for each direction."""


class VirtualNetworkStatus(Part, frozen=True, kw_only=True):
    """What the network controller did with a network."""

    type: NetworkType | None = None
    """Its type in OVN; where its spec names another one, until it has no ports. Absent: as its spec says."""
    host_subnets: dict[str, tuple[str, ...]] = {}
    """On a routed network: host → the subnets that it was given; they stay its own until the host is removed."""
    ports: int = 0
    """Ports that are on it."""
    mtu: int = 0
    """On a bridged or managed network: the MTU that hosts give it; 0: none has made it yet."""
    conditions: Annotated[tuple[Condition, ...], at_most(16)] = ()
    """``Programmed``: whether OVN has its switches and routers."""


class VirtualNetwork(Resource, frozen=True, kw_only=True, tag="VirtualNetwork"):
    """A network of virtual machines."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="virtualnetworks",
        short_names=("ovnet",),
        writers=Writers(
            fields={
                "spec": ("users", "import"),
                "status": ("network",),
                "status.mtu": ("primary",),
            },
            creates=("users", "import"),
            deletes=("users", "import"),
        ),
        columns=(
            ("Type", ".spec.type", 0),
            ("VNI", ".spec.vni", 1),
            ("Ports", ".status.ports", 0),
            ("Programmed", ".status.conditions[?(@.type=='Programmed')].status", 0),
            ("Message", ".status.conditions[?(@.type=='Programmed')].message", 1),
        ),
    )

    spec: VirtualNetworkSpec
    status: VirtualNetworkStatus = VirtualNetworkStatus()

    def reaches(self, labels: dict[str, str]) -> bool:
        """Whether a host with these labels is on it."""
        return all(labels.get(key) == value for key, value in self.spec.host_labels.items())


class DhcpLease(Resource, frozen=True, kw_only=True, tag="DhcpLease"):
    """``DhcpLease/<network>.<address>``, of IPv6 written out with dashes: an address that the DHCP server of a managed
    network gave. One document."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="dhcpleases",
        short_names=("olease",),
        quota=Quota(objects=100_000, mebibytes=64),
        halves=False,
        writers=Writers(
            fields={"": ("primary",)}, creates=("primary",), deletes=("primary", "users"), labels="refused"
        ),
        columns=(
            ("Network", ".network", 0),
            ("MAC", ".mac", 0),
            ("Address", ".address", 0),
            ("Hostname", ".hostname", 0),
            ("Expires", ".expiresAt", 0),
        ),
    )

    network: str
    """Name of the ``VirtualNetwork``."""
    mac: MacText
    """MAC address of the interface that has it."""
    address: str
    """Address that the interface has been given."""
    hostname: str = ""
    """As the guest calls itself; empty: it does not say."""
    client_id: Annotated[str, Meta(max_length=1000)] = ""
    """Identifier that the guest sent; empty: none. Of an IPv6 address its DUID."""
    iaid: Annotated[str, Meta(max_length=16)] = ""
    """Of an IPv6 address the number of the guest's interface (IAID), as dnsmasq tells it; empty: an IPv4 address."""
    expires_at: datetime | None = None
    """When it ends unless the guest renews it; absent: never."""


class VirtualMachinePortSpec(Part, frozen=True, kw_only=True):
    """What is wanted of a port."""

    vm: str
    """Name of the VM."""
    network: str
    """Name of the ``VirtualNetwork`` that it is on."""
    mac: MacText
    """MAC address of the interface, as the VM's definition has it."""
    addresses: Annotated[tuple[str, ...], at_most(8)] = ()
    """Its addresses, where users or an import give them; empty: the controller chooses of the network's subnets."""
    port_mode: PortMode | None = None
    """``shared``: both hosts of a migration bind one logical port, and the guest's own announcement switches over;
    ``twin``: each has one of its own. Absent: ``shared`` on layer2 and localnet, ``twin`` on routed networks."""
    port_security: bool | None = None
    """Whether the port takes only frames with its own MAC and addresses; absent: as the network says."""
    max_gap_ms: Annotated[int, Meta(ge=1, le=600_000)] = 500
    """The longest silence of a live migration that its user accepts: measured gaps above it are reported."""


class PortMove(Part, frozen=True, kw_only=True):
    """What the network did for one migration of the VM."""

    id: str
    """Id of the migration."""
    prepared: bool = False
    """Whether the target can take over: its port is bound, its flows are there. Only then the guest is sent."""
    reason: str = ""
    """Why it is not prepared: a code (``resources.reasons.NetworkReason``)."""
    message: str = ""
    """Why it is not prepared, in words for people."""
    target: str = ""
    """The host that the VM moves to; noted only while the cluster is paused."""
    incarnation: str = ""
    """The ``storeIncarnation`` of the cluster when ``target`` was noted: as long as it is the same, a VM that is there
    without a migration has arrived."""
    times_ms: dict[str, float] = {}
    """Stage of the switch-over → how long it took: ``prepare``, ``decide``, ``commit``, ``northd``, ``flows``; of a
    shared port ``activation``, until the guest's own announcement switched over."""


class Announcement(Part, frozen=True, kw_only=True):
    """Frames that a host sends to interfaces of its guests, so that caches are right after a switch-over."""

    id: str
    """Of the switch-over; each is sent once."""
    hypervisor: str
    """The host that sends."""
    interface: str
    """Id of the interface whose guest is told."""
    frames: Annotated[tuple[str, ...], at_most(512)] = ()
    """Ethernet frames in hexadecimal digits."""


class VirtualMachinePortStatus(Part, frozen=True, kw_only=True):
    """What the network controller did with a port."""

    network: str = ""
    """The network that it is on, and that its addresses are of; where its spec names another one, until its VM is
    stopped. Empty: as its spec says."""
    addresses: Annotated[tuple[str, ...], at_most(8)] = ()
    """Its addresses with the length of their subnet."""
    gateways: Annotated[tuple[str, ...], at_most(8)] = ()
    """Gateways of the host where the VM was born; they stay the same wherever it goes."""
    port_mode: PortMode | None = None
    """The mode in which it was made; where its spec names another one, until its VM is stopped. Absent: as its spec
    says."""
    interfaces: Annotated[dict[str, str], at_most(64)] = {}
    """Host → id of the interface there, which is the name of its logical port."""
    active_on: str = ""
    """The host whose interface receives what is sent to the VM."""
    migration: PortMove | None = None
    """The last migration that the network prepared."""
    announcements: Annotated[tuple[Announcement, ...], at_most(64)] = ()
    """What hosts are to send for the last switch-over."""
    gap_ms: float | None = None
    """Silence of the last live migration, as far as the network caused it; absent: none was measured."""
    switched_at: datetime | None = None
    """When the last switch-over was committed."""
    conditions: Annotated[tuple[Condition, ...], at_most(16)] = ()
    """``Programmed``: whether OVN has its rows; ``Bound``: whether its host has bound it; ``AddressesReserved``:
    whether its network, mode and addresses are as its spec says, and such as a port may have."""


class VirtualMachinePort(Resource, frozen=True, kw_only=True, tag="VirtualMachinePort"):
    """One interface of a VM on a network, named ``<vm>.<number of the interface>``, from 0 on."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="virtualmachineports",
        short_names=("ovmp",),
        writers=Writers(
            fields={"spec": ("users", "import"), "status": ("network",)},
            creates=("users", "import"),
            deletes=("users", "import"),
        ),
        columns=(
            ("VM", ".spec.vm", 0),
            ("Network", ".spec.network", 0),
            ("MAC", ".spec.mac", 0),
            ("Addresses", ".status.addresses", 0),
            ("Host", ".status.activeOn", 0),
            ("Programmed", ".status.conditions[?(@.type=='Programmed')].status", 0),
            ("Bound", ".status.conditions[?(@.type=='Bound')].status", 0),
            ("Gap ms", ".status.gapMs", 1),
            ("Message", ".status.conditions[?(@.type=='Programmed')].message", 1),
        ),
    )

    spec: VirtualMachinePortSpec
    status: VirtualMachinePortStatus = VirtualMachinePortStatus()


def port_object_name(vm: str, index: int) -> str:
    """Name of the port of an interface, by its number in the VM's definition."""
    return f"{vm}.{index}"


def vm_and_index(name: str) -> tuple[str, int]:
    """The VM and the number of its interface that a port's name says; ``-1`` where it says none.

    A number is written in one way, so that no two ports name one interface.
    """
    vm, dot, index = name.rpartition(".")
    number = int(index) if dot and index.isdecimal() and len(index) <= 4 else -1
    return (vm, number) if str(number) == index else (name, -1)


def present_network(port: VirtualMachinePort) -> str:
    """The network that a port is on."""
    return port.status.network or port.spec.network


def bridge_name(vni: int) -> str:
    """The bridge of a network that hosts make, to which its VMs are attached."""
    return f"vmbr{vni}"


def bridges_in(definition: str) -> tuple[str, ...]:
    """The bridges of such networks that a definition attaches its VM to."""
    return tuple(dict.fromkeys(_BRIDGE.findall(definition))) if "vmbr" in definition else ()


def is_made_by_hosts(network: VirtualNetwork) -> bool:
    """True for a bridged or managed network with a VNI; bridged ones without are made by whoever runs the hosts."""
    return network.spec.type in MADE_BY_HOSTS and network.spec.vni > 0


def present_type(network: VirtualNetwork) -> NetworkType:
    """The type that a network has."""
    return network.status.type or network.spec.type


def wanted_mode(port: VirtualMachinePort, network: VirtualNetwork) -> PortMode:
    """How the two hosts of a migration are to share the port."""
    return "twin" if present_type(network) == "routed" else port.spec.port_mode or "shared"


def port_mode(port: VirtualMachinePort, network: VirtualNetwork) -> PortMode:
    """How they share it: as it was made, whatever its spec says since."""
    return port.status.port_mode or wanted_mode(port, network)


def is_interface_id(defined: str) -> bool:
    """True if a port of a VM has an id in Open vSwitch; one that has none is known by its MAC."""
    return _MAC.fullmatch(defined) is None


def interface_id(defined: str, mode: PortMode, host: str) -> str:
    """Id of the interface on one host, which is the name of its logical port.

    ``defined``: the id in the VM's definition. A shared port has it everywhere; twins have one made from it and the
    host, a UUID because libvirt takes nothing else.
    """
    return defined if mode == "shared" else str(uuid.uuid5(_PORT_SPACE, f"{defined}/{host}"))
