"""Views with a slot first: what it holds, for whom, and whether the rules hold for its members."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from outlive.failover.analysis.costs import CostTable
from outlive.failover.analysis.coverage import CoverageInput, assess_state
from outlive.failover.conflicts import ConflictIndex
from outlive.failover.report.views.data import Cell, Table, ViewData, ready_word, shown_host


def reservations(data: ViewData) -> Table:
    """Each slot with its members, a line each; a slot without members has one line."""
    return data.table(
        "reservations",
        "Slots and their members",
        ("slot", "host", "ready", "cpu", "memoryBytes", "member", "memberHost", "memberCpu", "memberMemoryBytes"),
        _slot_rows(data),
        needs_source=True,
    )


def _slot_rows(data: ViewData) -> Iterator[tuple[Cell, ...]]:
    for slot in data.shown_slots:
        head: tuple[Cell, ...] = (
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


def stale(data: ViewData) -> Table:
    """Members that no host lists."""
    rows = [
        (slot.name, shown_host(slot), vm, host, vm in data.servers if data.source_read else None)
        for slot in data.shown_slots
        for vm, host in sorted(slot.members.items())
        if vm not in data.reports
    ]
    return data.table(
        "stale", "Members that no host lists", ("slot", "host", "member", "recordedHost", "inDatabase"), rows
    )


def validation(data: ViewData) -> Table:
    """Every broken rule of every member, and members that run elsewhere than recorded."""
    return data.table(
        "validation",
        "Broken rules",
        ("vm", "rule", "host", "slots", "otherVms", "problem"),
        _breaches(data),
    )


def _breaches(data: ViewData) -> Iterator[tuple[Cell, ...]]:
    """Judged at the locations that hosts report, else as recorded; on all slots, whatever is filtered."""
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
        for breach in sorted(index.breaches(vm), key=lambda one: (one.rule, one.others)):
            yield (vm, breach.rule, breach.host, list(breach.slots), list(breach.others), breach.sentence())


def by_host(data: ViewData) -> Table:
    """How many slots each host holds, most first."""
    counts = [
        (host, len(slots), sum(slot.cpu_milli for slot in slots) / 1000, sum(slot.memory_bytes for slot in slots))
        for host, slots in data.slots_on.items()
        if data.shows(host)
    ]
    counts.sort(key=lambda row: (-row[1], row[0]))
    return data.table("by-host", "Slots by host", ("host", "slots", "cpu", "memoryBytes"), counts)


_FIGURES = ("vms", "required", "covered", "slots", "cpu", "memoryBytes", "memoryPerProtected")


def levels(data: ViewData) -> Table:
    """Per level, the highest priority first; over all hosts, whatever the filter, because slots are shared."""
    demands = data.inventory.demands
    vms = tuple(
        msgspec.structs.replace(server, host=data.host_of(vm))
        for vm, server in sorted(data.servers.items())
        if vm in data.reports
    )
    demanded = demands.among(vms)
    state = CoverageInput(vms=vms, required=demanded.required, slots=tuple(data.slots), topology=data.topology)
    told = assess_state(state)
    table = CostTable({name: level.priority for name, level in demands.protection.levels.items()})
    for vm in vms:
        level, need = demanded.levels.get(vm.id, ""), demanded.required.get(vm.id, 0)
        table.add_vm(vm, level, need, covered=told[vm.id].covered)
    for slot in state.slots:
        table.add_slot(slot)
    rows = [
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
        for one in table.result().levels
    ]
    return data.table("levels", "Protection levels", ("level", "priority", *_FIGURES), rows, needs_source=True)
