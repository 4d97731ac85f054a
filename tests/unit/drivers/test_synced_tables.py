"""Whatever a row holds, it is read or left out; it never ends the reading of the others."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.drivers import RAM_MIB_MOST, VCPUS_MOST, flavor_row, parse_rows, server_row
from outlive.placement import join_rows

SERVER = {
    "id": "v", "name": "n", "status": "ACTIVE", "tenant_id": "p", "os_ext_srv_attr_host": "h",
    "os_ext_az_availability_zone": "z", "created": "2026-01-01", "flavor_name": "f", "os_type": "",
}  # fmt: skip
FLAVOR = {"name": "f", "vcpus": 1, "ram": 1024, "disk": 1, "extra_specs": "{}"}


def servers(**columns: Any) -> tuple[tuple[Any, ...], int]:
    return parse_rows([{**SERVER, **columns}, {**SERVER, "id": "ok"}], server_row)


def flavors(**columns: Any) -> tuple[tuple[Any, ...], int]:
    return parse_rows([{**FLAVOR, **columns}, {**FLAVOR, "name": "ok"}], flavor_row)


@pytest.mark.parametrize(
    "columns",
    [
        {"id": None}, {"id": ""}, {"id": b"\xff"}, {"id": 1.5}, {"os_ext_srv_attr_host": b"\xff"},
        {"os_ext_srv_attr_host": "h\udcff"}, {"flavor_name": 7.5}, {"tenant_id": object()}, {"id": True},
    ],
)  # fmt: skip
def test_a_server_whose_place_cannot_be_read_is_left_out_alone(columns: dict[str, Any]) -> None:
    rows, unreadable = servers(**columns)
    assert ([row.id for row in rows], unreadable) == (["ok"], 1)


@pytest.mark.parametrize(
    "columns",
    [
        {"vcpus": float("inf")}, {"vcpus": float("nan")}, {"vcpus": -3}, {"vcpus": VCPUS_MOST + 1}, {"vcpus": 1.5},
        {"vcpus": "many"}, {"vcpus": b"\xff"}, {"vcpus": [1]}, {"ram": 2**50}, {"ram": RAM_MIB_MOST + 1},
        {"ram": Decimal("NaN")}, {"ram": "9" * 5000}, {"name": None}, {"name": b"\xff"},
    ],
)  # fmt: skip
def test_a_flavor_whose_size_cannot_be_read_is_left_out_alone(columns: dict[str, Any]) -> None:
    rows, unreadable = flavors(**columns)
    assert ([row.name for row in rows], unreadable) == (["ok"], 1)


def test_what_is_plain_in_another_type_is_read() -> None:
    (row, _), unreadable = servers(id=12, os_ext_srv_attr_host=b"h1", flavor_name=7, tenant_id=memoryview(b"p"))
    assert (row.id, row.host, row.flavor_name, row.project_id, unreadable) == ("12", "h1", "7", "p", 0)
    (size, _), _ = flavors(vcpus=2.0, ram=Decimal(512), disk="9", name=7)
    assert (size.name, size.vcpus, size.ram_mib, size.disk_gib) == ("7", 2, 512, 9)


def test_a_column_that_is_only_shown_costs_no_vm_its_place() -> None:
    (row, _), unreadable = servers(name=b"\xff", created=1.5, status="\udcff", os_type=object())
    assert unreadable == 0
    assert row.name == "\ufffd"
    (size, _), _ = flavors(disk=float("inf"))
    assert size.disk_gib == 0


@pytest.mark.parametrize(
    ("specs", "found", "malformed"),
    [
        (b'{"a": "b"}', {"a": "b"}, ()), ({"a": "b"}, {"a": "b"}, ()), (5, {}, ("f",)), (b"\xff", {}, ("f",)),
        ("[" * 100_000, {}, ("f",)), ('{"a": "\\ud800"}', {}, ("f",)), (object(), {}, ("f",)), (None, {}, ()),
    ],
)  # fmt: skip
def test_extra_specs_of_any_type_are_a_map_or_malformed(
    specs: Any, found: dict[str, str], malformed: tuple[str]
) -> None:
    listing = join_rows([server_row(SERVER)], [flavor_row({**FLAVOR, "extra_specs": specs})])
    assert (listing.vms[0].extra_specs, listing.malformed_extra_specs) == (found, malformed)


_ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=8)
    | st.decimals() | st.lists(st.integers(), max_size=2) | st.dictionaries(st.text(max_size=3), st.text(max_size=3))
)  # fmt: skip


@pytest.mark.slow
@given(st.data())
def test_no_row_whatever_it_holds_stops_the_listing(data: st.DataObject) -> None:
    server = {key: data.draw(_ANYTHING) for key in SERVER}
    flavor = {key: data.draw(_ANYTHING) for key in FLAVOR}
    rows, _ = parse_rows([server, {**SERVER, "id": "the one"}], server_row)
    sizes, _ = parse_rows([flavor, {**FLAVOR, "name": "f"}], flavor_row)
    assert "the one" in {vm.id for vm in join_rows(rows, sizes).vms}
