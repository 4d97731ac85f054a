"""What a virtual cluster is made of: the content of a scenario's ``cluster.yaml``.

Hosts and VMs are either listed, or counted and then named ``<prefix><n>``. Policies and settings are those of the
product, read by the product. What happens to the cluster is said elsewhere: in a timeline, or by a seed
(docs/reference/scenarios.md).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from outlive.base import BadInput, parse_duration
from outlive.resources import (
    IN_OVN,
    MADE_BY_HOSTS,
    AffinityPolicy,
    AffinityRule,
    Amounts,
    DegradingPolicy,
    DhcpReservation,
    Disarmed,
    Failback,
    FencingPolicy,
    FirewallRule,
    FunctionNeed,
    HostSelector,
    Maintenance,
    NetworkDhcp,
    NetworkType,
    PortMode,
    PreferredHosts,
    Problems,
    RebalancePolicy,
    RecoveryLimits,
    RecoveryPolicy,
    ShutdownPolicy,
    Subnet,
    SystemNetwork,
    SystemNetworkName,
)
from outlive.runtime import decode_unit, find_mistakes, path_text

T = TypeVar("T")
LONGEST_S: Final = 24 * 3600.0
"""The longest duration in a story."""


class Jump(float):
    """Seconds forward or back."""


def read_as(value: Any, kind: Callable[..., T], place: str, problems: Problems, remedy: str) -> T | None:
    """A value of a file as what it is; ``None`` where it is not, of which ``problems`` gets every mistake."""
    try:
        found: T = msgspec.convert(value, kind, dec_hook=_decode)
        return found
    except (msgspec.ValidationError, BadInput):
        for one in find_mistakes(value, kind, dec_hook=_decode):
            known = f"there are {', '.join(one.known)}" if one.known else remedy
            near = difflib.get_close_matches(str(one.at[-1]) if one.at else "", one.known, n=1)
            known = f"do you mean {near[0]}? {known}" if near else known
            problems.add(f"{place}: {path_text(one.at)}" if one.at else place, one.text, known)
        return None


def _decode(kind: type, value: Any) -> Any:
    if kind is Jump:
        try:
            found = Jump(parse_duration(value))
        except BadInput as error:
            raise ValueError(str(error)) from None
    else:
        found = decode_unit(kind, value)
    if abs(found) > LONGEST_S:
        raise ValueError(f"{value!r} is longer than a day")
    return found


BmcMode = Literal["ok", "none", "dead", "lying", "flapping", "slow", "with-host"]
"""``with-host``: it loses power when the host does; ``flapping``: told to switch off it does not, and says off and on
in turn."""
Mode = Literal["coordinator", "hypervisor"]
Number = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
Some = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Proofs = Annotated[int, msgspec.Meta(ge=0, le=2)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]


class FromFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What is written in a file."""


class _Sized(FromFile, frozen=True, kw_only=True):
    """A host or a VM."""

    zone: str = "a"
    cpu: str = "2"
    memory: str = "4Gi"

    def __post_init__(self) -> None:
        for name, text in (("cpu", self.cpu), ("memory", self.memory)):
            if mistake := _size_problem(name, text):
                raise ValueError(mistake)


@lru_cache
def _size_problem(name: str, text: str) -> str:
    try:
        return "" if Amounts.parse({name: text})[name] > 0 else f"{name}: is {text!r}, which is not more than 0"
    except BadInput as error:
        return error.message


class _HostFields(_Sized, frozen=True, kw_only=True):
    """What one host and many alike have in common. What ``HypervisorSpec`` has as well means the same."""

    cpu: str = "32"
    memory: str = "128Gi"
    armed: bool = False
    profile: Literal["", "fast", "steady"] = ""
    bmc: BmcMode = "ok"
    bmc_answer_s: Seconds | None = None
    """How long its BMC takes for each answer; absent: some tenths of a second."""
    proofs: Proofs = 0
    boot_s: Seconds = 30.0
    """From power to the start of its services."""
    custom_traits: tuple[str, ...] = ()
    allowed_projects: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    overcommit: dict[str, float] = {}
    high_availability: bool | None = None
    maintenance: Maintenance = ""
    shutdown_policy: ShutdownPolicy = ""
    drain: bool = False
    system_uuid: str = ""
    """What firmware and BMC say that it is; empty: a uuid of its own."""


class HostSpec(_HostFields, frozen=True, kw_only=True):
    """One host."""

    name: str
    rack: str = ""
    domains: dict[str, str] = {}
    """Further failure domains, such as ``power: feed-1``."""
    mode: Mode = "hypervisor"
    functions: dict[str, Annotated[int, msgspec.Meta(ge=0, le=256)]] = {}
    """Network card → virtual functions that its daemon has it make."""


class HostsSpec(_HostFields, frozen=True, kw_only=True):
    """So many hosts that are alike."""

    count: Some
    prefix: str = "kvm-"
    per_rack: Number = 0
    """Hosts in a rack ``r<n>``; 0: no racks."""
    switches: Number = 0
    """Network switches ``s<n>``, to which hosts are connected in turn; 0: nobody knows."""
    coordinators: Number = 3
    """So many of the first hosts are coordinators."""


class _Vm(_Sized, frozen=True, kw_only=True):
    """What one VM and many alike have in common. What ``VirtualMachineSpec`` has as well means the same."""

    project: str = ""
    flavor: str = "std"
    os_type: str = ""
    extra_specs: dict[str, str] = {}
    protection: str = ""
    priority: int | None = None
    """Its ``restart_priority``."""
    recovery_time_objective_s: Seconds | None = None
    power_state: Literal["running", "stopped"] = "running"
    autostart: bool = False
    disk_cache: Literal["", "none", "directsync", "writethrough", "writeback", "unsafe"] = ""
    network_policy: Literal["", "accept-duplicate"] = ""
    migration_method: Literal["", "live", "shutdown"] = ""
    migration_downtime_ms: int | None = None
    networks: tuple[str, ...] = ()
    """On each of which it has an interface, in this order."""
    port_mode: PortMode | None = None
    """Of its ports there."""
    selector: HostSelector = ""
    host_limit: tuple[str, ...] = ()
    preferred_hosts: PreferredHosts = PreferredHosts()
    failback: Failback = ""
    server_group: str = ""
    server_group_policy: Literal["", AffinityPolicy] = ""
    affinity: tuple[AffinityRule, ...] = ()
    recovery: RecoveryPolicy = RecoveryPolicy()


class VmSpec(_Vm, frozen=True, kw_only=True):
    """One VM."""

    name: str
    host: str
    display_name: str = ""
    disk_gib: Number = 0
    disks: tuple[str, ...] | None = None
    """Absent: one disk, named after the VM."""
    shared_disks: tuple[str, ...] = ()
    functions: tuple[FunctionNeed, ...] = ()
    """Its interfaces that are virtual functions of its host's cards."""
    console_secret: str = ""
    ports: tuple[str, ...] | None = None
    """Absent: one port, named after the VM, and one for each further network."""
    start_after: tuple[str, ...] = ()


class VmsSpec(_Vm, frozen=True, kw_only=True):
    """So many VMs on each host."""

    per_host: Number


class FlavorEntry(_Sized, frozen=True, kw_only=True):
    """A size that VMs and commitments name. VMs that name it have its size."""

    name: str
    group: str = ""
    """The flavor group that it is sold in; empty: none."""


class NetworkEntry(FromFile, frozen=True, kw_only=True):
    """A network of VMs. What ``VirtualNetworkSpec`` has as well means the same."""

    name: str
    type: NetworkType
    subnets: tuple[Subnet, ...] = ()
    addressing: Literal["managed", "none"] = "managed"
    mtu: int = 0
    port_security: bool = True
    dhcp: NetworkDhcp = NetworkDhcp()
    physical_network: str = "physnet"
    vlan: int = 0
    vni: int = 0
    domain: str = ""
    name_servers: tuple[str, ...] = ()
    reservations: tuple[DhcpReservation, ...] = ()
    rules: tuple[FirewallRule, ...] = ()


class WorldSpec(FromFile, frozen=True, kw_only=True):
    """The whole of it. What ``ClusterSpec`` has as well means the same."""

    hosts: HostsSpec | tuple[HostSpec, ...] = ()
    vms: VmsSpec | tuple[VmSpec, ...] = ()
    flavors: tuple[FlavorEntry, ...] = ()
    networks: tuple[NetworkEntry, ...] = ()
    """Of VMs, programmed in OVN."""
    controllers: Number | Literal["on-coordinators"] = 2
    """Processes that place slots and recover VMs: on machines of their own (``ctl-1``, …), or beside the daemons."""
    policy: FencingPolicy = FencingPolicy()
    """Its ``fencing``."""
    degrading: DegradingPolicy = DegradingPolicy()
    recovery: RecoveryLimits = RecoveryLimits()
    default_selector: HostSelector = ""
    maintenance: bool = False
    disarmed: Disarmed = ""
    shutdown_policy: ShutdownPolicy = ""
    rebalance: RebalancePolicy = RebalancePolicy()
    settings: dict[str, Any] = {}
    """Sections as in ``outlive.yaml``."""
    cuts: Literal["none", "disks", "all"] = "none"
    """What storage and network can shut a host out of."""
    latency_s: Seconds = 0.0
    """Of every call to the store, one way."""
    zookeeper: Annotated[int, msgspec.Meta(ge=0, le=7)] = 0
    """So many servers of ZooKeeper keep the store; 0: what keeps it does not fail by itself."""
    system_networks: dict[SystemNetworkName, SystemNetwork] = {}
    """Networks of the hosts themselves. Every host is on each of them by a bridge of its own."""
    primary_role: bool = False
    """Whether coordinators stand for the role of the primary."""
    daemons: bool = True
    """Whether hosts run our daemon; where none do, hosts and VMs are as somebody imported them."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 1
    """Of a story, unless another one is asked for."""
    real: bool = False
    """Whether the tests of the project also play the story on real stores."""


def build_spec(part: FromFile, kind: type[T], **others: Any) -> T:
    """The spec of a resource: what the part says under the same names, and the others."""
    names = set(part.__struct_fields__) & set(kind.__struct_fields__)  # type: ignore[attr-defined]
    return kind(**{name: getattr(part, name) for name in names - others.keys()}, **others)


def hosts_of(spec: WorldSpec) -> tuple[HostSpec, ...]:
    """Each host by itself, in the order of their numbers."""
    given = spec.hosts
    if not isinstance(given, HostsSpec):
        return given
    alike = {name: getattr(given, name) for name in _HostFields.__struct_fields__}
    return tuple(
        HostSpec(
            name=f"{given.prefix}{number}",
            rack=f"r{(number - 1) // given.per_rack + 1}" if given.per_rack else "",
            domains={"switch": f"s{(number - 1) % given.switches + 1}"} if given.switches else {},
            mode="coordinator" if number <= given.coordinators else "hypervisor",
            **alike,
        )
        for number in range(1, given.count + 1)
    )


def ports_of(vm: VmSpec) -> tuple[str, ...]:
    """Ids of its interfaces; the first ones are on its networks."""
    if vm.ports is not None:
        return vm.ports
    return (f"{vm.name}-net", *(f"{vm.name}-net-{number}" for number in range(1, len(vm.networks))))


def uses_ovn(spec: WorldSpec) -> bool:
    """Whether any network is programmed in OVN."""
    return any(one.type in IN_OVN for one in spec.networks)


def has_own_networks(spec: WorldSpec) -> bool:
    """Whether hosts make networks of their own."""
    return bool(spec.system_networks) or any(one.type in MADE_BY_HOSTS for one in spec.networks)


def vms_of(spec: WorldSpec) -> tuple[VmSpec, ...]:
    """Each VM by itself, host by host."""
    given = spec.vms
    if not isinstance(given, VmsSpec):
        return given
    short = spec.hosts.prefix if isinstance(spec.hosts, HostsSpec) else ""
    alike = {name: getattr(given, name) for name in _Vm.__struct_fields__}
    return tuple(
        VmSpec(name=f"vm-{host.name.removeprefix(short)}-{number}", host=host.name, **alike)
        for host in hosts_of(spec)
        for number in range(1, given.per_host + 1)
    )
