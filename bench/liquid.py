"""LIQUID: reports and the reading of a batch, as documents, without HTTP and without the decision."""

from __future__ import annotations

import json
from collections.abc import Callable

from bench.figures import Figure, median_seconds
from outlive.commitments import (
    ChangeRequest,
    CommitmentSettings,
    batch_of,
    capacity_report,
    decode,
    encode,
    offers_of,
    service_info,
    usage_report,
)
from outlive.placement import VmView
from outlive.resources import (
    CommittedResource,
    CommittedResourceSpec,
    CommittedResourceStatus,
    Condition,
    FlavorCapacity,
    FlavorGroupCapacity,
    FlavorGroupCapacitySpec,
    FlavorGroupCapacityStatus,
    FlavorGroupSpec,
    GroupFlavor,
)

GROUPS, ZONES = 30, ("a", "b", "c")
VMS, COMMITMENTS = 5_000, 500
PROJECTS, RESOURCES = 50, 20
ROUNDS = 9


def measure() -> list[Figure]:
    """All figures."""
    offers = offers_of(map(group, range(GROUPS)), CommitmentSettings())
    vms, commitments = [vm(n) for n in range(VMS)], [commitment(n) for n in range(COMMITMENTS)]
    capacities = [capacity(n, zone) for n in range(GROUPS) for zone in ZONES]
    body = json.dumps(change()).encode()

    def usage() -> object:
        return encode(usage_report(offers, vms=vms, commitments=commitments, quotas=(), zones=ZONES, version=1))

    return [
        figure(f"usage report of a project, {VMS:,} VMs, {COMMITMENTS} commitments", usage, bar=0.2),
        figure(
            f"capacity report, {GROUPS} flavor groups, {len(ZONES)} zones",
            lambda: encode(capacity_report(offers, capacities, ZONES, 1)),
        ),
        figure(f"catalogue of {GROUPS} flavor groups", lambda: encode(service_info(offers, 1))),
        figure(
            f"a batch read, {PROJECTS} projects x {RESOURCES} flavor groups",
            lambda: batch_of(decode(body, ChangeRequest)),
        ),
    ]


def figure(what: str, work: Callable[[], object], bar: float | None = None) -> Figure:
    return Figure(what, median_seconds(work, runs=ROUNDS), "s", bar)


def group(number: int) -> FlavorGroupSpec:
    flavors = tuple(GroupFlavor(name=f"g{number}_{n}", vcpus=n, memory_mb=n * 4096) for n in (32, 16, 8, 4))
    return FlavorGroupSpec(
        group_name=f"g{number}",
        flavors=flavors,
        largest_flavor=flavors[0],
        smallest_flavor=flavors[-1],
        ram_core_ratio=4096,
    )


def vm(number: int) -> VmView:
    flavor = group(number % GROUPS).flavors[number % 4]
    return VmView(
        id=f"vm-{number}",
        name=f"server {number}",
        host=f"host-{number % 500}",
        zone=ZONES[number % len(ZONES)],
        project="p",
        flavor=flavor.name,
        cpu_milli=flavor.vcpus * 1000,
        memory_bytes=flavor.memory_mb * 2**20,
        extra_specs={"hw_video:ram_max_mb": "16"},
        status="ACTIVE",
        os_type="linux",
    )


def commitment(number: int) -> CommittedResource:
    each = VMS // COMMITMENTS
    return CommittedResource(
        spec=CommittedResourceSpec(
            commitment_uuid=f"commitment-{number}",
            flavor_group_name=f"g{number % GROUPS}",
            resource_type="memory",
            amount="512Gi",
            availability_zone=ZONES[number % len(ZONES)],
            project_id="p",
            state="confirmed",
        ),
        status=CommittedResourceStatus(
            assigned_instances=tuple(f"vm-{n}" for n in range(number * each, (number + 1) * each))
        ),
    )


def capacity(number: int, zone: str) -> FlavorGroupCapacity:
    return FlavorGroupCapacity(
        spec=FlavorGroupCapacitySpec(flavor_group=f"g{number}", availability_zone=zone),
        status=FlavorGroupCapacityStatus(
            flavors=tuple(FlavorCapacity(flavor_name=one.name, running_vms=7) for one in group(number).flavors),
            conditions=(Condition(type="Ready", status="True"),),
        ),
    )


def change() -> dict[str, object]:
    def resource(project: int, number: int) -> dict[str, object]:
        one = {
            "uuid": f"{project:08d}-{number:04d}",
            "oldStatus": None,
            "newStatus": "confirmed",
            "amount": 5,
            "expiresAt": "2027-09-01T00:00:00Z",
        }
        return {"totalConfirmedBefore": 0, "totalConfirmedAfter": 5, "commitments": [one]}

    return {
        "az": "a",
        "infoVersion": 1,
        "byProject": {
            f"p{project}": {
                "byResource": {f"hw_version_g{number}_ram": resource(project, number) for number in range(RESOURCES)}
            }
            for project in range(PROJECTS)
        },
    }
