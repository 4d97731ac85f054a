"""What an inventory says, before it becomes resources: hosts, VMs and flavors as records with their place.

Every driver that reads an inventory (CSV files, OpenStack's JSON, a database) ends here, and everything
after this point is the same for all of them. ``None`` means that the source does not know the field, so that
an import leaves alone what it knows nothing about.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from outlive.inventory.power_states import GuestPower
from outlive.resources import MOST, Aggregate, Amounts, Problems, disk_problem, object_name, size_problems
from outlive.resources.reasons import Reason

HOST_MEMORY_LEAST: Final = 512 * 2**20
"""The least memory of a host; less is a number in another unit."""
VM_MEMORY_LEAST: Final = 16 * 2**20
"""The least memory of a VM of an inventory."""
IMPORT_HOSTS_LIMIT: Final = 100_000
"""Hosts of one import."""
IMPORT_VMS_LIMIT: Final = 2_000_000
"""VMs of one import."""


class HostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A host as its source describes it."""

    name: str
    """As the source has it; ``with_object_name`` makes it the name of an object."""
    place: str
    capacity: Amounts
    source_name: str = ""
    """As the source has it, where that cannot be the name of an object."""
    used: Amounts | None = None
    """What the source says is in use; it counts where it is more than the sum over the VMs."""
    zone: str | None = None
    domains: dict[str, str] = {}
    """Failure domain kind → name, such as ``{"rack": "r07"}``."""
    traits: tuple[str, ...] | None = None
    aggregates: tuple[Aggregate, ...] | None = None
    cpu_arch: str | None = None
    hypervisor_type: str | None = None
    """libvirt's word, ``kvm`` or ``ch``."""
    disabled: str | None = None
    """Why it is disabled; the empty string where it is known to be enabled."""
    down: bool | None = None


class VmRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A VM as its source describes it."""

    id: str
    place: str
    name: str = ""
    project: str | None = None
    flavor: str = ""
    resources: Amounts | None = None
    """Absent: those of the flavor."""
    zone: str | None = None
    host: str | None = None
    """Where it runs; the empty string where it is known to run nowhere."""
    phase: str | None = None
    """The word of the source for what it does."""
    power: GuestPower | None = None
    """What that word means; the check fills it in."""
    disk_gib: int | None = None
    extra_specs: dict[str, str] | None = None
    os_type: str | None = None
    server_group: str | None = None
    server_group_policy: str | None = None
    """One of ``GROUP_POLICIES``."""
    protection: str | None = None
    """Protection level."""
    restart_priority: int | None = None


class FlavorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A VM size as its source describes it."""

    name: str
    place: str
    resources: Amounts
    disk_gib: int = 0
    ephemeral_gib: int = 0
    extra_specs: dict[str, str] = {}


@dataclass(slots=True)
class Inventory:
    """All records of one source, and what is wrong with them so far."""

    what: str
    """The source in one word: ``csv``, ``openstack``, ``database``."""
    problems: Problems = field(default_factory=Problems)
    hosts: list[HostRecord] = field(default_factory=list)
    vms: list[VmRecord] = field(default_factory=list)
    flavors: list[FlavorRecord] = field(default_factory=list)
    has_hosts: bool = False
    """Whether the source lists hosts at all; without, none is pruned."""
    has_vms: bool = False
    listed_hosts: set[str] = field(default_factory=set)
    """Names of hosts that the source has though nothing can be made of their records: they have not vanished."""
    listed_vms: set[str] = field(default_factory=set)
    """The same for ids of VMs."""
    nameless: bool = False
    """Whether there are records of which not even the name can be read: then nothing has vanished."""
    unselected_hosts: set[str] = field(default_factory=set)
    """Hosts that ``--host-where`` does not select; VMs on them are left out as well."""
    rows_left_out: int = 0
    """Rows that ``--where`` did not select, or that nothing can be made of."""
    notices: list[Reason] = field(default_factory=list)
    """What the source has that was not read, or was assumed."""
    sizes_remedy: str = "give cpu and memory, or import the flavor"
    """What helps against a VM whose size is not known."""

    def leave_host_out(self, name: str) -> None:
        """Note a host that was not selected."""
        self.unselected_hosts.add(name)
        self.rows_left_out += 1

    def leave_vm_out(self) -> None:
        """Note a VM that was not selected."""
        self.rows_left_out += 1


GROUP_POLICIES: Final = ("", "anti-affinity", "affinity", "soft-anti-affinity", "soft-affinity")
"""What a server group may ask for; empty: nothing."""

NAME_LIMIT: Final = 253
"""Characters of a name of a host or VM."""


def with_object_name(host: HostRecord) -> HostRecord:
    """The host under a name that objects can have; ``source_name`` keeps the other one."""
    name = object_name(host.name, "host") if host.name else ""
    return host if name == host.name else msgspec.structs.replace(host, name=name, source_name=host.name)


def with_object_names(vm: VmRecord) -> VmRecord:
    """The VM under an id that objects can have, on a host by the name of its object."""
    vm_id = object_name(vm.id, "vm") if vm.id else ""
    host = object_name(vm.host, "host") if vm.host else vm.host
    if (vm_id, host) == (vm.id, vm.host):
        return vm
    return msgspec.structs.replace(vm, id=vm_id, host=host, name=vm.name or (vm.id if vm_id != vm.id else ""))


def name_objects(inventory: Inventory) -> None:
    """Give all records of the inventory names that objects can have; names that are too long are problems. VMs on hosts
    that were not selected go."""
    for what, names in (
        ("host", ((host.name, host.place) for host in inventory.hosts)),
        ("VM", ((vm.id, vm.place) for vm in inventory.vms)),
    ):
        for name, place in names:
            if len(name) > NAME_LIMIT:
                message = f"the name of {what} {name[:60]!r}… has {len(name)} characters"
                inventory.problems.add(place, message, f"at most {NAME_LIMIT}")
    selected = [vm for vm in inventory.vms if not vm.host or vm.host not in inventory.unselected_hosts]
    inventory.rows_left_out += len(inventory.vms) - len(selected)
    inventory.vms = selected
    inventory.hosts[:] = map(with_object_name, inventory.hosts)
    inventory.vms[:] = map(with_object_names, inventory.vms)
    inventory.listed_hosts = {object_name(name, "host") for name in inventory.listed_hosts}
    inventory.listed_vms = {object_name(name, "vm") for name in inventory.listed_vms}


def check_amounts(
    amounts: Amounts, place: str, problems: Problems, *, what: str, memory_least: int = VM_MEMORY_LEAST
) -> None:
    """Note what is absurd about the amounts of a host or VM: nothing, negative, or not those of any machine."""
    for name in ("cpu", "memory"):
        if amounts.get(name, 0) == 0:
            problems.add(place, f"{what} has no {name}", "give a size above 0, or leave the row out")
    for name, problem, remedy in size_problems(amounts, memory_least=memory_least):
        if amounts[name] != 0:
            problems.add(place, f"{what} has {problem}", _unit_remedy(name, amounts[name], memory_least) or remedy)


def check_disk(disk_gib: int | None, place: str, problems: Problems, *, what: str) -> None:
    """Note disks of a VM or a flavor that no machine has."""
    if disk_gib is not None and (wrong := disk_problem(disk_gib)) is not None:
        problems.add(place, f"{what} has {wrong[0]}", wrong[1])


def _unit_remedy(name: str, amount: int, memory_least: int) -> str:
    """The unit that the number likely has; empty where that is not what is wrong."""
    if name == "memory" and 0 < amount < memory_least:
        # The first unit with which a machine has so much.
        for unit, factor in (("Ki", 2**10), ("Mi", 2**20), ("Gi", 2**30)):
            if amount * factor >= HOST_MEMORY_LEAST:
                meant = Amounts(memory=amount * factor).to_wire()["memory"]
                return f"if {amount} is in {unit}, which makes {meant}, give that unit: memory=COLUMN:{unit}"
        return "give the unit: memory=COLUMN:Mi"
    if name == "cpu" and amount > MOST[name]:
        milli = f"if its numbers are thousandths of a core, which makes {amount / 1e6:g}, give that unit: cpu=COLUMN:m"
        return f"at most {Amounts(cpu=MOST[name]).to_wire()[name]}; {milli}"
    return ""
