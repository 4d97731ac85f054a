"""Nova's lists by its API, from recorded answers of a real one: whole, or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from email.utils import formatdate
from typing import Any

import pytest
from aiohttp import web
from tests.support import http_service
from tests.support.http_service import Answerer
from tests.support.nova import RECORDED, VERSION, Nova
from tests.support.openstack import session, settings

from outlive.base import Forbidden, OutliveError, SystemClock, Unavailable
from outlive.drivers.openstack import NovaClient, NovaInventory, NovaVms
from outlive.inventory import Reading
from outlive.resources import Aggregate, Amounts

pytestmark = pytest.mark.real_loop

GIB = 2**30
SINCE = datetime.fromisoformat(RECORDED["since"].replace("Z", "+00:00")).timestamp()


@asynccontextmanager
async def client(nova: Nova, **given: Any) -> AsyncIterator[NovaClient]:
    async with nova.serving() as url, session({"compute": f"{url}{VERSION}"}, **given) as opened:
        yield NovaClient(opened, settings(**given), SystemClock())


@asynccontextmanager
async def source(nova: Nova, **given: Any) -> AsyncIterator[NovaInventory]:
    async with client(nova, **given) as opened:
        yield NovaInventory(opened, settings(**given), SystemClock())


async def test_a_list_is_read_page_by_page_whatever_nova_allows() -> None:
    nova = Nova()
    nova.page_limit = 3
    async with client(nova) as opened:
        servers, as_of = await opened.list_servers()
        assert [one["id"] for one in servers] == [one["id"] for one in RECORDED["before"]["servers"]]
        assert as_of == SINCE
        assert len(await opened.list_hypervisors()) == 3
        assert len(await opened.list_flavors()) == 4
    assert len([one for one in nova.requests if one.path.endswith("/servers/detail")]) == 3


async def test_changes_are_asked_for_since_a_moment_in_utc() -> None:
    nova = Nova()
    nova.change()
    async with client(nova) as opened:
        changed, _ = await opened.list_servers(since=SINCE)
    assert {one["name"]: one["status"] for one in changed} == {
        one["name"]: one["status"] for one in RECORDED["changes"]
    }
    assert nova.requests[0].query["changes-since"] == RECORDED["since"]


FAULTS = {
    "it is down": http_service.status(503, "no"),
    "a proxy answers": http_service.body(b"<html>Bad gateway</html>"),
    "it says nothing": http_service.body(b""),
    "it says null": http_service.body(b"null"),
    "it has another list": http_service.body(b'{"servers": {"a": 1}}'),
    "its list has no objects": http_service.body(b'{"servers": ["a"]}'),
    "its page is cut off": http_service.body(b'{"servers": [{"id": "a", "na'),
    "its next page has no marker": http_service.body(b'{"servers": [], "servers_links": [{"rel": "next"}]}'),
    "its pages go round": http_service.body(
        b'{"servers": [{"id": "a"}], "servers_links": [{"rel": "next", "href": "/?marker=a"}]}'
    ),
    "it is too old": http_service.status(406),
    "it does not answer": http_service.never,
    "its answer drips": http_service.drips,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_what_is_no_whole_list_is_no_list(fault: Answerer) -> None:
    nova = Nova()
    nova.fault = fault
    async with client(nova, request_limit=0.5) as opened:
        with pytest.raises(Unavailable) as error:
            await opened.list_servers()
    assert "token-" not in str(error.value)


async def test_an_answer_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    nova = Nova()
    nova.fault = http_service.forever
    async with session({"compute": ""}) as opened, nova.serving() as url:
        with pytest.raises(Unavailable, match="larger than 1000000 bytes"):
            await opened.get(url, limit_bytes=1_000_000)


async def test_a_token_that_is_refused_is_replaced_once() -> None:
    nova = Nova()
    tokens: list[str] = []

    async def refuse_the_first(request: Any) -> Any:
        tokens.append(request.headers["X-Auth-Token"])
        return await (http_service.status(401)(request) if tokens[-1] == "token-1" else nova.answer(request))

    nova.fault = refuse_the_first
    async with client(nova) as opened:
        await opened.list_servers()
        assert tokens == ["token-1", "token-2"]
        nova.fault = http_service.status(401)
        with pytest.raises(Forbidden):
            await opened.list_servers()


async def test_a_redirect_does_not_get_our_token() -> None:
    thief = Nova()
    nova = Nova()
    async with thief.serving() as elsewhere, client(nova) as opened:

        async def redirect(_: Any) -> Any:
            from aiohttp import web

            return web.Response(status=302, headers={"Location": f"{elsewhere}{VERSION}/servers/detail"})

        nova.fault = redirect
        with pytest.raises(OutliveError):
            await opened.list_servers()
    assert thief.requests == []


async def test_a_server_is_gone_only_if_nova_says_so_of_that_server() -> None:
    nova = Nova()
    hidden, there = nova.server("db-1")["id"], nova.server("db-2")["id"]
    async with client(nova) as opened:
        assert await opened.find_deleted([there, "11111111-0000-4000-8000-000000000000"]) == {
            "11111111-0000-4000-8000-000000000000"
        }
        nova.hidden.add(hidden)
        assert await opened.find_deleted([hidden]) == frozenset()
        nova.fault = http_service.status(404, "<html>not found</html>")
        assert await opened.find_deleted([there]) == frozenset()


def hosts(reading: Reading) -> dict[str, Any]:
    return {host.name: host for host in reading.inventory.hosts}


def vms(reading: Reading) -> dict[str, Any]:
    return {vm.name: vm for vm in reading.inventory.vms}


async def test_a_first_reading_has_everything_that_nova_knows() -> None:
    async with source(Nova()) as nova:
        reading = await nova.read()
    assert reading.full
    assert reading.inventory.problems.total == 0
    found = hosts(reading)
    assert {name: host.zone for name, host in found.items()} == {"h1": "zone-a", "h2": "zone-a", "h3": "zone-b"}
    assert found["h1"].capacity == Amounts(cpu=32_000, memory=128 * GIB)
    assert (
        Aggregate(name="fast", uuid=found["h1"].aggregates[1].uuid, metadata={"ssd": "true"}) in found["h1"].aggregates
    )
    assert (found["h1"].disabled, found["h2"].disabled) == ("", "a fan is to be replaced")
    servers = vms(reading)
    assert len(servers) == 8
    assert servers["web-1"].host != servers["web-2"].host
    assert servers["web-1"].server_group_policy == "anti-affinity"
    assert (servers["big-1"].host, servers["big-1"].phase) == ("", "ERROR")
    assert (servers["app-2"].phase, servers["db-1"].flavor) == ("SHUTOFF", "s4_c2_m4")
    flavors = {flavor.name: flavor for flavor in reading.inventory.flavors}
    assert flavors["s4_c64_m512"].extra_specs == {"quota:hw_version": "s4"}


async def test_later_readings_have_what_has_changed() -> None:
    nova = Nova()
    old = nova.server("old-1")["id"]
    async with source(nova) as opened:
        await opened.read()
        nothing = await opened.read()
        assert not nothing.full
        assert (nothing.inventory.hosts, nothing.inventory.vms, nothing.deleted) == ([], [], frozenset())
        nova.change()
        reading = await opened.read()
    assert not reading.full
    # Nova says of web-1 as well that its host is in service again
    assert sorted(vms(reading)) == ["app-2", "db-1", "new-1", "web-1"]
    assert reading.deleted == {old}
    # hosts that a server came to or left, and h2 also because it is in service again
    assert {name: host.disabled for name, host in hosts(reading).items()} == {"h1": "", "h2": "", "h3": ""}
    after = {one["service"]["host"]: one["memory_mb_used"] * 2**20 for one in RECORDED["after"]["hypervisors"]}
    assert {name: host.used.memory_bytes for name, host in hosts(reading).items()} == after
    assert reading.inventory.flavors == []


async def test_a_flavor_and_a_host_that_a_changed_server_names_are_read_with_it() -> None:
    nova = Nova()
    async with source(nova) as opened:
        await opened.read()
        server = {**nova.server("db-1"), "id": "aaaaaaaa-0000-4000-8000-000000000001", "name": "db-9"}
        server["OS-EXT-SRV-ATTR:host"] = "h4"
        server["flavor"] = {**server["flavor"], "original_name": "fresh"}
        nova.lists["servers"].append({**server, "updated": RECORDED["since"]})
        hypervisor = {**nova.lists["hypervisors"][0], "id": "h4", "hypervisor_hostname": "h4.example.org"}
        nova.lists["hypervisors"].append({**hypervisor, "service": {**hypervisor["service"], "host": "h4"}})
        nova.lists["flavors"].append({**nova.lists["flavors"][0], "id": "f9", "name": "fresh"})
        reading = await opened.read()
    assert vms(reading)["db-9"].host == "h4"
    assert "h4" in hosts(reading)
    assert "fresh" in {flavor.name for flavor in reading.inventory.flavors}


async def test_groups_that_our_user_may_not_list_are_not_known() -> None:
    nova = Nova()
    nova.forbidden.add("os-server-groups")
    async with source(nova) as opened:
        assert vms(await opened.read())["web-1"].server_group is None
        nova.forbidden.add("os-hypervisors/detail")
        opened.forget()
        with pytest.raises(Forbidden) as error:
            await opened.read()
    assert "openstack.md#rights" in error.value.remedy


async def test_a_reading_that_fails_midway_changes_nothing_of_the_next() -> None:
    nova = Nova()
    async with source(nova) as opened:
        await opened.read()
        nova.change()
        nova.forbidden.add("os-services")
        with pytest.raises(Forbidden):
            await opened.read()
        nova.forbidden.clear()
        assert sorted(vms(await opened.read())) == ["app-2", "db-1", "new-1", "web-1"]


async def test_a_record_that_is_wrong_is_a_problem_of_its_own() -> None:
    nova = Nova()
    nova.server("db-1")["flavor"] = None
    nova.lists["hypervisors"][0]["vcpus"] = "many"
    async with source(nova) as opened:
        reading = await opened.read()
    assert len(reading.inventory.hosts) == 2
    assert reading.inventory.problems.total >= 1
    assert len(reading.inventory.vms) == 8


async def test_what_a_hypervisor_says_of_its_processor_may_be_no_json() -> None:
    nova = Nova()
    nova.lists["hypervisors"][0]["cpu_info"] = "{'arch': 'x86_64'}"
    async with source(nova) as opened:
        reading = await opened.read()
    assert len(reading.inventory.hosts) == 3
    assert [host.cpu_arch for host in hosts(reading).values()].count(None) == 1


async def test_a_server_without_an_id_makes_the_whole_list_nonsense() -> None:
    nova = Nova()
    nova.server("db-1")["id"] = None
    async with source(nova) as opened:
        with pytest.raises(Unavailable, match="without an id"):
            await opened.read()


async def test_vms_come_straight_from_nova_and_follow_what_changes_there() -> None:
    nova = Nova()
    async with client(nova, poll_interval=0.000001) as opened:
        vms_of = NovaVms(opened, settings(poll_interval=0.000001), SystemClock())
        first = await vms_of.list_vms()
        by_name = {vm.name: vm for vm in first.vms}
        assert (len(first.vms), first.without_host) == (7, 1)
        one = by_name["db-1"]
        assert (one.host, one.zone, one.cpu_milli, one.memory_bytes) == ("h2", "zone-a", 2000, 4 * GIB)
        assert (one.source, one.os_type, one.extra_specs) == ("nova", "unknown", {"quota:hw_version": "s4"})
        assert by_name["app-2"].stopped
        assert await vms_of.get_vm(one.id) == one
        assert await vms_of.get_vm(nova.server("big-1")["id"]) is None
        assert await vms_of.get_vm("11111111-0000-4000-8000-000000000000") is None
        nova.change()
        later = {vm.name: vm for vm in (await vms_of.list_vms()).vms}
        assert by_name.keys() - later.keys() == {"old-1"}
        assert later.keys() - by_name.keys() == {"new-1"}
        nova.fault = http_service.status(500)
        with pytest.raises(Unavailable):
            await vms_of.list_vms()


async def test_after_an_answer_that_is_none_the_same_changes_are_asked_for_again() -> None:
    async def later(_: web.Request) -> web.StreamResponse:
        date = {"Date": formatdate(SINCE + 900, usegmt=True)}
        return web.json_response({"servers": [{"id": None}]}, headers=date)

    nova = Nova()
    async with client(nova) as opened:
        vms_of = NovaVms(opened, settings(poll_interval=0.000001), SystemClock())
        await vms_of.list_vms()
        nova.fault = later
        with pytest.raises(Unavailable):
            await vms_of.list_vms()
        nova.fault = None
        await vms_of.list_vms()
    refused, again = (one.query["changes-since"] for one in nova.requests if "changes-since" in one.query)
    assert refused == again


async def test_a_vm_whose_flavor_was_deleted_keeps_its_size() -> None:
    nova = Nova()
    nova.lists["flavors"] = []
    async with client(nova) as opened:
        found = await NovaVms(opened, settings(), SystemClock()).list_vms()
    assert (len(found.vms), found.unknown_flavors) == (7, {})


async def test_a_vm_keeps_its_size_though_another_flavor_has_the_name_of_its_own_by_now() -> None:
    nova = Nova()
    name = nova.server("db-1")["flavor"]["original_name"]
    anew = next(one for one in nova.lists["flavors"] if one["name"] == name)
    anew.update(vcpus=64, ram=2**20)
    async with client(nova) as opened:
        vms_of = NovaVms(opened, settings(), SystemClock())
        found = {vm.name: vm for vm in (await vms_of.list_vms()).vms}["db-1"]
        assert await vms_of.get_vm(found.id) == found
        reading = await NovaInventory(opened, settings(), SystemClock()).read()
    assert (found.cpu_milli, found.memory_bytes) == (2000, 4 * GIB)
    assert vms(reading)["db-1"].resources == Amounts(cpu=2000, memory=4 * GIB)
    assert vms(reading)["db-1"].flavor == name


NODE = "d7b1a6d2-0001-4000-8000-000000000001"


def add_machine(nova: Nova, *servers: str) -> None:
    """A machine of Ironic beside the hypervisors, with these servers on it."""
    like = nova.lists["hypervisors"][0]
    service = {**like["service"], "host": "ironic-1"}
    nova.lists["hypervisors"].append(
        {**like, "id": NODE, "hypervisor_hostname": NODE, "hypervisor_type": "ironic", "vcpus": 0, "service": service}
    )
    for name in servers:
        nova.server(name).update({"OS-EXT-SRV-ATTR:host": "ironic-1", "OS-EXT-SRV-ATTR:hypervisor_hostname": NODE})


async def test_a_server_on_a_machine_of_ironic_is_no_vm() -> None:
    nova = Nova()
    add_machine(nova, "db-1")
    async with client(nova) as opened:
        vms_of = NovaVms(opened, settings(poll_interval=0.000001), SystemClock())
        assert "db-1" not in {vm.name for vm in (await vms_of.list_vms()).vms}
        assert await vms_of.get_vm(nova.server("db-1")["id"]) is None
        nova.change()
        add_machine(nova, "new-1", "db-1")
        assert not {"db-1", "new-1"} & {vm.name for vm in (await vms_of.list_vms()).vms}


async def test_a_server_that_was_taken_for_a_vm_goes_once_its_machine_is_known() -> None:
    nova = Nova()
    async with client(nova) as opened:
        vms_of = NovaVms(opened, settings(poll_interval=0.000001, full_interval=0.000001), SystemClock())
        assert "db-1" in {vm.name for vm in (await vms_of.list_vms()).vms}
        add_machine(nova, "db-1")
        assert "db-1" not in {vm.name for vm in (await vms_of.list_vms()).vms}


async def test_a_cell_that_is_away_takes_no_vm_along() -> None:
    nova = Nova()
    async with client(nova) as opened:
        every = {"poll_interval": 0.000001, "full_interval": 0.000001, "stale_after": 1.0}
        vms_of = NovaVms(opened, settings(**every), SystemClock())
        before = {vm.id for vm in (await vms_of.list_vms()).vms}
        nova.hidden = {one["id"] for one in nova.lists["servers"]}
        assert {vm.id for vm in (await vms_of.list_vms()).vms} == before
        nova.hidden = set()
        nova.lists["servers"].remove(nova.server("db-1"))
        assert len((await vms_of.list_vms()).vms) == len(before) - 1
