"""Usage of projects, what commitments cover of it, and what is corrected between two counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.commitments import make_spec

from outlive.base import as_datetime
from outlive.commitments import (
    Account,
    GroupUnit,
    Sizes,
    Usage,
    UsageCounter,
    committed_usage,
    quota_status,
    says_the_same,
    uncovered_usage,
    usage_summary,
    with_zeros,
)
from outlive.placement import VmView
from outlive.resources import (
    CommittedResource,
    CommittedResourceStatus,
    FlavorGroupSpec,
    GroupFlavor,
    ObjectMeta,
    ProjectQuota,
    ProjectQuotaSpec,
)

SMALL = GroupFlavor(name="s", vcpus=1, memory_mb=2032)
LARGE = GroupFlavor(name="l", vcpus=4, memory_mb=8192)
GROUP = FlavorGroupSpec(
    group_name="g",
    flavors=(LARGE, SMALL),
    largest_flavor=LARGE,
    smallest_flavor=SMALL,
    ram_core_ratio_min=2032,
    ram_core_ratio_max=2048,
)
UNITS = {"g": GroupUnit(group="g")}
SIZES = Sizes([GROUP], UNITS)
RAM, CORES, INSTANCES = "hw_version_g_ram", "hw_version_g_cores", "hw_version_g_instances"


def view(name: str, flavor: str = "s", *, project: str = "p", zone: str = "z") -> VmView:
    return VmView(id=name, host="h", zone=zone, project=project, flavor=flavor)


def counted(*vms: VmView) -> UsageCounter:
    counter = UsageCounter(SIZES)
    for vm in vms:
        counter.put(vm, vm.zone)
    return counter


def cr(uuid: str, kind: str, *vms: str, **fields: object) -> CommittedResource:
    spec = make_spec(uuid, "64", resource_type=kind, availability_zone="z", state=fields.get("state", "confirmed"))
    return CommittedResource(spec=spec, status=CommittedResourceStatus(accepted_spec=spec, assigned_instances=vms))


def test_memory_is_counted_vm_by_vm_with_the_video_memory_that_a_flavor_lacks() -> None:
    counter = counted(view("a"), view("b"), view("c"), view("d", "l"), view("e", "other"))
    assert counter.sum_usage(("p", "z")) == {RAM: 14, CORES: 7, INSTANCES: 4}


def test_memory_that_is_charged_counts_as_in_the_total_so_that_nothing_is_paid_twice() -> None:
    counter = counted(view("a"), view("b"), view("c"))
    covered = committed_usage([cr("1", "memory", "a", "b", "c")], counter, now=0)
    assert uncovered_usage(counter.sum_usage(("p", "z")), covered["p", "z"]) == {RAM: 0, CORES: 0, INSTANCES: 3}


def test_vms_that_are_no_multiple_of_the_unit_cover_no_other_vm() -> None:
    unit, flavor = GroupUnit(group="g", mib=8192, fixed=True), GroupFlavor(name="s", vcpus=3, memory_mb=12_288)
    counter = UsageCounter(Sizes([replace(GROUP, flavors=(flavor,))], {"g": unit}))
    for name in "abc":
        counter.put(view(name), "z")
    covered = committed_usage([cr("1", "memory", "a", "b")], counter, now=0)
    assert counter.sum_usage(("p", "z"))[RAM] == 24, "each counts as one unit"
    assert uncovered_usage(counter.sum_usage(("p", "z")), covered["p", "z"])[RAM] == 8


def test_a_vm_that_is_gone_covers_nothing_though_it_is_charged_until_the_next_count() -> None:
    counter = counted(view("a"), view("b"))
    counter.drop("a")
    covered = committed_usage([cr("1", "memory", "a")], counter, now=0)
    assert uncovered_usage(counter.sum_usage(("p", "z")), covered.get(("p", "z"), {}))[RAM] == 2


def test_cores_of_a_vm_that_counts_against_memory_and_cores_are_covered_once() -> None:
    counter = counted(view("a"), view("b"), view("c"))
    memory, cores = cr("1", "memory", "a", "b"), cr("2", "cores", "a", "b", "c")
    assert committed_usage([memory, cores], counter, now=0)["p", "z"][CORES] == 3
    assert committed_usage([memory], counter, now=0)["p", "z"][CORES] == 2


def test_commitments_of_other_states_and_unknown_groups_cover_nothing() -> None:
    counter = counted(view("a"))
    assert committed_usage([cr("1", "memory", "a", state="planned")], counter, now=0) == {}
    assert committed_usage([cr("1", "memory", "a")], UsageCounter(Sizes([], {})), now=0) == {}


changes = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.one_of(
            st.none(), st.tuples(st.sampled_from("pq"), st.sampled_from("yz"), st.sampled_from(["s", "l", "other"]))
        ),
    ),
    max_size=20,
)


@pytest.mark.slow
@given(changes)
def test_following_vms_leads_to_the_same_as_counting_anew(steps: list[tuple[int, tuple[str, str, str] | None]]) -> None:
    counter, there = UsageCounter(SIZES), dict[str, VmView]()
    told: dict[Account, Usage] = {}
    for number, state in steps:
        name = f"vm-{number}"
        if state is None:
            there.pop(name, None)
            touched = counter.drop(name)
        else:
            project, zone, flavor = state
            there[name] = view(name, flavor, project=project, zone=zone)
            touched = counter.put(there[name], zone)
        for account in touched:
            told[account] = counter.sum_usage(account)
        anew = counted(*there.values())
        for project in "pq":
            for zone in "yz":
                assert (
                    told.get((project, zone), {})
                    == counter.sum_usage((project, zone))
                    == anew.sum_usage((project, zone))
                )
    assert len(counter) == len(counted(*there.values()))


def test_a_vm_that_moves_from_host_to_host_changes_nothing() -> None:
    counter = counted(view("a"))
    assert counter.put(replace(view("a"), host="other"), "z") == ()


def test_the_status_of_a_quota_says_everything_and_its_times_alone_are_no_change() -> None:
    quota = ProjectQuota(
        metadata=ObjectMeta(name="quota-p-z", generation=3),
        spec=ProjectQuotaSpec(project_id="p", availability_zone="z", quota={RAM: 20, CORES: -1}),
    )
    first = quota_status(quota, {RAM: 14}, {RAM: 4}, UNITS, now=as_datetime(10.0), full=True)
    assert (first.observed_generation, first.total_usage, first.payg_usage) == (
        3,
        {RAM: 14, CORES: 0},
        {RAM: 10, CORES: 0},
    )
    assert first.limes_quota_summary == "g: c=-1 i=0 r=20"
    assert first.last_full_reconcile_at == first.last_reconcile_at == as_datetime(10.0)
    second = quota_status(replace(quota, status=first), {RAM: 14}, {RAM: 4}, UNITS, now=as_datetime(20.0), full=False)
    assert second.last_full_reconcile_at == as_datetime(10.0)
    assert says_the_same(second, first)


def test_what_has_a_quota_and_is_not_used_is_0() -> None:
    assert with_zeros({RAM: 2}, {RAM: 9, CORES: 9}) == {RAM: 2, CORES: 0}


def test_a_summary_names_each_group_and_keeps_unlimited_as_it_is() -> None:
    usage = {RAM: 240, CORES: 5, "hw_version_a_b_instances": 2, "other": 7, "hw_version__ram": 1}
    assert usage_summary(usage) == "a_b: c=0 i=2 r=0; g: c=5 i=0 r=240"
    assert usage_summary({RAM: 240}, {"g": GroupUnit(group="g", mib=240 * 1024)}) == "g: c=0 i=0 r=1"
    assert usage_summary({RAM: -1}, {"g": GroupUnit(group="g", mib=240 * 1024)}) == "g: c=0 i=0 r=-1"
    assert usage_summary({}) == ""
