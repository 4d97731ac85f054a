"""Our slots as ``Reservation`` objects of ``cortex.cloud/v1alpha1``, for the scheduler in place: pure.

Only objects that carry our cluster's uid are ours; nobody else's is ever touched (docs/how-to/hypervisors.md#slots).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from outlive.base import as_datetime
from outlive.resources import CREATOR_LABEL, FAILOVER, REQUEST_ID_ANNOTATION, TYPE_LABEL_VALUES, Reservation
from outlive.resources.foreign import CloudReservation
from outlive.runtime import PatchOperation

OWNER_LABEL: Final = "outlive.dev/cluster"
"""The uid of the ``Cluster`` object whose slot it is."""
SLOT_ANNOTATION: Final = "outlive.dev/slot"
"""The name of our reservation."""
NAME_PREFIX: Final = "outlive-"
"""Before the name of our reservation: the names of others do not begin so."""
_CREATOR: Final = "cortex.cloud/creator"
_TYPE: Final = "reservations.cortex.cloud/type"
_REQUEST_ID: Final = "reservations.cortex.cloud/creator-request-id"
_CONDITION_FIELDS: Final = ("type", "status", "reason", "message")


def cloud_name(slot: str) -> str:
    """The name of the object of our reservation: always the same, so that a lost answer does not make a second one."""
    return NAME_PREFIX + slot


def slot_of(obj: CloudReservation, owner: str) -> str:
    """The name of our reservation; empty for an object that is not ours."""
    return obj.metadata.annotations.get(SLOT_ANNOTATION, "") if obj.metadata.labels.get(OWNER_LABEL) == owner else ""


def cloud_reservation(slot: Reservation, owner: str) -> dict[str, Any]:
    """The document of a slot, status included; times of conditions as ours."""
    spec, status = slot.spec, slot.status
    amounts = spec.resources
    cores = -(-amounts.cpu_milli // 1000)
    creator = slot.metadata.labels.get(CREATOR_LABEL, "outlive")
    annotations = {SLOT_ANNOTATION: slot.name}
    failover = status.failover_reservation
    times = {"lastChanged": failover.last_changed, "acknowledgedAt": failover.acknowledged_at} if failover else {}
    allocations = dict(sorted(failover.allocations.items())) if failover else {}
    written = {name: _whole_seconds(at) for name, at in times.items() if at is not None}
    if request := slot.metadata.annotations.get(REQUEST_ID_ANNOTATION):
        annotations[_REQUEST_ID] = request
    never = slot.metadata.creation_timestamp or as_datetime(0.0)
    conditions = [
        {
            "type": one.type,
            "status": one.status,
            "reason": one.reason or "Unknown",
            "message": one.message,
            "lastTransitionTime": _whole_seconds(one.last_transition_time or never),
        }
        for one in status.conditions
    ]
    return {
        "metadata": {
            "name": cloud_name(slot.name),
            "labels": {_CREATOR: creator, _TYPE: TYPE_LABEL_VALUES[FAILOVER], OWNER_LABEL: owner},
            "annotations": annotations,
        },
        "spec": {
            "type": FAILOVER,
            "schedulingDomain": spec.scheduling_domain,
            "availabilityZone": spec.availability_zone,
            "resources": {"cpu": str(cores), "memory": amounts.to_wire().get("memory", "0")},
            "targetHost": spec.target_host or status.host,
            "failoverReservation": {
                "resourceGroup": spec.failover_reservation.resource_group if spec.failover_reservation else ""
            },
        },
        "status": {
            "host": status.host,
            "conditions": conditions,
            "failoverReservation": {"allocations": allocations, **written},
        },
    }


def patch_operations(document: Mapping[str, Any], wanted: Mapping[str, Any], half: str) -> list[PatchOperation]:
    """What makes a half of the object as it is wanted; conditions of others, and fields that we do not write, stay."""
    there = document.get(half) or {}
    fields = {**wanted[half]}
    if "conditions" in fields:
        # Ours replace those of their types; a condition that says the same keeps its time and its other fields.
        ours = {one["type"]: one for one in fields["conditions"]}
        merged = []
        for one in there.get("conditions") or []:
            mine = ours.get(one.get("type", ""))
            same = mine is None or all(one.get(field) == mine[field] for field in _CONDITION_FIELDS)
            merged.append(one if same or mine is None else {**one, **mine})
        present = {one.get("type") for one in merged}
        fields["conditions"] = merged + [one for name, one in ours.items() if name not in present]
    changed = {name: value for name, value in fields.items() if there.get(name) != value}
    if changed and not there:
        return [PatchOperation("add", f"/{half}", changed)]
    return [PatchOperation("add", f"/{half}/{name}", value) for name, value in changed.items()]


def _whole_seconds(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
