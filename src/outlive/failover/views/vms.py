"""Views with a VM on each line."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

from outlive.failover.views.scene import Scene, shown_host
from outlive.failover.views.table import Cell, Table

_COLUMNS = ("vm", "name", "host", "inDatabase", "flavor", "cpu", "memoryBytes", "slots")


class Agreement(enum.StrEnum):
    """How the hosts and the VM source agree on a VM; problems first."""

    WRONG_HOST = "WRONG_HOST"
    NOT_IN_PG = "NOT_IN_PG"
    PG_NO_HOST = "PG_NO_HOST"
    OK = "OK"


def vms(scene: Scene) -> Table:
    """One line a VM that a host reports."""
    return scene.table("vms", "VMs", _COLUMNS, _rows(scene, scene.reported), needs_source=True)


def not_in_db(scene: Scene) -> Table:
    """VMs that a host reports and the VM source does not know."""
    unknown = [vm for vm in scene.reported if vm not in scene.servers] if scene.source_read else []
    return scene.table(
        "not-in-db", "VMs that the VM source does not know", _COLUMNS, _rows(scene, unknown), needs_source=True
    )


def without_res(scene: Scene) -> Table:
    """VMs that a host reports and that are a member of no slot."""
    bare = [vm for vm in scene.reported if not scene.slots_of(vm)]
    return scene.table("without-res", "VMs without any slot", _COLUMNS, _rows(scene, bare), needs_source=True)


def _rows(scene: Scene, chosen: Iterable[str]) -> Iterator[tuple[Cell, ...]]:
    for vm in chosen:
        server, sighted = scene.servers.get(vm), scene.sightings.get(vm)
        yield (
            vm,
            (server.name if server else "") or (sighted.name if sighted else ""),
            scene.host_of(vm),
            (server is not None) if scene.source_read else None,
            server.flavor if server else None,
            *scene.size_of(vm),
            [f"{slot.name}@{shown_host(slot)}" for slot in scene.slots_of(vm)],
        )


def all_servers(scene: Scene) -> Table:
    """Every VM of either side: where the hosts have it, where the source has it, and whether they agree."""
    rows = [row for row in _agreements(scene) if scene.shows(str(row[2] or row[3] or ""))]
    rank = {word.value: number for number, word in enumerate(Agreement)}
    order = {vm: number for number, vm in enumerate(scene.ordered(str(row[0]) for row in rows))}
    rows.sort(key=lambda row: (rank[str(row[4])], order[str(row[0])]))
    return scene.table(
        "all-servers",
        "VMs by the hosts and by the VM source",
        ("vm", "name", "hypervisorHost", "databaseHost", "status"),
        rows,
        needs_source=True,
    )


def _agreements(scene: Scene) -> Iterator[tuple[Cell, ...]]:
    if not scene.source_read:
        return
    for vm in sorted({*scene.sightings, *scene.servers}):
        sighted, server = scene.sightings.get(vm), scene.servers.get(vm)
        name = (server.name if server else "") or (sighted.name if sighted else "")
        there, here = (server.host if server else None), (sighted.host if sighted else None)
        yield (vm, name, here, there, _agreement(here, there).value)


def _agreement(by_hosts: str | None, by_source: str | None) -> Agreement:
    if by_source is None:
        return Agreement.NOT_IN_PG
    if not by_source:
        return Agreement.PG_NO_HOST
    return Agreement.OK if by_hosts == by_source else Agreement.WRONG_HOST
