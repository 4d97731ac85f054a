from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.support import postgres
from tests.support.loops import run_real

from outlive.base import BadInput, LimitExceeded, Unavailable
from outlive.drivers import FLAVORS, SERVERS, SyncedTables, synced_tables

GIB = 2**30


def server(number: int, **columns: object) -> dict[str, object]:
    return {
        "id": f"vm-{number:05}",
        "name": f"web {number}",
        "status": "ACTIVE",
        "tenant_id": f"p{number % 3}",
        "os_ext_srv_attr_host": f"host-{number % 200:03}",
        "os_ext_az_availability_zone": "zone-a",
        "created": "2026-01-02T03:04:05Z",
        "flavor_name": f"f{number % 4}",
        "os_type": None,
        **columns,
    }


def flavor(number: int, **columns: object) -> dict[str, object]:
    specs = '{"trait:CUSTOM_NVME": "required"}' if number % 2 else "{}"
    return {
        "name": f"f{number}",
        "vcpus": 2 + number,
        "ram": 1024 * (number + 1),
        "disk": 10,
        "extra_specs": specs,
        **columns,
    }


def fill(address: str, servers: list[dict[str, object]], flavors: list[dict[str, object]]) -> None:
    engine = sa.create_engine(address)
    with engine.begin() as connection:
        SERVERS.metadata.drop_all(connection)
        SERVERS.metadata.create_all(connection)
        if servers:
            connection.execute(sa.insert(SERVERS), servers)
        if flavors:
            connection.execute(sa.insert(FLAVORS), flavors)
    engine.dispose()


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'nova.db'}"


@pytest.fixture(scope="module")
def pg() -> Iterator[postgres.Postgres]:
    with postgres.running() as server_:
        yield server_


async def listed(address: str):
    source = SyncedTables(address)
    try:
        return await source.list_vms()
    finally:
        await source.close()


async def got(address: str, vm: str):
    source = SyncedTables(address)
    try:
        return await source.get_vm(vm)
    finally:
        await source.close()


def check_small_inventory(address: str) -> None:
    """The claims that hold for every database."""
    fill(
        address,
        [
            server(2, status="SHUTOFF"),
            server(1),
            server(3, os_ext_srv_attr_host=None),
            server(4, flavor_name="gone"),
            server(5, os_ext_srv_attr_host=""),
            server(6, os_type="windows", flavor_name="odd"),
        ],
        [flavor(1), flavor(2), flavor(2, vcpus=9), flavor(7, name="odd", extra_specs="[not json")],
    )
    found = run_real(listed(address))
    assert [vm.id for vm in found.vms] == ["vm-00001", "vm-00002", "vm-00006"]
    assert (found.without_host, found.unknown_flavors, found.malformed_extra_specs) == (2, {"gone": 1}, ("odd",))
    first, second, third = found.vms
    assert (first.cpu_milli, first.memory_bytes, first.extra_specs) == (
        3000,
        2 * GIB,
        {"trait:CUSTOM_NVME": "required"},
    )
    assert (first.host, first.zone, first.project, first.os_type) == ("host-001", "zone-a", "p1", "unknown")
    assert first.created_at == 1_767_323_045.0
    assert (second.status, second.cpu_milli) == ("SHUTOFF", 9000), "of equal flavor names the last row counts"
    assert (third.os_type, third.extra_specs) == ("windows", {})
    one = run_real(got(address, "vm-00002"))
    assert one is not None
    assert one.cpu_milli == 4000, "getting one takes the first row of that flavor name"
    for absent in ("vm-00003", "vm-00004", "vm-00005", "nobody", "x' or '1'='1"):
        assert run_real(got(address, absent)) is None


def test_sqlite_lists_and_gets_as_the_tables_say(sqlite: str):
    check_small_inventory(sqlite)


@pytest.mark.component("postgresql")
@pytest.mark.slow
def test_postgresql_lists_and_gets_as_the_tables_say(pg: postgres.Postgres):
    check_small_inventory(pg.address)


@pytest.mark.component("postgresql")
@pytest.mark.slow
def test_ten_thousand_vms_are_read_whole_and_in_order(pg: postgres.Postgres):
    fill(pg.address, [server(n) for n in reversed(range(10_000))], [flavor(n) for n in range(4)])
    found = run_real(listed(pg.address))
    assert [vm.id for vm in found.vms] == [f"vm-{n:05}" for n in range(10_000)]


@pytest.mark.component("postgresql")
@pytest.mark.slow
def test_a_database_killed_during_a_read_is_one_clear_error_and_reading_goes_on_once_it_is_back():
    with postgres.running() as server_:
        fill(server_.address, [server(n) for n in range(10_000)], [flavor(n) for n in range(4)])

        async def story() -> None:
            source = SyncedTables(server_.address, timeout_s=20)
            try:
                assert len((await source.list_vms()).vms) == 10_000
                reading = asyncio.create_task(_slow_read(source))
                await asyncio.sleep(0.5)
                await asyncio.to_thread(server_.kill)
                with pytest.raises(Unavailable, match="list the servers") as midway:
                    await reading
                assert "lab" not in str(midway.value).replace("available", "")
                with pytest.raises(Unavailable, match="list the servers"):
                    await source.list_vms()
                await asyncio.to_thread(_restarted, server_)
                assert len((await source.list_vms()).vms) == 10_000
            finally:
                await source.close()

        run_real(story())


async def _slow_read(source: SyncedTables) -> object:
    """A read of the servers that is still under way half a second later."""
    slow = sa.select(sa.func.pg_sleep(0.001), *SERVERS.c).order_by(SERVERS.c.id)
    return await source._run(
        "list the servers", lambda connection: synced_tables._fetch_rows(connection, slow, "servers")
    )


def _restarted(server_: postgres.Postgres) -> None:
    server_.stop()
    (Path(server_._data) / "postmaster.pid").unlink(missing_ok=True)
    server_.start()


@pytest.mark.component("postgresql")
@pytest.mark.slow
async def test_a_read_that_takes_too_long_is_given_up(pg: postgres.Postgres):
    source = SyncedTables(pg.address, timeout_s=0.5)
    try:
        with pytest.raises(Unavailable, match=r"0\.5 s|statement timeout"):
            await source._run("list the servers", lambda c: c.execute(sa.select(sa.func.pg_sleep(5))).all())
    finally:
        await source.close()


@pytest.mark.component("postgresql")
@pytest.mark.slow
async def test_the_connection_can_only_read(pg: postgres.Postgres):
    fill(pg.address, [server(1)], [flavor(1)])
    source = SyncedTables(pg.address)
    try:
        with pytest.raises(Unavailable, match="read-only"):
            await source._run("delete", lambda c: c.execute(sa.delete(SERVERS)))
    finally:
        await source.close()


def test_a_missing_table_names_the_step(sqlite: str, tmp_path: Path):
    (tmp_path / "nova.db").touch()
    with pytest.raises(Unavailable, match=r"list the servers.*openstack_servers_v4"):
        run_real(listed(sqlite))
    fill(sqlite, [server(1)], [])
    engine = sa.create_engine(sqlite)
    with engine.begin() as connection:
        FLAVORS.drop(connection)
    engine.dispose()
    with pytest.raises(Unavailable, match="list the flavors"):
        run_real(listed(sqlite))


def test_a_file_that_does_not_exist_is_not_created(sqlite: str, tmp_path: Path):
    with pytest.raises(Unavailable, match="list the servers"):
        run_real(listed(sqlite))
    assert not (tmp_path / "nova.db").exists()


def test_an_unreachable_server_is_named_without_its_password():
    with pytest.raises(Unavailable) as refused:
        run_real(listed("postgresql://nova:hunter2@127.0.0.1:1/nova"))
    assert "127.0.0.1:1" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_an_empty_database_is_an_empty_list_not_an_error(sqlite: str):
    fill(sqlite, [], [])
    assert run_real(listed(sqlite)).vms == ()


def test_a_table_over_the_limit_is_refused(sqlite: str, monkeypatch: pytest.MonkeyPatch):
    fill(sqlite, [server(n) for n in range(20)], [flavor(0)])
    monkeypatch.setattr(synced_tables, "ROWS_LIMIT", 10)
    with pytest.raises(LimitExceeded, match="openstack_servers_v4"):
        run_real(listed(sqlite))


@pytest.mark.parametrize("address", ["not an address", "mysql://root@db/nova", "postgresql+asyncpg://x@y/z"])
def test_an_address_of_another_kind_is_refused_before_anything_is_opened(address: str):
    with pytest.raises(BadInput):
        SyncedTables(address)


def test_rows_that_cannot_be_read_cost_no_other_row_anything(sqlite: str):
    fill(sqlite, [server(1), server(2), server(3, flavor_name="f2")], [flavor(1), flavor(2), flavor(3)])
    path = sqlite.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("update openstack_servers_v4 set name = cast(x'ff' as text) where id = 'vm-00001'")
        connection.execute(
            "update openstack_servers_v4 set os_ext_srv_attr_host = cast(x'ff' as text) where id = 'vm-00002'"
        )
        connection.execute("update openstack_flavors_v2 set vcpus = 9e999 where name = 'f3'")
        connection.execute("update openstack_flavors_v2 set extra_specs = 5 where name = 'f2'")
    found = run_real(listed(sqlite))
    assert [vm.id for vm in found.vms] == ["vm-00001", "vm-00003"]
    assert found.unreadable == {"openstack_servers_v4": 1, "openstack_flavors_v2": 1}
    assert found.malformed_extra_specs == ("f2",)
    assert run_real(got(sqlite, "vm-00002")) is None


def test_all_servers_are_given_for_showing(sqlite: str):
    fill(
        sqlite, [server(1), server(2, os_ext_srv_attr_host=None), server(3, flavor_name="gone")], [flavor(1), flavor(2)]
    )

    async def all_servers():
        source = SyncedTables(sqlite)
        try:
            return await source.list_servers()
        finally:
            await source.close()

    shown = {vm.id: (vm.host, vm.flavor, vm.cpu_milli) for vm in run_real(all_servers())}
    assert shown == {
        "vm-00001": ("host-001", "f1", 3000),
        "vm-00002": ("", "f2", 4000),
        "vm-00003": ("host-003", "gone", 0),
    }
