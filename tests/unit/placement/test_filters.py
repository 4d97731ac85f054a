"""What each filter keeps, skips, and does with hosts that nobody knows."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.placement import fleet_of, host, instances, request

from outlive.placement import (
    Destination,
    Engine,
    InstanceGroup,
    Intent,
    PipelineTable,
    PlacementSettings,
    Ranking,
    satisfies,
)
from outlive.resources import Hypervisor, ObjectMeta, Parameter, Pipeline, PipelineSpec, StepSpec

TENANT_FILTERS = ("filter_allowed_projects", "filter_aggregate_metadata")


def run(
    name: str,
    *hosts: Hypervisor,
    params: tuple[Parameter, ...] = (),
    settings: PlacementSettings | None = None,
    also: dict[str, Any] | None = None,
    **fields: Any,
) -> Ranking:
    """One filter over these hosts and one that nobody knows."""
    settings = settings or PlacementSettings()
    table = PipelineTable()
    spec = PipelineSpec(filters=(StepSpec(name=name, params=params),))
    table.put(Pipeline(metadata=ObjectMeta(name="one"), spec=spec))
    fields.setdefault("hosts", sorted([one.name for one in hosts] + ["stranger"]))
    asked = replace(request(pipeline="one", **fields), **(also or {}))
    return Engine(fleet_of(*hosts, settings=settings), table).rank(asked, why=True)


def kept(name: str, *hosts: Hypervisor, **fields: Any) -> list[str]:
    return sorted(run(name, *hosts, **fields).hosts)


def conditions(**status: str) -> list[dict[str, str]]:
    return [{"type": kind, "status": value} for kind, value in status.items()]


def test_status_conditions_drop_what_is_not_as_wanted_and_pass_what_is_absent() -> None:
    found = run(
        "filter_status_conditions",
        host("bare", conditions=[]),
        host("tainted", conditions=conditions(Ready="True", Tainted="True")),
        host("unknown", conditions=conditions(Ready="Unknown")),
        host("disabled", conditions=conditions(HypervisorDisabled="True")),
        host("leaving", conditions=conditions(Terminating="True")),
    )
    assert sorted(found.hosts) == ["bare", "tainted"]
    assert found.rejected["disabled"].message == "condition HypervisorDisabled is True"
    assert found.rejected["stranger"].code == "unknown-host"


def test_hosts_without_high_availability_get_no_slots() -> None:
    plain, off = host("plain"), host("off", highAvailability=False)
    for intent in ("reserve_for_failover", "reuse_failover_reservation"):
        assert kept("filter_status_conditions", plain, off, intent=intent) == ["plain"]
    assert kept("filter_status_conditions", plain, off, intent="evacuate") == ["off", "plain"]


def test_zone_must_match_and_no_label_is_no_zone() -> None:
    hosts = (host("a", zone="z1"), host("b", zone="z2"), host("c", zone=None))
    assert kept("filter_correct_az", *hosts, zone="z1") == ["a"]
    assert kept("filter_correct_az", *hosts, zone="z9") == []
    assert kept("filter_correct_az", *hosts) == ["a", "b", "c", "stranger"]


def test_forced_hosts_leave_only_themselves_and_an_empty_list_leaves_nobody() -> None:
    hosts = (host("a"), host("b"))
    assert kept("filter_host_instructions", *hosts, ignoreHosts=["a"]) == ["b", "stranger"]
    assert kept("filter_host_instructions", *hosts, forceHosts=["a", "stranger"]) == ["a", "stranger"]
    assert kept("filter_host_instructions", *hosts, forceHosts=[]) == []


def test_image_type_is_read_from_the_first_property_that_is_there() -> None:
    for properties, left in (
        ({"img_hv_type": "KVM"}, 2),
        ({"img_hv_type": "vmware"}, 1),
        ({"img_hv_type": 7, "hypervisor_type": "vmware"}, 2),
        ({"hypervisor_type": "baremetal"}, 1),
        ({}, 2),
    ):
        assert len(run("filter_image_properties", host("a"), imageProperties=properties)) == left
    undetermined = run("filter_image_properties", host("a")).traces[0].events
    assert [event.name for event in undetermined] == ["image_properties_hv_type_undetermined"]
    assert undetermined[0].labels == (("intent", "unknown"),)


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ({"capabilities:hypervisor_type": "QEMU"}, ["kvm"]),
        ({"capabilities:hypervisor_type": "qemu"}, []),
        ({"capabilities:hypervisor_type": "CH", "capabilities:cpu_arch": "x86_64"}, ["ch"]),
        ({"capabilities:cpu_arch": "aarch64"}, []),
        ({"capabilities:cpu_features": "avx"}, []),
        ({"capabilities:hypervisor_type": "<or> CH <or> QEMU"}, ["ch", "kvm"]),
        ({"capabilities:hypervisor_type": "s!= QEMU"}, ["ch"]),
        ({"capabilities:hypervisor_type": "s== CH"}, ["ch"]),
        ({}, ["ch", "kvm", "stranger", "xen"]),
    ],
)
def test_capabilities_are_compared_exactly(wanted: dict[str, str], left: list[str]) -> None:
    hosts = [host(name, domainCapabilities={"hypervisorType": name}) for name in ("kvm", "ch", "xen")]
    assert kept("filter_capabilities", *hosts, extraSpecs=wanted) == left


def test_unknown_hypervisor_types_are_counted_among_the_candidates_only() -> None:
    hosts = [host(name, domainCapabilities={"hypervisorType": "xen"}) for name in ("a", "b", "c")]
    specs = {"capabilities:hypervisor_type": "QEMU"}
    events = run("filter_capabilities", *hosts, extraSpecs=specs, hosts=["a", "b"]).traces[0].events
    assert [(event.name, event.labels, event.count) for event in events] == [
        ("filter_capabilities_unknown_hypervisor_type", (("hypervisor_type", "xen"),), 2)
    ]


@pytest.mark.parametrize(
    ("has", "wanted", "holds"),
    [
        ("8", "= 4", True),
        ("8", ">= 9", False),
        ("8", "== 8.0", True),
        ("8", "!= 8", False),
        ("8", "<= 8", True),
        ("x", "= 4", False),
        ("abc", "<in> bc", True),
        ("abc", "<all-in> a c", True),
        ("abc", "<all-in> a z", False),
        ("b", "s> a", True),
        ("b", "s<= a", False),
        ("a=b", "a=b", True),
        ("a", "<in>", False),
    ],
)
def test_operators_compare_as_nova_does(has: str, wanted: str, holds: bool) -> None:
    assert satisfies(has, wanted) is holds


def test_traits_are_the_union_of_found_and_given_ones() -> None:
    both = host("both", traits=["A"], customTraits=["B"])
    one = host("one", traits=["A"])
    assert kept("filter_has_requested_traits", both, one, extraSpecs={"trait:B": "required"}) == ["both"]
    assert kept("filter_has_requested_traits", both, one, extraSpecs={"trait:B": "forbidden"}) == ["one"]
    assert len(kept("filter_has_requested_traits", both, one, extraSpecs={"trait:B": "Required"})) == 3


PREFIXES = (Parameter(key="domainNamePrefixes", string_list_value=("iaas-",)),)


def test_external_customers_get_exclusive_hosts() -> None:
    hosts = (host("a", traits=["CUSTOM_EXTERNAL_CUSTOMER_EXCLUSIVE"]), host("b"))

    def left(domain: str | None, intent: str = "create") -> list[str]:
        hints = {} if domain is None else {"domain_name": domain}
        return kept("filter_external_customer", *hosts, params=PREFIXES, hints=hints, intent=intent)

    assert left("iaas-acme") == ["a"]
    for intent in ("reserve_for_committed_resource", "reserve_for_failover", "reuse_failover_reservation"):
        assert left("iaas-acme", intent) == ["a"], "a slot lies where its VMs may go"
    for unaffected in (left("acme"), left(None), left("iaas-acme", "capacity_probe"), left("IAAS-acme")):
        assert len(unaffected) == 3


def test_a_device_profile_needs_accelerators_whatever_its_value() -> None:
    hosts = (host("a", traits=["COMPUTE_ACCELERATORS"]), host("b"))
    assert kept("filter_has_accelerators", *hosts, extraSpecs={"accel:device_profile": ""}) == ["a"]
    assert len(kept("filter_has_accelerators", *hosts, extraSpecs={})) == 3


def test_packed_virtqueues_may_be_asked_for_by_flavor_or_image() -> None:
    hosts = (host("a", traits=["COMPUTE_NET_VIRTIO_PACKED"]), host("b"))
    assert kept("filter_packed_virtqueue", *hosts, extraSpecs={"hw:virtio_packed_ring": "false"}) == ["a"]
    assert kept("filter_packed_virtqueue", *hosts, imageProperties={"hw_virtio_packed_ring": True}) == ["a"]


def test_affinity_keeps_the_groups_hosts() -> None:
    group = {"group": InstanceGroup(policy="affinity", hosts=("a",))}
    assert kept("filter_instance_group_affinity", host("a"), host("b"), also=group) == ["a"]
    assert len(kept("filter_instance_group_affinity", host("a"), also=group, intent="capacity_probe")) == 2


def test_anti_affinity_counts_members_on_the_host_and_lets_the_vm_stay() -> None:
    hosts = (
        host("two", instances=instances("m1", "m2")),
        host("one", instances=instances("m1", "other")),
        host("own", instances=instances("vm-1", "m1", "m2")),
        host("none"),
    )
    for limit, left in ((1, ["none", "own"]), (2, ["none", "one", "own"])):
        group = InstanceGroup(policy="anti-affinity", members=("m1", "m2"), max_server_per_host=limit)
        assert kept("filter_instance_group_anti_affinity", *hosts, also={"group": group}) == left


def test_allowed_projects_and_aggregates_pin_hosts() -> None:
    hosts = (host("listed", allowedProjects=["p"]), host("others", allowedProjects=["q"]), host("open"))
    assert kept("filter_allowed_projects", *hosts) == ["listed", "open", "stranger"]
    aggregates = [
        {"name": "x", "metadata": {"filter_tenant_id_2": " p, q "}},
        {"name": "y", "metadata": {"other": "r"}},
    ]
    assert kept("filter_aggregate_metadata", host("a", aggregates=aggregates), project="p") == ["a", "stranger"]
    assert kept("filter_aggregate_metadata", host("a", aggregates=aggregates), project="r") == ["stranger"]
    assert kept("filter_aggregate_metadata", host("a", aggregates=aggregates), project="") == ["stranger"]


@pytest.mark.parametrize("intent", [Intent.RESERVE_FOR_FAILOVER, Intent.REUSE_FAILOVER_RESERVATION])
@pytest.mark.parametrize("name", TENANT_FILTERS)
def test_searches_for_slots_respect_pinning(name: str, intent: Intent) -> None:
    closed = host("a", allowedProjects=["q"], aggregates=[{"name": "x", "metadata": {"filter_tenant_id": "q"}}])
    assert kept(name, closed, intent=intent.value) == ["stranger"]
    assert kept(name, closed, intent="capacity_probe") == ["a", "stranger"]


def test_live_migration_needs_at_least_the_sources_machine() -> None:
    def machine(name: str, features: list[str], arch: str = "x86_64") -> Hypervisor:
        capabilities = {"hypervisorType": "kvm", "supportedFeatures": features}
        return host(name, domainCapabilities=capabilities, capabilities={"cpuArch": arch})

    hosts = (machine("src", ["f"]), machine("more", ["f", "g"]), machine("less", []), machine("arm", ["f"], "aarch64"))
    migrating = {"intent": "live_migration", "hints": {"source_host": "src"}}
    found = run("filter_live_migratable", *hosts, **migrating)
    assert sorted(found.hosts) == ["more", "src"]
    assert found.rejected["less"].message == "lacks f of the source host"
    assert len(kept("filter_live_migratable", *hosts, hints={"source_host": "src"})) == 5


def test_an_unknown_source_host_skips_the_step() -> None:
    found = run("filter_live_migratable", host("a"), intent="live_migration", hints={"source_host": "gone"})
    assert sorted(found.hosts) == ["a", "stranger"]
    assert found.traces[0].error is not None
    assert found.traces[0].error.code == "unknown-source-host"


def test_a_destination_is_every_aggregate_element_and_the_host() -> None:
    hosts = [
        host(name, aggregates=[{"name": uuid, "uuid": uuid} for uuid in uuids])
        for name, uuids in (("a", ["u1", "u2"]), ("b", ["u1"]), ("c", ["u3", "u2"]))
    ]
    wanted = Destination(aggregates=("u1,u3", "u2"))
    assert kept("filter_requested_destination", *hosts, also={"destination": wanted}) == ["a", "c"]
    only = Destination(host="b", aggregates=("u1",))
    assert kept("filter_requested_destination", *hosts, also={"destination": only}) == ["b"]
    assert kept("filter_requested_destination", *hosts, also={"destination": Destination(host="z")}) == []
    assert len(kept("filter_requested_destination", *hosts, also={"destination": Destination()})) == 4


def test_maintenance_words_that_keep_requests_away() -> None:
    hosts = [host(word or "none", maintenance=word) for word in ("", "auto", "ha", "manual", "termination")]
    assert kept("filter_maintenance", *hosts) == ["auto", "ha", "none"]
