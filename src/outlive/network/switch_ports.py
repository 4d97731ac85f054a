"""Logical ports of copies: which a zone has in each state of a migration, and what their rows are.

On a layer2 or localnet network both copies of a VM have a port with the same MAC on one switch. One of them is
disabled and has no addresses: a disabled port that keeps them has a flow for its MAC that drops, beside the flow of the
other port (docs/design/network-decisions.md#ports).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal

import msgspec

from outlive.base import BadInput
from outlive.network.addressing import parse_any, parse_mac
from outlive.network.copies import VmKey
from outlive.network.names import DEFAULT_NETWORK, LAYER2, NAD_KEY, NETWORK_KEY, TOPOLOGY_KEY
from outlive.network.operations import PORTS, Columns, RowsDraft, delete, upsert
from outlive.network.owners import external_ids, vm_keys
from outlive.network.status import MigrationState
from outlive.runtime import Decision

REMOTE_PORT: Final = "remote"
"""The type of a port of another zone."""
Transport = Literal["overlay", "evpn"]
_INTERFACE_VERSION: Final = "iface-id-ver"
"""Option of a port: which copy's interface may be bound to it."""


class TunnelKeyMissing(BadInput):
    """A port that several zones know has no number."""

    code = "tunnel-key-missing"


class CopyPlace(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A copy and where it is."""

    copy: str
    """Its id."""
    hypervisor: str | None = None
    """``None``: it is gone."""


class SwitchPortsInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ``network.ports`` gets: one VM on one network, seen from one database."""

    topology: str
    transport: Transport = "overlay"
    """What joins the zones of a layer2 network."""
    local_hypervisors: tuple[str, ...] = ()
    state: MigrationState | None = None
    """``None``: no migration."""
    source: CopyPlace | None = None
    target: CopyPlace | None = None
    mac: str
    addresses: tuple[str, ...] = ()
    """None: only the MAC is managed."""
    port_security: bool = True


class SwitchPort(msgspec.Struct, frozen=True, kw_only=True):
    """How a copy's port has to be."""

    copy: str
    type: str
    """``remote``: the port of a copy in another zone."""
    enabled: bool | None
    """``None``: not set, which OVN takes for enabled."""
    addresses: tuple[str, ...]
    port_security: tuple[str, ...]


class SwitchPorts(msgspec.Struct, frozen=True, kw_only=True):
    """The ports of a VM in one database, for one transaction."""

    ports: tuple[SwitchPort, ...]
    """Those that the database has to have."""
    delete: tuple[str, ...]
    """Copies whose ports must not be there."""


def address_text(mac: str, addresses: Sequence[str]) -> str:
    """A port's MAC and addresses as OVN writes them: without masks."""
    return " ".join((parse_mac(mac), *(str(parse_any(one)) for one in addresses)))


def plan_switch_ports(given: SwitchPortsInput) -> SwitchPorts:
    """The ports of source and target in a state of the migration.

    ``Failed`` has the source back and its port enabled by name, since it may have been disabled. A target that this
    database must not have loses a port that was left here.
    """
    source, target = _Side(given, given.source), _Side(given, given.target)
    ports: list[SwitchPort] = []
    delete = () if target.is_here or not target.exists else (target.id,)
    match given.state:
        case None:
            ports += source.build_ports() or target.build_ports()
        case MigrationState.IN_PROGRESS:
            ports += source.build_ports() + target.build_ports(enabled=False)
        case MigrationState.TARGET_READY:
            ports += source.build_ports(enabled=False) + target.build_ports(enabled=True)
        case MigrationState.FAILED:
            ports += source.build_ports(enabled=True)
            delete = (target.id,) if target.exists else ()
    return SwitchPorts(ports=tuple(ports), delete=delete)


class _Side:
    """Source or target of a migration, as one database sees it."""

    def __init__(self, given: SwitchPortsInput, place: CopyPlace | None) -> None:
        self._given = given
        self.id = place.copy if place is not None else ""
        self.exists = place is not None
        is_placed = place is not None and place.hypervisor is not None
        self.is_local = is_placed and place is not None and place.hypervisor in given.local_hypervisors
        knows_all = given.topology == LAYER2 and given.transport == "overlay"
        self.is_here = self.is_local or (is_placed and knows_all)

    def build_ports(self, *, enabled: bool | None = None) -> list[SwitchPort]:
        """The port, if this database has to have it; a disabled one has no addresses."""
        if not self.is_here:
            return []
        text = (address_text(self._given.mac, self._given.addresses),)
        return [
            SwitchPort(
                copy=self.id,
                type="" if self.is_local else REMOTE_PORT,
                enabled=enabled,
                addresses=() if enabled is False else text,
                port_security=text if self._given.port_security else (),
            )
        ]


class PortRowInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ``network.port_row`` gets: a copy's port on one network, seen from one database."""

    topology: str
    interconnect: bool = False
    """Several zones have the network."""
    local: bool = False
    """The copy's hypervisor is in this zone."""
    copy: str
    """Its id."""
    chassis: str | None = None
    """That OVN binds the port to."""
    tunnel_id: int | None = None
    network: str = DEFAULT_NETWORK
    nad: str | None = None
    """Which attachment the port is; not given: that of the network's name."""
    namespace: str
    """Of the copy."""


class PortRow(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a port that say where and whose it is."""

    type: str
    options: dict[str, str]
    external_ids: dict[str, str]


def describe_port(given: PortRowInput) -> PortRow:
    """The columns of a copy's port. ``TunnelKeyMissing`` for a layer2 network of several zones."""
    options = {_INTERFACE_VERSION: given.copy}
    if given.chassis:
        options["requested-chassis"] = given.chassis
    is_joined = given.topology == LAYER2 and given.interconnect
    if is_joined:
        if given.tunnel_id is None or given.tunnel_id < 1:
            raise TunnelKeyMissing(
                f"the port of copy {given.copy} on network {given.network} has the tunnel id {given.tunnel_id}",
                remedy="the network's allocator gives each port a number from 1",
            )
        options["requested-tnl-key"] = str(given.tunnel_id)
    ids = {"namespace": given.namespace, "pod": "true"}
    if given.network != DEFAULT_NETWORK:
        ids |= {NETWORK_KEY: given.network, NAD_KEY: given.nad or given.network, TOPOLOGY_KEY: given.topology}
    return PortRow(type=REMOTE_PORT if is_joined and not given.local else "", options=options, external_ids=ids)


def ensure_port(
    draft: RowsDraft,
    vm: VmKey,
    *,
    name: str,
    switch: str,
    row: PortRow,
    addresses: Sequence[str],
    port_security: Sequence[str],
    enabled: bool | None,
) -> None:
    """Make the port of a copy of the VM, or make it right. ``enabled`` of ``None`` only undoes what disabled it."""
    current: Columns | None = next(iter(draft.find(PORTS, {"name": name})), None)
    options = row.options
    if current is not None and not current.get("options", {}).get(_INTERFACE_VERSION):
        # The interface has no version either then, and OVN binds only interfaces that agree with the port.
        options = {key: value for key, value in options.items() if key != _INTERFACE_VERSION}
    patch: Columns = {
        "name": name,
        "switch": switch,
        "type": row.type or None,
        "addresses": list(addresses),
        "port_security": list(port_security),
        "options": options,
        "external_ids": {**row.external_ids, **vm_keys(vm)},
    }
    if enabled is not None or (current is not None and current.get("enabled") is False):
        patch["enabled"] = enabled
    draft.add(upsert(PORTS, {"name": name}, patch))


def delete_ports(draft: RowsDraft, vm: VmKey, nad: str, *, keep: Collection[str]) -> list[str]:
    """Delete the VM's ports on a network but those to keep. Answers the names of those deleted."""
    names = [
        row["name"]
        for row in draft.table_rows(PORTS)
        if vm_keys(vm).items() <= external_ids(row).items()
        and external_ids(row).get(NAD_KEY, DEFAULT_NETWORK) == nad
        and row.get("name", "") not in {"", *keep}
    ]
    draft.add(*(delete(PORTS, {"name": name}) for name in names))
    return names


SWITCH_PORTS: Final = Decision(
    "network.ports",
    plan_switch_ports,
    SwitchPortsInput,
    SwitchPorts,
    "The ports of a VM on a layer2 or localnet network during a migration",
    nulls_are_absent=True,
)
PORT_ROW: Final = Decision(
    "network.port_row",
    describe_port,
    PortRowInput,
    PortRow,
    "The columns of a copy's port that say where and whose it is",
    nulls_are_absent=True,
)
