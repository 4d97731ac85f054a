"""Views with a host first: what runs on it, and what it holds."""

from __future__ import annotations

from collections.abc import Iterator

from outlive.failover.views.scene import Scene, ready_word, shown_host
from outlive.failover.views.table import Cell, Table


def hypervisors(scene: Scene) -> Table:
    """Each host with its VMs; a host without any has one line."""
    return scene.table(
        "hypervisors",
        "Hosts and their VMs",
        ("host", "vm", "name", "active", "flavor", "cpu", "memoryBytes"),
        _host_rows(scene),
        needs_source=True,
    )


def _host_rows(scene: Scene) -> Iterator[tuple[Cell, ...]]:
    for host in scene.hosts:
        if not host.status.instances:
            yield (host.name, None, None, None, None, None, None)
        for one in sorted(host.status.instances, key=lambda each: each.id):
            server = scene.servers.get(one.id)
            yield (host.name, one.id, one.name, one.active, server.flavor if server else None, *scene.size_of(one.id))


def hypervisors_vms_res(scene: Scene) -> Table:
    """Each host with its VMs and their slots, then the slots that it holds and whose VMs these would take in."""
    return scene.table(
        "hypervisors-vms-res",
        "Hosts, their VMs with slots, and the slots that they hold",
        ("host", "kind", "name", "slots", "ready", "cpu", "memoryBytes", "members", "sourceHosts"),
        _combined_rows(scene),
    )


def _combined_rows(scene: Scene) -> Iterator[tuple[Cell, ...]]:
    for host in scene.hosts:
        for one in sorted(host.status.instances, key=lambda each: each.id):
            slots: list[str] = [f"{slot.name}@{shown_host(slot)}" for slot in scene.slots_of(one.id)]
            yield (host.name, "vm", one.id, slots, None, *scene.size_of(one.id), None, None)
        for slot in scene.slots_on.get(host.name, ()):
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
