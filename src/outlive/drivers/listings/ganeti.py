"""Ganeti: the text that htools read and ``hscan`` writes, or two listings of ``gnt-node`` and ``gnt-instance``.

The text has sections that an empty line separates: groups, nodes, instances, and what is not read here. Its columns
have no titles; memory is in MiB. The listings are written with these commands, and found by their titles::

    gnt-node list --separator='|' --units=m -o name,ctotal,mtotal,offline,drained,group
    gnt-instance list --separator='|' --units=m -o name,be/vcpus,be/maxmem,status,pnode,snodes

An instance whose disks are mirrored (DRBD) can only run on its two nodes; that rule is not known here, and said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from outlive.base import BadInput
from outlive.drivers.files import read_input
from outlive.drivers.listings.entries import ListingEntry, select_entries
from outlive.inventory import Inventory, Selection
from outlive.resources.reasons import ImportNotice, make_reason

SEPARATOR: Final = "|"
NODE_COLUMNS: Final = ("name", "mtotal", "mnode", "mfree", "dtotal", "dfree", "ctotal", "offline", "group")
"""Of the text; more may follow."""
INSTANCE_COLUMNS: Final = ("name", "memory", "disk", "vcpus", "status", "auto_balance", "pnode", "snode")
TITLES: Final = {
    "node": "name", "instance": "name", "ctotal": "ctotal", "mtotal": "mtotal", "offline": "offline",
    "drained": "drained", "group": "group", "status": "status", "configvcpus": "vcpus", "vcpus": "vcpus",
    "be/vcpus": "vcpus", "configmaxmem": "memory", "configmemory": "memory", "be/maxmem": "memory",
    "be/memory": "memory", "memory": "memory", "primary_node": "pnode", "pnode": "pnode",
    "secondary_nodes": "snode", "snodes": "snode",
}  # fmt: skip
"""Titles and field names of the listings, lower-case → ours."""
COMMANDS: Final = (
    "gnt-node list --separator='|' --units=m -o name,ctotal,mtotal,offline,drained,group > nodes; "
    "gnt-instance list --separator='|' --units=m -o name,be/vcpus,be/maxmem,status,pnode,snodes > instances"
)
OFF: Final = ("y", "yes", "true")


def read_ganeti(paths: Sequence[Path], selection: Selection) -> Inventory:
    """All records of the files; ``BadInput`` for one that is neither the text nor a listing."""
    inventory = Inventory(what="ganeti")
    nodes: list[ListingEntry] = []
    instances: list[ListingEntry] = []
    for path in paths:
        lines = read_input(path).decode("utf-8-sig", errors="replace").splitlines()
        for kind, values, number in _parse_entries(lines, path):
            (nodes if kind == "node" else instances).append(ListingEntry(values, f"{path}:{number}", inventory))
    inventory.has_hosts, inventory.has_vms = bool(nodes), bool(instances)
    for node in select_entries(nodes, selection.hosts, inventory, "--host-where"):
        node.add_host(
            node.get_text("name"),
            "node",
            cpu=("ctotal",),
            memory=("mtotal",),
            unit="Mi",
            down=node.get_text("offline").lower() in OFF,
            disabled="it is drained" if node.get_text("drained").lower() in OFF else "",
        )
    chosen = select_entries(instances, selection.vms, inventory, "--where")
    for one in chosen:
        name, host, phase = one.get_text("name"), one.get_text("pnode"), one.get_text("status")
        one.add_vm(name, f"instance {name!r}", cpu=("vcpus",), memory=("memory",), unit="Mi", host=host, phase=phase)
    if mirrored := sum(one.get_text("snode") not in ("", "-") for one in chosen):
        inventory.notices.append(make_reason(ImportNotice.MIRRORED_INSTANCES, count=mirrored))
    return inventory


def _parse_entries(lines: list[str], path: Path) -> Iterator[tuple[str, dict[str, str], int]]:
    """``node`` or ``instance``, its values, and its line."""
    first = next((line for line in lines if line.strip()), "")
    title = first.split(SEPARATOR)[0].strip().lower()
    if title in ("node", "instance"):
        yield from _parse_listing(lines, title, path)
        return
    sections: list[list[tuple[int, str]]] = [[]]
    for number, line in enumerate(lines, 1):
        if line.strip():
            sections[-1].append((number, line.strip()))
        else:
            sections.append([])
    if len(sections) < 3 or SEPARATOR not in first:
        raise BadInput(
            "is neither the text of htools nor a listing with titles",
            place=str(path),
            remedy=f"write it with: hscan, or with: {COMMANDS}",
        )
    for kind, columns, section in (("node", NODE_COLUMNS, sections[1]), ("instance", INSTANCE_COLUMNS, sections[2])):
        for number, line in section:
            values = line.split(SEPARATOR)
            if len(values) < len(columns) - 1:
                raise BadInput(
                    f"{kind} {values[0]!r} has {len(values)} columns",
                    place=f"{path}:{number}",
                    remedy=f"at least {len(columns) - 1} are needed: {SEPARATOR.join(columns)}",
                )
            yield kind, dict(zip(columns, values, strict=False)), number


def _parse_listing(lines: list[str], kind: str, path: Path) -> Iterator[tuple[str, dict[str, str], int]]:
    columns: list[str] | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        values = [one.strip() for one in line.split(SEPARATOR)]
        if columns is None:
            columns = [TITLES.get(one.lower(), one) for one in values]
            continue
        if len(values) != len(columns):
            raise BadInput(
                f"has {len(values)} columns, and {len(columns)} titles",
                place=f"{path}:{number}",
                remedy=f"write it with: {COMMANDS}",
            )
        yield kind, dict(zip(columns, values, strict=True)), number
