"""The views: tables that show hosts, VMs and slots as they are, for people and programs (read only).

``make_views(inventory, options)`` gives those of ``VIEWS`` that are asked for, each as a ``ViewTable`` of plain values
(docs/reference/failover-operation.md#views). Nothing here reads a store or a database, and nothing is decided from a
view.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from outlive.base import BadInput
from outlive.failover.analysis.costs import CostTable
from outlive.failover.analysis.coverage import CoverageInput, assess_state
from outlive.failover.conflicts import ConflictIndex
from outlive.failover.model import SlotView
from outlive.failover.report.view_data import (
    Cell,
    ViewData,
    ViewOptions,
    ViewSnapshot,
    ViewTable,
    block_order,
    inventory_of,
    ready_word,
    shown_host,
    traits_of,
)
from outlive.resources import Amounts, Hypervisor

__all__ = ["VIEWS", "Cell", "ViewOptions", "ViewSnapshot", "ViewTable", "inventory_of", "make_views"]

Row = tuple[Cell, ...]


# A host first.


def _hosts_and_vms(data: ViewData) -> Iterator[Row]:
    """Each host with its VMs; a host without any has one line."""
    for host in data.hosts:
        if not host.status.instances:
            yield (host.name, None, None, None, None, None, None)
        for one in sorted(host.status.instances, key=lambda each: each.id):
            server = data.servers.get(one.id)
            yield (host.name, one.id, one.name, one.active, server.flavor if server else None, *data.size_of(one.id))


def _hosts_vms_and_slots(data: ViewData) -> Iterator[Row]:
    """Each host with its VMs and their slots, then the slots that it holds and whose VMs these would take in."""
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


def _host_row(data: ViewData, host: Hypervisor) -> Row:
    """How much there is, what uses it, what is free, and the traits that are not everybody's."""
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
            _amount_at(capacity, place),
            _amount_at(used, place),
            _sum_held(slots)[place],
            _amount_at(committed, place) or 0,
        )
        free = None if figures[0] is None else figures[0] - (figures[1] or 0) - figures[2] - figures[3]
        columns += [None if figure is None else round(figure / scale, 3) for figure in (*figures, free)]
    return (*columns, [trait for trait in traits_of(host) if not _STANDARD_TRAIT.match(trait)])


def _sum_held(slots: Iterable[SlotView]) -> tuple[int, int]:
    listed = list(slots)
    return sum(slot.cpu_milli for slot in listed), sum(slot.memory_bytes for slot in listed)


def _amount_at(amounts: Amounts | None, place: int) -> int | None:
    if amounts is None:
        return None
    return amounts.cpu_milli if place == 0 else amounts.memory_bytes


def _totals_row(rows: Sequence[Row]) -> Row:
    columns = [[row[place] for row in rows] for place in range(2, 14)]
    sums = (round(sum(value for value in some if isinstance(value, int | float)), 3) for some in columns)
    return ("total", "", *sums, None)


def _flavor_rows(data: ViewData) -> list[Row]:
    """Per flavor of the VMs that are shown: how many, how large, and what it asks of hosts; most used first."""
    found: dict[str, list[str]] = {}
    for vm in data.reported:
        server = data.servers.get(vm)
        if server is not None:
            found.setdefault(server.flavor, []).append(vm)
    rows: list[Row] = []
    for flavor, vms in found.items():
        server = data.servers[vms[0]]
        words = {k.removeprefix(_TRAIT_SPEC): v for k, v in server.extra_specs.items() if k.startswith(_TRAIT_SPEC)}
        required = sorted(trait for trait, word in words.items() if word.lower() == "required")
        forbidden = sorted(trait for trait, word in words.items() if word.lower() == "forbidden")
        rows.append((flavor, len(vms), *data.size_of(vms[0]), required, forbidden))
    rows.sort(key=lambda row: (-int(str(row[1])), str(row[0])))
    return rows


def _figure_rows(data: ViewData) -> list[Row]:
    """Everything in a few figures. Cores and bytes are summed over what slots hold, hosts' figures over hosts."""
    slots, hosts = data.shown_slots, data.hosts
    members = sum(len(slot.members) for slot in slots)
    cpu, memory = _sum_held(slots)
    used = [host.status.allocation or Amounts() for host in hosts]
    used_cpu, used_memory = sum(a.cpu_milli for a in used), sum(a.memory_bytes for a in used)
    return [
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


# A slot first.


def _slots_and_members(data: ViewData) -> Iterator[Row]:
    """Each slot with its members, a line each; a slot without members has one line."""
    for slot in data.shown_slots:
        head: Row = (
            slot.name,
            shown_host(slot),
            ready_word(slot),
            slot.cpu_milli / 1000,
            slot.memory_bytes,
        )
        if not slot.members:
            yield (*head, None, None, None, None)
        for vm, host in sorted(slot.members.items()):
            yield (*head, vm, host, *data.size_of(vm))


def _stale_rows(data: ViewData) -> Iterator[Row]:
    for slot in data.shown_slots:
        for vm, host in sorted(slot.members.items()):
            if vm not in data.reports:
                yield (slot.name, shown_host(slot), vm, host, vm in data.servers if data.source_read else None)


def _breach_rows(data: ViewData) -> Iterator[Row]:
    """Every broken rule of every member, and members that run elsewhere than recorded.

    Judged at the locations that hosts report, else as recorded; on all slots, whatever is filtered.
    """
    locations = {vm: seen.host for vm, seen in data.reports.items() if seen.active}
    at = {vm: host for slot in data.slots for vm, host in slot.members.items()} | locations
    index = ConflictIndex.build(data.slots, locations=at, topology=data.topology)
    shown = {vm for slot in data.shown_slots for vm in slot.members}
    for vm in sorted(shown):
        for slot in data.slots_of(vm):
            recorded, now = slot.members[vm], locations.get(vm)
            if now is not None and now != recorded:
                text = f"VM {vm} runs on {now}, slot {slot.name} has it on {recorded}"
                yield (vm, None, now, [slot.name], [], text)
        for breach in sorted(index.find_breaches(vm), key=lambda one: (one.rule, one.others)):
            yield (vm, breach.rule, breach.host, list(breach.slots), list(breach.others), breach.describe())


def _slots_by_host(data: ViewData) -> list[Row]:
    """How many slots each host holds, most first."""
    held = [(host, slots) for host, slots in data.slots_on.items() if data.shows(host)]
    held.sort(key=lambda one: (-len(one[1]), one[0]))
    return [(host, len(slots), _sum_held(slots)[0] / 1000, _sum_held(slots)[1]) for host, slots in held]


def _level_rows(data: ViewData) -> list[Row]:
    """Per level, the highest priority first; over all hosts, whatever the filter, because slots are shared."""
    demands = data.inventory.demands
    vms = tuple(
        msgspec.structs.replace(server, host=data.host_of(vm))
        for vm, server in sorted(data.servers.items())
        if vm in data.reports
    )
    demanded = demands.collect_demands(vms)
    state = CoverageInput(vms=vms, required=demanded.required, slots=tuple(data.slots), topology=data.topology)
    statuses = assess_state(state)
    table = CostTable({name: level.priority for name, level in demands.levels.items()})
    for vm in vms:
        level, need = demanded.levels.get(vm.id, ""), demanded.required.get(vm.id, 0)
        table.add_vm(vm, level, need, covered=statuses[vm.id].covered)
    for slot in state.slots:
        table.add_slot(slot)
    return [
        (
            one.level,
            one.priority,
            one.vms,
            one.required,
            one.covered,
            one.slots,
            one.cpu_milli / 1000,
            one.memory_bytes,
            None if one.per_protected_byte is None else round(one.per_protected_byte, 3),
        )
        for one in table.get_result().levels
    ]


# A VM first.


class Agreement(enum.StrEnum):
    """How the hosts and the VM source agree on a VM; problems first."""

    WRONG_HOST = "WRONG_HOST"
    NOT_IN_PG = "NOT_IN_PG"
    PG_NO_HOST = "PG_NO_HOST"
    OK = "OK"


def _vm_rows(data: ViewData, chosen: Iterable[str]) -> Iterator[Row]:
    for vm in chosen:
        server, seen = data.servers.get(vm), data.reports.get(vm)
        yield (
            vm,
            (server.name if server else "") or (seen.name if seen else ""),
            data.host_of(vm),
            (server is not None) if data.source_read else None,
            server.flavor if server else None,
            *data.size_of(vm),
            [f"{slot.name}@{shown_host(slot)}" for slot in data.slots_of(vm)],
        )


def _unknown_vms(data: ViewData) -> list[str]:
    return [vm for vm in data.reported if vm not in data.servers] if data.source_read else []


def _all_servers(data: ViewData) -> list[Row]:
    """Every VM of either side: where the hosts have it, where the source has it, and whether they agree."""
    rows: list[Row] = []
    for vm in sorted({*data.reports, *data.servers}) if data.source_read else ():
        seen, server = data.reports.get(vm), data.servers.get(vm)
        name = (server.name if server else "") or (seen.name if seen else "")
        there, here = (server.host if server else None), (seen.host if seen else None)
        agreement = Agreement.OK if here == there else Agreement.WRONG_HOST
        if not there:
            agreement = Agreement.NOT_IN_PG if there is None else Agreement.PG_NO_HOST
        if data.shows(here or there or ""):
            rows.append((vm, name, here, there, agreement.value))
    rank = {word.value: number for number, word in enumerate(Agreement)}
    order = {vm: number for number, vm in enumerate(data.order_vms(str(row[0]) for row in rows))}
    rows.sort(key=lambda row: (rank[str(row[4])], order[str(row[0])]))
    return rows


# All of them.


class View(NamedTuple):
    """A table: its title, its columns, and what fills them."""

    title: str
    columns: str
    rows: Callable[[ViewData], Iterable[Row]]
    totals: Callable[[Sequence[Row]], Row] | None = None
    reads_source: bool = True
    """Whether it says so where the VM source could not be read."""

    def build_table(self, name: str, data: ViewData) -> ViewTable:
        """The view of this data."""
        rows = tuple(self.rows(data))
        return ViewTable(
            view=name,
            title=self.title,
            columns=tuple(self.columns.split()),
            rows=rows,
            totals=None if self.totals is None else self.totals(rows),
            note="the VM source could not be read" if self.reads_source and not data.source_read else "",
        )


_VM_COLUMNS = "vm name host inDatabase flavor cpu memoryBytes slots"
_HOST_COLUMNS = (
    "host buildingBlock vms slots cpuCapacity cpuUsed cpuFailover cpuCommitted cpuFree memoryCapacityGiB memoryUsedGiB "
    "memoryFailoverGiB memoryCommittedGiB memoryFreeGiB traits"
)
VIEWS: Final[Mapping[str, View]] = MappingProxyType(
    {
        "hypervisor-summary": View(
            "Hosts",
            _HOST_COLUMNS,
            lambda data: (_host_row(data, host) for host in data.hosts),
            totals=_totals_row,
            reads_source=False,
        ),
        "flavor-summary": View("Flavors", "flavor vms cpu memoryBytes requiredTraits forbiddenTraits", _flavor_rows),
        "levels": View(
            "Protection levels",
            "level priority vms required covered slots cpu memoryBytes memoryPerProtected",
            _level_rows,
        ),
        "hypervisors": View("Hosts and their VMs", "host vm name active flavor cpu memoryBytes", _hosts_and_vms),
        "hypervisors-vms-res": View(
            "Hosts, their VMs with slots, and the slots that they hold",
            "host kind name slots ready cpu memoryBytes members sourceHosts",
            _hosts_vms_and_slots,
            reads_source=False,
        ),
        "vms": View("VMs", _VM_COLUMNS, lambda data: _vm_rows(data, data.reported)),
        "not-in-db": View(
            "VMs that the VM source does not know", _VM_COLUMNS, lambda data: _vm_rows(data, _unknown_vms(data))
        ),
        "without-res": View(
            "VMs without any slot",
            _VM_COLUMNS,
            lambda data: _vm_rows(data, [vm for vm in data.reported if not data.slots_of(vm)]),
        ),
        "stale": View(
            "Members that no host lists", "slot host member recordedHost inDatabase", _stale_rows, reads_source=False
        ),
        "reservations": View(
            "Slots and their members",
            "slot host ready cpu memoryBytes member memberHost memberCpu memberMemoryBytes",
            _slots_and_members,
        ),
        "validation": View("Broken rules", "vm rule host slots otherVms problem", _breach_rows, reads_source=False),
        "by-host": View("Slots by host", "host slots cpu memoryBytes", _slots_by_host, reads_source=False),
        "summary": View("Summary", "figure value", _figure_rows, reads_source=False),
        "all-servers": View(
            "VMs by the hosts and by the VM source", "vm name hypervisorHost databaseHost status", _all_servers
        ),
    }
)
"""Every view by its name, in the order in which they are shown."""


def make_views(inventory: ViewSnapshot, options: ViewOptions | None = None) -> list[ViewTable]:
    """The views that the options ask for, without those that they hide; ``BadInput`` for an unknown name."""
    options = options or ViewOptions()
    for name in (*options.views, *options.hide):
        if name not in VIEWS:
            raise BadInput(f"there is no view {name[:80]!r}", remedy=f"one of {', '.join(VIEWS)}")
    data = ViewData(inventory, options)
    wanted = [name for name in VIEWS if (not options.views or name in options.views) and name not in options.hide]
    return [VIEWS[name].build_table(name, data) for name in wanted]
