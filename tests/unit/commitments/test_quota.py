"""Usage of projects, what commitments cover of it, and what is corrected between two counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outlive.commitments.quota import (
    Sizes,
    committed_usage,
    payg,
    total_usage,
    usage_deltas,
    usage_summary,
    with_delta,
    with_zeros,
)
from outlive.commitments.units import GroupUnit
from outlive.placement.vms import VmView
from outlive.resources import (
    Amounts,
    CommittedResource,
    CommittedResourceSpec,
    CommittedResourceStatus,
    FlavorGroupSpec,
    GroupFlavor,
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


def cr(uuid: str, kind: str, vms: int, cpu: int, memory: int = 0, **fields: object) -> CommittedResource:
    spec = CommittedResourceSpec(
        commitment_uuid=uuid,
        flavor_group_name="g",
        resource_type=kind,  # type: ignore[arg-type]
        amount="64",
        availability_zone="z",
        project_id="p",
        state=fields.get("state", "confirmed"),  # type: ignore[arg-type]
    )
    used = Amounts(cpu=cpu * 1000, memory=memory) if memory else Amounts(cpu=cpu * 1000)
    names = tuple(f"vm-{number}" for number in range(vms))
    return CommittedResource(
        spec=spec, status=CommittedResourceStatus(accepted_spec=spec, used_resources=used, assigned_instances=names)
    )


def test_memory_is_counted_vm_by_vm_with_the_video_memory_that_a_flavor_lacks() -> None:
    found = total_usage([view("a"), view("b"), view("c"), view("d", "l"), view("e", "other")], SIZES)
    assert found == {("p", "z"): {RAM: 14, CORES: 7, INSTANCES: 4}}


def test_memory_that_is_charged_counts_as_in_the_total_so_that_nothing_is_paid_twice() -> None:
    vms = [view(f"vm-{number}") for number in range(3)]
    covered = committed_usage([cr("a", "memory", 3, 3, 3 * 2032 * 2**20)], UNITS, now=0)
    assert payg(total_usage(vms, SIZES)["p", "z"], covered["p", "z"]) == {RAM: 0, CORES: 0, INSTANCES: 3}


def test_cores_of_a_vm_that_counts_against_memory_and_cores_are_covered_once() -> None:
    memory, cores = cr("a", "memory", 2, 2, 2 * 2032 * 2**20), cr("b", "cores", 3, 3)
    assert committed_usage([memory, cores], UNITS, now=0)["p", "z"][CORES] == 3
    assert committed_usage([memory], UNITS, now=0)["p", "z"][CORES] == 2


def test_commitments_of_other_states_and_unknown_groups_cover_nothing() -> None:
    planned = cr("a", "memory", 1, 1, 2**31, state="planned")
    assert committed_usage([planned], UNITS, now=0) == {}
    assert committed_usage([cr("a", "memory", 1, 1, 2**31)], {}, now=0) == {}


@given(
    st.lists(st.sampled_from(["s", "l", "other"]), max_size=8),
    st.lists(st.sampled_from(["s", "l"]), max_size=5),
    st.integers(0, 8),
)
def test_corrections_lead_to_the_same_as_counting_anew(before: list[str], added: list[str], removed: int) -> None:
    old = [view(f"old-{number}", flavor) for number, flavor in enumerate(before)]
    new = [view(f"new-{number}", flavor) for number, flavor in enumerate(added)]
    gone, stay = old[:removed], old[removed:]
    found = usage_deltas(
        added=[*(one.id for one in new), *(one.id for one in stay)],
        removed=[*(one.id for one in gone), "unknown"],
        vms={one.id: one for one in (*stay, *new)},
        gone={one.id: one for one in gone},
        counted=frozenset(one.id for one in old),
        sizes=SIZES,
    )
    totals = total_usage(old, SIZES).get(("p", "z"), {})
    for delta in found.deltas:
        totals = with_delta(totals, delta, SIZES)
    wanted = total_usage([*stay, *new], SIZES).get(("p", "z"), {})
    assert {name: amount for name, amount in totals.items() if amount} == {
        name: amount for name, amount in wanted.items() if amount
    }
    assert found.counted == {one.id for one in (*stay, *new)}


def test_a_vm_that_moves_from_host_to_host_changes_nothing() -> None:
    moving = view("a")
    found = usage_deltas(added=["a"], removed=["a"], vms={"a": moving}, gone={}, counted=frozenset({"a"}), sizes=SIZES)
    assert found.deltas == ()


def test_what_has_a_quota_and_is_not_used_is_0() -> None:
    assert with_zeros({RAM: 2}, {RAM: 9, CORES: 9}) == {RAM: 2, CORES: 0}


def test_a_summary_names_each_group_and_keeps_unlimited_as_it_is() -> None:
    usage = {RAM: 240, CORES: 5, "hw_version_a_b_instances": 2, "other": 7, "hw_version__ram": 1}
    assert usage_summary(usage) == "a_b: c=0 i=2 r=0; g: c=5 i=0 r=240"
    assert usage_summary({RAM: 240}, {"g": GroupUnit(group="g", mib=240 * 1024)}) == "g: c=0 i=0 r=1"
    assert usage_summary({RAM: -1}, {"g": GroupUnit(group="g", mib=240 * 1024)}) == "g: c=0 i=0 r=-1"
    assert usage_summary({}) == ""
