"""An inventory after all its checks: every problem of the input is found before anything is written.

``check_inventory`` sees all records and the objects that exist, reports everything that is wrong at once
(docs/reference/cli.md#import), and gives each VM a flavor: where the source has none, one is made up from the
VM's sizes, so that patterns of required slots have a name to match. It writes nothing and asks nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from outlive.base.errors import BadInput
from outlive.inventory.records import (
    IMPORT_HOSTS_LIMIT,
    IMPORT_VMS_LIMIT,
    FlavorRecord,
    HostRecord,
    Inventory,
    VmRecord,
    check_amounts,
)
from outlive.resources import (
    CREATOR_LABEL,
    ZONE_LABEL,
    Amounts,
    Flavor,
    FlavorSpec,
    Hypervisor,
    Resource,
    VirtualMachine,
    check_name,
)
from outlive.resources.documents import Problems
from outlive.resources.meta import check_labels

CREATOR = "import"
"""Value of the creator label on what an import created; ``--prune`` deletes nothing else."""
_Record = TypeVar("_Record", HostRecord, VmRecord, FlavorRecord)


class ImportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to import."""

    prune: bool = False
    """Delete what an earlier import created and the source no longer has."""
    domains: tuple[tuple[str, int], ...] = ()
    """Failure domain kind and its size in hosts: labels hosts in blocks, in the order of the source."""
    overcommit: dict[str, float] = {}
    """Resource → ratio of at least 1."""
    creator: str = CREATOR
    """Value of the creator label on what is created, and the source that its status names."""


class Existing(msgspec.Struct, frozen=True, kw_only=True):
    """What the store has, by object name."""

    hosts: dict[str, Hypervisor] = {}
    vms: dict[str, VirtualMachine] = {}
    flavors: dict[str, Flavor] = {}

    def flavor_specs(self) -> dict[str, FlavorSpec]:
        """By flavor name."""
        return {flavor.spec.flavor_name: flavor.spec for flavor in self.flavors.values()}


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The records by name, in the order of the source; every VM has sizes and a flavor."""

    hosts: dict[str, HostRecord]
    vms: dict[str, VmRecord]
    flavors: dict[str, FlavorRecord]
    gone_hosts: frozenset[str] = frozenset()
    """Names of objects that ``--prune`` deletes."""
    gone_vms: frozenset[str] = frozenset()


def check_inventory(inventory: Inventory, existing: Existing, options: ImportOptions) -> Wanted:
    """All records, checked; raises ``BadInputs`` with every problem of the input."""
    problems = inventory.problems
    hosts = _unique(((h.name, h) for h in inventory.hosts), "host", problems)
    vms = _unique(((v.id, v) for v in inventory.vms), "VM", problems)
    flavors = _unique(((f.name, f) for f in inventory.flavors), "flavor", problems)
    for what, count, limit in (("hosts", len(hosts), IMPORT_HOSTS_LIMIT), ("VMs", len(vms), IMPORT_VMS_LIMIT)):
        if count > limit:
            problems.add(inventory.what, f"{count} {what} are too many", f"at most {limit} in one import")
    for vm in vms.values():
        _check_object_name(vm.id, vm.place, problems)
    for host in hosts.values():
        _check_object_name(host.name, host.place, problems)
        _check_labels(host, problems)
        check_amounts(host.capacity, host.place, problems, what=f"host {host.name!r}")
    for flavor in flavors.values():
        check_amounts(flavor.resources, flavor.place, problems, what=f"flavor {flavor.name!r}")
    gone_hosts = (
        _gone(existing.hosts, hosts, options.creator) if options.prune and inventory.has_hosts else frozenset[str]()
    )
    gone_vms = _gone(existing.vms, vms, options.creator) if options.prune and inventory.has_vms else frozenset[str]()
    there = hosts.keys() | (existing.hosts.keys() - gone_hosts)
    sizes = existing.flavor_specs()
    sized = {name: _sized(vm, flavors, sizes, there, inventory) for name, vm in vms.items()}
    problems.check()
    synthesised = _synthesised(sized.values(), flavors, sizes)
    return Wanted(
        hosts=hosts,
        vms=sized,
        flavors={**flavors, **synthesised},
        gone_hosts=gone_hosts,
        gone_vms=gone_vms,
    )


def _unique(records: Iterable[tuple[str, _Record]], what: str, problems: Problems) -> dict[str, _Record]:
    found: dict[str, _Record] = {}
    for name, record in records:
        if not name:
            problems.add(record.place, f"a {what} without a name", "give it one, or leave the row out")
        elif name in found:
            message = f"{what} {name!r} is there twice, first at {found[name].place}"
            problems.add(record.place, message, "keep one of them")
        else:
            found[name] = record
    return found


def _check_object_name(name: str, place: str, problems: Problems) -> None:
    try:
        check_name(name)
    except BadInput as error:
        problems.add(place, error.message, error.remedy)


def _check_labels(host: HostRecord, problems: Problems) -> None:
    """Zone and failure domains become values of labels, which take less than any text."""
    for what, value in (("zone", host.zone or ""), *host.domains.items()):
        try:
            check_labels({ZONE_LABEL: value})
        except BadInput as error:
            problems.add(host.place, f"{what} {value[:80]!r} of host {host.name!r} is no label", error.remedy)


def _sized(
    vm: VmRecord,
    flavors: Mapping[str, FlavorRecord],
    known: Mapping[str, FlavorSpec],
    hosts: Iterable[str],
    inventory: Inventory,
) -> VmRecord:
    """The VM with its sizes, those of its flavor where the source gives none, and with a flavor name."""
    problems = inventory.problems
    if vm.host and vm.host not in hosts:
        message = f"VM {vm.id!r} is on host {vm.host!r}, which is in no list of hosts"
        problems.add(vm.place, message, "import the host as well, or leave the VM out")
    amounts = vm.resources
    if amounts is None:
        flavor = flavors.get(vm.flavor) or known.get(vm.flavor)
        if flavor is None:
            message = f"VM {vm.id!r} has no sizes, and its flavor {vm.flavor!r} is not known"
            problems.add(vm.place, message, inventory.sizes_remedy)
            return vm
        amounts = flavor.resources
        if vm.extra_specs is None and flavor.extra_specs:
            vm = msgspec.structs.replace(vm, extra_specs=flavor.extra_specs)
    else:
        check_amounts(amounts, vm.place, problems, what=f"VM {vm.id!r}")
    return msgspec.structs.replace(vm, resources=amounts, flavor=vm.flavor or synthetic_flavor(amounts))


def synthetic_flavor(amounts: Amounts) -> str:
    """A name made of the sizes: ``c4000m-m16384Mi``, with other resources appended as ``-gpu1``."""
    name = f"c{amounts.cpu_milli}m-m{-(-amounts.memory_bytes // 2**20)}Mi"
    others = (f"-{key}{amount}" for key, amount in sorted(amounts.items()) if key not in ("cpu", "memory") and amount)
    return name + "".join(others)


def _synthesised(
    vms: Iterable[VmRecord], flavors: Mapping[str, FlavorRecord], known: Mapping[str, FlavorSpec]
) -> dict[str, FlavorRecord]:
    """Flavors that VMs name and nobody describes, with the sizes of the first such VM."""
    made: dict[str, FlavorRecord] = {}
    for vm in vms:
        if vm.flavor not in flavors and vm.flavor not in made and vm.resources is not None:
            if vm.flavor in known and known[vm.flavor].resources != vm.resources:
                continue
            made[vm.flavor] = FlavorRecord(name=vm.flavor, place=vm.place, resources=vm.resources)
    return dict(sorted(made.items()))


def _gone(objects: Mapping[str, Resource], listed: Mapping[str, object], creator: str) -> frozenset[str]:
    """What an earlier import created and the source lacks."""
    return frozenset(
        name
        for name, item in objects.items()
        if name not in listed and item.metadata.labels.get(CREATOR_LABEL) == creator
    )
