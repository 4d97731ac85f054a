"""An inventory from the reference's synchronised tables: servers and flavors. The tables list no hosts.

Hosts come from a file, or are known already (docs/reference/cli.md#import-database). Everything is read before
anything is made of it: a database that goes away midway leaves nothing half imported. Servers without a host, and
servers whose flavor is gone from the table and whose size is therefore unknown, are left out and counted, and so are
rows that cannot be read and further rows of the same server.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlive.base.errors import Unavailable
from outlive.drivers.synced_tables import SyncedTables
from outlive.failover.model import VmView
from outlive.failover.vms import FlavorRow, VmList, parse_extra_specs
from outlive.inventory.records import FlavorRecord, Inventory, VmRecord
from outlive.resources import Amounts
from outlive.resources.reasons import Reason
from outlive.resources.reasons.inventory import ImportNotice

MIB = 2**20


async def read_database(address: str) -> Inventory:
    """All servers and flavors of the database; ``Unavailable`` if it cannot be read to the end."""
    source = SyncedTables(address)
    try:
        listed = await source.list_vms()
        flavors = await source.list_flavors()
    except Unavailable as error:
        remedy = "nothing was imported; check that the database runs, and repeat"
        raise Unavailable(error.message, place=error.place, remedy=remedy) from error
    finally:
        await source.close()
    inventory = Inventory(what="database", has_vms=True)
    inventory.flavors.extend({row.name: _flavor(row) for row in flavors if row.name}.values())
    inventory.vms.extend(_vm(view) for view in listed.vms)
    unknown = sum(listed.unknown_flavors.values())
    inventory.rows_left_out = listed.without_host + listed.repeated + unknown + sum(listed.unreadable.values())
    inventory.notices.extend(_left_out(listed, unknown))
    return inventory


def _left_out(listed: VmList, unknown: int) -> Iterator[Reason]:
    if listed.without_host:
        yield Reason(ImportNotice.SERVER_WITHOUT_HOST, {"count": listed.without_host})
    if unknown:
        yield Reason(ImportNotice.FLAVOR_UNKNOWN, {"count": unknown, "flavors": tuple(sorted(listed.unknown_flavors))})
    if listed.repeated:
        yield Reason(ImportNotice.SERVER_REPEATED, {"count": listed.repeated})
    for table, count in sorted(listed.unreadable.items()):
        yield Reason(ImportNotice.ROW_UNREADABLE, {"table": table, "count": count})


def _flavor(row: FlavorRow) -> FlavorRecord:
    return FlavorRecord(
        name=row.name,
        place=f"flavor {row.name!r}",
        resources=Amounts(cpu=row.vcpus * 1000, memory=row.ram_mib * MIB),
        disk_gib=row.disk_gib,
        extra_specs=parse_extra_specs(row.extra_specs) or {},
    )


def _vm(view: VmView) -> VmRecord:
    return VmRecord(
        id=view.id,
        place=f"server {view.id!r}",
        name=view.name,
        project=view.project,
        flavor=view.flavor,
        zone=view.zone,
        host=view.host,
        phase=view.status,
        disk_gib=view.disk_gib,
        extra_specs=view.extra_specs,
        os_type=view.os_type,
    )
