"""Checks of an inventory: every problem at once, and every VM ends with sizes and a flavor."""

from __future__ import annotations

import pytest

from outlive.inventory import (
    Existing,
    FlavorRecord,
    HostRecord,
    ImportOptions,
    Inventory,
    VmRecord,
    check_inventory,
    synthetic_flavor,
)
from outlive.resources import (
    CREATOR_LABEL,
    Amounts,
    BadInputs,
    Flavor,
    FlavorSpec,
    Hypervisor,
    ObjectMeta,
    VirtualMachine,
)

GIB = 2**30
SIZE = Amounts(cpu=4000, memory=16 * GIB)


def host(name: str, place: str = "h:2", capacity: Amounts = SIZE, zone: str = "") -> HostRecord:
    return HostRecord(name=name, place=place, capacity=capacity, zone=zone)


def vm(name: str, place: str = "v:2", resources: Amounts | None = SIZE, on: str = "", flavor: str = "") -> VmRecord:
    return VmRecord(id=name, place=place, resources=resources, host=on, flavor=flavor)


def inventory(*records: HostRecord | VmRecord | FlavorRecord) -> Inventory:
    found = Inventory(what="csv", has_hosts=True, has_vms=True)
    for record in records:
        if isinstance(record, HostRecord):
            found.hosts.append(record)
        elif isinstance(record, VmRecord):
            found.vms.append(record)
        else:
            found.flavors.append(record)
    return found


def problems(*records: HostRecord | VmRecord | FlavorRecord, existing: Existing = Existing()) -> list[str]:
    with pytest.raises(BadInputs) as caught:
        check_inventory(inventory(*records), existing, ImportOptions())
    assert all(problem.remedy for problem in caught.value.problems)
    return [str(problem) for problem in caught.value.problems]


def imported(name: str, kind: type[Hypervisor] | type[VirtualMachine]) -> ObjectMeta:
    return ObjectMeta(name=name, labels={CREATOR_LABEL: "import"})


def test_all_problems_are_reported_at_once() -> None:
    found = problems(
        host("a1"),
        host("a1", "h:3"),
        host("a" * 254, "h:4"),
        vm("v1", on="b9"),
        vm("v1", "v:3"),
        vm("v2", "v:4", Amounts(cpu=-1, memory=GIB)),
    )
    assert [text.partition(": ")[0] for text in found] == ["h:4", "h:3", "v:3", "v:2", "v:4"]
    assert "254 characters" in found[0]
    assert "first at h:2" in found[1]
    assert "'b9', which is in no list of hosts" in found[3]
    assert "negative cpu: -1m" in found[4]


@pytest.mark.parametrize(
    ("amounts", "words"),
    [
        (Amounts(cpu=0, memory=GIB), "has no cpu"),
        (Amounts(cpu=1000), "has no memory"),
        (Amounts(cpu=1000, memory=-GIB), "negative memory"),
        (Amounts(cpu=10**9, memory=GIB), "more than any machine"),
        (Amounts(cpu=1000, memory=2**60), "more than any machine"),
        (Amounts(cpu=1000, memory=GIB, gpu=-1), "negative gpu"),
    ],
)
def test_absurd_sizes_are_refused(amounts: Amounts, words: str) -> None:
    assert words in problems(host("a1", capacity=amounts))[0]
    assert words in problems(host("a1"), vm("v", resources=amounts))[0]


def test_a_zone_that_is_no_label_is_refused() -> None:
    assert "zone 'north/1'" in problems(host("a1", zone="north/1"))[0]


def test_a_vm_needs_sizes_or_a_known_flavor() -> None:
    assert "flavor 'm1' is not known" in problems(host("a1"), vm("v", resources=None, flavor="m1"))[0]


def test_a_vm_takes_sizes_and_extra_specs_of_its_flavor() -> None:
    flavor = FlavorRecord(name="m1", place="f", resources=SIZE, extra_specs={"a": "b"})
    wanted = check_inventory(inventory(vm("v", resources=None, flavor="m1"), flavor), Existing(), ImportOptions())
    assert wanted.vms["v"].resources == SIZE
    assert wanted.vms["v"].extra_specs == {"a": "b"}


def test_a_vm_takes_the_sizes_of_a_flavor_that_is_known_already() -> None:
    known = Flavor(metadata=ObjectMeta(name="m1"), spec=FlavorSpec(flavor_name="M1", resources=SIZE))
    existing = Existing(flavors={"m1": known})
    wanted = check_inventory(inventory(vm("v", resources=None, flavor="M1")), existing, ImportOptions())
    assert wanted.vms["v"].resources == SIZE


def test_a_vm_without_a_flavor_gets_one_named_by_its_sizes() -> None:
    wanted = check_inventory(inventory(vm("v"), vm("w", "v:3")), Existing(), ImportOptions())
    assert wanted.vms["v"].flavor == "c4000m-m16384Mi"
    assert list(wanted.flavors) == ["c4000m-m16384Mi"]


def test_the_made_up_name_tells_other_resources_too() -> None:
    assert synthetic_flavor(Amounts(cpu=500, memory=GIB, gpu=2)) == "c500m-m1024Mi-gpu2"


def test_a_vm_may_be_on_a_host_that_is_known_already() -> None:
    existing = Existing(hosts={"b9": Hypervisor(metadata=ObjectMeta(name="b9"))})
    assert check_inventory(inventory(vm("v", on="b9")), existing, ImportOptions()).vms["v"].host == "b9"


def test_pruning_takes_only_what_an_import_made() -> None:
    existing = Existing(
        hosts={
            "old": Hypervisor(metadata=imported("old", Hypervisor)),
            "mine": Hypervisor(metadata=ObjectMeta(name="mine")),
        },
        vms={"gone": VirtualMachine(metadata=imported("gone", VirtualMachine))},
    )
    wanted = check_inventory(inventory(host("a1"), vm("v")), existing, ImportOptions(prune=True))
    assert wanted.gone_hosts == {"old"}
    assert wanted.gone_vms == {"gone"}
    unpruned = check_inventory(inventory(host("a1"), vm("v")), existing, ImportOptions())
    assert not unpruned.gone_hosts | unpruned.gone_vms


def test_pruning_leaves_alone_what_the_source_does_not_list() -> None:
    existing = Existing(hosts={"old": Hypervisor(metadata=imported("old", Hypervisor))})
    source = inventory(vm("v"))
    source.has_hosts = False
    assert not check_inventory(source, existing, ImportOptions(prune=True)).gone_hosts


def test_a_vm_on_a_host_that_is_pruned_is_on_an_unknown_host() -> None:
    existing = Existing(hosts={"old": Hypervisor(metadata=imported("old", Hypervisor))})
    with pytest.raises(BadInputs, match="does not have any more"):
        check_inventory(inventory(host("a1"), vm("v", on="old")), existing, ImportOptions(prune=True))
