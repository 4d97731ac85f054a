"""Rows of VMs that are gone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.network.builders import decide
from tests.unit.network.rows import (
    DHCP,
    LOCAL,
    POLICIES,
    PORTS,
    REMOTE,
    ROUTES,
    Row,
    as_sets,
    catch_alls,
    dhcp_id,
    dhcp_rows,
    local_routes,
    policies,
    port,
    remote_routes,
)

DEFAULT, OTHER = "default-network-controller", "green-network-controller"
NAMED = {"k8s.ovn.org/name": "shop/cart", "k8s.ovn.org/zone": "local"}
OWNER = "k8s.ovn.org/owner-controller"


@pytest.mark.parametrize(
    ("ids", "vms", "controller", "deleted"),
    [
        # no zone key, or no VM in the keys
        ({}, {}, DEFAULT, False),
        ({"k8s.ovn.org/name": "shop/cart"}, {}, DEFAULT, False),
        ({"k8s.ovn.org/zone": "local"}, {}, DEFAULT, False),
        ({"k8s.ovn.org/zone": "local", "k8s.ovn.org/name": "cart"}, {}, DEFAULT, False),
        ({"k8s.ovn.org/zone": "local", "k8s.ovn.org/vm": "cart"}, {}, DEFAULT, False),
        # the owner
        (NAMED, {}, DEFAULT, True),
        (NAMED, {}, OTHER, False),
        ({**NAMED, OWNER: DEFAULT}, {}, DEFAULT, True),
        ({**NAMED, OWNER: OTHER}, {}, DEFAULT, False),
        ({**NAMED, OWNER: OTHER}, {}, OTHER, True),
        # the VM
        (LOCAL, {}, DEFAULT, True),
        (LOCAL, {"shop/cart": True}, DEFAULT, False),
        (LOCAL, {"shop/cart": False}, DEFAULT, False),
        (REMOTE, {"shop/cart": True}, DEFAULT, True),
        (REMOTE, {"shop/cart": False}, DEFAULT, False),
        (REMOTE, {"shop/till": False}, DEFAULT, True),
        ({**LOCAL, "k8s.ovn.org/name": "shop/till"}, {"shop/cart": True}, DEFAULT, True),
        ({**LOCAL, "k8s.ovn.org/name": "a/b/c"}, {"shop/cart": True}, DEFAULT, False),
    ],
)
def test_a_row_is_an_orphan_if_its_vm_is_gone_or_local_and_the_row_is_not(
    ids: Row, vms: Row, controller: str, deleted: bool
) -> None:
    given = {"external_ids": ids, "vms": vms, "controller": controller}
    assert decide("orphan", given) == {"delete": deleted}
    rows = {ROUTES: [{"ip_prefix": "10.44.7.23", "nexthop": "10.44.7.23", "external_ids": ids}]}
    assert (decide("sweep", {"vms": vms, "controller": controller, "rows": rows})["rows"][ROUTES] == []) is deleted


def sweep(rows: dict[str, list[Row]], **changes: Any) -> Any:
    """The answer of the default controller to these rows, for no VMs unless given."""
    answer = decide("sweep", {"controller": DEFAULT, "vms": {}, "rows": rows} | changes)
    assert decide("sweep", {"controller": DEFAULT, "vms": {}, "rows": answer["rows"]} | changes)["ops"] == []
    return answer


def test_the_sweep_deletes_routes_policies_and_dhcp_rows_and_clears_what_ports_refer_to() -> None:
    rows = {
        ROUTES: local_routes("hv-b", "dual") + catch_alls("hv-b", "dual"),
        POLICIES: policies("hv-b", "dual"),
        DHCP: dhcp_rows("dual"),
        PORTS: [port(1, "hv-a")],
    }
    after = sweep(rows)["rows"]
    assert as_sets(after) == as_sets({ROUTES: catch_alls("hv-b", "dual"), PORTS: [port(1, "hv-a", dhcp=False)]})
    assert as_sets(sweep(rows, vms={"shop/cart": True})["rows"]) == as_sets(rows)


def test_a_row_of_another_owner_that_looks_alike_stays() -> None:
    mine = remote_routes("hv-b", "IPv4")[0]
    theirs = {**mine, "external_ids": {**mine["external_ids"], OWNER: OTHER}}
    unzoned = {**mine, "external_ids": {key: one for key, one in mine["external_ids"].items() if "zone" not in key}}
    elsewhere = {**mine, "router": "another"}
    rows = {ROUTES: [theirs, mine, unzoned, elsewhere]}
    assert sweep(rows)["rows"][ROUTES] == [theirs, unzoned, elsewhere]


def test_thousands_of_orphans_are_one_operation_for_each_table() -> None:
    rows = {
        ROUTES: [
            {"ip_prefix": str(number), "external_ids": {**LOCAL, "k8s.ovn.org/vm": f"vm-{number}"}}
            for number in range(5000)
        ],
        DHCP: [{"cidr": "x", "external_ids": {**NAMED, "k8s.ovn.org/id": dhcp_id("x")}}],
    }
    answer = sweep(rows, vms={"shop/vm-7": True})
    assert [row["ip_prefix"] for row in answer["rows"][ROUTES]] == ["7"]
    assert [op["table"] for op in answer["ops"]] == [ROUTES, DHCP]


@pytest.mark.parametrize("name", ["orphan", "sweep"])
def test_a_caller_that_deletes_says_for_which_controller(name: str) -> None:
    assert decide(name, {"vms": {}, "rows": {}}) == {"error": "invalid"}
