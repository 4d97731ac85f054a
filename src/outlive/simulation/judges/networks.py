"""What OVN promises of VMs: no two rows contradict each other, and at rest each VM answers where it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from outlive.network import (
    DHCP,
    INTERFACE_KEY,
    OWN_CONTROLLER,
    OWN_NAMESPACE,
    OWNER_KEY,
    PORTS,
    ROUTES,
    Columns,
    Rows,
    external_ids,
    find_conflicts,
    isolated_hosts,
    vm_in,
)
from outlive.resources import VirtualMachine, VirtualMachinePort, find_condition, interface_id
from outlive.simulation.judges.truth import Truth
from outlive.simulation.network.fabric import FabricPort, chassis_of


def find_contradictions(rows: Rows) -> Iterator[tuple[str, str]]:
    """VMs, and what two rows say differently of one of their addresses or MACs."""
    for one in find_conflicts(rows):
        named = " and ".join(str(row.get("name") or row.get("output_port")) for row in one.rows)
        subject = ", ".join(vm.partition("/")[2] for vm in one.vms) or one.place
        yield subject, f"two rows have {one.rule.value} {one.subject} on {one.place}: {named}"


def check_network(truth: Truth, recent: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """VMs that run once, and do not answer there, or of which a port's status says something else than OVN."""
    if truth.fabric is None:
        return
    addresses: dict[tuple[str, str], str] = {}
    for vm in truth.store.list_all(VirtualMachine):
        running = truth.running_hosts(vm.name)
        is_settled = len(running) == 1 and vm.host == running[0] and vm.name not in recent and not vm.deleting
        for port in truth.fabric.ports_of(vm.name) if is_settled and vm.status.migration is None else ():
            if port.interface in vm.spec.ports:
                yield from ((vm.name, text) for text in _port_problems(truth, port, running[0], addresses))


def _port_problems(truth: Truth, port: FabricPort, host: str, addresses: dict[tuple[str, str], str]) -> Iterator[str]:
    assert truth.fabric is not None
    found = truth.store.find(VirtualMachinePort, port.name)
    if found is None or _is_isolated(truth, port, host):
        return
    status = found.status
    for one in status.addresses:
        other = addresses.setdefault((port.network, one), port.name)
        if other != port.name:
            yield f"{port.name} has address {one} of network {port.network}, and so has {other}"
    programmed = find_condition(status.conditions, "Programmed")
    if programmed is None or programmed.status != "True":
        why = programmed.message if programmed is not None else "nobody has looked at it"
        yield f"{port.name} is not programmed: {why}"
        return
    if status.active_on != host:
        yield f"{port.name} is said to be active on {status.active_on or 'no host'}, and the VM runs on {host}"
    binding = truth.fabric.ovn.bindings.get(interface_id(port.interface, port.mode, host))
    chassis = {chassis_of(host)}
    if (
        binding is None
        or {binding.chassis, *binding.additional_chassis, *binding.requested_additional_chassis} != chassis
    ):
        yield f"{port.name} is bound otherwise than by {host} alone: {binding}"
    wanted = {one.partition("/")[0] for one in status.addresses} or {port.mac}
    if missing := wanted - set(truth.fabric.answered_addresses(host, port)):
        yield f"it runs on {host} and does not answer at {', '.join(sorted(missing))}"


def _is_isolated(truth: Truth, port: FabricPort, host: str) -> bool:
    """Whether the host is isolated from the port, and its Membership says so, or there is none that could."""
    assert truth.fabric is not None
    own = interface_id(port.interface, port.mode, host)
    rows = (row for row in truth.fabric.ovn.rows.get(PORTS, ()) if row.get("name") == own)
    return _is_recorded(truth, host) and any(host in isolated_hosts(row) for row in rows)


def _is_recorded(truth: Truth, host: str) -> bool:
    """Whether the host's Membership says that it is isolated, or that it is condemned, so that nobody lets it in, or
    there is none that could."""
    member = truth.store.find_member_record(host)
    return member is None or member.cut.through > 0 or member.state == "Revoked"


def find_leftover_rows(truth: Truth) -> Iterator[tuple[str, str]]:
    """Rows of VMs that are gone, or of interfaces that a VM does not have where it is."""
    if truth.fabric is None:
        return
    rows = truth.fabric.ovn.rows
    for table in (PORTS, ROUTES, DHCP):
        for row in rows.get(table, ()):
            key = vm_in(external_ids(row))
            if external_ids(row).get(OWNER_KEY) != OWN_CONTROLLER or key is None or key.namespace != OWN_NAMESPACE:
                continue
            if any(_is_recorded(truth, host) for host in isolated_hosts(row)):
                continue  # it stays until the host is let in
            if why := _excess_reason(truth, row, truth.find_vm(key.name)):
                yield key.name, f"{table} has a row of it, {row.get('name') or row.get('ip_prefix') or 'DHCP'}: {why}"


def _excess_reason(truth: Truth, row: Columns, vm: VirtualMachine | None) -> str:
    """Why there should be no such row; empty: there may be."""
    if vm is None:
        return "the VM is gone"
    interface = external_ids(row).get(INTERFACE_KEY)
    if interface is None or vm.deleting or vm.status.migration is not None or truth.fabric is None:
        return ""
    port = next((one for one in truth.fabric.ports_of(vm.name) if one.interface == interface), None)
    if port is None or interface not in vm.spec.ports:
        return f"it has no interface {interface}"
    wanted = interface_id(interface, port.mode, vm.host)
    return "" if row.get("name") == wanted else f"it is on {vm.host}, where its port is {wanted}"
