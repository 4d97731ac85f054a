"""Records of Nova, from files or from its API, as an inventory: one mapping for both.

A record is an object of JSON. Its fields are known under the names of Nova's API and under the titles that old and new
clients print them with (docs/reference/cli.md#import-openstack); case, spaces and punctuation of a name do not matter.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from outlive.base import BadInput
from outlive.inventory import (
    GROUP_POLICIES,
    FlavorRecord,
    HostRecord,
    Inventory,
    RowCondition,
    Selection,
    VmRecord,
    check_columns,
    selects,
)
from outlive.resources import Aggregate, Amounts, Problems, parse_json
from outlive.resources.reasons import ImportNotice, Reason, Value

MIB: Final = 2**20
COMPUTE: Final = "nova-compute"
IRONIC: Final = "ironic"
"""Type of a hypervisor that is a machine of bare metal."""
HOST_FIELDS: Final = ("OS-EXT-SRV-ATTR:host", "compute_host", "Host", "OS-EXT-SRV-ATTR:hypervisor_hostname")
"""Where a server's host may stand."""
_PAIR = re.compile(r"\s*([^=,\s][^=]*?)\s*=\s*'((?:[^'\\]|\\.)*)'\s*(?:,|\Z)")
"""One pair of the text form of properties: ``key='value'``."""
_NAMED = re.compile(r"(?P<name>.+?)\s+\([^()]*\)\Z")
"""``m1.small (42)``: a name with its id."""

Record = Mapping[str, Any]


class Item:
    """One entry of a list, with what its own ``show`` file adds; fields are found under any of their names."""

    def __init__(self, place: str, listed: Record, shown: Record, problems: Problems) -> None:
        self.place = place
        self._fields = {_normalise_name(name): value for source in (listed, shown) for name, value in source.items()}
        self._listed = {_normalise_name(name): value for name, value in listed.items()}
        self.columns = tuple(dict.fromkeys((*listed, *shown)))
        """The names of all fields, as the source writes them."""
        self._problems = problems

    def get(self, *names: str) -> Any:
        """The first of the fields that is there and not null; the list's own value before that of ``show``."""
        for name in names:
            for fields in (self._listed, self._fields):
                value = fields.get(_normalise_name(name))
                if value is not None and value != "":
                    return value
        return None

    def record(self, name: str) -> Record:
        """The field where it is an object, or the text of one (``a='1', b='2'``), in the list or in ``show``."""
        for fields in (self._listed, self._fields):
            value = fields.get(_normalise_name(name))
            found = value if isinstance(value, dict) else _parse_properties(value)
            if found:
                return found
        return {}

    def has_field(self, *names: str) -> bool:
        """Whether any of the fields is there at all, be it empty."""
        return any(_normalise_name(name) in self._fields for name in names)

    def get_text(self, *names: str) -> str:
        """The field as text, empty where there is none."""
        value = self.get(*names)
        return "" if value is None else str(value).strip()

    def get_number(self, *names: str) -> int | None:
        """The field as a whole number; a problem is noted where it is something else."""
        value = self.get(*names)
        if value is None or isinstance(value, bool):
            return None
        try:
            return int(value) if not isinstance(value, float) or value.is_integer() else None
        except (TypeError, ValueError):
            self._problems.add(self.place, f"{names[0]} {value!r} is not a whole number", "dump it again with -f json")
            return None


@functools.lru_cache(maxsize=4096)
def _normalise_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@dataclass(slots=True)
class Lists:
    """What Nova lists, as far as it is known."""

    hypervisors: Iterable[Item] = ()
    servers: Iterable[Item] = ()
    flavors: Iterable[Item] = ()
    aggregates: Iterable[Item] = ()
    services: Iterable[Item] = ()
    server_groups: Iterable[Item] | None = None
    """``None``: nobody says anything of groups."""


def fill_inventory(inventory: Inventory, lists: Lists, selection: Selection = Selection()) -> Inventory:
    """The inventory with all records of the lists; what is wrong with one is noted in its problems.

    ``selection``: only such servers and hypervisors. Machines of Ironic and the servers on them are no VMs on hosts and
    are left out.
    """
    problems = inventory.problems
    aggregates = _read_aggregates(lists.aggregates)
    hypervisors, servers = list(lists.hypervisors), list(lists.servers)
    services = _compute_services(lists.services)
    metal = BareMetal(services, hypervisors)
    names = metal.names
    _check_where(selection.hosts, hypervisors, "the list of hypervisors", "--host-where")
    _check_where(selection.vms, servers, "the list of servers", "--where")
    for item in hypervisors:
        if _is_node(item):
            continue
        name = _host_name(item, services)
        if not selects(selection.hosts, item.get_text):
            inventory.leave_host_out(name)
            continue
        host = _read_host(item, name, services, aggregates, problems)
        if host is None:
            inventory.listed_hosts.add(name)
        else:
            inventory.hosts.append(host)
    inventory.flavors.extend(_read_flavors(lists.flavors, metal, problems))
    flavors = {flavor.name for flavor in inventory.flavors}
    groups = _Groups(lists.server_groups, problems)
    left = [*metal.nodes]
    for item in servers:
        if metal.is_server(item):
            left.append(item.get_text("Name") or item.get_text("ID"))
            continue
        if not selects(selection.vms, item.get_text):
            inventory.leave_vm_out()
            continue
        inventory.vms.append(groups.add_group(_read_server(item, names, flavors)))
    if left:
        fields: Mapping[str, Value] = {"count": len(left), "names": tuple(left)}
        inventory.notices.append(Reason(ImportNotice.BARE_METAL, fields))
    _take_zones_of_vms(inventory)
    return inventory


def _check_where(conditions: Sequence[RowCondition], items: Sequence[Item], place: str, option: str) -> None:
    columns = tuple(dict.fromkeys(column for item in items for column in item.columns)) if conditions else ()
    check_columns(
        (one for one in conditions if not any(item.has_field(one.column) for item in items)), columns, place, option
    )


def find_bare_metal(lists: Lists) -> BareMetal:
    """The machines of Ironic among the hypervisors of the lists, which then says of a server whether it is on one."""
    metal = BareMetal(_compute_services(lists.services), list(lists.hypervisors))
    for flavor in lists.flavors:
        metal.is_flavor(flavor)
    return metal


class BareMetal:
    """Which hypervisors are machines that Ironic rents out, and which servers are on them: each is the machine itself.

    A server is on one where its node or its host says so, where its flavor asks for no processor of a hypervisor
    (``resources:VCPU=0``, as Ironic's manual has it), or where its compute service has no hypervisor but such machines.
    """

    def __init__(self, services: Mapping[str, Item], hypervisors: Sequence[Item]) -> None:
        nodes = list(filter(_is_node, hypervisors))
        self._services = frozenset(services)
        self.nodes = tuple(item.get_text("Hypervisor Hostname") for item in nodes)
        self._hosts = set(map(service_host, nodes))
        self._flavors: set[str] = set()
        self.names = _HostNames()
        """Of the other hypervisors."""
        for item in hypervisors:
            if not _is_node(item):
                self.names.add(_host_name(item, services), item.get_text("Hypervisor Hostname"), service_host(item))

    def is_flavor(self, flavor: Item) -> bool:
        """Whether servers of this flavor are machines, which is remembered."""
        if not _is_metal(_parse_properties(flavor.get("Properties", "extra_specs"))):
            return False
        self._flavors.add(flavor.get_text("Name"))
        return True

    def is_server(self, server: Item) -> bool:
        """Whether this server is on such a machine."""
        host, flavor = server.get_text(*HOST_FIELDS), server.record("flavor")
        specs = flavor.get("extra_specs")
        name = str(flavor.get("original_name") or flavor.get("name") or server.get_text("flavor", "Flavor Name"))
        return (
            server.get_text("OS-EXT-SRV-ATTR:hypervisor_hostname") in self.nodes
            or (bool(host) and (host in self._hosts or host in self.nodes))
            or _is_metal(specs if isinstance(specs, dict) else _parse_properties(specs))
            or name in self._flavors
            or (bool(self.nodes) and host in self._services and not self.names.is_known(host))
        )


def _is_node(hypervisor: Item) -> bool:
    return hypervisor.get_text("Hypervisor Type").lower() == IRONIC


def _compute_services(services: Iterable[Item]) -> dict[str, Item]:
    return {item.get_text("Host"): item for item in services if item.get_text("Binary") in ("", COMPUTE)}


def _is_metal(extra_specs: Mapping[str, str]) -> bool:
    return str(extra_specs.get("resources:VCPU", "")) == "0"


def service_host(item: Item) -> str:
    """The host of a hypervisor's compute service, where the record says it."""
    service = item.get("service")
    inside = service.get("host") if isinstance(service, dict) else None
    return str(inside) if inside else item.get_text("service_host", "Service Host")


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


class _HostNames:
    """Host names under all names that servers may use for a host: service host, full and short host name."""

    def __init__(self) -> None:
        self._exact: dict[str, str] = {}
        self._short: dict[str, set[str]] = {}

    def add(self, name: str, *others: str) -> None:
        for other in (name, *others):
            if other:
                self._exact.setdefault(other, name)
                self._short.setdefault(other.partition(".")[0], set()).add(name)

    def is_known(self, text: str) -> bool:
        """Whether it is the name of a host."""
        return text in self._exact or len(self._short.get(text.partition(".")[0], ())) == 1

    def find(self, text: str) -> str:
        """The host's name; the text itself where nobody knows it."""
        if text in self._exact:
            return self._exact[text]
        candidates = self._short.get(text.partition(".")[0], set())
        return next(iter(candidates)) if len(candidates) == 1 else text


def _read_aggregates(items: Iterable[Item]) -> list[tuple[Aggregate, str, frozenset[str]]]:
    """Each aggregate with its zone and its hosts."""
    found = []
    for item in items:
        hosts = item.get("Hosts")
        listed = hosts if isinstance(hosts, list) else [part.strip(" '\"") for part in str(hosts or "").split(",")]
        metadata = _parse_properties(item.get("Properties", "metadata"))
        zone = item.get_text("Availability Zone") or metadata.get("availability_zone", "")
        aggregate = Aggregate(name=item.get_text("Name"), uuid=item.get_text("uuid"), metadata=metadata)
        found.append((aggregate, zone, frozenset(str(host) for host in listed if host)))
    return found


def _host_name(item: Item, services: Mapping[str, Item]) -> str:
    full = item.get_text("Hypervisor Hostname")
    return service_host(item) or (full.partition(".")[0] if full.partition(".")[0] in services else full)


def _read_host(
    item: Item,
    name: str,
    services: Mapping[str, Item],
    aggregates: Sequence[tuple[Aggregate, str, frozenset[str]]],
    problems: Problems,
) -> HostRecord | None:
    full = item.get_text("Hypervisor Hostname")
    vcpus, memory = item.get_number("vCPUs"), item.get_number("Memory MB")
    if vcpus is None or memory is None:
        what = "vCPUs" if vcpus is None else "Memory MB"
        remedy = "list them with: openstack --os-compute-api-version 2.87 hypervisor list --long -f json"
        problems.add(item.place, f"hypervisor {full!r} has no {what}", remedy)
        return None
    mine = [(aggregate, zone) for aggregate, zone, hosts in aggregates if name in hosts or full in hosts]
    service = services.get(name) or services.get(full)
    zone = service.get_text("Zone") if service else next((zone for _, zone in mine if zone), "")
    states = {item.get_text("State").lower(), service.get_text("State").lower() if service else ""} - {""}
    used = (item.get_number("vCPUs Used"), item.get_number("Memory MB Used"))
    kind = item.get_text("Hypervisor Type").lower()
    return HostRecord(
        name=name,
        place=item.place,
        capacity=Amounts(cpu=vcpus * 1000, memory=memory * MIB),
        used=Amounts(cpu=used[0] * 1000, memory=used[1] * MIB) if used[0] is not None and used[1] is not None else None,
        zone=zone if service or mine else None,
        aggregates=tuple(aggregate for aggregate, _ in mine) if aggregates else None,
        cpu_arch=_parse_arch(item.get("cpu_info")),
        hypervisor_type="ch" if kind in ("ch", "cloud-hypervisor") else "kvm" if kind in ("qemu", "kvm", "") else kind,
        disabled=_disabled_reason(item, service),
        down="down" in states if states else None,
    )


def _disabled_reason(item: Item, service: Item | None) -> str | None:
    status = (service.get_text("Status") if service else item.get_text("Status")).lower()
    if not status:
        return None
    reason = service.get_text("Disabled Reason") if service else ""
    return (reason or "the compute service is disabled") if status == "disabled" else ""


def _parse_arch(info: Any) -> str | None:
    """The architecture; ``None`` also where nobody understands what is said of the processor."""
    if isinstance(info, str) and info.startswith("{"):
        try:
            info = parse_json(info.encode(), "cpu_info")
        except BadInput:
            return None
    arch = info.get("arch") if isinstance(info, dict) else None
    return str(arch) if arch else None


def _read_flavors(items: Iterable[Item], metal: BareMetal, problems: Problems) -> Iterable[FlavorRecord]:
    for item in items:
        if metal.is_flavor(item):
            continue
        vcpus, memory = item.get_number("VCPUs"), item.get_number("RAM")
        if vcpus is None or memory is None:
            problems.add(
                item.place, f"flavor {item.get_text('Name')!r} has no sizes", "list it with: --all --long -f json"
            )
            continue
        yield FlavorRecord(
            name=item.get_text("Name"),
            place=item.place,
            resources=Amounts(cpu=vcpus * 1000, memory=memory * MIB),
            disk_gib=item.get_number("Disk") or 0,
            ephemeral_gib=item.get_number("Ephemeral", "OS-FLV-EXT-DATA:ephemeral") or 0,
            extra_specs=_parse_properties(item.get("Properties", "extra_specs")),
        )


def _read_server(item: Item, names: _HostNames, flavors: set[str]) -> VmRecord:
    embedded = item.record("flavor")
    name = str(embedded.get("original_name") or embedded.get("name") or item.get_text("flavor", "Flavor Name"))
    named = _NAMED.match(name)
    if named and name not in flavors:
        name = named["name"]
    host = item.get_text(*HOST_FIELDS)
    vcpus, ram = _parse_whole_number(embedded.get("vcpus")), _parse_whole_number(embedded.get("ram"))
    resources = Amounts(cpu=vcpus * 1000, memory=ram * MIB) if vcpus is not None and ram is not None else None
    specs, groups = embedded.get("extra_specs"), item.get("server_groups")
    return VmRecord(
        id=item.get_text("ID").lower(),
        place=item.place,
        name=item.get_text("Name"),
        project=item.get_text("project_id", "Project ID", "tenant_id") or None,
        flavor=name,
        resources=resources,
        zone=item.get_text("OS-EXT-AZ:availability_zone", "Availability Zone") or None,
        host=(names.find(host) if host and host != "None" else "") if item.has_field(*HOST_FIELDS) else None,
        phase=item.get_text("Status") or None,
        disk_gib=_parse_whole_number(embedded.get("disk")),
        extra_specs={str(k): str(v) for k, v in specs.items()} if isinstance(specs, dict) else None,
        os_type=None,
        server_group=(str(groups[0]) if groups else "") if isinstance(groups, list) else None,
    )


def _parse_whole_number(value: Any) -> int | None:
    """A whole number, also as text; ``None`` for anything else."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class _Groups:
    """Server groups with their members and policies (server group list --long); none where there is no such file."""

    def __init__(self, items: Iterable[Item] | None, problems: Problems) -> None:
        self._known = items is not None
        self._policies: dict[str, str] = {}
        self._of: dict[str, str] = {}
        for item in items or ():
            name = item.get_text("ID", "Name")
            words = _split_list(item.get("Policy", "Policies"))  # newer clients give a word, older ones a list of one
            policy = words[0] if words else ""
            if policy not in GROUP_POLICIES:
                remedy = f"one of {', '.join(word for word in GROUP_POLICIES if word)}"
                problems.add(item.place, f"policy {policy[:60]!r} of group {name[:60]!r} is not known", remedy)
                continue
            self._policies[name] = policy
            for member in _split_list(item.get("Members")):
                self._of.setdefault(member.lower(), name)

    def add_group(self, vm: VmRecord) -> VmRecord:
        """The VM with its group and the group's policy; as it is where no file says anything of groups."""
        if not self._known:
            return vm
        group = vm.server_group or self._of.get(vm.id, "")
        return msgspec.structs.replace(vm, server_group=group, server_group_policy=self._policies.get(group, ""))


def _split_list(value: Any) -> list[str]:
    """A list, or its text form: words with commas between them."""
    words = value if isinstance(value, list) else str(value or "").strip("[]").split(",")
    return [word for one in words if (word := str(one).strip(" '\""))]


def _parse_properties(value: Any) -> dict[str, str]:
    """Properties as the client writes them: an object, or the text ``a='1', b='2'``."""
    if isinstance(value, dict):
        return {str(key): str(item) for key, item in value.items()}
    if not isinstance(value, str):
        return {}
    return {match[1]: match[2] for match in _PAIR.finditer(value)}
