"""A slot of ours as ``Reservation`` of ``cortex.cloud/v1alpha1``."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from outlive.inventory import cloud_reservation, patch_operations, slot_of
from outlive.resources import (
    Amounts,
    Condition,
    FailoverSpec,
    FailoverStatus,
    ObjectMeta,
    Reservation,
    ReservationSpec,
    ReservationStatus,
    decode,
)
from outlive.resources.foreign import CloudReservation

AT = datetime(2026, 8, 11, 9, 4, 10, tzinfo=UTC)
SLOT = Reservation(
    metadata=ObjectMeta(
        name="failover-eu-1a-x7k2q",
        labels={"outlive.dev/creator": "us"},
        annotations={"reservations.outlive.dev/creator-request-id": "failover-1"},
    ),
    spec=ReservationSpec(
        type="FailoverReservation",
        availability_zone="eu-1a",
        resources=Amounts(cpu=7_500, memory=16 * 2**30),
        target_host="kvm-b",
        failover_reservation=FailoverSpec(resource_group="m1"),
    ),
    status=ReservationStatus(
        host="kvm-b",
        conditions=(
            Condition(
                type="Ready", status="True", reason="ReservationActive", message="it is held", last_transition_time=AT
            ),
        ),
        failover_reservation=FailoverStatus(allocations={"v2": "kvm-c", "v1": "kvm-a"}, last_changed=AT),
    ),
)


def test_a_slot_has_the_type_the_size_the_host_and_the_members_of_ours() -> None:
    assert cloud_reservation(SLOT, "cluster-uid") == {
        "metadata": {
            "name": "outlive-failover-eu-1a-x7k2q",
            "labels": {
                "cortex.cloud/creator": "us",
                "reservations.cortex.cloud/type": "failover",
                "outlive.dev/cluster": "cluster-uid",
            },
            "annotations": {
                "outlive.dev/slot": "failover-eu-1a-x7k2q",
                "reservations.cortex.cloud/creator-request-id": "failover-1",
            },
        },
        "spec": {
            "type": "FailoverReservation",
            "schedulingDomain": "nova",
            "availabilityZone": "eu-1a",
            "resources": {"cpu": "8", "memory": "16Gi"},  # whole cores
            "targetHost": "kvm-b",
            "failoverReservation": {"resourceGroup": "m1"},
        },
        "status": {
            "host": "kvm-b",
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "ReservationActive",
                    "message": "it is held",
                    "lastTransitionTime": "2026-08-11T09:04:10Z",
                }
            ],
            "failoverReservation": {
                "allocations": {"v1": "kvm-a", "v2": "kvm-c"},
                "lastChanged": "2026-08-11T09:04:10Z",
            },
        },
    }


def seen(labels: dict[str, str], annotations: dict[str, str]) -> CloudReservation:
    return decode(
        CloudReservation, json.dumps({"metadata": {"name": "r", "labels": labels, "annotations": annotations}})
    )


def test_only_an_object_with_our_cluster_is_ours() -> None:
    ours = {"outlive.dev/cluster": "uid"}
    assert slot_of(seen(ours, {"outlive.dev/slot": "s"}), "uid") == "s"
    assert slot_of(seen(ours, {"outlive.dev/slot": "s"}), "another") == ""
    assert slot_of(seen({}, {"outlive.dev/slot": "s"}), "uid") == ""
    assert slot_of(seen(ours, {}), "uid") == ""


def test_an_object_as_it_is_wanted_is_not_changed_and_others_fields_stay() -> None:
    wanted = cloud_reservation(SLOT, "uid")
    there: dict[str, Any] = json.loads(json.dumps(wanted))
    there["status"]["conditions"][0] |= {"observedGeneration": 3, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    there["status"]["conditions"].append({"type": "Other", "status": "True"})
    there["spec"]["startTime"] = "2026-01-01T00:00:00Z"
    assert patch_operations(there, wanted, "spec") == patch_operations(there, wanted, "status") == []


def test_a_difference_is_one_operation_for_each_field() -> None:
    wanted = cloud_reservation(SLOT, "uid")
    there: dict[str, Any] = json.loads(json.dumps(wanted))
    there["spec"]["resources"]["cpu"] = "4"
    there["status"]["conditions"] = [{"type": "Other", "status": "True"}, {"type": "Ready", "status": "False", "x": 1}]
    assert [(one.op, one.path, one.value) for one in patch_operations(there, wanted, "spec")] == [
        ("add", "/spec/resources", {"cpu": "8", "memory": "16Gi"})
    ]
    changed = patch_operations(there, wanted, "status")
    assert [one.path for one in changed] == ["/status/conditions"]
    assert changed[0].value == [{"type": "Other", "status": "True"}, {"x": 1, **wanted["status"]["conditions"][0]}]


def test_an_object_without_a_status_gets_a_whole_one() -> None:
    wanted = cloud_reservation(SLOT, "uid")
    (only,) = patch_operations({"spec": wanted["spec"]}, wanted, "status")
    assert (only.path, only.value) == ("/status", wanted["status"])
