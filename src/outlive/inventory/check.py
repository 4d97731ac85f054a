"""An inventory after all its checks: every problem of the input is found before anything is written.

``check_inventory`` sees all records and the objects that exist, reports everything that is wrong at once
(docs/reference/cli.md#import), and gives each VM a flavor: where the source has none, one is made up from the
VM's sizes, so that patterns of required slots have a name to match. It writes nothing and asks nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from outlive.base import BadInput
from outlive.inventory.power_states import GuestPower, StatusMap, list_words, power_state
from outlive.inventory.records import (
    HOST_MEMORY_LEAST,
    IMPORT_HOSTS_LIMIT,
    IMPORT_VMS_LIMIT,
    FlavorRecord,
    HostRecord,
    Inventory,
    VmRecord,
    check_amounts,
    check_disk,
    name_objects,
)
from outlive.resources import (
    CREATOR_LABEL,
    ZONE_LABEL,
    Amounts,
    BadInputs,
    Flavor,
    FlavorSpec,
    Hypervisor,
    Problems,
    Resource,
    VirtualMachine,
    check_labels,
)

CREATOR = "import"
"""Value of the creator label on what an import created; ``--prune`` deletes nothing else."""
ROUNDS: Final = 4
"""Times that records are left out before nothing is imported: a host that goes takes its VMs along."""
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
    partial: bool = False
    """The records are a part of the source: what they lack has not vanished."""
    status_map: StatusMap = {}
    """What words of the source mean for a VM, besides those that importers know."""
    unknown_runs: bool = False
    """A VM with a word that nobody knows counts as running; otherwise the word is a problem."""


class Existing(msgspec.Struct, frozen=True, kw_only=True):
    """What the store has, by object name."""

    hosts: dict[str, Hypervisor] = {}
    vms: dict[str, VirtualMachine] = {}
    flavors: dict[str, Flavor] = {}
    members: frozenset[str] = frozenset()
    """Hosts that have a ``Membership``: their daemons say themselves what there is."""

    def is_own(self, host: str) -> bool:
        """Whether a daemon of ours is in charge of that host, or was: what a source says of it is not the last word."""
        known = self.hosts.get(host)
        return host in self.members or (known is not None and known.spec.management == "node")


class WantedInventory(msgspec.Struct, frozen=True, kw_only=True):
    """The records by name, in the order of the source; every VM has sizes and a flavor."""

    hosts: dict[str, HostRecord]
    vms: dict[str, VmRecord]
    flavors: dict[str, FlavorRecord]
    gone_hosts: frozenset[str] = frozenset()
    """Names of objects that ``--prune`` deletes."""
    gone_vms: frozenset[str] = frozenset()
    vanished_hosts: frozenset[str] = frozenset()
    """Names of objects that an earlier import made and the source no longer lists: they stay, and nobody plans on
    them."""
    vanished_vms: frozenset[str] = frozenset()
    kept_hosts: frozenset[str] = frozenset()
    """Hosts that the source no longer lists and that a daemon of ours is in charge of: they count on."""


def check_inventory(inventory: Inventory, existing: Existing, options: ImportOptions) -> WantedInventory:
    """All records under names that objects can have, checked; raises ``BadInputs`` with every problem of the input."""
    problems = inventory.problems
    name_objects(inventory)
    hosts = _index_records(((h.name, h) for h in inventory.hosts), "host", problems)
    vms = _index_records(((v.id, v) for v in inventory.vms), "VM", problems)
    flavors = _index_records(((f.name, f) for f in inventory.flavors), "flavor", problems)
    for what, count, limit in (("hosts", len(hosts), IMPORT_HOSTS_LIMIT), ("VMs", len(vms), IMPORT_VMS_LIMIT)):
        if count > limit:
            problems.add(inventory.what, f"{count} {what} are too many", f"at most {limit} in one import")
    for host in hosts.values():
        _check_other_name(host, existing, problems)
        _check_labels(host, problems)
        what = f"host {host.name!r}"
        check_amounts(host.capacity, host.place, problems, what=what, memory_least=HOST_MEMORY_LEAST)
    for flavor in flavors.values():
        what = f"flavor {flavor.name!r}"
        check_amounts(flavor.resources, flavor.place, problems, what=what)
        check_disk(flavor.disk_gib, flavor.place, problems, what=what)
    away_hosts, kept_hosts = _find_absent_hosts(inventory, hosts, existing, options.creator)
    away_vms = _find_absent_vms(inventory, vms, existing, options.creator)
    there = hosts.keys() | (existing.hosts.keys() - (frozenset() if options.partial else away_hosts))
    sizes = {flavor.spec.flavor_name: flavor.spec for flavor in existing.flavors.values()}
    checked = {}
    for name, vm in vms.items():
        _check_host(vm, there, existing, problems)
        checked[name] = _set_size(_set_power(vm, options, problems), flavors, sizes, inventory)
    problems.check()
    nothing: frozenset[str] = frozenset()
    marks = not options.prune and not options.partial
    return WantedInventory(
        hosts=hosts,
        vms=checked,
        flavors={**flavors, **_derive_flavors(checked.values(), flavors, sizes)},
        gone_hosts=away_hosts if options.prune else nothing,
        gone_vms=away_vms if options.prune else nothing,
        vanished_hosts=away_hosts if marks else nothing,
        vanished_vms=away_vms if marks else nothing,
        kept_hosts=kept_hosts,
    )


def check_leaving_out(
    inventory: Inventory, existing: Existing, options: ImportOptions
) -> tuple[WantedInventory, Problems]:
    """The same without the records that are wrong, and what is wrong with them; ``BadInputs`` for a problem that is
    none of a record. What is left out has not vanished."""
    found, inventory.problems = inventory.problems, Problems()
    for _ in range(ROUNDS):
        try:
            return check_inventory(inventory, existing, options), found
        except BadInputs as error:
            bad = inventory.problems.places
            inventory.listed_hosts.update(host.name for host in inventory.hosts if host.place in bad)
            inventory.listed_vms.update(vm.id for vm in inventory.vms if vm.place in bad)
            before = len(inventory.hosts) + len(inventory.vms) + len(inventory.flavors)
            inventory.hosts = [host for host in inventory.hosts if host.place not in bad]
            inventory.vms = [vm for vm in inventory.vms if vm.place not in bad]
            inventory.flavors = [flavor for flavor in inventory.flavors if flavor.place not in bad]
            if len(inventory.hosts) + len(inventory.vms) + len(inventory.flavors) == before:
                raise
            found.extend(error.problems, error.total, bad)
            inventory.problems = Problems()
    found.check()
    return WantedInventory(hosts={}, vms={}, flavors={}), found


def _index_records(records: Iterable[tuple[str, _Record]], what: str, problems: Problems) -> dict[str, _Record]:
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


def _check_other_name(host: HostRecord, existing: Existing, problems: Problems) -> None:
    """A host whose name cannot be that of an object has another one, which must be that of no other host."""
    old = existing.hosts.get(host.name)
    if old is not None and old.status.source and old.status.source_name != host.source_name:
        message = (
            f"host {host.source_name or host.name!r} would be {host.name}, as {old.status.source_name or 'another'} is"
        )
        problems.add(host.place, message, "rename one of the two in the source")


def _check_labels(host: HostRecord, problems: Problems) -> None:
    """Zone and failure domains become values of labels, which take less than any text."""
    for what, value in (("zone", host.zone or ""), *host.domains.items()):
        try:
            check_labels({ZONE_LABEL: value})
        except BadInput as error:
            problems.add(host.place, f"{what} {value[:80]!r} of host {host.name!r} is no label", error.remedy)


def _check_host(vm: VmRecord, there: Iterable[str], existing: Existing, problems: Problems) -> None:
    """A VM on a host that nobody lists is a problem; also on one that the source no longer lists."""
    if not vm.host or vm.host in there:
        return
    message = f"VM {vm.id!r} is on host {vm.host!r}, which is in no list of hosts"
    if vm.host in existing.hosts:
        message = f"VM {vm.id!r} is on host {vm.host!r}, which the list of hosts does not have any more"
    problems.add(vm.place, message, "import the host as well, or leave the VM out")


def _set_power(vm: VmRecord, options: ImportOptions, problems: Problems) -> VmRecord:
    """The VM with what its source's word for its state means; a word that nobody knows is a problem."""
    if vm.phase is None:
        return vm
    power = power_state(vm.phase, options.status_map)
    if power is None and options.unknown_runs:
        power = GuestPower.RUNNING
    if power is None:
        word = vm.phase[:60]
        remedy = f"say what it means: --status-map '{word}=stopped' or '{word}=running'; {list_words()}"
        problems.add(vm.place, f"status {word!r} of VM {vm.id!r} is not known", remedy)
    return msgspec.structs.replace(vm, power=power)


def _set_size(
    vm: VmRecord, flavors: Mapping[str, FlavorRecord], known: Mapping[str, FlavorSpec], inventory: Inventory
) -> VmRecord:
    """The VM with its sizes, those of its flavor where the source gives none, and with a flavor name."""
    problems = inventory.problems
    amounts = vm.resources
    check_disk(vm.disk_gib, vm.place, problems, what=f"VM {vm.id!r}")
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


def _derive_flavors(
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


def _is_missing(name: str, item: Resource, listed: Iterable[str], creator: str) -> bool:
    """Whether an earlier import created it and the source lacks it."""
    return name not in listed and item.metadata.labels.get(CREATOR_LABEL) == creator


def _find_absent_hosts(
    inventory: Inventory, hosts: Mapping[str, HostRecord], existing: Existing, creator: str
) -> tuple[frozenset[str], frozenset[str]]:
    """Hosts that the source no longer lists, and of these the ones that a daemon of ours is in charge of."""
    if not inventory.has_hosts or inventory.nameless:
        return frozenset(), frozenset()
    listed = hosts.keys() | inventory.listed_hosts
    away = {name for name, host in existing.hosts.items() if _is_missing(name, host, listed, creator)}
    own = frozenset(name for name in away if existing.is_own(name))
    return frozenset(away) - own, own


def _find_absent_vms(
    inventory: Inventory, vms: Mapping[str, VmRecord], existing: Existing, creator: str
) -> frozenset[str]:
    """VMs that the source no longer lists, without those that a daemon of ours runs or is to run."""
    if not inventory.has_vms or inventory.nameless:
        return frozenset()
    listed = vms.keys() | inventory.listed_vms
    return frozenset(
        name
        for name, vm in existing.vms.items()
        if _is_missing(name, vm, listed, creator)
        and not (vm.status.holders or vm.status.migration is not None or vm.deleting)
        and not (vm.host and existing.is_own(vm.host))
    )
