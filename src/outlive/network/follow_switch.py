"""What the rows of one VM on a layer2 or localnet network have to be, in one database.

Like ``follow``, it compares the copies that exist with the rows that are there. Here nothing is routed: of the ports of
source and target the one where the VM runs is enabled (docs/design/network-decisions.md#networkfollow_switch).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from outlive.network.copies import Copy, PortAddresses, VmKey, find_copies
from outlive.network.dhcp import DhcpPortInput, needs_dhcp, plan_dhcp
from outlive.network.follow import FollowResult
from outlive.network.names import (
    DEFAULT_CONTROLLER,
    NAME_KEY,
    OWNER_KEY,
    port_name,
    switch_name,
)
from outlive.network.operations import DHCP, Rows, RowsDraft, delete
from outlive.network.routes import ZoneMode
from outlive.network.status import MigrationStatus, discover_migration
from outlive.network.switch_ports import (
    CopyPlace,
    PortRowInput,
    SwitchPort,
    SwitchPorts,
    SwitchPortsInput,
    Transport,
    delete_ports,
    describe_port,
    ensure_port,
    plan_switch_ports,
)
from outlive.runtime import Decision


class SwitchFollowInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ``network.follow_switch`` gets."""

    topology: Literal["layer2", "localnet"]
    zone_mode: ZoneMode
    transport: Transport = "overlay"
    """What joins the zones of a layer2 network."""
    local_hypervisors: tuple[str, ...] = ()
    """Hypervisors of this zone; in ``global`` mode all are."""
    chassis: dict[str, str] = {}
    """Of hypervisors; of one that is not there, its name."""
    network: str
    """Its name, which that of its switch is made of."""
    nad: str | None = None
    """Key of the network attachment; not given: the network's name."""
    role: Literal["primary", "secondary"] = "secondary"
    """Guests of a primary layer2 network get DHCP."""
    dns_service_ips: tuple[str, ...] = msgspec.field(name="dnsServiceIPs", default=())
    controller: str = DEFAULT_CONTROLLER
    """Owner of the DHCP rows."""
    mtu: int | None = None
    fqdn: bool = True
    port_security: bool = True
    vm: VmKey
    copies: tuple[Copy, ...] = ()
    """All copies of the VM that exist, completed ones too; others are overlooked."""
    rows: Rows = {}

    @property
    def attachment(self) -> str:
        """The key under which copies have their addresses."""
        return self.nad or self.network


def follow_switch(given: SwitchFollowInput) -> FollowResult:
    """The operations that bring the ports and DHCP rows of one VM into agreement with its copies.

    ``AmbiguousMigration`` for more than two living copies, ``TunnelKeyMissing``.
    """
    copies = {copy.id: copy for copy in find_copies(given.vm, given.copies)}
    status = discover_migration(list(copies.values()))
    plan = _plan(given, status, list(copies.values()))
    ready = [(copies[port.copy], port) for port in plan.ports if given.attachment in copies[port.copy].networks]
    why = [f"{given.vm} on {given.network}: {status.state if status is not None else 'no migration'}"]

    draft = RowsDraft(given.rows)
    kept = {_name_port(given, one) for one in copies.values() if not one.completed and one.id not in plan.delete}
    for name in delete_ports(draft, given.vm, given.attachment, keep=kept):
        why.append(f"port {name} is deleted: this database must not have it")
    for copy, port in sorted(ready, key=lambda one: bool(one[1].addresses)):
        _ensure_port(draft, given, copy, port)
    served = [copy for copy, _ in ready if copy.hypervisor in _local_hypervisors(given) and _is_served(given, copy)]
    for copy in served:
        entry = copy.networks[given.attachment]
        question = DhcpPortInput(
            controller=given.controller,
            topology=given.topology,
            namespace=given.vm.namespace,
            vm=given.vm.name,
            port=_name_port(given, copy),
            addresses=entry.addresses,
            gateways=entry.gateways,
            dns_service_ips=given.dns_service_ips,
            mtu=given.mtu or 0,
            fqdn=given.fqdn,
            rows=draft.rows,
        )
        draft.add(*plan_dhcp(question).ops)
    if not served:
        draft.add(delete(DHCP, {"external_ids": {NAME_KEY: str(given.vm), OWNER_KEY: given.controller}}))
    return FollowResult(ops=tuple(draft.ops), rows=draft.rows, why=tuple(why))


def _plan(given: SwitchFollowInput, status: MigrationStatus | None, copies: list[Copy]) -> SwitchPorts:
    """The ports that this database has to have; none while no copy has an address."""
    living = [copy for copy in copies if not copy.completed]
    source = status.source if status is not None else living[-1] if living else None
    target = status.target if status is not None else None
    entry = _find_entry(given, (target, source, *living))
    if entry is None:
        return SwitchPorts(ports=(), delete=())
    return plan_switch_ports(
        SwitchPortsInput(
            topology=given.topology,
            transport=given.transport,
            local_hypervisors=_local_hypervisors(given),
            state=status.state if status is not None else None,
            source=_locate(source),
            target=_locate(target),
            mac=entry.mac,
            addresses=entry.addresses,
            port_security=given.port_security,
        )
    )


def _locate(copy: Copy | None) -> CopyPlace | None:
    """Where the copy is; a completed one is gone, whatever its state in the migration."""
    if copy is None or copy.completed or copy.host_network:
        return None
    return CopyPlace(copy=copy.id, hypervisor=copy.hypervisor)


def _find_entry(given: SwitchFollowInput, copies: Iterable[Copy | None]) -> PortAddresses | None:
    """MAC and addresses of the VM, which all its copies have."""
    entries = (copy.networks.get(given.attachment) for copy in copies if copy is not None)
    return next((entry for entry in entries if entry is not None), None)


def _local_hypervisors(given: SwitchFollowInput) -> tuple[str, ...]:
    if given.zone_mode != "global":
        return given.local_hypervisors
    running = (copy.hypervisor for copy in given.copies if copy.hypervisor is not None)
    return tuple(dict.fromkeys((*given.local_hypervisors, *running)))


def _name_port(given: SwitchFollowInput, copy: Copy) -> str:
    return port_name(copy.namespace, copy.name, given.attachment)


def _ensure_port(draft: RowsDraft, given: SwitchFollowInput, copy: Copy, port: SwitchPort) -> None:
    hypervisor = copy.hypervisor or ""
    ensure_port(
        draft,
        given.vm,
        name=_name_port(given, copy),
        switch=switch_name(given.network, given.topology),
        row=describe_port(
            PortRowInput(
                topology=given.topology,
                interconnect=given.zone_mode == "interconnect" and given.transport == "overlay",
                local=hypervisor in _local_hypervisors(given),
                copy=copy.id,
                chassis=given.chassis.get(hypervisor, hypervisor),
                tunnel_id=copy.networks[given.attachment].tunnel_id,
                network=given.network,
                nad=given.attachment,
                namespace=copy.namespace,
            )
        ),
        addresses=port.addresses,
        port_security=port.port_security,
        enabled=port.enabled,
    )


def _is_served(given: SwitchFollowInput, copy: Copy) -> bool:
    needs = needs_dhcp(given.topology, given.role, vm=True, migratable=copy.migratable)
    return needs and bool(copy.networks[given.attachment].addresses)


FOLLOW_SWITCH: Final = Decision(
    "network.follow_switch",
    follow_switch,
    SwitchFollowInput,
    FollowResult,
    "The rows of one VM on a layer2 or localnet network",
    nulls_are_absent=True,
)
