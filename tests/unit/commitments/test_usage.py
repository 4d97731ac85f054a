"""Charging VMs to commitments: no VM twice, no commitment overfull, the same in any order, the oldest first."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.commitments import make_spec

from outlive.base import Random
from outlive.commitments import (
    Charge,
    Commitment,
    UsageInput,
    UsageStep,
    UsageVm,
    assign,
    list_accepted,
    map_to_commitment,
    set_usage,
    usage_due,
    usage_vms,
    without_usage,
)
from outlive.placement import VmView
from outlive.resources import (
    CommittedResource,
    CommittedResourceStatus,
    Condition,
    FlavorGroupSpec,
    GroupFlavor,
    ObjectMeta,
)

GIB = 2**30
NOW = 1_000_000.0


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def commitment(uuid: str, amount: int, **fields: object) -> Commitment:
    kind = fields.pop("type", "memory")
    size = {"memory_bytes": amount} if kind == "memory" else {"cores": amount}
    given = {"project": "p", "group": "g", "zone": "z", "state": "confirmed", "type": kind, **size, **fields}
    return Commitment(uuid=uuid, **given)  # type: ignore[arg-type]


def vm(name: str, memory: int, cores: int = 1, *, created: float = 0, zone: str = "z", group: str = "g") -> UsageVm:
    return UsageVm(id=name, zone=zone, group=group, memory_bytes=memory, cpu_milli=cores * 1000, created_at=created)


def charges(*commitments: Commitment, vms: tuple[UsageVm, ...]) -> dict[str, tuple[str, ...]]:
    found = assign(UsageInput(commitments=commitments, vms=vms, now=NOW)).charges
    return {one.uuid: one.vms for one in found}


places = st.sampled_from([("z", "g"), ("z", "f"), ("y", "g")])


@st.composite
def projects(draw: st.DrawFn) -> UsageInput:
    commitments, vms = list[Commitment](), list[UsageVm]()
    for number in range(draw(st.integers(0, 8))):
        zone, group = draw(places)
        kind = draw(st.sampled_from(["memory", "cores"]))
        start = draw(st.sampled_from([None, at(NOW - 50), at(NOW - 5), at(NOW + 5)]))
        end = draw(st.sampled_from([None, at(NOW + 50), at(NOW - 1)]))
        state = draw(st.sampled_from(["confirmed", "guaranteed", "pending", "planned"]))
        commitments.append(
            commitment(
                f"uuid-{number}",
                draw(st.integers(0, 20)),
                type=kind,
                zone=zone,
                group=group,
                start=start,
                end=end,
                state=state,
            )
        )
    for number in range(draw(st.integers(0, 12))):
        zone, group = draw(places)
        vms.append(vm(f"vm-{number}", draw(st.integers(1, 8)), created=draw(st.integers(0, 3)), zone=zone, group=group))
    return UsageInput(commitments=tuple(commitments), vms=tuple(vms), now=NOW)


def literal_memory(given: UsageInput) -> dict[str, str]:
    """First fit, word by word: VM → commitment of memory."""
    takes = [
        one
        for one in given.commitments
        if one.type == "memory"
        and one.state in ("confirmed", "guaranteed")
        and (one.start is None or one.start.timestamp() <= NOW)
        and (one.end is None or one.end.timestamp() > NOW)
    ]
    takes.sort(key=lambda one: (one.start.timestamp() if one.start else -1.0, -one.memory_bytes, one.uuid))
    left = {one.uuid: one.memory_bytes for one in takes}
    found: dict[str, str] = {}
    for each in sorted(given.vms, key=lambda one: (one.created_at, -one.memory_bytes, one.id)):
        for one in takes:
            if (one.zone, one.group) == (each.zone, each.group) and left[one.uuid] >= each.memory_bytes:
                left[one.uuid] -= each.memory_bytes
                found[each.id] = one.uuid
                break
    return found


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(projects(), st.integers(0, 5))
def test_no_vm_is_charged_twice_and_no_commitment_is_overfull_whatever_the_order(given: UsageInput, seed: int) -> None:
    result = assign(given)
    of = {one.uuid: one for one in given.commitments}
    sizes = {one.id: one for one in given.vms}
    for kind in ("memory", "cores"):
        charged = [each for one in result.charges if of[one.uuid].type == kind for each in one.vms]
        assert len(charged) == len(set(charged))
    for one in result.charges:
        mine = of[one.uuid]
        assert all((sizes[each].zone, sizes[each].group) == (mine.zone, mine.group) for each in one.vms)
        assert one.memory_bytes <= mine.memory_bytes
        assert one.cpu_milli == sum(sizes[each].cpu_milli for each in one.vms)
        assert mine.type == "memory" or one.cpu_milli <= mine.cores * 1000
    memory = {each: one.uuid for one in result.charges if of[one.uuid].type == "memory" for each in one.vms}
    assert memory == literal_memory(given)
    commitments, vms, random = list(given.commitments), list(given.vms), Random(seed)
    random.shuffle(commitments)
    random.shuffle(vms)
    assert assign(replace(given, commitments=tuple(commitments), vms=tuple(vms))) == result


def test_the_oldest_vm_goes_to_the_oldest_commitment_that_takes_all_of_it() -> None:
    found = charges(
        commitment("new", 16, start=at(NOW - 5)),
        commitment("old", 8, start=at(NOW - 50)),
        vms=(vm("late", 4, created=9), vm("first", 6, created=1), vm("large", 12, created=2)),
    )
    assert found == {"old": ("first",), "new": ("large", "late")}


def test_a_vm_is_never_divided_between_two_commitments() -> None:
    assert charges(commitment("a", 4), commitment("b", 4), vms=(vm("v", 8),)) == {"a": (), "b": ()}


def test_commitments_of_cores_are_charged_for_vms_that_commitments_of_memory_have_first() -> None:
    found = charges(
        commitment("ram", 8),
        commitment("cpu", 4, type="cores"),
        vms=(vm("other", 16, 4, created=0), vm("covered", 8, 4, created=1)),
    )
    assert found == {"ram": ("covered",), "cpu": ("covered",)}


SMALL = GroupFlavor(name="s", vcpus=1, memory_mb=2032, disk_gb=10, extra_specs={"hw_video:ram_max_mb": "16"})
LARGE = GroupFlavor(name="l", vcpus=4, memory_mb=8192, disk_gb=40, extra_specs={"hw_video:ram_max_mb": "x"})
GROUP = FlavorGroupSpec(
    group_name="g", flavors=(LARGE, SMALL), largest_flavor=LARGE, smallest_flavor=SMALL, ram_core_ratio_min=2032,
    ram_core_ratio_max=2048,
)  # fmt: skip


def view(name: str, flavor: str, zone: str = "z") -> VmView:
    return VmView(id=name, host="h", zone=zone, flavor=flavor, project="p", status="ACTIVE", name=name.upper())


def test_vms_of_no_group_are_not_charged_and_those_of_no_known_zone_are_in_none() -> None:
    found = usage_vms([view("a", "s"), view("b", "other"), view("c", "l", "moon")], {"s": GROUP, "l": GROUP}, ["z"])
    assert [(one.id, one.zone, one.memory_bytes, one.cpu_milli) for one in found] == [
        ("a", "z", 2032 * 2**20, 1000),
        ("c", "unknown", 8192 * 2**20, 4000),
    ]


def cr(
    uuid: str = "uuid-1",
    *,
    kind: str = "memory",
    state: str = "confirmed",
    generation: int = 1,
    ready: bool = True,
    start: datetime | None = None,
    end: datetime | None = None,
    **status: object,
) -> CommittedResource:
    spec = make_spec(
        uuid,
        "8Gi" if kind == "memory" else "8",
        resource_type=kind,
        availability_zone="z",
        state=state,
        start_time=start,
        end_time=end,
    )
    conditions = (Condition(type="Ready", status="True" if ready else "False", observed_generation=generation),)
    return CommittedResource(
        metadata=ObjectMeta(name=f"commitment-{uuid}", generation=generation),
        spec=spec,
        status=CommittedResourceStatus(accepted_spec=spec, conditions=conditions, **status),  # type: ignore[arg-type]
    )


def test_a_vm_is_reported_with_its_commitment_of_memory_alone() -> None:
    memory = cr(assigned_instances=("a",))
    cores = cr("uuid-0", kind="cores", assigned_instances=("a", "b"))
    assert map_to_commitment([memory, cores]) == map_to_commitment([cores, memory]) == {"a": "uuid-1"}


def test_usage_is_written_with_the_generation_that_it_was_found_for_and_cleared_when_the_commitment_is_over() -> None:
    status = set_usage(
        cr().status, Charge(uuid="uuid-1", vms=("a",), memory_bytes=GIB, cpu_milli=2000), generation=3, now=at(NOW)
    )
    assert status.used_resources is not None
    assert status.used_resources.to_wire() == {"cpu": "2", "memory": "1Gi"}
    assert without_usage(status) == cr().status
    cores = set_usage(cr(kind="cores").status, Charge(uuid="u", vms=("a",), cpu_milli=2000), generation=3, now=at(NOW))
    assert cores.used_resources is not None
    assert cores.used_resources.to_wire() == {"cpu": "2"}


def test_usage_is_counted_when_the_commitment_is_accepted_and_at_most_once_in_a_while() -> None:
    def step(one: CommittedResource) -> UsageStep:
        return usage_due(one, now=NOW, cooldown_s=300).step

    counted = {"last_usage_reconcile_at": at(NOW - 100), "usage_observed_generation": 1}
    assert step(cr()) is UsageStep.COUNT
    assert usage_due(cr(**counted), now=NOW, cooldown_s=300).again_s == 200  # type: ignore[arg-type]
    assert step(cr(generation=2, **counted)) is UsageStep.COUNT  # type: ignore[arg-type]
    assert step(cr(ready=False)) is UsageStep.NOTHING
    assert step(cr(start=at(NOW + 1))) is UsageStep.NOTHING
    assert step(cr(state="expired")) is UsageStep.NOTHING
    assert step(cr(state="expired", **counted)) is UsageStep.CLEAR  # type: ignore[arg-type]
    assert step(cr(end=at(NOW), assigned_instances=("a",))) is UsageStep.CLEAR


def test_of_commitments_that_are_over_nothing_is_accepted() -> None:
    assert [
        one.uuid for one in list_accepted([cr(), cr("uuid-2", end=at(NOW - 1)), cr("uuid-3", state="planned")], NOW)
    ] == ["uuid-1"]
