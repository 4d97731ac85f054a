"""An inventory from what the ``openstack`` command prints with ``-f json``, as files of one folder.

Read are ``hypervisors.json`` (hypervisor list --long), ``servers.json`` (server list --all-projects --long),
``flavors.json`` (flavor list --all --long), ``aggregates.json`` (aggregate list --long), ``services.json``
(compute service list) and ``server_groups.json`` (server group list --all-projects --long); the first two are needed.
Where a list lacks a field, because newer API versions no longer
give it, ``hypervisors/<name>.json`` and ``servers/<id>.json`` (the ``show`` commands) fill it in
(docs/reference/cli.md#import-openstack). Columns are known under the names of old and new clients alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from outlive.base.errors import BadInput, NotFound
from outlive.drivers.files import read_input
from outlive.inventory.records import GROUP_POLICIES, FlavorRecord, HostRecord, Inventory, VmRecord
from outlive.resources import Aggregate, Amounts
from outlive.resources.documents import Problems, parse_json
from outlive.resources.reasons import Reason
from outlive.resources.reasons.inventory import ImportNotice

MIB: Final = 2**20
_PAIR = re.compile(r"\s*([^=,\s][^=]*?)\s*=\s*'((?:[^'\\]|\\.)*)'\s*(?:,|\Z)")
"""One pair of the text form of properties: ``key='value'``."""
_NAMED = re.compile(r"(?P<name>.+?)\s+\([^()]*\)\Z")
"""``m1.small (42)``: a name with its id."""

Record = Mapping[str, Any]


class _Item:
    """One entry of a list, with what its own ``show`` file adds; fields are found under any of their names."""

    def __init__(self, place: str, listed: Record, shown: Record, problems: Problems) -> None:
        self.place = place
        self._fields = {_key(name): value for source in (listed, shown) for name, value in source.items()}
        self._listed = {_key(name): value for name, value in listed.items()}
        self._problems = problems

    def get(self, *names: str) -> Any:
        """The first of the fields that is there and not null; the list's own value before that of ``show``."""
        for name in names:
            for fields in (self._listed, self._fields):
                value = fields.get(_key(name))
                if value is not None and value != "":
                    return value
        return None

    def known(self, *names: str) -> bool:
        """Whether any of the fields is there at all, be it empty."""
        return any(_key(name) in self._fields for name in names)

    def text(self, *names: str) -> str:
        """The field as text, empty where there is none."""
        value = self.get(*names)
        return "" if value is None else str(value).strip()

    def number(self, *names: str) -> int | None:
        """The field as a whole number; a problem is noted where it is something else."""
        value = self.get(*names)
        if value is None or isinstance(value, bool):
            return None
        try:
            return int(value) if not isinstance(value, float) or value.is_integer() else None
        except (TypeError, ValueError):
            self._problems.add(self.place, f"{names[0]} {value!r} is not a whole number", "dump it again with -f json")
            return None


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def read_openstack(folder: Path) -> Inventory:
    """All records of the folder; files that cannot be read at all raise, everything else is a problem."""
    if not folder.is_dir():
        raise NotFound("no such folder", place=str(folder), remedy="name the folder with hypervisors.json")
    inventory = Inventory(what="openstack", has_hosts=True, has_vms=True)
    problems = inventory.problems
    hypervisors = list(_items(folder, "hypervisors", ("Hypervisor Hostname", "ID"), problems, needed=True))
    aggregates = _aggregates(_items(folder, "aggregates", (), problems))
    services = {
        item.text("Host"): item
        for item in _items(folder, "services", (), problems)
        if item.text("Binary") in ("", "nova-compute")
    }
    names = _Names()
    for item in hypervisors:
        host = _host(item, services, aggregates, problems)
        if host is not None:
            names.add(host.name, item.text("Hypervisor Hostname"), item.text("service_host", "Service Host"))
            inventory.hosts.append(host)
    inventory.flavors.extend(_flavors(_items(folder, "flavors", (), problems), problems))
    flavors = {flavor.name for flavor in inventory.flavors}
    groups = _Groups(folder, problems)
    for item in _items(folder, "servers", ("ID",), problems, needed=True):
        inventory.vms.append(groups.grouped(_server(item, names, flavors)))
    _take_zones_of_vms(inventory)
    if not inventory.flavors:
        inventory.sizes_remedy = f"write {folder / 'flavors.json'}: openstack flavor list --all --long -f json"
    return inventory


def _take_zones_of_vms(inventory: Inventory) -> None:
    """Without services and aggregates nothing says in which zone a host is, except for the VMs on it.

    Where all VMs are in one zone, hosts without VMs are taken to be in it as well.
    """
    zones: dict[str, set[str]] = {}
    for vm in inventory.vms:
        if vm.host and vm.zone:
            zones.setdefault(vm.host, set()).add(vm.zone)
    everywhere = {zone for found in zones.values() for zone in found}
    taken: list[str] = []
    for at, host in enumerate(inventory.hosts):
        found = zones.get(host.name) or everywhere
        if host.zone is None and len(found) == 1:
            inventory.hosts[at] = msgspec.structs.replace(host, zone=next(iter(found)))
            taken.append(host.name)
    if taken:
        inventory.notices.append(Reason(ImportNotice.HOST_ZONE_FROM_VMS, {"count": len(taken), "hosts": tuple(taken)}))


def _items(
    folder: Path, what: str, shown_by: Sequence[str], problems: Problems, *, needed: bool = False
) -> Iterator[_Item]:
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
            continue
        yield _Item(place, record, _shown(folder / what, record, shown_by), problems)


def _shown(folder: Path, record: Record, names: Sequence[str]) -> Record:
    for name in names:
        value = record.get(name)
        path = folder / f"{value}.json"
        if value and "/" not in str(value) and path.is_file():
            shown = parse_json(read_input(path), str(path))
            if not isinstance(shown, dict):
                raise BadInput("is not an object", place=str(path), remedy="write it with: openstack … show -f json")
            return shown
    return {}


class _Names:
    """Host names under all names that servers may use for a host: service host, full and short host name."""

    def __init__(self) -> None:
        self._exact: dict[str, str] = {}
        self._short: dict[str, set[str]] = {}

    def add(self, name: str, *others: str) -> None:
        for other in (name, *others):
            if other:
                self._exact.setdefault(other, name)
                self._short.setdefault(other.partition(".")[0], set()).add(name)

    def find(self, text: str) -> str:
        """The host's name; the text itself where nobody knows it."""
        if text in self._exact:
            return self._exact[text]
        candidates = self._short.get(text.partition(".")[0], set())
        return next(iter(candidates)) if len(candidates) == 1 else text


def _aggregates(items: Iterator[_Item]) -> list[tuple[Aggregate, str, tuple[str, ...]]]:
    """Each aggregate with its zone and its hosts."""
    found = []
    for item in items:
        hosts = item.get("Hosts")
        listed = hosts if isinstance(hosts, list) else [part.strip(" '\"") for part in str(hosts or "").split(",")]
        metadata = _properties(item.get("Properties", "metadata"))
        zone = item.text("Availability Zone") or metadata.get("availability_zone", "")
        aggregate = Aggregate(name=item.text("Name"), uuid=item.text("uuid"), metadata=metadata)
        found.append((aggregate, zone, tuple(str(host) for host in listed if host)))
    return found


def _host(
    item: _Item,
    services: Mapping[str, _Item],
    aggregates: Sequence[tuple[Aggregate, str, tuple[str, ...]]],
    problems: Problems,
) -> HostRecord | None:
    full = item.text("Hypervisor Hostname")
    name = item.text("service_host") or (full.partition(".")[0] if full.partition(".")[0] in services else full)
    vcpus, memory = item.number("vCPUs"), item.number("Memory MB")
    if vcpus is None or memory is None:
        what = "vCPUs" if vcpus is None else "Memory MB"
        remedy = f"add hypervisors/{full}.json (hypervisor show -f json), or list with --os-compute-api-version 2.87"
        problems.add(item.place, f"hypervisor {full!r} has no {what}", remedy)
        return None
    mine = [(aggregate, zone) for aggregate, zone, hosts in aggregates if name in hosts or full in hosts]
    service = services.get(name) or services.get(full)
    zone = service.text("Zone") if service else next((zone for _, zone in mine if zone), "")
    states = {item.text("State").lower(), service.text("State").lower() if service else ""} - {""}
    used = (item.number("vCPUs Used"), item.number("Memory MB Used"))
    kind = item.text("Hypervisor Type").lower()
    return HostRecord(
        name=name,
        place=item.place,
        capacity=Amounts(cpu=vcpus * 1000, memory=memory * MIB),
        used=Amounts(cpu=used[0] * 1000, memory=used[1] * MIB) if used[0] is not None and used[1] is not None else None,
        zone=zone if service or mine else None,
        aggregates=tuple(aggregate for aggregate, _ in mine) if aggregates else None,
        cpu_arch=_arch(item.get("cpu_info")),
        hypervisor_type="ch" if kind in ("ch", "cloud-hypervisor") else "kvm" if kind in ("qemu", "kvm", "") else kind,
        disabled=_disabled(item, service),
        down="down" in states if states else None,
    )


def _disabled(item: _Item, service: _Item | None) -> str | None:
    status = (service.text("Status") if service else item.text("Status")).lower()
    if not status:
        return None
    reason = service.text("Disabled Reason") if service else ""
    return (reason or "the compute service is disabled") if status == "disabled" else ""


def _arch(info: Any) -> str | None:
    if isinstance(info, str) and info.startswith("{"):
        info = parse_json(info.encode(), "cpu_info")
    arch = info.get("arch") if isinstance(info, dict) else None
    return str(arch) if arch else None


def _flavors(items: Iterator[_Item], problems: Problems) -> Iterator[FlavorRecord]:
    for item in items:
        vcpus, memory = item.number("VCPUs"), item.number("RAM")
        if vcpus is None or memory is None:
            problems.add(item.place, f"flavor {item.text('Name')!r} has no sizes", "list it with: --all --long -f json")
            continue
        yield FlavorRecord(
            name=item.text("Name"),
            place=item.place,
            resources=Amounts(cpu=vcpus * 1000, memory=memory * MIB),
            disk_gib=item.number("Disk") or 0,
            ephemeral_gib=item.number("Ephemeral", "OS-FLV-EXT-DATA:ephemeral") or 0,
            extra_specs=_properties(item.get("Properties", "extra_specs")),
        )


def _server(item: _Item, names: _Names, flavors: set[str]) -> VmRecord:
    flavor = item.get("flavor", "Flavor Name")
    embedded = flavor if isinstance(flavor, dict) else {}
    name = str(embedded.get("original_name") or embedded.get("name") or flavor or "") if flavor else ""
    named = _NAMED.match(name)
    if named and name not in flavors:
        name = named["name"]
    host_fields = ("OS-EXT-SRV-ATTR:host", "compute_host", "Host", "OS-EXT-SRV-ATTR:hypervisor_hostname")
    host = item.text(*host_fields)
    resources = None
    if name not in flavors and isinstance(embedded.get("vcpus"), int) and isinstance(embedded.get("ram"), int):
        resources = Amounts(cpu=embedded["vcpus"] * 1000, memory=embedded["ram"] * MIB)
    specs = embedded.get("extra_specs")
    return VmRecord(
        id=item.text("ID").lower(),
        place=item.place,
        name=item.text("Name"),
        project=item.text("project_id", "Project ID", "tenant_id") or None,
        flavor=name,
        resources=resources,
        zone=item.text("OS-EXT-AZ:availability_zone", "Availability Zone") or None,
        host=(names.find(host) if host and host != "None" else "") if item.known(*host_fields) else None,
        phase=item.text("Status") or None,
        disk_gib=embedded.get("disk") if isinstance(embedded.get("disk"), int) else None,
        extra_specs={str(k): str(v) for k, v in specs.items()} if isinstance(specs, dict) else None,
        os_type=None,
        server_group=_group(item.get("server_groups")),
    )


class _Groups:
    """Server groups with their members and policies (server group list --long); none where there is no such file."""

    def __init__(self, folder: Path, problems: Problems) -> None:
        self._known = (folder / "server_groups.json").exists()
        self._policies: dict[str, str] = {}
        self._of: dict[str, str] = {}
        for item in _items(folder, "server_groups", (), problems):
            name = item.text("ID", "Name")
            policy = _first(item.get("Policy", "Policies"))
            if policy not in GROUP_POLICIES:
                remedy = f"one of {', '.join(word for word in GROUP_POLICIES if word)}"
                problems.add(item.place, f"policy {policy[:60]!r} of group {name[:60]!r} is not known", remedy)
                continue
            self._policies[name] = policy
            for member in _listed(item.get("Members")):
                self._of.setdefault(member.lower(), name)

    def grouped(self, vm: VmRecord) -> VmRecord:
        """The VM with its group and the group's policy; as it is where no file says anything of groups."""
        if not self._known:
            return vm
        group = vm.server_group or self._of.get(vm.id, "")
        return msgspec.structs.replace(vm, server_group=group, server_group_policy=self._policies.get(group, ""))


def _listed(value: Any) -> list[str]:
    """A list, or its text form: words with commas between them."""
    words = value if isinstance(value, list) else str(value or "").strip("[]").split(",")
    return [word for one in words if (word := str(one).strip(" '\""))]


def _first(value: Any) -> str:
    """The policy: newer clients give a word, older ones a list of one."""
    words = _listed(value)
    return words[0] if words else ""


def _group(value: Any) -> str | None:
    if isinstance(value, list):
        return str(value[0]) if value else ""
    return None


def _properties(value: Any) -> dict[str, str]:
    """Properties as the client writes them: an object, or the text ``a='1', b='2'``."""
    if isinstance(value, dict):
        return {str(key): str(item) for key, item in value.items()}
    if not isinstance(value, str):
        return {}
    return {match[1]: match[2] for match in _PAIR.finditer(value)}
