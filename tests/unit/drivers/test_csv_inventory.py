"""CSV inventories: any columns, any units, and every wrong row by its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlive.base import BadInput, LimitExceeded, NotFound, Usage
from outlive.drivers import HOST_FIELDS, VM_FIELDS, open_input, parse_column_map, read_hosts, read_vms
from outlive.inventory import Inventory, parse_where

GIB = 2**30


def hosts(folder: Path, text: str, columns: str = "") -> Inventory:
    file = folder / "hosts.csv"
    file.write_text(text, encoding="utf-8")
    inventory = Inventory(what="csv")
    read_hosts(file, parse_column_map([columns], "--host-map", HOST_FIELDS) if columns else None, inventory)
    return inventory


def vms(folder: Path, text: str, columns: str = "", *where: str) -> Inventory:
    file = folder / "vms.csv"
    file.write_text(text, encoding="utf-8")
    inventory = Inventory(what="csv")
    mapped = parse_column_map([columns], "--vm-map", VM_FIELDS) if columns else None
    read_vms(file, mapped, inventory, where=parse_where(where))
    return inventory


def problems(inventory: Inventory) -> list[str]:
    return [str(problem) for problem in inventory.problems.shown]


def test_columns_are_found_by_the_fields_own_names(tmp_path: Path) -> None:
    found = hosts(tmp_path, "name,cpu,memory,zone,domain-rack,colour\na1,8,32Gi,z1,r7,red\n").hosts[0]
    assert (found.name, found.zone, found.domains) == ("a1", "z1", {"rack": "r7"})
    assert found.capacity.to_wire() == {"cpu": "8", "memory": "32Gi"}


def test_a_map_names_columns_and_units(tmp_path: Path) -> None:
    text = "sn,cpu_milli,memory_mib,gpu\nn1,32000,262144,2\n"
    found = hosts(tmp_path, text, "name=sn,cpu=cpu_milli:m,memory=memory_mib:Mi,resource-gpu=gpu").hosts[0]
    assert dict(found.capacity) == {"cpu": 32000, "memory": 256 * GIB, "gpu": 2}


def test_parts_of_another_resource_count_as_a_whole_one(tmp_path: Path) -> None:
    columns = "id=id,cpu=cpu,memory=memory,resource-gpu=share:m"
    found = vms(tmp_path, "id,cpu,memory,share\nv,1,1Gi,460\n", columns).vms[0]
    assert found.resources is not None
    assert found.resources["gpu"] == 1


def test_fields_that_the_file_does_not_have_are_unknown_and_not_empty(tmp_path: Path) -> None:
    found = vms(tmp_path, "id,cpu,memory,host\nv,1,1Gi,\n").vms[0]
    assert found.host == ""
    assert found.zone is None
    assert found.project is None


def test_protection_is_read_and_what_is_wrong_about_it_is_named(tmp_path: Path) -> None:
    head = "id,cpu,memory,protection,restart_priority,server_group,server_group_policy\n"
    first, second = vms(tmp_path, head + "v,1,1Gi,critical,-7,g,anti-affinity\nw,1,1Gi,,,,\n").vms
    assert (first.protection, first.restart_priority) == ("critical", -7)
    assert (first.server_group, first.server_group_policy) == ("g", "anti-affinity")
    assert (second.protection, second.restart_priority, second.server_group_policy) == ("", None, "")
    wrong = vms(tmp_path, head + "v,1,1Gi,a b,,,\nw,1,1Gi,,high,,\nx,1,1Gi,,99999999,,\ny,1,1Gi,,,g,apart\n")
    rows = [(line.split(":")[1], line.split("'")[1]) for line in problems(wrong)]
    fields = ["protection", "restart_priority", "restart_priority", "server_group_policy"]
    assert rows == list(zip("2345", fields, strict=True))


def test_where_leaves_other_rows_out_unjudged(tmp_path: Path) -> None:
    text = "id,cpu,memory,phase\nv1,1,1Gi,Running\nv2,oops,,Failed\nv3,1,1Gi,Running\n"
    found = vms(tmp_path, text, "", "phase=Running")
    assert [vm.id for vm in found.vms] == ["v1", "v3"]
    assert found.rows_left_out == 1
    assert not problems(found)
    assert [vm.id for vm in vms(tmp_path, text, "", "phase!=Failed", "id!=v1").vms] == ["v3"]


def test_a_vm_may_have_a_flavor_instead_of_sizes(tmp_path: Path) -> None:
    found = vms(tmp_path, "id,flavor,cpu,memory\nv1,m1,,\nv2,,2,4Gi\nv3,,,\n")
    assert [(vm.id, vm.flavor, vm.resources is None) for vm in found.vms] == [("v1", "m1", True), ("v2", "", False)]
    assert len(problems(found)) == 2


def test_a_byte_order_mark_and_quoted_lines_are_understood(tmp_path: Path) -> None:
    found = hosts(tmp_path, '\ufeffname,cpu,memory\n"a1",8,32Gi\n\n"a2","8","32Gi"\n')
    assert [(host.name, host.place.rpartition(":")[2]) for host in found.hosts] == [("a1", "2"), ("a2", "4")]


def test_every_wrong_row_is_a_problem_with_its_line(tmp_path: Path) -> None:
    text = "name,cpu,memory\na1,eight,32Gi\na2,8\na3,8,32Gi\na4,8,32GB\na5,,1Gi\n"
    found = hosts(tmp_path, text)
    assert [host.name for host in found.hosts] == ["a3"]
    lines = [problem.place.rpartition(":")[2] for problem in found.problems.shown]
    assert lines == ["2", "3", "5", "6"]
    assert all(problem.remedy for problem in found.problems.shown)
    assert "column 'cpu': 'eight' is not a quantity" in problems(found)[0]


@pytest.mark.parametrize(
    ("raw", "place", "words"),
    [
        (b"", ":1", "empty"),
        (b"\n\n", ":1", "empty"),
        (b'name,cpu,memory\na1,8,"32Gi\n', ":2", "not CSV"),
        (b'name,cpu,memory\na1,8,32Gi\na2,"8"x,32Gi\n', ":3", "not CSV"),
        (b"name,cpu,memory\na\x00,8,32Gi\n", ":2", "not CSV"),
        (b"name,cpu,memory\n\xff\xfe,8,32Gi\n", "", "not UTF-8"),
        (b"name,cpu,cpu,memory\n", ":1", "there twice"),
        (b"name,cpu\na,8\n", ":1", "no column for memory"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_line(
    tmp_path: Path, raw: bytes, place: str, words: str
) -> None:
    file = tmp_path / "hosts.csv"
    file.write_bytes(raw)
    with pytest.raises(BadInput) as caught:
        read_hosts(file, None, Inventory(what="csv"))
    assert caught.value.place.startswith(f"{file}{place}")
    assert words in str(caught.value)
    assert caught.value.remedy


def test_an_unknown_column_names_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="did you mean 'cpu_milli'"):
        hosts(tmp_path, "sn,cpu_milli,mem\n", "name=sn,cpu=cpu_mili:m,memory=mem")
    with pytest.raises(BadInput, match=r"--where.*did you mean 'phase'"):
        vms(tmp_path, "id,cpu,memory,phase\n", "", "phas=Running")


@pytest.mark.parametrize("text", ["name", "=sn", "name=", "name=sn:GB", "nme=sn", "name=a,name=b", "NAME!=x"])
def test_a_malformed_map_is_a_wrong_command_line(text: str) -> None:
    with pytest.raises(Usage) as caught:
        parse_column_map([text], "--host-map", HOST_FIELDS)
    assert caught.value.place == "--host-map"


@pytest.mark.parametrize("text", ["phase", "=Running", "!=Running"])
def test_a_malformed_condition_is_a_wrong_command_line(text: str) -> None:
    with pytest.raises(Usage):
        parse_where([text])


def test_a_missing_file_a_directory_and_a_large_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such file"):
        read_hosts(tmp_path / "none.csv", None, Inventory(what="csv"))
    with pytest.raises(BadInput, match="directory"):
        read_hosts(tmp_path, None, Inventory(what="csv"))
    file = tmp_path / "large.csv"
    file.write_bytes(b"x" * 100)
    with pytest.raises(LimitExceeded, match="larger"), open_input(file, limit=99):
        pass


def test_a_file_over_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "huge.csv"
    with file.open("wb") as stream:
        stream.truncate(512 * 2**20 + 1)
    with pytest.raises(LimitExceeded, match="512 MiB"):
        read_hosts(file, None, Inventory(what="csv"))
