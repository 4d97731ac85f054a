"""Proxmox VE: ``pvesh get /cluster/resources --output-format json``, one file for the whole cluster.

Nodes, virtual machines and containers are entries of one list, told apart by ``type``; memory is in bytes. An answer of
the HTTP API has the same list as its ``data``. Containers (``lxc``) count as VMs, because a node that takes them over
needs their room; templates run nowhere and are left out. A node that is offline has no sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from outlive.base.errors import BadInput
from outlive.drivers.files import read_input
from outlive.drivers.listings.entries import Entry, select
from outlive.inventory.records import Inventory
from outlive.inventory.selection import Selection
from outlive.resources.documents import parse_json
from outlive.resources.reasons import reason
from outlive.resources.reasons.inventory import ImportNotice

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
    entries = [Entry(values, f"{path}[{index}]", inventory) for index, values in enumerate(listed)]
    nodes = [one for one in entries if one.text("type") == "node"]
    guests = [one for one in entries if one.text("type") in GUESTS]
    for node in select(nodes, selection.hosts, inventory, "--host-where"):
        _add_node(node)
    running_there = [one for one in guests if not one.flag("template")]
    inventory.rows_left_out += len(guests) - len(running_there)
    chosen = select(running_there, selection.vms, inventory, "--where")
    for guest in chosen:
        _add_guest(guest)
    if containers := sum(one.text("type") == "lxc" for one in chosen):
        inventory.notices.append(reason(ImportNotice.CONTAINERS, count=containers))
    return inventory


def _add_node(entry: Entry) -> None:
    entry.add_host(
        entry.text("node"),
        "node",
        cpu=("maxcpu",),
        memory=("maxmem",),
        down=entry.text("status") != "online",
        disabled="it is in maintenance" if entry.text("hastate") == "maintenance" else "",
    )


def _add_guest(entry: Entry) -> None:
    number = entry.text("vmid")
    entry.add_vm(
        number,
        f"guest {number!r}",
        cpu=("maxcpu",),
        memory=("maxmem",),
        name=entry.text("name"),
        project=entry.text("pool") or None,
        host=entry.text("node"),
        phase=entry.text("status"),
    )
