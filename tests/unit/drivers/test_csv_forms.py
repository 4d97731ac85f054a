"""One table gives the same records in whatever form spreadsheets write it, or an error says what is unclear."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import BadInput, Usage
from outlive.drivers import HOST_FIELDS, VM_FIELDS, parse_column_map, read_hosts, read_vms
from outlive.inventory import Existing, HostRecord, ImportOptions, Inventory, check_inventory, parse_where
from outlive.resources import BadInputs

GIB = 2**30
ROWS = [
    {"name": "a", "cpu": "8", "memory": "32Gi", "zone": "north, left", "note": "x;y"},
    {"name": "b", "cpu": "16", "memory": "64Gi", "zone": "south", "note": 'he said "|"'},
]


def hosts(text: str, columns: str = "", *where: str, decimal: str = "") -> Inventory:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "hosts.csv"
        file.write_text(text, encoding="utf-8", newline="")
        inventory = Inventory(what="csv")
        mapped = parse_column_map([columns], "--host-map", HOST_FIELDS) if columns else None
        read_hosts(file, mapped, inventory, where=parse_where(where), decimal=decimal)
    return inventory


def facts(records: Sequence[HostRecord]) -> list[tuple[str, str | None, dict[str, int]]]:
    return sorted((one.name, one.zone, dict(one.capacity)) for one in records)


@given(
    columns=st.permutations(list(ROWS[0])),
    rows=st.permutations(ROWS),
    delimiter=st.sampled_from(",;\t|"),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    ending=st.sampled_from(["\n", "\r\n"]),
    mark=st.sampled_from(["", "\ufeff"]),
    declared=st.booleans(),
)
def test_order_quotes_delimiter_and_line_ends_make_no_difference(
    columns: list[str], rows: list[dict[str, str]], delimiter: str, quoting: int, ending: str, mark: str, declared: bool
) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, delimiter=delimiter, quoting=quoting, lineterminator=ending)  # type: ignore[arg-type]
    writer.writeheader()
    writer.writerows(rows)
    found = hosts(mark + (f"sep={delimiter}{ending}" if declared else "") + text.getvalue())
    assert not found.problems.shown
    wanted = [
        (row["name"], row["zone"], {"cpu": int(row["cpu"]) * 1000, "memory": int(row["memory"][:-2]) * GIB})
        for row in ROWS
    ]
    assert facts(found.hosts) == wanted


def test_lines_are_counted_behind_a_line_that_names_the_delimiter() -> None:
    found = hosts("sep=;\nname;cpu;memory\na;x;1Gi\n")
    assert found.problems.shown[0].place.endswith(":3")


MIB_MAP = "name=name,cpu=cpu,memory=memory:Mi"


@pytest.mark.parametrize(
    ("cpu", "memory", "decimal", "wanted"),
    [
        (("8", "4"), ("262144", "131072"), "", (262144, 131072)),
        (("1,5", "4"), ("16.384", "8.192"), "", (16384, 8192)),
        (("1.5", "4"), ('"16,384"', '"8,192"'), "", (16384, 8192)),
        (("8", "4"), ("1.048.576", "8.192"), "", (1048576, 8192)),
        (("8", "4"), ("16.384", "8.192"), ",", (16384, 8192)),
        (("8", "4"), ("16 384", "8'192"), "", (16384, 8192)),
        (("8", "4"), ("16384.0", "8192.5"), "", (16384, 8192.5)),
    ],
)  # fmt: skip
def test_a_file_says_itself_what_stands_before_a_fraction(
    cpu: tuple[str, str], memory: tuple[str, str], decimal: str, wanted: tuple[float, float]
) -> None:
    rows = "".join(f"h{n};{cpu[n]};{memory[n]}\n" for n in (0, 1))
    found = hosts("name;cpu;memory\n" + rows, MIB_MAP, decimal=decimal)
    assert [one.capacity.memory_bytes for one in found.hosts] == [int(size * 2**20) for size in wanted]


@pytest.mark.parametrize("memory", [("16.384", "32.768"), ("1,5", "2.25")])
def test_a_number_that_may_be_two_is_not_guessed_at(memory: tuple[str, str]) -> None:
    with pytest.raises(BadInput, match="--decimal ,"):
        hosts(f"name;cpu;memory\na;4;{memory[0]}\nb;4;{memory[1]}\n", MIB_MAP)


def test_a_unit_that_may_be_two_is_named_with_both() -> None:
    found = hosts("name,cpu,memory\na,4,16 GB\n")
    assert "write 16Gi, or 16G" in str(found.problems.shown[0])


@pytest.mark.parametrize(
    ("memory", "words"),
    [("262144", "in Mi, which makes 256Gi"), ("268435456", "in Ki, which makes 256Gi"), ("256", "in Gi, which makes")],
)
def test_memory_without_a_unit_is_no_host_of_a_few_bytes(memory: str, words: str) -> None:
    with pytest.raises(BadInputs, match=words):
        check_inventory(hosts(f"name,cpu,memory\na,4,{memory}\n"), Existing(), ImportOptions())


def test_a_vm_of_16_kib_is_refused_and_the_likely_unit_named(tmp_path: Path) -> None:
    (tmp_path / "vms.csv").write_text("id,cpu,memory\nv,4,16384\n")
    inventory = Inventory(what="csv")
    read_vms(tmp_path / "vms.csv", None, inventory)
    with pytest.raises(BadInputs, match=r"memory 16Ki, less than any machine .*in Mi, which makes 16Gi"):
        check_inventory(inventory, Existing(), ImportOptions())


def test_thousandths_of_a_core_are_no_cores() -> None:
    with pytest.raises(BadInputs, match="makes 32, give that unit: cpu=COLUMN:m"):
        check_inventory(hosts("name,cpu,memory\na,32000,64Gi\n"), Existing(), ImportOptions())


@pytest.mark.parametrize(
    ("field", "fields", "near"),
    [
        ("displayName", VM_FIELDS, "name"), ("displayName", HOST_FIELDS, "name"), ("rack", HOST_FIELDS, "domain-rack"),
        ("mem", VM_FIELDS, "memory"), ("vcpus", VM_FIELDS, "cpu"), ("powerState", VM_FIELDS, "status"),
        ("hostname", HOST_FIELDS, "name"), ("hostname", VM_FIELDS, "host"), ("zones", HOST_FIELDS, "zone"),
    ],
)  # fmt: skip
def test_an_unknown_field_is_no_resource_and_the_right_one_is_named(
    field: str, fields: Sequence[str], near: str
) -> None:
    with pytest.raises(Usage, match=f"did you mean '{near}'"):
        parse_column_map([f"{field}=x"], "--vm-map", fields)


def test_a_resource_is_marked_as_one() -> None:
    with pytest.raises(Usage, match="resource-gpu"):
        parse_column_map(["gpu=x"], "--host-map", HOST_FIELDS)
    assert dict(hosts("name,cpu,memory,resource-gpu\na,4,64Gi,2\n").hosts[0].capacity)["gpu"] == 2


def test_a_column_that_is_missing_is_looked_for_under_other_names() -> None:
    with pytest.raises(BadInput, match="--host-map memory=ram"):
        hosts("name,cpu,ram\na,4,64Gi\n")


def test_hosts_are_selected_as_vms_are() -> None:
    found = hosts("name,cpu,memory,kind\na,4,64Gi,kvm\nb,0,0,ironic\n", "", "kind!=ironic")
    assert [one.name for one in found.hosts] == ["a"]
    assert (found.unselected_hosts, found.rows_left_out) == ({"b"}, 1)
