"""Views with a host first: what runs on it, and what it holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from outlive.failover.model import SlotView
from outlive.failover.report.views.data import Cell, Table, ViewData, block_order, ready_word, shown_host, traits_of
from outlive.resources import Amounts, Hypervisor


def hypervisors(data: ViewData) -> Table:
    """Each host with its VMs; a host without any has one line."""
    return data.table(
        "hypervisors",
        "Hosts and their VMs",
        ("host", "vm", "name", "active", "flavor", "cpu", "memoryBytes"),
        _host_rows(data),
        needs_source=True,
    )


def _host_rows(data: ViewData) -> Iterator[tuple[Cell, ...]]:
    for host in data.hosts:
        if not host.status.instances:
            yield (host.name, None, None, None, None, None, None)
        for one in sorted(host.status.instances, key=lambda each: each.id):
            server = data.servers.get(one.id)
            yield (host.name, one.id, one.name, one.active, server.flavor if server else None, *data.size_of(one.id))


def hypervisors_vms_res(data: ViewData) -> Table:
    """Each host with its VMs and their slots, then the slots that it holds and whose VMs these would take in."""
    return data.table(
        "hypervisors-vms-res",
        "Hosts, their VMs with slots, and the slots that they hold",
        ("host", "kind", "name", "slots", "ready", "cpu", "memoryBytes", "members", "sourceHosts"),
        _combined_rows(data),
    )


def _combined_rows(data: ViewData) -> Iterator[tuple[Cell, ...]]:
    for host in data.hosts:
        for one in sorted(host.status.instances, key=lambda each: each.id):
            slots: list[str] = [f"{slot.name}@{shown_host(slot)}" for slot in data.slots_of(one.id)]
            yield (host.name, "vm", one.id, slots, None, *data.size_of(one.id), None, None)
        for slot in data.slots_on.get(host.name, ()):
            sources = sorted(set(slot.members.values()))
            yield (
                host.name,
                "slot",
                slot.name,
                None,
                ready_word(slot),
                slot.cpu_milli / 1000,
                slot.memory_bytes,
                len(slot.members),
                sources,
            )


GIB = 2**30
_STANDARD_TRAIT = re.compile(r"(COMPUTE_|HW_CPU_|HW_ARCH_|MISC_SHARES_|OWNER_)")
_TRAIT_SPEC = "trait:"


def hypervisor_summary(data: ViewData) -> Table:
    """Per host: how much there is, what uses it, what is free, and the traits that are not everybody's."""
    columns = (
        "host",
        "buildingBlock",
        "vms",
        "slots",
        "cpuCapacity",
        "cpuUsed",
        "cpuFailover",
        "cpuCommitted",
        "cpuFree",
        "memoryCapacityGiB",
        "memoryUsedGiB",
        "memoryFailoverGiB",
        "memoryCommittedGiB",
        "memoryFreeGiB",
        "traits",
    )
    rows = [_host_row(data, host) for host in data.hosts]
    totals: list[Cell] = ["total", "", *(_sum(row[place] for row in rows) for place in range(2, 14)), None]
    return data.table("hypervisor-summary", "Hosts", columns, rows, totals=totals)


def _host_row(data: ViewData, host: Hypervisor) -> tuple[Cell, ...]:
    slots = data.slots_on.get(host.name, [])
    block, _ = block_order(host.name)
    columns: list[Cell] = [
        host.name,
        f"bb{block:03d}" if block < 2**31 else "",
        len(host.status.instances) or host.status.num_instances,
        len(slots),
    ]
    capacity, used = host.effective_capacity(), host.status.allocation
    committed = data.committed_on.get(host.name, Amounts())
    for place, scale in ((0, 1000), (1, GIB)):
        figures = (
            _of(capacity, place),
            _of(used, place),
            _held(slots)[place],
            _of(committed, place) or 0,
        )
        free = None if figures[0] is None else figures[0] - (figures[1] or 0) - figures[2] - figures[3]
        columns += [None if figure is None else round(figure / scale, 3) for figure in (*figures, free)]
    return (*columns, [trait for trait in traits_of(host) if not _STANDARD_TRAIT.match(trait)])


def _held(slots: Iterable[SlotView]) -> tuple[int, int]:
    """Milli-cores and bytes that slots hold."""
    listed = list(slots)
    return sum(slot.cpu_milli for slot in listed), sum(slot.memory_bytes for slot in listed)


def _of(amounts: Amounts | None, place: int) -> int | None:
    if amounts is None:
        return None
    return amounts.cpu_milli if place == 0 else amounts.memory_bytes


def _sum(values: Iterable[Cell]) -> float:
    return round(sum(value for value in values if isinstance(value, int | float)), 3)


def flavor_summary(data: ViewData) -> Table:
    """Per flavor of the VMs that are shown: how many, how large, and what it asks of hosts; most used first."""
    found: dict[str, list[str]] = {}
    for vm in data.reported:
        server = data.servers.get(vm)
        if server is not None:
            found.setdefault(server.flavor, []).append(vm)
    rows: list[tuple[Cell, ...]] = []
    for flavor, vms in found.items():
        server = data.servers[vms[0]]
        words = {k.removeprefix(_TRAIT_SPEC): v for k, v in server.extra_specs.items() if k.startswith(_TRAIT_SPEC)}
        required = sorted(trait for trait, word in words.items() if word.lower() == "required")
        forbidden = sorted(trait for trait, word in words.items() if word.lower() == "forbidden")
        rows.append((flavor, len(vms), *data.size_of(vms[0]), required, forbidden))
    rows.sort(key=lambda row: (-int(str(row[1])), str(row[0])))
    columns = ("flavor", "vms", "cpu", "memoryBytes", "requiredTraits", "forbiddenTraits")
    return data.table("flavor-summary", "Flavors", columns, rows, needs_source=True)


def summary(data: ViewData) -> Table:
    """Everything in a few figures. Cores and bytes are summed over what slots hold, hosts' figures over hosts."""
    slots, hosts = data.shown_slots, data.hosts
    members = sum(len(slot.members) for slot in slots)
    cpu, memory = _held(slots)
    used = [host.status.allocation or Amounts() for host in hosts]
    used_cpu, used_memory = sum(a.cpu_milli for a in used), sum(a.memory_bytes for a in used)
    rows: list[tuple[Cell, ...]] = [
        ("hosts", len(hosts)),
        ("vms", len(data.reported)),
        ("vmsInDatabase", sum(vm in data.servers for vm in data.reported) if data.source_read else None),
        ("vmsWithoutSlot", sum(not data.slots_of(vm) for vm in data.reported)),
        ("slots", len(slots)),
        ("slotsReady", sum(slot.ready is not False and slot.initialised for slot in slots)),
        ("slotsNotReady", sum(slot.ready is False for slot in slots)),
        ("slotsWithoutStatus", sum(not slot.initialised for slot in slots)),
        ("slotsEmpty", sum(not slot.members for slot in slots)),
        ("memberships", members),
        ("membersPerSlot", round(members / len(slots), 3) if slots else 0.0),
        ("hostsHoldingSlots", len({slot.host or slot.target_host for slot in slots})),
        ("cpuReserved", cpu / 1000),
        ("memoryReservedBytes", memory),
        ("cpuUsed", used_cpu / 1000),
        ("memoryUsedBytes", used_memory),
        ("cpuReservedToUsed", round(cpu / used_cpu, 4) if used_cpu else None),
        ("memoryReservedToUsed", round(memory / used_memory, 4) if used_memory else None),
    ]
    return data.table("summary", "Summary", ("figure", "value"), rows)
