"""What an import says besides its counts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from outlive.drivers import VM_FIELDS, parse_column_map, read_hosts, read_vms
from outlive.inventory import Existing, ImportOptions, Inventory, check_inventory, find_notices, plan_import
from outlive.resources import VirtualMachine
from outlive.resources.reasons import ImportNotice, Reason, render
from outlive.resources.reasons.inventory import TABLE

NOW = datetime(2026, 11, 23, tzinfo=UTC)
HOSTS = "name,cpu,memory,zone\nh1,8,16Gi,z1\nh2,8,16Gi,z2\n"


def imported(
    folder: Path, hosts: str, vms: str, *, vm_map: str = "", levels: tuple[str, ...] = ()
) -> tuple[dict[str, VirtualMachine], dict[str, Reason]]:
    inventory = Inventory(what="csv")
    for name, text in (("hosts.csv", hosts), ("vms.csv", vms)):
        (folder / name).write_text(text)
    read_hosts(folder / "hosts.csv", None, inventory)
    read_vms(folder / "vms.csv", parse_column_map([vm_map], "--vm-map", VM_FIELDS) if vm_map else None, inventory)
    wanted = check_inventory(inventory, Existing(), ImportOptions())
    plan = plan_import(wanted, Existing(), ImportOptions(), landed={}, now=NOW)
    vms_made = {write.object.name: write.object for write in plan.writes if isinstance(write.object, VirtualMachine)}
    found = [*inventory.notices, *find_notices(wanted, Existing(), plan, levels)]
    return vms_made, {one.code: one for one in found}


def test_a_complete_inventory_has_no_notices(tmp_path: Path) -> None:
    assert not imported(tmp_path, HOSTS, "id,cpu,memory,host,zone\nv1,1,1Gi,h1,z1\n")[1]


def test_an_unknown_column_is_named_with_the_nearest_field(tmp_path: Path) -> None:
    _, found = imported(tmp_path, HOSTS, "id,cpu,memory,host,zone,protecton\nv1,1,1Gi,h1,z1,gold\n")
    said = render(found[ImportNotice.COLUMN_UNKNOWN])
    assert "column 'protecton' is not read" in said.text
    assert said.remedy == "did you mean protection? rename the column"


def test_columns_that_a_map_does_not_name_are_listed(tmp_path: Path) -> None:
    _, found = imported(
        tmp_path, HOSTS, "uid,cpu,memory,host,zone\nv1,1,1Gi,h1,z1\n", vm_map="id=uid,cpu=cpu,memory=memory"
    )
    assert found[ImportNotice.COLUMNS_NOT_MAPPED].fields["columns"] == ("host", "zone")


def test_vms_without_a_zone_take_that_of_their_host(tmp_path: Path) -> None:
    vms, found = imported(tmp_path, HOSTS, "id,cpu,memory,host,zone\nv1,1,1Gi,h1,\nv2,1,1Gi,h2,z2\nv3,1,1Gi,,\n")
    assert {name: vm.spec.zone for name, vm in vms.items()} == {"v1": "z1", "v2": "z2", "v3": ""}
    assert found[ImportNotice.VM_ZONE_FROM_HOST].fields["vms"] == ("v1",)
    assert found[ImportNotice.VM_WITHOUT_HOST].fields["vms"] == ("v3",)


def test_vms_larger_than_their_host_are_named(tmp_path: Path) -> None:
    _, found = imported(tmp_path, HOSTS, "id,cpu,memory,host,zone\nv1,1,1Ti,h1,z1\n")
    assert found[ImportNotice.VM_LARGER_THAN_HOST].fields["vms"] == ("v1",)


def test_protection_levels_that_the_settings_do_not_have_are_named(tmp_path: Path) -> None:
    vms = "id,cpu,memory,host,zone,protection\nv1,1,1Gi,h1,z1,gold\nv2,1,1Gi,h1,z1,silver\nv3,1,1Gi,h1,z1,\n"
    _, found = imported(tmp_path, HOSTS, vms, levels=("gold",))
    assert found[ImportNotice.LEVEL_UNKNOWN].fields == {"count": 1, "vms": ("v2",), "levels": ("silver",)}


def test_vms_that_do_not_run_and_hosts_without_a_zone_are_named(tmp_path: Path) -> None:
    _, found = imported(tmp_path, HOSTS + "h3,8,16Gi,\n", "id,cpu,memory,host,zone,status\nv1,1,1Gi,h1,z1,SHUTOFF\n")
    assert found[ImportNotice.VM_NOT_RUNNING].fields["vms"] == ("v1",)
    assert found[ImportNotice.HOST_ZONE_UNKNOWN].fields["hosts"] == ("h3",)


def test_every_notice_can_be_said() -> None:
    lists = dict.fromkeys(("vms", "hosts", "levels", "columns", "flavors", "names"), ("a", "b"))
    fields = {
        **lists,
        "count": 2,
        "file": "f",
        "column": "c",
        "near": "",
        "table": "t",
        "vm": "v",
        "why": "w",
        "remedy": "r",
        "overcommit": "cpu=2",
    }
    for code in TABLE:
        assert render(Reason(code, fields)).text
