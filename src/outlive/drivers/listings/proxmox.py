"""Proxmox VE: ``pvesh get /cluster/resources --output-format json``, one file for the whole cluster.

Nodes, virtual machines and containers are entries of one list, told apart by ``type``; memory is in bytes. An answer of
the HTTP API has the same list as its ``data``. Containers (``lxc``) count as VMs, because a node that takes them over
needs their room; templates run nowhere and are left out. A node that is offline has no sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from outlive.base import BadInput
from outlive.drivers.files import read_input
from outlive.drivers.listings.entries import ListingEntry, select_entries
from outlive.inventory import Inventory, Selection
from outlive.resources import parse_json
from outlive.resources.reasons import ImportNotice, make_reason

GUESTS: Final = ("qemu", "lxc")
COMMAND: Final = "pvesh get /cluster/resources --output-format json"


def read_proxmox(path: Path, selection: Selection) -> Inventory:
    """All records of the file; ``BadInput`` for one that is no such list."""
    listed: Any = parse_json(read_input(path), str(path))
    if isinstance(listed, dict):
        listed = listed.get("data")
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise BadInput("is not the list of a cluster's resources", place=str(path), remedy=f"write it with: {COMMAND}")
    inventory = Inventory(what="proxmox", has_hosts=True, has_vms=True)
    entries = [ListingEntry(values, f"{path}[{index}]", inventory) for index, values in enumerate(listed)]
    nodes = [one for one in entries if one.get_text("type") == "node"]
    guests = [one for one in entries if one.get_text("type") in GUESTS]
    for node in select_entries(nodes, selection.hosts, inventory, "--host-where"):
        node.add_host(
            node.get_text("node"),
            "node",
            cpu=("maxcpu",),
            memory=("maxmem",),
            down=node.get_text("status") != "online",
            disabled="it is in maintenance" if node.get_text("hastate") == "maintenance" else "",
        )
    running_there = [one for one in guests if not one.is_set("template")]
    inventory.rows_left_out += len(guests) - len(running_there)
    chosen = select_entries(running_there, selection.vms, inventory, "--where")
    for one in chosen:
        number = one.get_text("vmid")
        one.add_vm(
            number,
            f"guest {number!r}",
            cpu=("maxcpu",),
            memory=("maxmem",),
            name=one.get_text("name"),
            project=one.get_text("pool") or None,
            host=one.get_text("node"),
            phase=one.get_text("status"),
        )
    if containers := sum(one.get_text("type") == "lxc" for one in chosen):
        inventory.notices.append(make_reason(ImportNotice.CONTAINERS, count=containers))
    return inventory
