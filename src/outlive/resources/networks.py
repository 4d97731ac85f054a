"""Networks of virtual machines, and their ports there: ``VirtualNetwork`` and ``VirtualMachinePort``.

Users write what a network is and which VM is on it with which addresses; the network controller programs OVN and writes
what it did (docs/how-to/network-controller.md).
Where a port is follows from its VM: from the host that the VM is assigned to, and
from its migration.
"""

from __future__ import annotations

import re
import uuid
from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from outlive.resources.meta import Condition, KindInfo, Part, Quota, Resource, Writers, limit_entries

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
    """The first one; absent for IPv6."""
    end: str = ""
    """The last of them."""


class Subnet(Part, frozen=True, kw_only=True):
    """Addresses of one family."""

    cidr: str
    """Such as ``10.44.0.0/16``, with all host bits zero."""
    host_prefix: Annotated[int, Meta(ge=1, le=128)] | None = None
    """On a routed network: prefix length of each host's part; absent: 24, or 64."""
    gateway: str = ""
    """Gateway of guests; on a routed network the first address of each host."""
    excluded: Annotated[tuple[str, ...], limit_entries(64)] = ()
    """Addresses, and subnets, that no port is given."""
    dhcp: DhcpRange | None = None
    """On a managed network: the DHCP range; absent: no DHCP for this family."""


class NetworkDhcp(Part, frozen=True, kw_only=True):
    """What OVN answers guests that ask for their address."""

    enabled: bool | None = None
    """Whether OVN answers; absent: on routed and layer2 networks with managed addresses."""
    router: Literal["link-local", "subnet"] = "link-local"
    """On a routed network, the gateway of guests: ``169.254.1.1``, or that of the host where the VM was born."""
    dns_servers: Annotated[tuple[str, ...], limit_entries(8)] = ()
    """Addresses of name servers; guests get the last one of each family."""


class DhcpReservation(Part, frozen=True, kw_only=True):
    """An address that a managed network keeps for one interface."""

    mac: MacText
    """MAC address of the interface."""
    address: str
    """Address that it is given, of one of the network's subnets."""
    hostname: str = ""
    """Name for which the name server answers this address; empty: the guest's own."""


class FirewallRule(Part, frozen=True, kw_only=True):
    """A rule of a managed network for traffic that is routed to or from it."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    """Its name, unique in the network."""
    direction: Literal["in", "out"]
    """``in``: traffic to the network; ``out``: traffic from it."""
    order: Annotated[int, Meta(ge=0)] = 0
    """Rules of a direction are tried from the smallest on."""
    rule: Annotated[str, Meta(min_length=1, max_length=1000)]
    """A rule of nftables, such as ``tcp dport 22 accept``."""


class VirtualNetworkSpec(Part, frozen=True, kw_only=True):
    """What a network is."""

    type: NetworkType
    """``routed``: each host has its own subnet; ``layer2``: one switch for all hosts; ``localnet``: one switch with a
    physical network; ``bridged`` and ``managed``: made by the hosts, without OVN."""
    subnets: Annotated[tuple[Subnet, ...], limit_entries(8)] = ()
    """Its subnets; none: addresses are not managed."""
    addressing: Literal["managed", "none"] = "managed"
    """``none``: another system gives addresses; ports have only a MAC."""
    mtu: Annotated[int, Meta(ge=0, le=65535)] = 0
    """That guests are given; 0: none."""
    port_security: bool = True
    """Whether ports take only frames with their own MAC and addresses."""
    dhcp: NetworkDhcp = NetworkDhcp()
    """What OVN answers guests that ask for their address."""
    physical_network: str = ""
    """On a localnet network: name of the physical network in ``ovn-bridge-mappings`` of the hosts."""
    vlan: Annotated[int, Meta(ge=0, le=4094)] = 0
    """On a localnet network: its VLAN there; 0: untagged."""
    host_labels: Annotated[dict[str, str], limit_entries(64)] = {}
    """Labels of the hosts that it reaches; empty: all. VMs on it run only there."""
    vni: Annotated[int, Meta(ge=0, le=16_777_215)] = 0
    """VLAN of a bridged network, VXLAN network identifier of a managed one, unique for its type. 0: other types."""
    domain: Annotated[str, Meta(max_length=200)] = ""
    """On a managed network: DNS domain of its guests; empty: ``<name>.local``."""
    name_servers: Annotated[tuple[str, ...], limit_entries(8)] = ()
    """On a managed network: public names of the name servers of its domain."""
    reservations: Annotated[tuple[DhcpReservation, ...], limit_entries(4096)] = ()
    """On a managed network: addresses that are kept for interfaces."""
    rules: Annotated[tuple[FirewallRule, ...], limit_entries(1000)] = ()
    """On a managed network: what its firewall accepts, in order for each direction."""


class VirtualNetworkStatus(Part, frozen=True, kw_only=True):
    """What the network controller did with a network."""

    type: NetworkType | None = None
    """Its type in OVN, which changes only without ports. Absent: as in the spec."""
    host_subnets: dict[str, tuple[str, ...]] = {}
    """On a routed network: host → its subnets, until the host is removed."""
    ports: int = 0
    """Ports that are on it."""
    mtu: int = 0
    """On a bridged or managed network: the MTU that hosts use; 0: none has made it yet."""
    conditions: Annotated[tuple[Condition, ...], limit_entries(16)] = ()
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
    """``DhcpLease/<network>.<address>`` (IPv6 written out with dashes): an address that the DHCP server of a managed
    network gave. One document.
    """

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
    """Identifier from the guest, for IPv6 its DUID; empty: none."""
    iaid: Annotated[str, Meta(max_length=16)] = ""
    """For IPv6 the number of the guest's interface (IAID)."""
    expires_at: datetime | None = None
    """When it ends unless the guest renews it; absent: never."""


class VirtualMachinePortSpec(Part, frozen=True, kw_only=True):
    """The wanted port."""

    vm: str
    """Name of the VM."""
    network: str
    """Name of the ``VirtualNetwork`` that it is on."""
    mac: MacText
    """MAC address of the interface, as the VM's definition has it."""
    addresses: Annotated[tuple[str, ...], limit_entries(8)] = ()
    """Its addresses from a user or an import; empty: the controller chooses from the network's subnets."""
    port_mode: PortMode | None = None
    """``shared``: both hosts of a migration bind one logical port; ``twin``: each has its own. Absent: ``shared`` on
    layer2 and localnet, else ``twin``."""
    port_security: bool | None = None
    """Whether the port takes only frames with its own MAC and addresses; absent: as the network says."""
    max_gap_ms: Annotated[int, Meta(ge=1, le=600_000)] = 500
    """The longest accepted silence of a live migration."""


class PortMove(Part, frozen=True, kw_only=True):
    """What the network did for one migration of the VM."""

    id: str
    """Id of the migration."""
    prepared: bool = False
    """Whether the target can take over: its port is bound and its flows exist. The guest is sent only then."""
    reason: str = ""
    """Why it is not prepared, as a code (docs/reference/reasons.md#network)."""
    message: str = ""
    """Why it is not prepared, in words for people."""
    target: str = ""
    """The target host; recorded only while the cluster is paused."""
    incarnation: str = ""
    """The cluster's ``storeIncarnation`` when ``target`` was recorded."""
    times_ms: dict[str, float] = {}
    """Stage of the switch-over → its duration: ``prepare``, ``decide``, ``commit``, ``northd``, ``flows``; for a shared
    port ``activation``."""


class Announcement(Part, frozen=True, kw_only=True):
    """Frames that a host sends to its guests so that their caches are right after a switch-over."""

    id: str
    """Of the switch-over; each is sent once."""
    hypervisor: str
    """The host that sends."""
    interface: str
    """Id of the interface that gets them."""
    frames: Annotated[tuple[str, ...], limit_entries(512)] = ()
    """Ethernet frames in hexadecimal digits."""


class VirtualMachinePortStatus(Part, frozen=True, kw_only=True):
    """What the network controller did with a port."""

    network: str = ""
    """Its present network, until its VM is stopped. Empty: as in the spec."""
    addresses: Annotated[tuple[str, ...], limit_entries(8)] = ()
    """Its addresses with the length of their subnet."""
    gateways: Annotated[tuple[str, ...], limit_entries(8)] = ()
    """Gateways of the host where the VM was born; they stay the same."""
    port_mode: PortMode | None = None
    """Its present mode, until its VM is stopped. Absent: as in the spec."""
    interfaces: Annotated[dict[str, str], limit_entries(64)] = {}
    """Host → id of the interface there: the name of its logical port."""
    active_on: str = ""
    """The host that receives traffic for the VM."""
    migration: PortMove | None = None
    """The last migration that the network prepared."""
    announcements: Annotated[tuple[Announcement, ...], limit_entries(64)] = ()
    """What hosts are to send for the last switch-over."""
    gap_ms: float | None = None
    """Silence of the last live migration caused by the network; absent: not measured."""
    switched_at: datetime | None = None
    """When the last switch-over was committed."""
    conditions: Annotated[tuple[Condition, ...], limit_entries(16)] = ()
    """``Programmed``: OVN has its rows; ``Bound``: its host has bound it; ``AddressesReserved``: they are as in the
    spec."""


class VirtualMachinePort(Resource, frozen=True, kw_only=True, tag="VirtualMachinePort"):
    """An interface of a VM on a network, named ``<vm>.<number of the interface>``, from 0."""

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
    """True for a bridged or managed network with a VNI; the operator of the hosts makes bridged ones without."""
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
