"""Promises of every northbound database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from tests.conformance.claims import claims_of, until
from tests.conformance.ovn.worlds import OvnWorld, reading, worlds

from outlive.base import BadInput, Conflict, LimitExceeded, Random, Refused, Unavailable, Unknown
from outlive.network import (
    CLUSTER_ROUTER,
    DHCP,
    ID_KEY,
    LIMIT,
    NAME_KEY,
    NAMESPACE_KEY,
    NETWORK_KEY,
    OWN_CONTROLLER,
    OWN_NETWORK,
    OWNER_KEY,
    POLICIES,
    PORTS,
    ROUTER_PORTS,
    ROUTERS,
    ROUTES,
    SWITCHES,
    VM_KEY,
    Columns,
    NorthboundDb,
    Op,
    OvnFeatures,
    Receipt,
    Rows,
    Scope,
    VmKey,
    apply,
    delete,
    find,
    upsert,
)

claim = claims_of(worlds(0))

ADDRESS = "10.44.7.23"
CART = VmKey("shop", "cart")
IDS = {NAMESPACE_KEY: "shop", VM_KEY: "cart"}
DHCP_ID = "default-network-controller:VirtualMachine:shop/cart:10.44.7.0/24"
BASE = (
    upsert(ROUTERS, {"name": CLUSTER_ROUTER}, {"name": CLUSTER_ROUTER}),
    upsert(SWITCHES, {"name": "hv-a"}, {"name": "hv-a", "other_config": {"subnet": "10.44.7.0/24"}}),
    upsert(
        ROUTER_PORTS,
        {"name": "rtos-hv-a"},
        {"name": "rtos-hv-a", "mac": "0a:58:0a:2c:07:01", "networks": ["10.44.7.1/24"]},
    ),
)
ROUTE = upsert(
    ROUTES,
    {"ip_prefix": ADDRESS, "policy": "dst-ip"},
    {"ip_prefix": ADDRESS, "policy": "dst-ip", "nexthop": ADDRESS, "output_port": "rtos-hv-a", "external_ids": IDS},
)
POLICY = upsert(
    POLICIES,
    {"match": f"ip4.src == {ADDRESS}", "priority": 10},
    {
        "match": f"ip4.src == {ADDRESS}",
        "priority": 10,
        "action": "reroute",
        "nexthops": ["100.64.0.3"],
        "external_ids": IDS,
    },
)
DHCP_ROW = upsert(
    DHCP,
    {"external_ids": {ID_KEY: DHCP_ID}},
    {
        "cidr": "10.44.7.0/24",
        "options": {"lease_time": "3500", "hostname": '"cart"'},
        "external_ids": {ID_KEY: DHCP_ID, NAME_KEY: "shop/cart"},
    },
)
PORT = upsert(
    PORTS,
    {"name": "shop_cart"},
    {
        "name": "shop_cart",
        "switch": "hv-a",
        "addresses": [f"0a:58:0a:2c:07:17 {ADDRESS}"],
        "port_security": [f"0a:58:0a:2c:07:17 {ADDRESS}"],
        "options": {"requested-chassis": "hv-a", "iface-id-ver": "u1"},
        "enabled": False,
        "dhcpv4_options": DHCP_ID,
        "external_ids": IDS,
    },
)
ALL = (*BASE, ROUTE, POLICY, DHCP_ROW, PORT)


async def write(northbound: NorthboundDb, *ops: Op, scope: Scope = Scope()) -> Receipt:
    return await northbound.transact(scope, lambda _rows, _features: ops, comment="a test")


def row(rows: Rows, table: str, **columns: object) -> Columns:
    [one] = find(rows.get(table, []), [columns])
    return one


def comparable(rows: Rows) -> dict[str, list[str]]:
    def text(one: Columns) -> str:
        return json.dumps({key: sorted(x) if isinstance(x, list) else x for key, x in one.items()}, sort_keys=True)

    return {table: sorted(map(text, found)) for table, found in rows.items() if found}


@claim
async def test_rows_are_as_they_were_written(world: OvnWorld) -> None:
    northbound = await world.northbound()
    receipt = await write(northbound, *ALL)
    rows = await northbound.read_rows()
    assert receipt.ops == ALL
    assert receipt.nb_cfg > 0
    expected = {op.table: [op.patch] for op in ALL}
    assert comparable(rows) == comparable(expected)


@claim
async def test_what_is_right_already_is_not_written(world: OvnWorld) -> None:
    northbound = await world.northbound()
    first = await write(northbound, *ALL)
    again = await write(northbound, *ALL)
    assert again.ops == ()
    assert again.nb_cfg == first.nb_cfg


@claim
async def test_an_unnumbered_transaction_waits_for_nobody(world: OvnWorld) -> None:
    northbound = await world.northbound()
    receipt = await northbound.transact(Scope(), lambda _rows, _features: ALL, comment="sweep", numbered=False)
    assert receipt.ops == ALL
    assert receipt.nb_cfg == 0
    assert comparable(await northbound.read_rows())[PORTS]
    assert (await northbound.wait_applied(receipt, on=["nobody"], limit_s=1)).done


@claim
async def test_a_patch_leaves_other_columns_and_keys_alone_and_empties_what_it_names(world: OvnWorld) -> None:
    northbound = await world.northbound()
    await write(northbound, *ALL)
    await write(
        northbound,
        upsert(PORTS, {"name": "shop_cart"}, {"options": {"requested-chassis": "hv-b", "iface-id-ver": None}}),
        upsert(PORTS, {"name": "shop_cart"}, {"addresses": None, "enabled": None, "port_security": []}),
        upsert(ROUTES, {"ip_prefix": ADDRESS}, {"output_port": None}),
    )
    rows = await northbound.read_rows()
    port = row(rows, PORTS, name="shop_cart")
    assert port["options"] == {"requested-chassis": "hv-b"}
    assert port["external_ids"] == IDS
    assert not {"addresses", "enabled", "port_security"} & set(port)
    assert "output_port" not in row(rows, ROUTES, ip_prefix=ADDRESS)


@claim
async def test_duplicates_of_the_first_row_go(world: OvnWorld) -> None:
    northbound = await world.northbound()
    twice = [upsert(ROUTES, {"nexthop": hop}, {**ROUTE.patch, "nexthop": hop}) for hop in ("10.0.0.1", "10.0.0.2")]
    others = upsert(ROUTES, {"ip_prefix": "10.44.7.24"}, {"ip_prefix": "10.44.7.24", "nexthop": "10.0.0.9"})
    await write(northbound, *BASE, *twice, others)
    assert len((await northbound.read_rows())[ROUTES]) == 3
    receipt = await write(northbound, ROUTE)
    assert receipt.ops == (ROUTE,)
    rows = (await northbound.read_rows())[ROUTES]
    assert sorted(one["nexthop"] for one in rows) == ["10.0.0.9", ADDRESS]


@claim
async def test_rows_are_deleted_from_their_switch_and_router(world: OvnWorld) -> None:
    northbound = await world.northbound()
    other = upsert(PORTS, {"name": "other"}, {"name": "other", "switch": "hv-a"})
    await write(northbound, *ALL, other)
    await write(
        northbound,
        *(delete(table, {"external_ids": IDS}) for table in (ROUTES, POLICIES, PORTS)),
        delete(DHCP, {"external_ids": {NAME_KEY: "shop/cart"}}),
    )
    rows = await northbound.read_rows()
    assert not rows.get(ROUTES)
    assert not rows.get(POLICIES)
    assert not rows.get(DHCP)
    assert [one["name"] for one in rows[PORTS]] == ["other"]


@claim
async def test_a_port_loses_its_dhcp_rows_when_they_go_and_gets_new_ones_in_one_transaction(world: OvnWorld) -> None:
    northbound = await world.northbound()
    await write(northbound, *ALL)
    await write(northbound, delete(DHCP, {"external_ids": {ID_KEY: DHCP_ID}}))
    assert "dhcpv4_options" not in row(await northbound.read_rows(), PORTS, name="shop_cart")
    await write(northbound, DHCP_ROW, PORT)
    assert row(await northbound.read_rows(), PORTS, name="shop_cart")["dhcpv4_options"] == DHCP_ID
    await write(northbound, delete(DHCP, {"external_ids": {ID_KEY: DHCP_ID}}), DHCP_ROW, PORT)
    rows = await northbound.read_rows()
    assert row(rows, PORTS, name="shop_cart")["dhcpv4_options"] == DHCP_ID
    assert len(rows[DHCP]) == 1


@claim
async def test_all_or_nothing(world: OvnWorld) -> None:
    northbound = await world.northbound()
    await write(northbound, *BASE)
    nowhere = upsert(PORTS, {"name": "lost"}, {"name": "lost", "switch": "hv-nowhere"})
    with pytest.raises(Refused) as error:
        await write(northbound, ROUTE, nowhere)
    assert "hv-nowhere" in str(error.value)
    with pytest.raises(Refused):
        await write(northbound, ROUTE, upsert(PORTS, {"name": "p"}, {**PORT.patch, "name": "p"}))
    rows = await northbound.read_rows()
    assert not rows.get(ROUTES)
    assert not rows.get(PORTS)


@claim
async def test_a_port_moves_to_another_switch(world: OvnWorld) -> None:
    northbound = await world.northbound()
    await write(northbound, *ALL, upsert(SWITCHES, {"name": "hv-b"}, {"name": "hv-b"}))
    await write(northbound, upsert(PORTS, {"name": "shop_cart"}, {"switch": "hv-b"}))
    assert row(await northbound.read_rows(), PORTS, name="shop_cart")["switch"] == "hv-b"


@claim
async def test_rows_of_another_router_are_told_apart(world: OvnWorld) -> None:
    northbound = await world.northbound()
    mine = upsert(
        ROUTES,
        {"ip_prefix": "0.0.0.0/0", "router": "GR_hv-a"},
        {"ip_prefix": "0.0.0.0/0", "router": "GR_hv-a", "nexthop": "1.2.3.4"},
    )
    await write(northbound, *BASE, ROUTE, upsert(ROUTERS, {"name": "GR_hv-a"}, {"name": "GR_hv-a"}), mine)
    rows = (await northbound.read_rows())[ROUTES]
    assert sorted(one.get("router", "") for one in rows) == ["", "GR_hv-a"]


@claim
async def test_a_scope_has_the_rows_that_name_it_and_no_others(world: OvnWorld) -> None:
    northbound = await world.northbound()
    others = [
        upsert(ROUTES, {"ip_prefix": text}, {"ip_prefix": text, "nexthop": "10.0.0.9"})
        for text in ("10.44.7.24", "10.44.8.1", "10.44.7.0/25", "0.0.0.0/0", "fd44::17/128")
    ]
    await write(northbound, *ALL, *others, upsert(PORTS, {"name": "other"}, {"name": "other", "switch": "hv-a"}))

    async def prefixes(*addresses: str) -> list[str]:
        rows = await northbound.read_rows(Scope(addresses=addresses))
        return sorted(one["ip_prefix"] for one in rows.get(ROUTES, []))

    rows = await northbound.read_rows(Scope(vms=(CART,)))
    assert {table: len(found) for table, found in rows.items()} == {ROUTES: 1, POLICIES: 1, DHCP: 1, PORTS: 1}
    assert await northbound.read_rows(Scope(ports=("other", "none"))) == {PORTS: [{"name": "other", "switch": "hv-a"}]}
    assert set(await northbound.read_rows(Scope(addresses=(ADDRESS,)))) == {ROUTES, POLICIES}
    assert await prefixes("10.44.7.0/24") == ["10.44.7.0/25", ADDRESS, "10.44.7.24"]
    assert await prefixes("fd44::17") == ["fd44::17/128"]
    assert await prefixes("10.44.7.2") == []
    names = await northbound.read_rows(Scope(names=("hv-a", "rtos-hv-a", CLUSTER_ROUTER)))
    assert {table: len(found) for table, found in names.items()} == {SWITCHES: 1, ROUTERS: 1, ROUTER_PORTS: 1}
    assert await northbound.read_rows(Scope(vms=(VmKey("shop", "none"),))) == {}


@claim
async def test_rows_that_were_given_out_are_copies(world: OvnWorld) -> None:
    northbound = await world.northbound()
    await write(northbound, *ALL)
    before = await northbound.read_rows()
    await write(northbound, upsert(PORTS, {"name": "shop_cart"}, {"options": {"requested-chassis": "hv-b"}}))
    assert row(before, PORTS, name="shop_cart")["options"]["requested-chassis"] == "hv-a"


@claim
async def test_two_controllers_that_write_one_row_each_see_what_the_other_wrote(world: OvnWorld) -> None:
    one, other = await world.northbound(), await world.northbound()
    await write(one, *ALL)
    await other.read_rows()  # then it has them

    async def count(northbound: NorthboundDb, times: int) -> None:
        for _ in range(times):
            await northbound.transact(Scope(ports=("shop_cart",)), increment, comment="count")

    def increment(rows: Rows, _: OvnFeatures) -> Sequence[Op]:
        options = row(rows, PORTS, name="shop_cart").get("options", {})
        number = int(options.get("count", "0")) + 1
        return [upsert(PORTS, {"name": "shop_cart"}, {"options": {"count": str(number)}})]

    async def patiently(northbound: NorthboundDb) -> None:
        done = 0
        while done < 20:
            try:
                await count(northbound, 1)
                done += 1
            except Conflict:
                await asyncio.sleep(0.01)

    await asyncio.gather(patiently(one), patiently(other))
    assert row(await one.read_rows(), PORTS, name="shop_cart")["options"]["count"] == "40"


@claim
async def test_a_row_that_somebody_marks_meanwhile_is_not_deleted_by_who_looks_for_the_mark(world: OvnWorld) -> None:
    one, other = await world.northbound(), await world.northbound()
    await write(one, *BASE)

    def sweep(rows: Rows, _: OvnFeatures) -> Sequence[Op]:
        found = [row for row in rows.get(PORTS, []) if "mark" not in row["external_ids"]]
        return [delete(PORTS, {"name": row["name"], "external_ids": {"owner": "me"}}) for row in found]

    def mark(rows: Rows, _: OvnFeatures) -> Sequence[Op]:
        return [upsert(PORTS, {"name": row["name"]}, {"external_ids": {"mark": "3"}}) for row in rows.get(PORTS, [])]

    for number in range(20):
        name = f"port-{number}"
        await write(
            one, upsert(PORTS, {"name": name}, {"name": name, "switch": "hv-a", "external_ids": {"owner": "me"}})
        )
        _, marked = await asyncio.gather(
            one.transact(Scope(ports=(name,)), sweep, comment="sweep"),
            other.transact(Scope(ports=(name,)), mark, comment="mark"),
        )
        kept = (await one.read_rows(Scope(ports=(name,)))).get(PORTS, [])
        assert bool(kept) == bool(marked.ops)


@claim
async def test_ports_go_with_their_switch_and_a_scope_of_its_network_has_them(world: OvnWorld) -> None:
    northbound = await world.northbound()
    green, blue = (
        upsert(SWITCHES, {"name": name}, {"name": name, "external_ids": {NETWORK_KEY: name}})
        for name in ("green", "blue")
    )
    ports = [
        upsert(PORTS, {"name": f"port-{name}"}, {"name": f"port-{name}", "switch": name, "external_ids": IDS})
        for name in ("green", "blue")
    ]
    await write(northbound, *BASE, green, blue, *ports)
    rows = await northbound.read_rows(Scope(networks=("green",)))
    assert {table: [one["name"] for one in found] for table, found in rows.items()} == {
        ROUTERS: [CLUSTER_ROUTER],
        SWITCHES: ["green"],
        PORTS: ["port-green"],
    }
    await write(northbound, delete(SWITCHES, {"name": "green"}))
    assert [one["name"] for one in (await northbound.read_rows())[PORTS]] == ["port-blue"]


@claim
async def test_a_switch_that_gets_a_port_meanwhile_is_not_deleted_by_who_looks_for_ports(world: OvnWorld) -> None:
    one, other = await world.northbound(), await world.northbound()

    def sweep(rows: Rows, _: OvnFeatures) -> Sequence[Op]:
        return [] if rows.get(PORTS) else [delete(SWITCHES, {"name": "green"})]

    for _ in range(20):
        await write(one, upsert(SWITCHES, {"name": "green"}, {"name": "green", "external_ids": {NETWORK_KEY: "green"}}))
        await other.read_rows()
        port = upsert(PORTS, {"name": "cart"}, {"name": "cart", "switch": "green"})
        _, made = await asyncio.gather(
            one.transact(Scope(networks=("green",)), sweep, comment="sweep"), write(other, port), return_exceptions=True
        )
        await asyncio.sleep(world.settle_s)
        left = [found["name"] for found in (await one.read_rows()).get(PORTS, [])]
        assert left == ([] if isinstance(made, Refused) else ["cart"])
        await write(one, delete(PORTS, {"name": "cart"}))


@claim
async def test_two_controllers_that_make_one_row_make_it_once(world: OvnWorld) -> None:
    one, other = await world.northbound(), await world.northbound()
    await write(one, *BASE)
    await other.read_rows()
    for number in range(10):
        address = f"10.9.0.{number}"
        ops = [
            upsert(ROUTES, {"ip_prefix": address}, {"ip_prefix": address, "nexthop": address}),
            upsert(PORTS, {"name": address}, {"name": address, "switch": "hv-a"}),
            upsert(
                DHCP, {"external_ids": {ID_KEY: address}}, {"cidr": "10.9.0.0/24", "external_ids": {ID_KEY: address}}
            ),
        ]
        await asyncio.gather(write(one, *ops), write(other, *ops))
    await asyncio.sleep(world.settle_s)
    for northbound in (one, other):
        rows = await northbound.read_rows()
        assert [len(rows[table]) for table in (ROUTES, PORTS, DHCP)] == [10, 10, 10]


@claim
async def test_an_upsert_of_a_row_without_a_key_finds_only_rows_without_it(world: OvnWorld) -> None:
    northbound = await world.northbound()
    own = {NAMESPACE_KEY: "shop", VM_KEY: None}
    foreign = upsert(ROUTES, {"ip_prefix": ADDRESS}, {"ip_prefix": ADDRESS, "nexthop": "10.0.0.1", "external_ids": IDS})
    await write(northbound, *BASE, foreign)
    await write(
        northbound,
        upsert(
            ROUTES,
            {"ip_prefix": ADDRESS, "external_ids": own},
            {"ip_prefix": ADDRESS, "nexthop": "10.0.0.2", "external_ids": {NAMESPACE_KEY: "shop"}},
        ),
    )
    rows = (await northbound.read_rows())[ROUTES]
    assert sorted(one["nexthop"] for one in rows) == ["10.0.0.1", "10.0.0.2"]


@claim
async def test_changes_of_others_are_told_by_name_and_own_ones_are_not(world: OvnWorld) -> None:
    one, other = await world.northbound(), await world.northbound()
    await write(one, *BASE)
    await other.read_rows()
    await asyncio.sleep(world.settle_s)
    async with reading(one.watch_changes()) as mine, reading(other.watch_changes()) as theirs:
        await write(one, ROUTE, POLICY, DHCP_ROW, PORT)
        await until(lambda: frozenset().union(*theirs) >= {"shop_cart", "shop/cart"}, "others are told")
        await asyncio.sleep(world.settle_s)
        assert not mine
        assert frozenset().union(*theirs) == {"shop_cart", "shop/cart"}
        assert all(theirs)
        theirs.clear()
        await write(other, upsert(PORTS, {"name": "shop_cart"}, {"enabled": True}))
        await until(lambda: frozenset().union(*mine) >= {"shop_cart", "shop/cart"}, "the first one is told")
        await asyncio.sleep(world.settle_s)
        assert frozenset().union(*mine) == {"shop_cart", "shop/cart"}
        assert not theirs


@claim
async def test_changes_of_parts_of_our_own_networks_are_told_by_network(world: OvnWorld) -> None:
    one, other = await world.northbound(), await world.northbound()
    ours = {"external_ids": {OWNER_KEY: OWN_CONTROLLER, NETWORK_KEY: "green"}}
    theirs = {"external_ids": {OWNER_KEY: "blue-network-controller", NETWORK_KEY: "blue"}}
    port = {"name": "stor", "switch": "sw", "type": "router", "options": {"router-port": "rtos"}}
    await write(
        one,
        upsert(ROUTERS, {"name": CLUSTER_ROUTER}, {"name": CLUSTER_ROUTER}),
        upsert(SWITCHES, {"name": "sw"}, {"name": "sw", **ours}),
        upsert(SWITCHES, {"name": "blue"}, {"name": "blue", **theirs}),
        upsert(ROUTER_PORTS, {"name": "rtos"}, {"name": "rtos", "mac": "0a:58:0a:2c:07:01", **ours}),
        upsert(PORTS, {"name": "stor"}, {**port, **ours}),
    )
    await other.read_rows()
    await asyncio.sleep(world.settle_s)
    async with reading(one.watch_changes()) as batches:
        for table, name in ((PORTS, "stor"), (ROUTER_PORTS, "rtos"), (SWITCHES, "sw")):
            await write(other, delete(table, {"name": name}))
            told = {name, f"{OWN_NETWORK}green"}
            await until(lambda told=told: frozenset().union(*batches) >= told, f"{name} is told")
            await asyncio.sleep(world.settle_s)
            assert frozenset().union(*batches) == told
            batches.clear()
        await write(other, delete(SWITCHES, {"name": "blue"}))
        await until(lambda: batches, "blue is told")
        await asyncio.sleep(world.settle_s)
        assert frozenset().union(*batches) == {"blue"}


@claim
async def test_it_says_when_the_database_is_away_and_goes_on_when_it_is_there_again(world: OvnWorld) -> None:
    northbound = await world.northbound()
    await write(northbound, *ALL)
    async with reading(northbound.watch_changes()) as batches:
        await world.stop_northbound()
        await until(northbound.explain_unhealthy, "it says that the database is away")
        call = asyncio.create_task(write(northbound, upsert(PORTS, {"name": "shop_cart"}, {"enabled": True})))
        await asyncio.sleep(world.settle_s)
        await world.start_northbound()
        try:
            await call
        except (Unavailable, Unknown):
            await write(northbound, upsert(PORTS, {"name": "shop_cart"}, {"enabled": True}))
        await until(lambda: frozenset() in batches, "all is told")
    assert northbound.explain_unhealthy() == ""
    assert row(await northbound.read_rows(), PORTS, name="shop_cart")["enabled"] is True


def random_ops(random: Random) -> list[Op]:
    """Operations on few names, so that they meet; patches are whole rows, so that it does not matter which is first."""
    ops: list[Op] = []
    for _ in range(random.randint(1, 6)):
        number, other = random.randint(0, 3), str(random.randint(0, 2))
        name, ids = f"p{number}", {NAMESPACE_KEY: "shop", VM_KEY: f"vm{number % 2}", "k": other}
        id = {"external_ids": {ID_KEY: f"d{number}"}}
        kind = random.randrange(8)
        if kind == 0:
            ops.append(upsert(DHCP, id, {**id, "cidr": f"10.{other}.0.0/24", "options": {"mtu": other, "old": None}}))
        elif kind == 1:
            options = {"requested-chassis": other, "x": random.choice([None, "1"])}
            columns = {"switch": f"hv-{other}", "addresses": [other, "b"], "options": options, "external_ids": ids}
            ops.append(upsert(PORTS, {"name": name}, {"name": name, **columns}))
        elif kind == 2:
            patch = {"enabled": random.choice([True, False, None]), "addresses": random.choice([None, [], ["z", "a"]])}
            ops.append(upsert(PORTS, {"name": name}, {"name": name, "switch": "hv-0", **patch}))
        elif kind == 3:
            ops.append(delete(random.choice([PORTS, ROUTES]), {"external_ids": {VM_KEY: f"vm{number % 2}"}}))
        elif kind == 4:
            where = [{"ip_prefix": name, "policy": "dst-ip"}, {"external_ids": {"k": other}}]
            hop = {"output_port": random.choice([None, "rtos"]), "options": None}
            ops.append(
                upsert(
                    ROUTES, where, {"ip_prefix": name, "policy": "dst-ip", "nexthop": other, "external_ids": ids, **hop}
                )
            )
        elif kind == 5:
            ops.append(
                upsert(
                    ROUTES, {"nexthop": f"n{number}"}, {"ip_prefix": "p0", "nexthop": f"n{number}", "policy": "dst-ip"}
                )
            )
        elif kind == 6:
            ops.append(delete(DHCP, id))
        else:
            ops += [upsert(DHCP, id, {**id, "cidr": "10.0.0.0/24"})]
            patch = {"name": name, "switch": "hv-0", "dhcpv4_options": f"d{number}", "dhcpv6_options": None}
            ops += [upsert(PORTS, {"name": name}, patch)]
    return ops


@claim
async def test_random_operations_make_of_rows_what_apply_says(world: OvnWorld) -> None:
    northbound, random = await world.northbound(), Random(33)
    switches = [upsert(SWITCHES, {"name": f"hv-{number}"}, {"name": f"hv-{number}"}) for number in range(3)]
    await write(northbound, *BASE, *switches)
    expected = await northbound.read_rows()
    for number in range(150):
        ops = random_ops(random)
        await write(northbound, *ops)
        expected = apply(expected, ops)
        assert comparable(await northbound.read_rows()) == comparable(expected), (number, ops)


@claim
async def test_too_many_operations_are_refused(world: OvnWorld) -> None:
    northbound = await world.northbound()
    names = [f"p{number}" for number in range(LIMIT + 1)]
    ops = [upsert(PORTS, {"name": name}, {"name": name, "switch": "hv-a"}) for name in names]
    await write(northbound, *BASE)
    with pytest.raises(LimitExceeded):
        await write(northbound, *ops)
    await write(northbound, *ops[:LIMIT])
    assert len((await northbound.read_rows())[PORTS]) == LIMIT


@claim
async def test_an_error_of_the_plan_is_the_callers(world: OvnWorld) -> None:
    northbound = await world.northbound()

    def plan(_rows: Rows, _features: OvnFeatures) -> Sequence[Op]:
        raise BadInput("a plan of its own")

    with pytest.raises(BadInput, match="of its own"):
        await northbound.transact(Scope(), plan, comment="a test")
    await write(northbound, *BASE)


@claim
async def test_the_features_are_those_of_northd(world: OvnWorld) -> None:
    northbound = await world.northbound()
    found: list[OvnFeatures] = []

    def plan(_rows: Rows, features: OvnFeatures) -> Sequence[Op]:
        found.append(features)
        return ()

    async def says_its_version() -> str:
        await northbound.transact(Scope(), plan, comment="a test")
        return found[-1].version

    await until(says_its_version, "northd has written down its version")
    assert found[-1].chassis_list
    assert "rarp" in found[-1].strategies
    assert northbound.read_features() == found[-1]
