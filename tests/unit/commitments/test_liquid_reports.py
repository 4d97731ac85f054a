"""The reports of LIQUID: the catalogue, capacity, usage and how a pushed quota is kept, as exact documents."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.commitments import make_spec
from tests.support.liquid import EVERYTHING, GIB, SETTINGS, amounts, capacity, fixed_group, variable_group

from outlive.base import BadInput, Unavailable
from outlive.commitments import (
    ZONES_LIMIT,
    CommitmentSettings,
    GroupSettings,
    QuotaRequest,
    RamSettings,
    ResourceQuota,
    ZoneQuota,
    capacity_report,
    decode,
    encode,
    offers_of,
    pushed_quota,
    service_info,
    usage_report,
)
from outlive.placement import VmView
from outlive.resources import (
    CommittedResource,
    CommittedResourceStatus,
    FlavorGroupSpec,
    ObjectMeta,
    ProjectQuota,
    ProjectQuotaSpec,
)

OFFERS = offers_of((fixed_group(), variable_group()), SETTINGS)
UUID = "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d"


def plain(message: msgspec.Struct) -> Any:
    return json.loads(encode(message))


def vm(key: str, flavor: str, vcpus: int, mib: int, *, zone: str = "a", **more: Any) -> VmView:
    return VmView(id=key, host="h", zone=zone, flavor=flavor, cpu_milli=vcpus * 1000, memory_bytes=mib * 2**20, **more)


def commitment(*vms: str, uuid: str = UUID) -> CommittedResource:
    return CommittedResource(
        metadata=ObjectMeta(name=f"commitment-{uuid}"),
        spec=make_spec(uuid, "480Gi", flavor_group_name="s4", availability_zone="a"),
        status=CommittedResourceStatus(assigned_instances=vms),
    )


def quota(zone: str, **kept: int) -> ProjectQuota:
    return ProjectQuota(
        metadata=ObjectMeta(name=f"quota-p-{zone}"),
        spec=ProjectQuotaSpec(project_id="p", availability_zone=zone, quota=kept),
    )


# -- the catalogue ------------------------------------------------------------------------------------------


def test_the_catalogue_has_three_resources_of_every_group() -> None:
    def resource(name: str, unit: str, attributes: dict[str, int], *, sold: bool = False) -> dict[str, Any]:
        flags = {"topology": "az-separated", "hasCapacity": True, "needsResourceDemand": False, "hasQuota": sold}
        commits = {"handlesCommitments": True} if sold else {}
        return {"displayName": name, "unit": unit, **flags, **commits, "attributes": attributes}

    fixed, variable = {"ramCoreRatio": 16}, {"ramCoreRatioMin": 2, "ramCoreRatioMax": 4}
    s4, g2 = "(usable by: s4_c120_m1920, s4_c15_m240)", "(usable by: g2_c4_m16, g2_c1_m2)"
    assert plain(service_info(OFFERS, 1700000001)) == {
        "version": 1700000001,
        "displayName": "",
        "categories": None,
        "resources": {
            "hw_version_g2_ram": resource(f"GiB of RAM {g2}", "GiB", variable, sold=True),
            "hw_version_g2_cores": resource(f"CPU cores {g2}", "piece", variable),
            "hw_version_g2_instances": resource(f"instances {g2}", "piece", variable),
            "hw_version_s4_ram": resource(f"multiples of 240 GiB {s4}", "240 GiB", fixed, sold=True),
            "hw_version_s4_cores": resource(f"CPU cores {s4}", "piece", fixed),
            "hw_version_s4_instances": resource(f"instances {s4}", "piece", fixed),
        },
        "rates": None,
        "capacityMetricFamilies": None,
        "usageMetricFamilies": None,
        "quotaUpdateNeedsProjectMetadata": True,
        "commitmentHandlingNeedsProjectMetadata": True,
    }


@pytest.mark.parametrize(("gib", "unit"), [(2, "2 GiB"), (1024, "TiB"), (1536, "1536 GiB")])
def test_multiples_are_told_in_gibibytes(gib: int, unit: str) -> None:
    ram = msgspec.structs.replace(EVERYTHING.ram, ram_unit_gib=gib)
    settings = CommitmentSettings(flavor_group_resources={"*": msgspec.structs.replace(EVERYTHING, ram=ram)})
    info = service_info(offers_of((variable_group(),), settings), 1).resources["hw_version_g2_ram"]
    assert (info.display_name.partition(" (")[0], info.unit) == (f"multiples of {gib} GiB", unit)


@pytest.mark.parametrize(("mib", "gib"), [(4096, 4), (4094, 4), (3584, 4), (3583, 3), (511, 0)])
def test_ratios_are_told_in_whole_gibibytes(mib: int, gib: int) -> None:
    group = msgspec.structs.replace(fixed_group(), ram_core_ratio=mib)
    info = plain(service_info(offers_of((group,), CommitmentSettings()), 1))
    assert info["resources"]["hw_version_s4_cores"]["attributes"] == {"ramCoreRatio": gib}


def test_a_group_without_a_ratio_has_no_attributes_and_one_that_is_not_configured_no_flags() -> None:
    group = msgspec.structs.replace(fixed_group(), ram_core_ratio=None)
    info = plain(service_info(offers_of((group,), CommitmentSettings(flavor_group_resources={})), 1))
    ram = info["resources"]["hw_version_s4_ram"]
    assert (ram["attributes"], ram["hasCapacity"], ram["hasQuota"]) == ({}, False, False)
    assert "handlesCommitments" not in ram


def test_invalid_groups_are_not_offered() -> None:
    broken = msgspec.structs.replace(variable_group("bad"), ram_core_ratio=7)
    assert [offer.name for offer in offers_of((broken, variable_group()), SETTINGS)] == ["g2"]
    assert plain(service_info((), 3))["resources"] == {}


def test_a_group_whose_name_limes_does_not_take_is_not_offered() -> None:
    assert offers_of((fixed_group("a b"), fixed_group("ü")), SETTINGS) == ()


def test_a_unit_that_contradicts_its_group_is_refused() -> None:
    settings = CommitmentSettings(flavor_group_resources={"s4": GroupSettings(ram=RamSettings(ram_unit_gib=100))})
    with pytest.raises(BadInput):
        offers_of((fixed_group(),), settings)


# -- capacity -----------------------------------------------------------------------------------------------


def test_capacity_is_what_runs_and_what_is_free() -> None:
    found = (
        capacity(
            "s4",
            "a",
            running={"s4_c120_m1920": 1, "s4_c15_m240": 2},
            running_resources=amounts(cores=150, gib=2400),
            exclusively_free_slots=4,
            exclusively_free_capacity=amounts(cores=60, gib=960),
        ),
        capacity(
            "g2",
            "a",
            running={"g2_c1_m2": 3, "g2_c4_m16": 1},
            running_resources=amounts(cores=7, gib=21),
            exclusively_free_slots=5,
            exclusively_free_capacity=amounts(cores=9, gib=9),
        ),
        capacity("s4", "elsewhere", ready=False),
    )
    nothing = {"capacity": 0}
    assert plain(capacity_report(OFFERS, found, ("a", "b"), 7)) == {
        "infoVersion": 7,
        "resources": {
            "hw_version_s4_ram": {"perAZ": {"a": {"capacity": 14, "usage": 10}, "b": nothing}},
            "hw_version_s4_cores": {"perAZ": {"a": {"capacity": 210, "usage": 150}, "b": nothing}},
            "hw_version_s4_instances": {"perAZ": {"a": {"capacity": 7, "usage": 3}, "b": nothing}},
            "hw_version_g2_ram": {"perAZ": {"a": {"capacity": 32, "usage": 22}, "b": nothing}},
            "hw_version_g2_cores": {"perAZ": {"a": {"capacity": 16, "usage": 7}, "b": nothing}},
            "hw_version_g2_instances": {"perAZ": {"a": {"capacity": 9, "usage": 4}, "b": nothing}},
        },
    }


def test_a_resource_without_capacity_is_not_reported() -> None:
    settings = CommitmentSettings(
        flavor_group_resources={"s4": GroupSettings(ram=RamSettings(has_capacity=True)), "*": GroupSettings()}
    )
    offers = offers_of((fixed_group(), variable_group()), settings)
    report = capacity_report(offers, (capacity("g2", "a", ready=False),), ("a",), 1)
    assert list(report.resources) == ["hw_version_s4_ram"]


def test_capacity_for_no_zone_has_none() -> None:
    report = plain(capacity_report(OFFERS, (), (), 1))
    assert report["resources"]["hw_version_s4_ram"] == {"perAZ": {}}


def test_a_capacity_that_is_not_up_to_date_is_not_told() -> None:
    found = (capacity("s4", "a"), capacity("g2", "b", ready=False))
    with pytest.raises(Unavailable, match="g2 in b"):
        capacity_report(OFFERS, found, ("a", "b"), 1)
    assert capacity_report(OFFERS, found, ("a",), 1)


# -- usage --------------------------------------------------------------------------------------------------


def test_usage_is_told_vm_by_vm() -> None:
    report = usage_report(
        OFFERS,
        vms=(
            vm("2", "s4_c120_m1920", 120, 1920 * 1024, name="large", status="ACTIVE", os_type="linux", disk_gib=64),
            vm("1", "g2_c1_m2", 1, 2032, name="small", status="SHUTOFF", extra_specs={"hw_video:ram_max_mb": "16"}),
            vm("3", "s4_c15_m240", 15, 240 * 1024, zone="z"),
            vm("4", "nobody's", 1, 1024),
        ),
        commitments=(commitment("2", "gone"),),
        quotas=(quota("a", hw_version_s4_ram=960, hw_version_g2_ram=7),),
        zones=("a", "b"),
        version=9,
    )
    large = {
        "id": "2",
        "name": "large",
        "attributes": {
            "status": "ACTIVE",
            "flavor": {"name": "s4_c120_m1920", "vcpu": 120, "ram_mib": 1966080, "disk_gib": 64},
            "os_type": "linux",
            "commitment_id": UUID,
        },
    }
    small = {
        "id": "1",
        "name": "small",
        "attributes": {
            "status": "SHUTOFF",
            "flavor": {"name": "g2_c1_m2", "vcpu": 1, "ram_mib": 2032, "disk_gib": 0, "video_ram_mib": 16},
            "os_type": "unknown",
            "commitment_id": None,
        },
    }

    def resource(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        return {"forbidden": False, "perAZ": {"a": a, "b": b}}

    assert plain(report) == {
        "infoVersion": 9,
        "resources": {
            "hw_version_s4_ram": resource({"usage": 8, "quota": 4}, {"usage": 0, "quota": -1}),
            "hw_version_s4_cores": resource({"usage": 120}, {"usage": 0}),
            "hw_version_s4_instances": resource({"usage": 1, "subresources": [large]}, {"usage": 0}),
            "hw_version_g2_ram": resource({"usage": 2, "quota": 7}, {"usage": 0, "quota": -1}),
            "hw_version_g2_cores": resource({"usage": 1}, {"usage": 0}),
            "hw_version_g2_instances": resource({"usage": 1, "subresources": [small]}, {"usage": 0}),
        },
    }


def test_a_vm_of_another_zone_is_told_where_zone_unknown_is_asked_for() -> None:
    vms = (vm("1", "g2_c1_m2", 1, 2032, zone="z"), vm("2", "g2_c1_m2", 1, 2032, zone=""))
    report = usage_report(OFFERS, vms=vms, commitments=(), quotas=(), zones=("a", "unknown"), version=1)
    per_zone = report.resources["hw_version_g2_instances"].per_az
    assert {zone: one.usage for zone, one in per_zone.items()} == {"a": 0, "unknown": 2}


def test_an_unlimited_quota_stays_unlimited_in_large_units() -> None:
    report = usage_report(
        OFFERS, vms=(), commitments=(), quotas=(quota("a", hw_version_s4_ram=-1),), zones=("a", "b"), version=1
    )
    per_zone = report.resources["hw_version_s4_ram"].per_az
    assert [one.quota for one in per_zone.values()] == [-1, -1]


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "²", "9" * 30])
def test_video_memory_that_is_no_number_is_not_told(text: str) -> None:
    report = usage_report(
        OFFERS,
        vms=(vm("1", "g2_c1_m2", 1, 2032, extra_specs={"hw_video:ram_max_mb": text}),),
        commitments=(),
        quotas=(),
        zones=("a",),
        version=1,
    )
    listed = plain(report)["resources"]["hw_version_g2_instances"]["perAZ"]["a"]["subresources"]
    assert "video_ram_mib" not in listed[0]["attributes"]["flavor"]


SIZES = st.sampled_from(
    [("s4_c15_m240", 240 * 1024), ("s4_c120_m1920", 1920 * 1024), ("g2_c1_m2", 2032), ("g2_c4_m16", 16384)]
)


@given(st.lists(st.tuples(SIZES, st.sampled_from("ab")), max_size=20))
def test_what_is_used_is_what_the_capacity_report_calls_used(running: list[tuple[tuple[str, int], str]]) -> None:
    vms = [vm(str(n), name, 1, mib, zone=zone) for n, ((name, mib), zone) in enumerate(running)]
    used = usage_report(OFFERS, vms=vms, commitments=(), quotas=(), zones=("a", "b"), version=1)
    found = []
    for group in ("s4", "g2"):
        for zone in ("a", "b"):
            names = [name for (name, _), at in running if at == zone and name.startswith(group)]
            found.append(capacity(group, zone, running={name: names.count(name) for name in names}))
    known = capacity_report(OFFERS, found, ("a", "b"), 1)
    for name in ("hw_version_s4_ram", "hw_version_g2_ram", "hw_version_s4_instances", "hw_version_g2_instances"):
        for zone in ("a", "b"):
            assert known.resources[name].per_az[zone].usage == used.resources[name].per_az[zone].usage


# -- quota --------------------------------------------------------------------------------------------------


def pushed(resources: dict[str, dict[str, int]], served: tuple[str, ...] = ()) -> dict[str, dict[str, int]]:
    body = {
        "resources": {
            name: {"quota": 99, "perAZ": {zone: {"quota": amount} for zone, amount in zones.items()}}
            for name, zones in resources.items()
        }
    }
    return pushed_quota(decode(json.dumps(body).encode(), QuotaRequest), OFFERS, served)


def test_memory_is_kept_in_gibibytes_and_the_rest_as_it_comes() -> None:
    assert pushed(
        {
            "hw_version_s4_ram": {"b": 2, "a": 1},
            "hw_version_g2_ram": {"a": 5},
            "hw_version_s4_cores": {"a": 7},
            "something_else": {"a": 8},
        }
    ) == {
        "a": {"hw_version_s4_ram": 240, "hw_version_g2_ram": 5, "hw_version_s4_cores": 7, "something_else": 8},
        "b": {"hw_version_s4_ram": 480},
    }


def test_quota_is_for_so_many_zones() -> None:
    zones = {f"z{number}": ZoneQuota(quota=1) for number in range(ZONES_LIMIT + 1)}
    request = QuotaRequest(resources={"r": ResourceQuota(per_az=zones)})
    with pytest.raises(BadInput, match="1001 availability zones, at most 1000"):
        pushed_quota(request, (), ())
    assert len(pushed_quota(request, (), ("z1", "z2"))) == 2


def test_zones_that_are_not_served_are_left_out() -> None:
    assert pushed({"x": {"a": 1, "b": 2}}, served=("b",)) == {"b": {"x": 2}}
    assert pushed({}) == {}
    assert pushed_quota(QuotaRequest(resources=None), OFFERS, ()) == {}


@pytest.mark.parametrize(
    ("resource", "zone", "amount", "message"),
    [
        ("x", "a", 2**63, 'Quota value for resource "x" in AZ "a" exceeds int64 max'),
        ("hw_version_s4_ram", "a", 2**62, 'Quota value for resource "hw_version_s4_ram" in AZ "a" exceeds int64 max'),
        ("x", "", 1, 'Quota value for resource "x" is for an availability zone without a name'),
    ],
)
def test_quota_that_cannot_be_kept_is_refused(resource: str, zone: str, amount: int, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        pushed({resource: {zone: amount}})
    assert str(caught.value) == message


@given(st.integers(min_value=0, max_value=2**40))
def test_quota_is_reported_as_it_was_pushed(units: int) -> None:
    kept = pushed({"hw_version_s4_ram": {"a": units}, "hw_version_g2_ram": {"a": units}})["a"]
    report = usage_report(OFFERS, vms=(), commitments=(), quotas=(quota("a", **kept),), zones=("a",), version=1)
    for name in ("hw_version_s4_ram", "hw_version_g2_ram"):
        assert report.resources[name].per_az["a"].quota == units


def test_a_group_in_odd_units_reports_quota_as_it_was_pushed() -> None:
    odd = msgspec.structs.replace(
        variable_group("o"), ram_core_ratio=2032, ram_core_ratio_min=None, ram_core_ratio_max=None
    )
    offers = offers_of((_only_small(odd),), SETTINGS)
    body = QuotaRequest(
        resources=decode(b'{"resources":{"hw_version_o_ram":{"perAZ":{"a":{"quota":1000}}}}}', QuotaRequest).resources
    )
    kept = pushed_quota(body, offers, ())["a"]
    report = usage_report(offers, vms=(), commitments=(), quotas=(quota("a", **kept),), zones=("a",), version=1)
    assert report.resources["hw_version_o_ram"].per_az["a"].quota == 1000
    assert kept["hw_version_o_ram"] * GIB >= 1000 * 2032 * 2**20


def _only_small(group: FlavorGroupSpec) -> FlavorGroupSpec:
    small = group.smallest_flavor
    return msgspec.structs.replace(group, flavors=(small,), largest_flavor=small)
