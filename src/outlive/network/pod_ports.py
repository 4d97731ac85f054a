"""Rows of one VM of pods on a layer2 or localnet network, in one database, from its copies.

The state of a migration says which copy's port is enabled; both change in one transaction. Called again with the rows
that it made, the decision asks for nothing (docs/reference/network-decisions.md#networkpod_ports).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from outlive.network.copies import Copy, PortAddresses, VmKey, find_copies
from outlive.network.dhcp import SECONDARY, DhcpPortInput, needs_dhcp, plan_dhcp
from outlive.network.names import NAD_KEY, NAME_KEY, OWNER_KEY, controller_name, port_name, switch_name
from outlive.network.operations import DHCP, PORTS, Columns, Draft, Op, Rows, delete
from outlive.network.owners import external_ids, vm_keys
from outlive.network.routes import ZoneMode
from outlive.network.status import MigrationState, MigrationStatus, discover_migration
from outlive.network.switch_ports import (
    CopyPlace,
    PortRowInput,
    SwitchPort,
    SwitchPortsInput,
    Transport,
    describe_port,
    keep_interface_version,
    plan_switch_ports,
)
from outlive.runtime.decisions import Decision


class PodPortsInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ``network.pod_ports`` gets."""

    zone_mode: ZoneMode = "global"
    local_hypervisors: tuple[str, ...] = ()
    """Hypervisors of this zone; in ``global`` mode all are."""
    chassis: dict[str, str] = {}
    """Hypervisor → its chassis; one that is left out has the hypervisor's name."""
    network: str
    """Its name."""
    nad: str
    """Its key in the copies' annotations."""
    topology: Literal["layer2", "localnet"]
    transport: Transport = "overlay"
    role: str = SECONDARY
    port_security: bool = True
    dns_service_ips: tuple[str, ...] = msgspec.field(name="dnsServiceIPs", default=())
    mtu: int = 0
    fqdn: bool = True
    """OVN knows this option of DHCPv6."""
    vm: VmKey
    copies: tuple[Copy, ...] = ()
    """All copies of the VM that exist, completed ones too; others are overlooked."""
    rows: Rows = {}


class PodPortsResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ``network.pod_ports`` answers."""

    ops: tuple[Op, ...]
    """For one transaction; only those that change something."""
    rows: Rows
    """The tables after them, all of them."""
    state: MigrationState | None
    why: tuple[str, ...]
    """What holds for this VM here, in words."""


def plan_pod_ports(given: PodPortsInput) -> PodPortsResult:
    """The operations that bring a VM's ports into agreement with its copies.

    ``AmbiguousMigration``, ``TunnelKeyMissing``.

    A copy without an entry for the network has no port yet: as target it does not count until it has one. One that
    lives keeps the port that it has, since its entry may have become unreadable.
    """
    copies = find_copies(given.vm, given.copies)
    status = discover_migration(copies)
    living = [one for one in copies if not one.completed]
    if status is not None and status.source is not None and not status.target.completed:
        running = status.source
        if given.nad not in status.target.networks:  # the target waits for its addresses: the source is all there is
            status, living = None, [running]
    state = status.state if status is not None else None
    source, target = _ends(status, living)
    draft, why = Draft(given.rows), [f"{given.vm} on {given.network}: {state or 'no migration'}"]
    ports: Sequence[SwitchPort] = ()
    entry = _entry_of(given, target, source)
    local = _local(given, copies)
    if entry is not None:
        ports = plan_switch_ports(
            SwitchPortsInput(
                topology=given.topology,
                transport=given.transport,
                local_hypervisors=local,
                state=state,
                source=_place(source),
                target=_place(target),
                mac=entry.mac,
                addresses=entry.addresses,
                port_security=given.port_security,
            )
        ).ports
    by_id = {one.id: one for one in copies}
    unread = [one for one in copies if not one.completed and given.nad not in one.networks]
    kept = {_port_name(given, one) for one in (*(by_id[port.copy] for port in ports), *unread)}
    _delete_others(draft, given, kept, why)
    served = False
    for port in ports:
        copy = by_id[port.copy]
        is_local = copy.hypervisor in local
        _ensure_port(draft, given, copy, port, is_local=is_local)
        own = copy.networks.get(given.nad, entry)
        if is_local and own is not None and own.addresses and _has_dhcp(given, copy):
            draft.add(*_plan_dhcp(given, copy, own, draft.rows))
            served = True
    if not served and not unread and state is not MigrationState.FAILED:
        draft.add(delete(DHCP, {"external_ids": {NAME_KEY: str(given.vm), OWNER_KEY: controller_name(given.network)}}))
    return PodPortsResult(ops=tuple(draft.ops), rows=draft.rows, state=state, why=tuple(why))


def _ends(status: MigrationStatus | None, living: Sequence[Copy]) -> tuple[Copy | None, Copy | None]:
    """Source and target; without a migration the only living copy is the source."""
    if status is not None:
        return status.source, status.target
    return (living[-1] if living else None), None


def _entry_of(given: PodPortsInput, *copies: Copy | None) -> PortAddresses | None:
    """What both ends have: they have the same, of their VM's claim."""
    return next((one.networks[given.nad] for one in copies if one is not None and given.nad in one.networks), None)


def _local(given: PodPortsInput, copies: Sequence[Copy]) -> tuple[str, ...]:
    if given.zone_mode == "interconnect":
        return given.local_hypervisors
    return tuple(dict.fromkeys(one.hypervisor for one in copies if one.hypervisor is not None))


def _place(copy: Copy | None) -> CopyPlace | None:
    """A copy that has no port anywhere, because it is not scheduled or uses its node's network, is nowhere."""
    if copy is None:
        return None
    return CopyPlace(copy=copy.id, hypervisor=None if copy.host_network else copy.hypervisor)


def _port_name(given: PodPortsInput, copy: Copy) -> str:
    return port_name(copy.namespace, copy.name, given.nad)


def _has_dhcp(given: PodPortsInput, copy: Copy) -> bool:
    return needs_dhcp(given.topology, given.role, vm=True, migratable=copy.migratable)


def _delete_others(draft: Draft, given: PodPortsInput, kept: set[str], why: list[str]) -> None:
    """Delete the VM's ports on this network but those that are kept."""
    keys = {NAD_KEY: given.nad, **vm_keys(given.vm)}
    gone = [
        row["name"]
        for row in draft.table(PORTS)
        if row.get("name") and row["name"] not in kept and keys.items() <= external_ids(row).items()
    ]
    if gone:
        why.append(f"ports {', '.join(gone)} are deleted: no copy of {given.vm} has them here")
        draft.add(delete(PORTS, *({"name": name} for name in gone)))


def _ensure_port(draft: Draft, given: PodPortsInput, copy: Copy, port: SwitchPort, *, is_local: bool) -> None:
    name = _port_name(given, copy)
    current: Columns | None = next(iter(draft.find(PORTS, {"name": name})), None)
    hypervisor, entry = copy.hypervisor or "", copy.networks.get(given.nad)
    row = describe_port(
        PortRowInput(
            topology=given.topology,
            interconnect=given.zone_mode == "interconnect" and given.transport == "overlay",
            local=is_local,
            copy=copy.id,
            chassis=given.chassis.get(hypervisor, hypervisor),
            tunnel_id=entry.tunnel_id if entry is not None else None,
            network=given.network,
            nad=given.nad,
            namespace=copy.namespace,
        )
    )
    row = keep_interface_version(row, current)
    floods = port.addresses and not given.port_security and is_local
    patch: Columns = {
        "name": name,
        "switch": switch_name(given.network, given.topology),
        "type": row.type or None,
        "addresses": [*port.addresses, "unknown"] if floods else list(port.addresses),
        "port_security": list(port.port_security),
        "options": row.options,
        "external_ids": {**row.external_ids, **vm_keys(given.vm)},
    }
    if port.enabled is not None or (current is not None and current.get("enabled") is False):
        patch["enabled"] = port.enabled is not False
    draft.replace(PORTS, {"name": name}, _with_others(patch, current))


def _with_others(patch: Columns, current: Columns | None) -> Columns:
    """Keys of maps that others have set stay."""
    if current is None:
        return patch
    return {**patch, **{name: {**current.get(name, {}), **patch[name]} for name in ("options", "external_ids")}}


def _plan_dhcp(given: PodPortsInput, copy: Copy, entry: PortAddresses, rows: Rows) -> tuple[Op, ...]:
    return plan_dhcp(
        DhcpPortInput(
            controller=controller_name(given.network),
            topology=given.topology,
            namespace=given.vm.namespace,
            vm=given.vm.name,
            port=_port_name(given, copy),
            addresses=entry.addresses,
            gateways=entry.gateways,
            dns_service_ips=given.dns_service_ips,
            mtu=given.mtu,
            fqdn=given.fqdn,
            rows=rows,
        )
    ).ops


POD_PORTS: Final = Decision(
    "network.pod_ports",
    plan_pod_ports,
    PodPortsInput,
    PodPortsResult,
    "The rows of one VM of pods on a layer2 or localnet network",
    nulls_are_absent=True,
)
