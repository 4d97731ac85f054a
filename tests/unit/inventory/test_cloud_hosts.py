"""What each field of a ``Hypervisor`` of ``kvm.cloud.sap/v1`` means for a host of ours."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from outlive.base import BadInput, Invalid
from outlive.inventory import has_vm_on, make_host, vanished_host
from outlive.resources import (
    Amounts,
    Condition,
    FencingSpec,
    Hypervisor,
    HypervisorSpec,
    Instance,
    ObjectMeta,
    decode,
    explain_out_of_service,
    find_condition,
    unschedulable_reason,
)
from outlive.resources.foreign import CloudHypervisor

NOW, LATER = datetime(2026, 8, 11, 9, tzinfo=UTC), datetime(2026, 8, 11, 10, tzinfo=UTC)
ZONE = "topology.kubernetes.io/zone"


def seen(*, labels: dict[str, str] | None = None, spec: Any = None, **status: Any) -> CloudHypervisor:
    document: dict[str, Any] = {"metadata": {"name": "kvm-a01", "labels": labels or {}}, "status": status}
    if spec is not None:
        document["spec"] = spec
    return decode(CloudHypervisor, json.dumps(document))


def host(old: Hypervisor | None = None, **parts: Any) -> Hypervisor:
    return make_host(seen(**parts), old, cluster="west", now=NOW)


def test_the_name_the_cluster_and_the_source_are_told() -> None:
    made = host()
    assert made.name == "kvm-a01"
    assert made.metadata.labels == {"outlive.dev/creator": "kvm.cloud.sap", "outlive.dev/inventory-cluster": "west"}
    assert (made.status.source, made.spec.management) == ("kvm.cloud.sap", "nova")


def test_the_label_of_the_zone_is_taken_over_and_taken_away() -> None:
    made = host(labels={ZONE: "eu-1a"})
    assert made.metadata.labels[ZONE] == "eu-1a"
    assert ZONE not in host(made).metadata.labels


def test_instances_are_taken_over_and_only_those_that_say_so_are_active() -> None:
    listed = [{"id": "v1", "name": "web", "active": True}, {"id": "v2", "active": False}, {"id": "v3", "name": None}]
    made = host(instances=listed)
    assert made.status.instances == (
        Instance(id="v1", name="web", active=True),
        Instance(id="v2", active=False),
        Instance(id="v3", active=False),
    )
    assert made.status.num_instances == 3
    assert host(instances=listed, numInstances=7).status.num_instances == 7


def test_capacity_effective_capacity_and_allocation_are_quantities() -> None:
    made = host(
        capacity={"cpu": "128", "memory": "2Ti"},
        effectiveCapacity={"cpu": 256, "memory": "2Ti"},
        allocation={"cpu": "7500m", "memory": "16Gi"},
    )
    assert made.status.capacity == Amounts(cpu=128_000, memory=2 * 2**40)
    assert made.effective_capacity() == Amounts(cpu=256_000, memory=2 * 2**40)
    assert made.status.allocation == Amounts(cpu=7_500, memory=16 * 2**30)


@pytest.mark.parametrize("absent", [{}, {"effectiveCapacity": None}])
def test_without_effective_capacity_capacity_counts(absent: dict[str, None]) -> None:
    made = host(capacity={"cpu": "8", "memory": "32Gi"}, spec={"overcommit": {"cpu": 2.0}}, **absent)
    assert made.status.effective_capacity == Amounts(cpu=8_000, memory=32 * 2**30)


def test_figures_that_are_missing_stay_missing() -> None:
    made = host()
    assert (made.status.capacity, made.status.effective_capacity, made.status.allocation) == (None, None, None)


def test_traits_and_custom_traits_are_kept_apart_and_count_together() -> None:
    made = host(traits=["HW_A"], spec={"customTraits": ["CUSTOM_B"]})
    assert (made.status.traits, made.spec.custom_traits) == (("HW_A",), ("CUSTOM_B",))


def test_aggregates_allowed_projects_and_groups_are_taken_over() -> None:
    aggregate = {"name": "agg", "uuid": "u1", "metadata": {"filter_tenant_id": "p1"}}
    made = host(
        aggregates=[aggregate, {"name": "bare"}], spec={"allowedProjects": ["p1"], "groups": ["g1", {"name": "g2"}]}
    )
    assert [(one.name, one.uuid, one.metadata) for one in made.status.aggregates] == [
        ("agg", "u1", {"filter_tenant_id": "p1"}),
        ("bare", "", {}),
    ]
    assert (made.spec.allowed_projects, made.spec.groups) == (("p1",), ("g1", "g2"))


@pytest.mark.parametrize(
    ("kind", "status", "why"),
    [
        ("Ready", "False", "has condition Ready=False"),
        ("Ready", "Unknown", "has condition Ready=Unknown"),
        ("HypervisorDisabled", "True", "has condition HypervisorDisabled=True"),
        ("Terminating", "True", "has condition Terminating=True"),
        ("Ready", "True", ""),
        ("Tainted", "True", ""),
        ("Onboarding", "True", ""),
    ],
)
def test_conditions_are_taken_over_and_close_the_host_as_ours_do(kind: str, status: Any, why: str) -> None:
    at = "2026-08-01T00:00:00Z"
    made = host(conditions=[{"type": kind, "status": status, "reason": "R", "message": "m", "lastTransitionTime": at}])
    assert made.status.conditions == (
        Condition(
            type=kind, status=status, reason="R", message="m", last_transition_time=datetime(2026, 8, 1, tzinfo=UTC)
        ),
    )
    assert unschedulable_reason(made) == why


def test_overcommit_is_taken_over_and_less_than_one_is_not_understood() -> None:
    assert host(spec={"overcommit": {"cpu": 2.5}}).spec.overcommit == {"cpu": 2.5}
    with pytest.raises(BadInput, match=r"overcommit of cpu is 0\.5"):
        host(spec={"overcommit": {"cpu": 0.5}})


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("manual", "Manual"),
        ("auto", "Auto"),
        ("ha", "HighAvailability"),
        ("termination", "Termination"),
        ("x", "Other"),
    ],
)
def test_maintenance_is_told_by_a_condition_and_nothing_is_done_about_it(word: str, reason: str) -> None:
    made = host(spec={"maintenance": word})
    told = find_condition(made.status.conditions, "Maintenance")
    assert told is not None
    assert (told.status, told.reason, word in told.message) == ("True", reason, True)
    assert (unschedulable_reason(made), explain_out_of_service(made)) == ("", "")
    kept = make_host(seen(spec={"maintenance": word}), made, cluster="west", now=LATER)
    assert kept == made  # it says since when
    assert find_condition(host(made, spec={"maintenance": ""}).status.conditions, "Maintenance") is None


def test_high_availability_and_evicted_are_told() -> None:
    made = host(spec={"highAvailability": False}, evicted=True, conditions=[{"type": "HaEnabled", "status": "False"}])
    assert (made.spec.high_availability, made.status.evicted) == (False, True)
    assert find_condition(made.status.conditions, "HaEnabled") is not None
    assert (host().spec.high_availability, host().status.evicted) == (None, False)


def test_what_the_object_does_not_say_stays() -> None:
    fencing = FencingSpec(driver="ipmi", armed=True)
    old = Hypervisor(
        metadata=ObjectMeta(name="kvm-a01", labels={"outlive.dev/domain-rack": "r1"}),
        spec=HypervisorSpec(fencing=fencing, drain=True, maintenance="manual"),
    )
    made = host(old)
    assert made.metadata.labels["outlive.dev/domain-rack"] == "r1"
    assert (made.spec.fencing, made.spec.drain, made.spec.maintenance) == (fencing, True, "manual")


def test_the_same_object_makes_no_change() -> None:
    parts: dict[str, Any] = {"capacity": {"cpu": "8", "memory": "32Gi"}, "spec": {"maintenance": "ha"}}
    made = host(**parts)
    assert make_host(seen(**parts), made, cluster="west", now=LATER) == made


@pytest.mark.parametrize(
    "wrong",
    [
        {"capacity": {"cpu": "many"}},
        {"conditions": [{"type": "Ready", "status": "Maybe"}]},
        {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "yesterday"}]},
    ],
)
def test_nonsense_is_named_and_makes_no_host(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"kvm-a01: .*(many|Ready)"):
        host(**wrong)


def test_a_field_of_another_type_is_no_object_of_that_kind() -> None:
    with pytest.raises(Invalid, match="instances"):
        seen(instances="none")


def test_a_host_whose_object_is_gone_is_down_since_then() -> None:
    made = host(conditions=[{"type": "Ready", "status": "True"}], instances=[{"id": "v1", "active": True}])
    down = vanished_host(made, NOW)
    assert unschedulable_reason(down) == "has condition Ready=False"
    assert down.status.instances == made.status.instances
    assert vanished_host(down, LATER) == down


@pytest.mark.parametrize(
    ("placed", "there"),
    [({}, True), ({"v1": "kvm-a01"}, True), ({"v1": "kvm-b"}, False), ({"v1": "kvm-b", "v9": "kvm-a01"}, True)],
)
def test_a_vm_is_on_a_host_until_its_source_places_it_elsewhere(placed: dict[str, str], there: bool) -> None:
    assert has_vm_on(host(instances=[{"id": "v1", "active": True}]), placed) is there
    assert not has_vm_on(host(instances=[{"id": "v1", "active": False}]), {})


def test_absent_and_null_are_the_same_for_a_host() -> None:
    nothing = dict.fromkeys(("instances", "traits", "aggregates", "conditions", "evicted", "numInstances"))
    assert (
        host(spec=dict.fromkeys(("customTraits", "overcommit", "maintenance", "highAvailability")), **nothing) == host()
    )
