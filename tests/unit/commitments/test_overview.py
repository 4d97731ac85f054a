"""What is used, committed, kept for failover and free, and what projects use."""

from __future__ import annotations

from msgspec.structs import replace
from tests.support.placement import commitment, slot
from tests.support.sales import FLAVORS, GIB, SETTINGS, ZONE

from outlive.commitments import Commitment, GroupOverview, Overview, ProjectUsage, project_usage, spec_of, unit_of
from outlive.placement import VmView
from outlive.placement.flavor_groups import flavor_groups
from outlive.resources import (
    Amounts,
    CommittedResource,
    CommittedResourceStatus,
    Condition,
    FlavorGroupCapacity,
    FlavorGroupCapacitySpec,
    FlavorGroupCapacityStatus,
    ObjectMeta,
    ProjectQuota,
    ProjectQuotaSpec,
)

GROUPS = flavor_groups(FLAVORS)
UNITS = {one.group_name: unit_of(one, SETTINGS.commitments) for one in GROUPS}
NOW = 1_800_000_000.0


def capacity(*, ready: bool = True) -> FlavorGroupCapacity:
    return FlavorGroupCapacity(
        metadata=ObjectMeta(name="g-zone-a"),
        spec=FlavorGroupCapacitySpec(flavor_group="g", availability_zone=ZONE),
        status=FlavorGroupCapacityStatus(
            running_resources=Amounts(memory=24 * GIB, cores=6),
            exclusively_free_capacity=Amounts(memory=40 * GIB, cores=10),
            committed_capacity_bytes=16 * GIB,
            conditions=(Condition(type="Ready", status="True" if ready else "False"),),
        ),
    )


def test_the_four_parts_of_a_group_come_from_capacity_and_reservations() -> None:
    found = Overview(GROUPS, {"h1": ZONE})
    found.add(commitment("c-0", group="g", cpu="2", memory="8Gi"))
    found.add(slot("f-0", group="m16"))
    (row,) = found.list_rows([capacity()])
    assert row == GroupOverview(
        group="g",
        zone=ZONE,
        used_bytes=24 * GIB,
        committed_bytes=8 * GIB,
        failover_bytes=16 * GIB,
        free_bytes=40 * GIB,
        promised_bytes=16 * GIB,
    )


def test_what_is_of_no_group_stands_last_and_under_no_name() -> None:
    found = Overview(GROUPS, {"h1": ZONE})
    found.add(slot("f-0", group="other"))
    rows = found.list_rows([capacity(ready=False)])
    assert [(one.group, one.ready, one.failover_bytes // GIB) for one in rows] == [("g", False, 0), ("", True, 16)]


def accepted(uuid: str, gib: int, *, project: str = "p1", cores: int = 0) -> CommittedResource:
    wanted = Commitment(
        uuid=uuid,
        project=project,
        group="g",
        zone=ZONE,
        type="cores" if cores else "memory",
        memory_bytes=gib * GIB,
        cores=cores,
        state="confirmed",
    )
    spec = spec_of(wanted)
    return CommittedResource(
        metadata=ObjectMeta(name=uuid), spec=spec, status=CommittedResourceStatus(accepted_spec=spec)
    )


def vm(name: str, flavor: str, project: str = "p1") -> VmView:
    size = {"m8": (2, 8), "m16": (4, 16)}[flavor]
    return VmView(
        id=name, host="h1", zone=ZONE, project=project, flavor=flavor, cpu_milli=size[0] * 1000,
        memory_bytes=size[1] * GIB,
    )  # fmt: skip


def rows(
    vms: list[VmView], *commitments: CommittedResource, quotas: tuple[ProjectQuota, ...] = ()
) -> list[ProjectUsage]:
    return list(
        project_usage(
            vms=vms, commitments=commitments, quotas=quotas, groups=GROUPS, units=UNITS, zones=[ZONE], now=NOW
        )
    )


def test_vms_are_charged_anew_and_the_rest_is_paid_as_it_goes() -> None:
    found = rows([vm("v1", "m8"), vm("v2", "m16")], accepted("c-0001", 16))
    ram = next(one for one in found if one.kind == "ram")
    assert (ram.used, ram.committed, ram.covered, ram.payg, ram.quota) == (24, 16, 16, 8, -1)
    assert next(one for one in found if one.kind == "instances").used == 2


def test_a_project_that_uses_nothing_is_listed_with_what_it_committed_to_and_may_use() -> None:
    quota = ProjectQuota(
        metadata=ObjectMeta(name="q"),
        spec=ProjectQuotaSpec(project_id="p2", availability_zone=ZONE, quota={"hw_version_g_ram": 64}),
    )
    found = rows([], accepted("c-0001", 16), accepted("c-0002", 0, cores=4), quotas=(quota,))
    assert [(one.project, one.kind, one.committed, one.quota) for one in found] == [
        ("p1", "ram", 16, -1),
        ("p1", "cores", 4, -1),
        ("p2", "ram", 0, 64),
    ]


def test_what_was_not_accepted_is_not_committed() -> None:
    asked = accepted("c-0001", 16)
    assert rows([], replace(asked, status=CommittedResourceStatus())) == []
