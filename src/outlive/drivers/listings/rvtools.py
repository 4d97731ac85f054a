"""RVTools: the CSV files of its tabs vInfo and vHost.

Memory is in MiB. VMs move within their cluster, which therefore is the zone. Templates are left out; a host in
maintenance mode takes nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from outlive.drivers.csv_inventory import Column, read_hosts, read_vms
from outlive.inventory import Inventory, RowCondition, Selection
from outlive.resources.reasons import ImportNotice

HOST_COLUMNS: Final = {
    "name": Column("Host"),
    "cpu": Column("# Cores"),
    "memory": Column("# Memory", "Mi"),
    "zone": Column("Cluster"),
    "disabled": Column("in Maintenance Mode"),
}
VM_COLUMNS: Final = {
    "id": Column("VM UUID"),
    "name": Column("VM"),
    "cpu": Column("CPUs"),
    "memory": Column("Memory", "Mi"),
    "host": Column("Host"),
    "zone": Column("Cluster"),
    "status": Column("Powerstate"),
}
NO_TEMPLATE: Final = RowCondition("Template", equal=False, value="True")


def read_rvtools(vhost: Path, vinfo: Path, selection: Selection, *, decimal: str = "") -> Inventory:
    """All records of both files; ``decimal`` as for CSV files."""
    inventory = Inventory(what="rvtools")
    read_hosts(vhost, HOST_COLUMNS, inventory, where=selection.hosts, decimal=decimal)
    read_vms(vinfo, VM_COLUMNS, inventory, where=(NO_TEMPLATE, *selection.vms), decimal=decimal)
    inventory.notices = [one for one in inventory.notices if one.code != ImportNotice.COLUMNS_NOT_MAPPED]
    return inventory
