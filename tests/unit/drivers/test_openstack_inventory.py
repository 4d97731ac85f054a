"""What the openstack command prints, in the forms of old and new clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outlive.base import BadInput, NotFound
from outlive.drivers import read_openstack
from outlive.inventory import Existing, ImportOptions, Selection, check_inventory, parse_where
from outlive.resources.reasons import ImportNotice

GIB = 2**30
OLD_HYPERVISOR = {
    "ID": 1, "Hypervisor Hostname": "n1.example.org", "Hypervisor Type": "QEMU", "Host IP": "10.0.0.1", "State": "up",
    "vCPUs Used": 6, "vCPUs": 64, "Memory MB Used": 8704, "Memory MB": 262144,
}  # fmt: skip
NEW_HYPERVISOR = {
    "ID": "0f3a",
    "Hypervisor Hostname": "n2",
    "Hypervisor Type": "QEMU",
    "Host IP": "10.0.0.2",
    "State": "up",
}
SHOWN_HYPERVISOR = {
    "hypervisor_hostname": "n2", "service_host": "n2", "vcpus": 32, "vcpus_used": 0, "memory_mb": 131072,
    "memory_mb_used": 512, "state": "up", "status": "enabled", "cpu_info": '{"arch": "x86_64"}',
}  # fmt: skip
OLD_SERVER = {
    "ID": "11111111-1111-4111-8111-111111111111", "Name": "web", "Status": "ACTIVE", "Task State": None,
    "Power State": 1, "Flavor Name": "m1.large", "Flavor ID": "42", "Availability Zone": "az1",
    "Host": "n1.example.org", "Properties": "",
}  # fmt: skip
NEW_SERVER = {
    "ID": "22222222-2222-4222-8222-222222222222", "Name": "db", "Status": "SHUTOFF", "Flavor": "m1.small",
    "Availability Zone": "az1", "Host": "n2", "Properties": {},
}  # fmt: skip
FLAVORS = [
    {"ID": "42", "Name": "m1.large", "RAM": 8192, "Disk": 80, "Ephemeral": 0, "VCPUs": 4, "Is Public": True,
     "Swap": 0, "RXTX Factor": 1.0, "Properties": {"hw:cpu_policy": "shared"}},
    {"ID": "1", "Name": "m1.small", "RAM": 2048, "Disk": 20, "Ephemeral": 10, "VCPUs": 1,
     "Properties": "trait:CUSTOM_X='required', quota:hw_version='2101'"},
]  # fmt: skip
AGGREGATES = [
    {"ID": 1, "Name": "fast", "Availability Zone": "az1", "Properties": {"ssd": "true"}, "Hosts": ["n1.example.org"]}
]
SERVICES = [
    {"ID": 3, "Binary": "nova-compute", "Host": "n1", "Zone": "az1", "Status": "enabled", "State": "up"},
    {"ID": 4, "Binary": "nova-compute", "Host": "n2", "Zone": "az2", "Status": "disabled", "State": "down",
     "Disabled Reason": "broken fan"},
    {"ID": 5, "Binary": "nova-scheduler", "Host": "ctl", "Zone": "internal", "Status": "enabled", "State": "up"},
]  # fmt: skip


def folder(path: Path, **files: Any) -> Path:
    content: dict[str, Any] = {
        "hypervisors": [OLD_HYPERVISOR, NEW_HYPERVISOR],
        "servers": [OLD_SERVER, NEW_SERVER],
        "flavors": FLAVORS,
        "aggregates": AGGREGATES,
        "services": SERVICES,
        "hypervisors/n2": SHOWN_HYPERVISOR,
        **files,
    }
    for name, value in content.items():
        if value is None:
            continue
        file = path / f"{name}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_sizes_come_from_the_list_or_from_what_show_printed(tmp_path: Path) -> None:
    one, two = read_openstack(folder(tmp_path)).hosts
    assert one.capacity.to_wire() == {"cpu": "64", "memory": "256Gi"}
    assert one.used is not None
    assert one.used.memory_bytes == 8704 * 2**20
    assert two.capacity.to_wire() == {"cpu": "32", "memory": "128Gi"}
    assert two.cpu_arch == "x86_64"


def test_hosts_are_named_as_their_compute_service(tmp_path: Path) -> None:
    assert [host.name for host in read_openstack(folder(tmp_path)).hosts] == ["n1", "n2"]


def test_servers_find_their_host_under_any_of_its_names(tmp_path: Path) -> None:
    assert [vm.host for vm in read_openstack(folder(tmp_path)).vms] == ["n1", "n2"]


def test_zone_and_state_come_from_the_services(tmp_path: Path) -> None:
    one, two = read_openstack(folder(tmp_path)).hosts
    assert (one.zone, one.disabled, one.down) == ("az1", "", False)
    assert (two.zone, two.disabled) == ("az2", "broken fan")


def test_aggregates_are_attached_with_their_properties(tmp_path: Path) -> None:
    one, two = read_openstack(folder(tmp_path)).hosts
    assert one.aggregates is not None
    assert [(aggregate.name, aggregate.metadata) for aggregate in one.aggregates] == [("fast", {"ssd": "true"})]
    assert two.aggregates == ()


def test_properties_are_read_as_objects_and_as_text(tmp_path: Path) -> None:
    large, small = read_openstack(folder(tmp_path)).flavors
    assert large.extra_specs == {"hw:cpu_policy": "shared"}
    assert small.extra_specs == {"trait:CUSTOM_X": "required", "quota:hw_version": "2101"}
    assert (small.ephemeral_gib, small.resources.memory_bytes) == (10, 2 * GIB)


def test_old_and_new_flavor_columns_are_known(tmp_path: Path) -> None:
    shown = {"id": "33333333-3333-4333-8333-333333333333", "name": "x", "status": "ACTIVE", "flavor": "m1.large (42)",
             "OS-EXT-SRV-ATTR:host": "n1", "OS-EXT-AZ:availability_zone": "az1", "project_id": "p1"}  # fmt: skip
    found = read_openstack(folder(tmp_path, servers=[OLD_SERVER, NEW_SERVER, shown])).vms
    assert [vm.flavor for vm in found] == ["m1.large", "m1.small", "m1.large"]
    assert found[2].project == "p1"
    assert found[1].phase == "SHUTOFF"


def test_a_flavor_that_is_gone_is_read_from_the_server(tmp_path: Path) -> None:
    shown = {"flavor": {"original_name": "old.one", "vcpus": 2, "ram": 4096, "disk": 10, "extra_specs": {"a": "b"}}}
    server = {"ID": "44444444-4444-4444-8444-444444444444", "Name": "x", "Host": "n1", "Status": "ACTIVE"}
    inventory = read_openstack(folder(tmp_path, servers=[server], **{f"servers/{server['ID']}": shown}))
    vm = inventory.vms[0]
    assert vm.flavor == "old.one"
    assert vm.resources is not None
    assert vm.resources.to_wire() == {"cpu": "2", "memory": "4Gi"}
    assert vm.extra_specs == {"a": "b"}


def test_a_server_without_a_host_is_nowhere(tmp_path: Path) -> None:
    server = {**NEW_SERVER, "Host": None}
    assert read_openstack(folder(tmp_path, servers=[server])).vms[0].host == ""


def test_a_hypervisor_without_sizes_is_a_problem_that_names_the_remedy(tmp_path: Path) -> None:
    inventory = read_openstack(folder(tmp_path, **{"hypervisors/n2": None}))
    assert [host.name for host in inventory.hosts] == ["n1"]
    assert "n2" in inventory.problems.shown[0].message
    assert "--os-compute-api-version 2.87" in inventory.problems.shown[0].remedy


def test_only_hypervisors_and_servers_are_needed(tmp_path: Path) -> None:
    inventory = read_openstack(folder(tmp_path, flavors=None, aggregates=None, services=None))
    assert len(inventory.hosts) == 2
    with pytest.raises(NotFound, match="openstack server list"):
        read_openstack(folder(tmp_path / "b", servers=None) if (tmp_path / "b").mkdir() is None else tmp_path)


@pytest.mark.parametrize(("text", "words"), [("{", "not JSON"), ('{"a": 1}', "not a list"), ("", "not JSON")])
def test_a_broken_file_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_openstack(folder(tmp_path, hypervisors=text))
    assert "hypervisors.json" in caught.value.place
    assert words in caught.value.message


def test_a_missing_folder_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read_openstack(tmp_path / "nowhere")


def test_groups_and_policies_come_from_the_list_of_server_groups(tmp_path: Path) -> None:
    mine = [{"ID": "g1", "Name": "web", "Policy": "anti-affinity", "Members": [OLD_SERVER["ID"].upper()]}]
    assert [(vm.server_group, vm.server_group_policy) for vm in read_openstack(folder(tmp_path)).vms][1][1] is None
    found = read_openstack(folder(tmp_path, server_groups=mine)).vms
    assert [(vm.server_group, vm.server_group_policy) for vm in found] == [("g1", "anti-affinity"), ("", "")]
    old = [{"ID": "g1", "Name": "web", "Policies": "soft-affinity", "Members": f"{OLD_SERVER['ID']}, other"}]
    assert read_openstack(folder(tmp_path, server_groups=old)).vms[0].server_group_policy == "soft-affinity"


def test_a_policy_that_nobody_knows_is_a_problem(tmp_path: Path) -> None:
    odd = [{"ID": "g1", "Name": "web", "Policy": "together", "Members": []}]
    (problem,) = read_openstack(folder(tmp_path, server_groups=odd)).problems.shown
    assert "together" in str(problem)
    assert "server_groups.json[0]" in str(problem)


def test_without_services_and_aggregates_hosts_take_the_zone_of_their_vms(tmp_path: Path) -> None:
    third = {**OLD_HYPERVISOR, "ID": 3, "Hypervisor Hostname": "n3.example.org"}
    path = folder(tmp_path, services=None, aggregates=None, hypervisors=[OLD_HYPERVISOR, NEW_HYPERVISOR, third])
    inventory = read_openstack(path)
    assert {host.name: host.zone for host in inventory.hosts} == dict.fromkeys(
        ("n1.example.org", "n2", "n3.example.org"), "az1"
    )
    assert [(one.code, one.fields["count"]) for one in inventory.notices] == [("host-zone-from-vms", 3)]


def test_a_host_without_vms_has_no_zone_where_vms_are_in_several(tmp_path: Path) -> None:
    third = {**OLD_HYPERVISOR, "ID": 3, "Hypervisor Hostname": "n3.example.org"}
    servers = [OLD_SERVER, {**NEW_SERVER, "Availability Zone": "az2"}]
    files = {"hypervisors": [OLD_HYPERVISOR, NEW_HYPERVISOR, third], "servers": servers}
    inventory = read_openstack(folder(tmp_path, services=None, aggregates=None, **files))
    assert [host.zone for host in inventory.hosts] == ["az1", "az2", None]


def test_without_flavors_the_remedy_names_the_file_that_has_the_sizes(tmp_path: Path) -> None:
    inventory = read_openstack(folder(tmp_path, flavors=None))
    with pytest.raises(BadInput) as caught:
        check_inventory(inventory, Existing(), ImportOptions())
    assert "flavors.json: openstack flavor list --all --long -f json" in str(caught.value)


def test_a_host_is_down_if_its_service_is(tmp_path: Path) -> None:
    services = [{**SERVICES[0], "State": "down"}]
    one, two = read_openstack(folder(tmp_path, services=services)).hosts
    assert (one.down, two.down) == (True, False)


IRONIC = {"ID": "8f0a", "Hypervisor Hostname": "d7b1a6d2-0001-4000-8000-000000000001", "Hypervisor Type": "ironic",
          "State": "up", "vCPUs": 0, "Memory MB": 0}  # fmt: skip
METAL_SERVICE = {"ID": 9, "Binary": "nova-compute", "Host": "ironic-1", "Zone": "az1", "Status": "enabled"}
METAL_FLAVOR = {"ID": "9", "Name": "bm", "RAM": 131072, "VCPUs": 64, "Properties": {"resources:VCPU": "0"}}
METAL = {"ID": "99999999-9999-4999-8999-999999999999", "Name": "metal", "Status": "ACTIVE"}


@pytest.mark.parametrize(
    ("server", "hypervisor", "flavors", "services"),
    [
        ({"Host": "ironic-1", "Flavor": "m1.small"}, {}, FLAVORS, [*SERVICES, METAL_SERVICE]),
        ({"Host": "elsewhere", "Flavor": "bm"}, {}, [*FLAVORS, METAL_FLAVOR], SERVICES),
        ({"Host": "x", "OS-EXT-SRV-ATTR:hypervisor_hostname": IRONIC["Hypervisor Hostname"]}, {}, FLAVORS, SERVICES),
        ({"Host": "ironic-1"}, {"service": {"host": "ironic-1"}}, FLAVORS, SERVICES),
    ],
)
def test_machines_of_ironic_and_servers_on_them_are_left_out_and_named(
    tmp_path: Path, server: dict[str, Any], hypervisor: dict[str, Any], flavors: Any, services: Any
) -> None:
    lists = {
        "hypervisors": [OLD_HYPERVISOR, NEW_HYPERVISOR, {**IRONIC, **hypervisor}],
        "servers": [OLD_SERVER, NEW_SERVER, {**METAL, **server}],
        "flavors": flavors,
        "services": services,
    }
    inventory = read_openstack(folder(tmp_path, **lists))
    assert not inventory.problems.shown
    assert [host.name for host in inventory.hosts] == ["n1", "n2"]
    assert [vm.name for vm in inventory.vms] == ["web", "db"]
    assert "bm" not in [flavor.name for flavor in inventory.flavors]
    left = next(one for one in inventory.notices if one.code == ImportNotice.BARE_METAL)
    assert left.fields["names"] == (IRONIC["Hypervisor Hostname"], "metal")


@pytest.mark.parametrize("form", ["object", "text"])
def test_the_sizes_of_a_deleted_flavor_count_although_the_list_names_it(tmp_path: Path, form: str) -> None:
    sizes = {"original_name": "gone", "name": "gone", "vcpus": 2, "ram": 4096, "disk": 10}
    text = ", ".join(f"{name}='{value}'" for name, value in sizes.items())
    shown = {"flavor": sizes if form == "object" else text}
    server = {**NEW_SERVER, "Flavor": "gone"}
    vm = read_openstack(folder(tmp_path, servers=[server], **{f"servers/{server['ID']}": shown})).vms[0]
    assert vm.flavor == "gone"
    assert vm.resources is not None
    assert vm.resources.to_wire() == {"cpu": "2", "memory": "4Gi"}


def test_a_broken_show_file_costs_only_its_own_record(tmp_path: Path) -> None:
    inventory = read_openstack(folder(tmp_path, **{f"servers/{NEW_SERVER['ID']}": "{"}))
    assert [vm.name for vm in inventory.vms] == ["web", "db"]
    assert f"{NEW_SERVER['ID']}.json" in inventory.problems.shown[0].message


def test_servers_and_hypervisors_are_selected_by_their_own_columns(tmp_path: Path) -> None:
    chosen = Selection(parse_where(["Status=ACTIVE"]), parse_where(["Hypervisor Hostname!=n2"]))
    inventory = read_openstack(folder(tmp_path), chosen)
    assert ([host.name for host in inventory.hosts], [vm.name for vm in inventory.vms]) == (["n1"], ["web"])
    with pytest.raises(BadInput, match=r"no column 'Stauts' .*did you mean 'Status'"):
        read_openstack(folder(tmp_path), Selection(parse_where(["Stauts=ACTIVE"])))
