"""Views with a VM on each line."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

from outlive.failover.report.views.data import Cell, Table, ViewData, shown_host

_COLUMNS = ("vm", "name", "host", "inDatabase", "flavor", "cpu", "memoryBytes", "slots")


class Agreement(enum.StrEnum):
    """How the hosts and the VM source agree on a VM; problems first."""

    WRONG_HOST = "WRONG_HOST"
    NOT_IN_PG = "NOT_IN_PG"
    PG_NO_HOST = "PG_NO_HOST"
    OK = "OK"


def vms(data: ViewData) -> Table:
    """One line a VM that a host reports."""
    return data.table("vms", "VMs", _COLUMNS, _rows(data, data.reported), needs_source=True)


def not_in_db(data: ViewData) -> Table:
    """VMs that a host reports and the VM source does not know."""
    unknown = [vm for vm in data.reported if vm not in data.servers] if data.source_read else []
    return data.table(
        "not-in-db", "VMs that the VM source does not know", _COLUMNS, _rows(data, unknown), needs_source=True
    )


def without_res(data: ViewData) -> Table:
    """VMs that a host reports and that are a member of no slot."""
    bare = [vm for vm in data.reported if not data.slots_of(vm)]
    return data.table("without-res", "VMs without any slot", _COLUMNS, _rows(data, bare), needs_source=True)


def _rows(data: ViewData, chosen: Iterable[str]) -> Iterator[tuple[Cell, ...]]:
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


def all_servers(data: ViewData) -> Table:
    """Every VM of either side: where the hosts have it, where the source has it, and whether they agree."""
    rows = [row for row in _agreements(data) if data.shows(str(row[2] or row[3] or ""))]
    rank = {word.value: number for number, word in enumerate(Agreement)}
    order = {vm: number for number, vm in enumerate(data.ordered(str(row[0]) for row in rows))}
    rows.sort(key=lambda row: (rank[str(row[4])], order[str(row[0])]))
    return data.table(
        "all-servers",
        "VMs by the hosts and by the VM source",
        ("vm", "name", "hypervisorHost", "databaseHost", "status"),
        rows,
        needs_source=True,
    )


def _agreements(data: ViewData) -> Iterator[tuple[Cell, ...]]:
    if not data.source_read:
        return
    for vm in sorted({*data.reports, *data.servers}):
        seen, server = data.reports.get(vm), data.servers.get(vm)
        name = (server.name if server else "") or (seen.name if seen else "")
        there, here = (server.host if server else None), (seen.host if seen else None)
        yield (vm, name, here, there, _agreement(here, there).value)


def _agreement(by_hosts: str | None, by_source: str | None) -> Agreement:
    if by_source is None:
        return Agreement.NOT_IN_PG
    if not by_source:
        return Agreement.PG_NO_HOST
    return Agreement.OK if by_hosts == by_source else Agreement.WRONG_HOST
