"""How the network of a VM is: whether its ports are in OVN, bound, and prepared where it moves to, and what helps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from outlive.base import join_parts, natural_key
from outlive.placement import describe_network_limits
from outlive.recovery.why.chain import Link
from outlive.resources import (
    IN_OVN,
    PORTS_LIMIT,
    Condition,
    VirtualMachine,
    VirtualMachinePort,
    VirtualNetwork,
    find_condition,
    is_to_run,
    port_object_name,
    present_network,
    present_type,
)
from outlive.resources.reasons import NetworkReason
from outlive.store import Store, read

REMEDY: Final = "see what its ports say, and outlive network check {vm}"


class NetworkLinks(NamedTuple):
    """What is to be told of a VM's network."""

    links: tuple[Link, ...] = ()
    settled: bool = True
    """Whether all its ports are as they should be."""
    remedy: str = ""


async def link_network(store: Store, vm: VirtualMachine) -> NetworkLinks:
    """The ports of a VM, as the network controller reports them."""
    count = min(len(vm.spec.ports), PORTS_LIMIT)
    ports = [await read(store, VirtualMachinePort, port_object_name(vm.name, number)) for number in range(count)]
    links: list[Link] = []
    settled = True
    for port in sorted(filter(None, ports), key=lambda one: natural_key(one.name)):
        network = await read(store, VirtualNetwork, present_network(port))
        if network is not None and present_type(network) not in IN_OVN:
            links.append(Link(text=f"port {port.name} on network {network.name}: its host makes it, without OVN"))
            continue
        told, works = _describe(port, vm)
        links += [Link(text=text) for text in told]
        settled &= works
    links += [Link(text=text) for text in describe_network_limits(vm)]
    return NetworkLinks(tuple(links), settled, "" if settled else REMEDY.format(vm=vm.name))


def _describe(port: VirtualMachinePort, vm: VirtualMachine) -> tuple[list[str], bool]:
    """Sentences about one port, and whether it is as it should be."""
    status = port.status
    what = f"port {port.name} on network {present_network(port)}"
    addresses = join_parts([one.partition("/")[0] for one in status.addresses])
    programmed, bound = (find_condition(status.conditions, kind) for kind in ("Programmed", "Bound"))
    if programmed is None:
        return [f"{what}: no network controller has answered for it yet"], not is_to_run(vm)
    if programmed.status != "True":
        waits = programmed.reason == NetworkReason.NO_HOST
        return [f"{what} is not programmed: {programmed.message}"], waits and not is_to_run(vm)
    has = f" with {addresses}" if addresses else ""
    works = _is_true(bound) or not is_to_run(vm)
    state = "bound" if _is_true(bound) else "programmed, but not bound"
    why = f": {bound.message}" if bound is not None and not works and bound.message else ""
    told = [f"{what}{has} is {state} on {status.active_on or 'no host'}{why}"]
    reserved = find_condition(status.conditions, "AddressesReserved")
    if reserved is not None and reserved.status == "False":
        told.append(f"port {port.name} is not all that its spec says: {reserved.message}")
    told += _describe_moves(port, vm)
    return told, works


def _describe_moves(port: VirtualMachinePort, vm: VirtualMachine) -> Iterator[str]:
    """What is told of its migration, and of the gap of the last one."""
    now, known = vm.status.migration, port.status.migration
    if now is not None and now.mode == "live" and now.reason == "":
        if known is None or known.id != now.id:
            yield f"port {port.name}: the network controller has not answered for the move to {now.target} yet"
        elif known.prepared:
            yield f"port {port.name} is prepared on {now.target}"
        else:
            yield f"port {port.name} is not prepared on {now.target}: {known.message}"
    gap = port.status.gap_ms
    if gap is not None and gap > port.spec.max_gap_ms:
        yield f"port {port.name}: its last switch-over took {gap:g} ms, more than maxGapMs {port.spec.max_gap_ms}"


def _is_true(found: Condition | None) -> bool:
    return found is not None and found.status == "True"
