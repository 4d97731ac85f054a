"""An inventory from what the ``openstack`` command prints with ``-f json``, as files of one folder.

Read are ``hypervisors.json`` (hypervisor list --long), ``servers.json`` (server list --all-projects --long),
``flavors.json`` (flavor list --all --long), ``aggregates.json`` (aggregate list --long), ``services.json``
(compute service list) and ``server_groups.json`` (server group list --all-projects --long); the first two are needed.
Where a list lacks a field, because newer API versions no longer
give it, ``hypervisors/<name>.json`` and ``servers/<id>.json`` (the ``show`` commands) fill it in
(docs/reference/cli.md#import-openstack).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from outlive.base import BadInput, NotFound
from outlive.drivers.files import read_input
from outlive.drivers.openstack.inventory import Item, Lists, Record, fill_inventory
from outlive.inventory import Inventory, Selection
from outlive.resources import parse_json


def read_openstack(folder: Path, selection: Selection = Selection()) -> Inventory:
    """All records of the folder that the selection takes; lists that cannot be read raise, all else is a problem."""
    if not folder.is_dir():
        raise NotFound("no such folder", place=str(folder), remedy="name the folder with hypervisors.json")
    inventory = Inventory(what="openstack", has_hosts=True, has_vms=True)
    grouped = (folder / "server_groups.json").exists()
    lists = Lists(
        hypervisors=list(_read_items(folder, "hypervisors", ("Hypervisor Hostname", "ID"), inventory, needed=True)),
        aggregates=_read_items(folder, "aggregates", (), inventory),
        services=_read_items(folder, "services", (), inventory),
        flavors=_read_items(folder, "flavors", (), inventory),
        server_groups=_read_items(folder, "server_groups", (), inventory) if grouped else None,
        servers=_read_items(folder, "servers", ("ID",), inventory, needed=True),
    )
    fill_inventory(inventory, lists, selection=selection)
    if not inventory.flavors:
        inventory.sizes_remedy = f"write {folder / 'flavors.json'}: openstack flavor list --all --long -f json"
    return inventory


def _read_items(
    folder: Path, what: str, shown_by: Sequence[str], inventory: Inventory, *, needed: bool = False
) -> Iterator[Item]:
    problems = inventory.problems
    path = folder / f"{what}.json"
    if not path.exists():
        if needed:
            remedy = f"write it with: openstack {what.removesuffix('s')} list --long -f json > {path}"
            raise NotFound("no such file", place=str(path), remedy=remedy)
        return
    listed = parse_json(read_input(path), str(path))
    if not isinstance(listed, list):
        raise BadInput("is not a list", place=str(path), remedy="write it with the option -f json")
    for index, record in enumerate(listed):
        place = f"{path}[{index}]"
        if not isinstance(record, dict):
            problems.add(place, f"{str(record)[:60]!r} is not an object", "write it with the option -f json")
            inventory.nameless = True
            continue
        try:
            shown = _merge_details(folder / what, record, shown_by)
        except BadInput as error:
            problems.add(place, f"{error.place}: {error.message}", error.remedy)
            shown = {}
        yield Item(place, record, shown, problems)


def _merge_details(folder: Path, record: Record, names: Sequence[str]) -> Record:
    for name in names:
        value = record.get(name)
        path = folder / f"{value}.json"
        if value and "/" not in str(value) and path.is_file():
            shown = parse_json(read_input(path), str(path))
            if not isinstance(shown, dict):
                raise BadInput("is not an object", place=str(path), remedy="write it with: openstack … show -f json")
            return shown
    return {}
