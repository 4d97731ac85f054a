"""Views with a slot first: what it holds, for whom, and whether the rules hold for its members."""

from __future__ import annotations

from collections.abc import Iterator

from outlive.failover.eligibility.graph import DependencyGraph, with_hosts
from outlive.failover.views.scene import Scene, ready_word, shown_host
from outlive.failover.views.table import Cell, Table


def reservations(scene: Scene) -> Table:
    """Each slot with its members, a line each; a slot without members has one line."""
    return scene.table(
        "reservations",
        "Slots and their members",
        ("slot", "host", "ready", "cpu", "memoryBytes", "member", "memberHost", "memberCpu", "memberMemoryBytes"),
        _slot_rows(scene),
        needs_source=True,
    )


def _slot_rows(scene: Scene) -> Iterator[tuple[Cell, ...]]:
    for slot in scene.shown_slots:
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
            yield (*head, vm, host, *scene.size_of(vm))


def stale(scene: Scene) -> Table:
    """Members that no host lists."""
    rows = [
        (slot.name, shown_host(slot), vm, host, vm in scene.servers if scene.source_read else None)
        for slot in scene.shown_slots
        for vm, host in sorted(slot.members.items())
        if vm not in scene.sightings
    ]
    return scene.table(
        "stale", "Members that no host lists", ("slot", "host", "member", "recordedHost", "inDatabase"), rows
    )


def validation(scene: Scene) -> Table:
    """Every broken rule of every member, and members that run elsewhere than recorded."""
    return scene.table(
        "validation",
        "Broken rules",
        ("vm", "rule", "host", "slots", "otherVms", "problem"),
        _breaches(scene),
    )


def _breaches(scene: Scene) -> Iterator[tuple[Cell, ...]]:
    """Judged at the locations that hosts report, else as recorded; on all slots, whatever is filtered."""
    locations = {vm: sighted.host for vm, sighted in scene.sightings.items() if sighted.active}
    at = {vm: host for slot in scene.slots for vm, host in slot.members.items()} | locations
    graph = DependencyGraph.build(scene.slots, locations=at, topology=scene.topology)
    shown = {vm for slot in scene.shown_slots for vm in slot.members}
    for vm in sorted(shown):
        for slot in scene.slots_of(vm):
            recorded, now = slot.members[vm], locations.get(vm)
            if now is not None and now != recorded:
                text = f"VM {vm} runs on {now}, slot {slot.name} has it on {recorded}"
                yield (vm, None, now, [slot.name], [], text)
        for breach in with_hosts(graph.breaches(vm), scene.slots_of(vm), at, scene.topology):
            yield (vm, breach.rule, breach.host, list(breach.slots), list(breach.others), breach.sentence())


def by_host(scene: Scene) -> Table:
    """How many slots each host holds, most first."""
    counts = [
        (host, len(slots), sum(slot.cpu_milli for slot in slots) / 1000, sum(slot.memory_bytes for slot in slots))
        for host, slots in scene.slots_on.items()
        if scene.shows(host)
    ]
    counts.sort(key=lambda row: (-row[1], row[0]))
    return scene.table("by-host", "Slots by host", ("host", "slots", "cpu", "memoryBytes"), counts)
