"""libvirt: a folder with one folder for each host, which ``virsh`` has written::

    for host in kvm-1 kvm-2; do
      mkdir -p dump/$host; at="virsh -c qemu+ssh://$host/system"
      $at nodeinfo > dump/$host/nodeinfo; $at list --all > dump/$host/list
      for vm in $($at list --all --uuid); do $at dumpxml $vm > dump/$host/$vm.xml; done
    done

``nodeinfo`` has CPUs and memory of the host. Each XML file is one domain; which state it is in says ``list``, and
where that is missing the number that only a running domain has (``<domain id=…>``).
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from outlive.base import BadInput, NotFound
from outlive.drivers.files import read_input
from outlive.drivers.listings.entries import ListingEntry, select_entries
from outlive.inventory import Inventory, Selection
from outlive.resources import parse_xml

NODEINFO: Final = "nodeinfo"
LIST: Final = "list"
HOSTS_LIMIT: Final = 10_000
"""Folders of hosts."""
XML_BYTES: Final = 2**20
"""Of one domain."""
_NAMED: Final = re.compile(r"^(?P<name>[^:]+):\s*(?P<value>.*?)\s*$")
_ROW: Final = re.compile(r"^\s*(?:\d+|-)\s+(?P<name>\S.*?)\s{2,}(?P<state>\S.*?)\s*$")
_UNITS: Final = {
    "b": 1, "bytes": 1, "kb": 10**3, "k": 2**10, "kib": 2**10, "mb": 10**6, "m": 2**20, "mib": 2**20, "gb": 10**9,
    "g": 2**30, "gib": 2**30, "tb": 10**12, "t": 2**40, "tib": 2**40,
}  # fmt: skip
"""As libvirt has them; without one, KiB."""


def read_libvirt(folder: Path, selection: Selection) -> Inventory:
    """All records of the folder; ``NotFound`` and ``BadInput`` for one that has no hosts."""
    if not folder.is_dir():
        raise NotFound(
            "no such folder", place=str(folder), remedy="see outlive import libvirt --help for how to make it"
        )
    hosts = sorted(one for one in folder.iterdir() if one.is_dir())
    if not hosts or len(hosts) > HOSTS_LIMIT:
        raise BadInput(
            f"has {len(hosts)} folders",
            place=str(folder),
            remedy=f"one for each host, with {NODEINFO} and its domains, and at most {HOSTS_LIMIT}",
        )
    inventory = Inventory(what="libvirt", has_hosts=True, has_vms=True)
    for entry in select_entries([*_read_hosts(hosts, inventory)], selection.hosts, inventory, "--host-where"):
        arch = entry.get_text("CPU model") or None
        entry.add_host(entry.get_text("name"), "host", cpu=("CPU(s)",), memory=("Memory size",), cpu_arch=arch)
    domains = [one for host in hosts for one in _read_domains(host, inventory)]
    for entry in select_entries(domains, selection.vms, inventory, "--where"):
        name, host, phase = entry.get_text("name"), entry.get_text("host"), entry.get_text("state")
        identity, what = entry.get_text("uuid", "name"), f"domain {name!r}"
        entry.add_vm(identity, what, cpu=("vcpu",), memory=("memory",), name=name, host=host, phase=phase)
    return inventory


def _read_hosts(folders: Iterable[Path], inventory: Inventory) -> Iterator[ListingEntry]:
    for folder in folders:
        path = folder / NODEINFO
        if path.exists():
            yield ListingEntry({**dict(_parse_nodeinfo(path)), "name": folder.name}, str(path), inventory)
        else:
            inventory.listed_hosts.add(folder.name)
            remedy = f"write it with: virsh -c qemu+ssh://{folder.name}/system nodeinfo > {path}"
            inventory.problems.add(str(path), f"the sizes of host {folder.name!r} are missing", remedy)


def _parse_nodeinfo(path: Path) -> Iterator[tuple[str, str]]:
    """What ``nodeinfo`` names; an amount of memory in bytes."""
    for line in read_input(path).decode(errors="replace").splitlines():
        if found := _NAMED.match(line):
            number, _, unit = found["value"].partition(" ")
            factor = _UNITS.get(unit.lower())
            yield found["name"], str(int(number) * factor) if factor and number.isdigit() else found["value"]


def _read_states(path: Path) -> dict[str, str]:
    """Domain → the word that ``virsh list`` has for its state."""
    if not path.exists():
        return {}
    rows = (_ROW.match(line) for line in read_input(path).decode(errors="replace").splitlines())
    return {row["name"]: row["state"] for row in rows if row is not None}


def _read_domains(folder: Path, inventory: Inventory) -> Iterator[ListingEntry]:
    states = _read_states(folder / LIST)
    for path in sorted(folder.glob("*.xml")):
        try:
            domain = parse_xml(read_input(path, limit=XML_BYTES).decode(errors="replace"), "the file")
            name = domain.findtext("name", "").strip()
            if not name:
                raise BadInput("is not a domain with a name", remedy="write it with: virsh dumpxml")
        except BadInput as error:
            inventory.nameless = True
            inventory.problems.add(str(path), error.message, error.remedy)
            continue
        running = "running" if domain.get("id") else "shut off"
        about = {"name": name, "uuid": domain.findtext("uuid", ""), "state": states.get(name, running)}
        yield ListingEntry({**about, "host": folder.name, **_read_sizes(domain)}, str(path), inventory)


def _read_sizes(domain: ET.Element) -> dict[str, str]:
    """Its CPUs that are plugged in, and the most memory that it may have, in bytes."""
    vcpu, memory = domain.find("vcpu"), domain.find("memory")
    cores = "1" if vcpu is None else vcpu.get("current") or (vcpu.text or "").strip()
    number = (memory.text or "").strip() if memory is not None else ""
    factor = _UNITS.get(memory.get("unit", "KiB").lower()) if memory is not None else None
    return {"vcpu": cores, "memory": str(int(number) * factor) if factor and number.isdigit() else number}
