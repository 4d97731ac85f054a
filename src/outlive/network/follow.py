"""What the rows of one VM on a routed network have to be, in one database.

The decision knows no event: it compares the copies that exist with the rows that are there, and answers the operations
between them. Called again with the rows that it made, it asks for nothing
(docs/design/network-decisions.md#networkfollow).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from outlive.network.copies import Copy, PortAddresses, VmKey, find_copies, is_newer, is_ready
from outlive.network.dhcp import DhcpPortInput, DhcpRouter, delete_dhcp, plan_dhcp
from outlive.network.names import (
    DEFAULT_CONTROLLER,
    DEFAULT_NETWORK,
    ROUTED,
    port_name,
)
from outlive.network.operations import PORTS, Op, Rows, RowsDraft
from outlive.network.routes import (
    ClusterSubnet,
    HypervisorNetwork,
    NetworkZone,
    Place,
    ZoneMode,
    delete_routing,
    host_addresses,
    plan_local,
    plan_remote,
)
from outlive.network.switch_ports import PortRowInput, address_text, delete_ports, describe_port, ensure_port
from outlive.runtime import Decision


class FollowInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ``network.follow`` gets."""

    zone_mode: ZoneMode
    local_hypervisors: tuple[str, ...] = ()
    """Hypervisors of this zone; in ``global`` mode all are."""
    hypervisors: dict[str, HypervisorNetwork] = {}
    """All of them."""
    cluster_subnets: tuple[ClusterSubnet, ...] = ()
    dns_service_ips: tuple[str, ...] = msgspec.field(name="dnsServiceIPs", default=())
    controller: str = DEFAULT_CONTROLLER
    """Owner of the DHCP rows."""
    dhcp_router: DhcpRouter = "link-local"
    mtu: int | None = None
    """Given to guests by DHCP."""
    fqdn: bool = True
    """OVN knows this option of DHCPv6."""
    disable_source: bool = True
    """Disable the port of a copy that the VM has left."""
    port_security: bool = True
    """Drop frames that do not have the port's own addresses."""
    network: str = DEFAULT_NETWORK
    """Key of the network attachment."""
    vm: VmKey
    copies: tuple[Copy, ...] = ()
    """All copies of the VM that exist, completed ones too; others are overlooked."""
    rows: Rows = {}


class FollowResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ``network.follow`` answers."""

    ops: tuple[Op, ...]
    """For one transaction; only those that change something."""
    rows: Rows
    """The tables after them, all of them."""
    why: tuple[str, ...]
    """What holds for this VM here, in words."""


def follow_vm(given: FollowInput) -> FollowResult:
    """The operations that bring the rows of one VM into agreement with its copies.

    The newest living copy decides the routes, once it is ready. Ports of copies that are gone are deleted, those of
    living copies ensured with their DHCP rows. A zone that the VM has left deletes its DHCP rows at once, unless a
    failed migration may still bring it back.
    """
    zone = _build_zone(given)
    copies = find_copies(given.vm, given.copies)
    living = [copy for copy in copies if not copy.completed]
    place = _find_place(given, living)
    local = [copy for copy in living if zone.is_local(copy.hypervisor) and not copy.host_network]
    has_left = place is not None and not zone.is_local(place.hypervisor) and not copies[-1].completed

    draft, why = RowsDraft(given.rows), list[str]()
    kept = {port_name(copy.namespace, copy.name, given.network) for copy in local}
    for name in delete_ports(draft, given.vm, given.network, keep=kept):
        why.append(f"port {name} is deleted: no copy of {given.vm} that lives here has it")
    for copy in local:
        entry = copy.networks.get(given.network)
        if entry is None:
            why.append(f"{copy.namespace}/{copy.name} has no addresses yet: no port")
            continue
        _ensure_port(draft, given, copy, entry, is_left=given.disable_source and _is_superseded(given, copy, living))
        if copy.migratable and entry.addresses and not has_left:
            draft.add(*_plan_dhcp(given, copy, entry, draft.rows))
    if not living:
        why.append(f"{given.vm} runs nowhere: its routes and DHCP rows are deleted")
        delete_routing(draft, given.vm)
    elif place is not None:
        plan = plan_local if zone.is_local(place.hypervisor) else plan_remote
        why.append(plan(draft, zone, place))
    else:
        why.append(f"the newest copy of {given.vm} is not ready: its routes stay as they are")
    if has_left:
        why.append(f"{given.vm} runs in another zone: its DHCP rows here are deleted")
    if has_left or not living:
        draft.add(delete_dhcp(given.vm))
    return FollowResult(ops=tuple(draft.ops), rows=draft.rows, why=tuple(why))


def _build_zone(given: FollowInput) -> NetworkZone:
    local = given.local_hypervisors
    if given.zone_mode == "global":
        running = (copy.hypervisor for copy in given.copies if copy.hypervisor is not None)
        local = tuple(dict.fromkeys((*given.hypervisors, *local, *running)))
    return NetworkZone(
        mode=given.zone_mode, local=local, hypervisors=given.hypervisors, cluster_subnets=given.cluster_subnets
    )


def _find_place(given: FollowInput, living: Sequence[Copy]) -> Place | None:
    """Where the VM's traffic goes; ``None`` while its newest copy is not ready."""
    newest = living[-1] if living else None
    if newest is None or newest.hypervisor is None or not _can_serve(given, newest):
        return None
    return Place(
        vm=given.vm,
        hypervisor=newest.hypervisor,
        addresses=host_addresses(newest.networks[given.network].addresses),
    )


def _can_serve(given: FollowInput, copy: Copy) -> bool:
    """True if the VM is active in the copy, and its addresses there are known. Newer copies do not matter."""
    entry = copy.networks.get(given.network)
    return copy.hypervisor is not None and entry is not None and bool(entry.addresses) and is_ready(copy, ())


def _is_superseded(given: FollowInput, copy: Copy, living: Sequence[Copy]) -> bool:
    """True if the VM runs in a newer copy now.

    Of two that were created in the same second, only a ready time says which one took over.
    """
    newer = living[living.index(copy) + 1 :]
    return any((bool(other.ready_at) or is_newer(other, copy)) and _can_serve(given, other) for other in newer)


def _ensure_port(draft: RowsDraft, given: FollowInput, copy: Copy, entry: PortAddresses, *, is_left: bool) -> None:
    """Make the port of a local copy. One that was disabled when the VM left is enabled by name when it comes back."""
    name, hypervisor = port_name(copy.namespace, copy.name, given.network), copy.hypervisor or ""
    known = given.hypervisors.get(hypervisor)
    text = address_text(entry.mac, entry.addresses)
    was_disabled = any(row.get("enabled") is False for row in draft.find(PORTS, {"name": name}))
    ensure_port(
        draft,
        given.vm,
        name=name,
        switch=hypervisor,
        row=describe_port(
            PortRowInput(
                topology=ROUTED,
                local=True,
                copy=copy.id,
                chassis=(known.chassis if known is not None else None) or hypervisor,
                network=given.network,
                namespace=copy.namespace,
            )
        ),
        addresses=[] if is_left else [text],
        port_security=[text] if given.port_security else [],
        enabled=False if is_left else True if was_disabled else None,
    )


def _plan_dhcp(given: FollowInput, copy: Copy, entry: PortAddresses, rows: Rows) -> tuple[Op, ...]:
    return plan_dhcp(
        DhcpPortInput(
            controller=given.controller,
            topology=ROUTED,
            namespace=given.vm.namespace,
            vm=given.vm.name,
            port=port_name(copy.namespace, copy.name, given.network),
            addresses=entry.addresses,
            gateways=entry.gateways,
            dns_service_ips=given.dns_service_ips,
            mtu=given.mtu or 0,
            dhcp_router=given.dhcp_router,
            fqdn=given.fqdn,
            rows=rows,
        )
    ).ops


FOLLOW: Final = Decision(
    "network.follow",
    follow_vm,
    FollowInput,
    FollowResult,
    "The rows of one VM on a routed network",
    nulls_are_absent=True,
)
