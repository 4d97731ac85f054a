"""``outlive import database``: Nova's tables in a file; a database that goes away leaves nothing half imported."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from tests.support.command import outlive

SERVERS = (
    "(id, name, status, tenant_id, os_ext_srv_attr_host, os_ext_az_availability_zone, created, flavor_name, os_type)"
)
UUID = "00000000-0000-4000-8000-{:012}"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "nova.db"
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE openstack_servers_v4 {SERVERS}")
        connection.execute("CREATE TABLE openstack_flavors_v2 (name, vcpus, ram, disk, extra_specs)")
        connection.executemany(
            "INSERT INTO openstack_flavors_v2 VALUES (?, ?, ?, ?, ?)",
            [("m1.large", 4, 8192, 80, '{"trait:CUSTOM_X": "required"}'), ("unused", 1, 512, 1, "")],
        )
        rows = [
            (UUID.format(n), f"vm{n}", "ACTIVE", "p1", f"h{n % 3}", "z1", "2026-01-01T00:00:00Z", "m1.large", "linux")
            for n in range(9)
        ]
        rows.append((UUID.format(90), "nowhere", "BUILD", "p1", "", "z1", "", "m1.large", ""))
        rows.append((UUID.format(91), "lost", "ACTIVE", "p1", "h0", "z1", "", "gone.flavor", ""))
        connection.executemany(f"INSERT INTO openstack_servers_v4 VALUES ({', '.join('?' * 9)})", rows)
    connection.close()
    return path


def test_servers_become_vms_on_hosts_of_a_file(database: Path, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.csv"
    hosts.write_text("name,cpu,memory\n" + "".join(f"h{n},32,128Gi\n" for n in range(3)))
    state = tmp_path / "state"
    result = outlive(
        "import", "database", f"sqlite:///{database}", "--hosts", hosts, "--state-dir", state, "-o", "json"
    )
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert (document["hosts"]["created"], document["vms"]["created"], document["flavors"]["created"]) == (3, 9, 2)
    assert document["leftOut"] == 2
    vm = json.loads(outlive("get", "vm", UUID.format(0), "--state-dir", state, "-o", "json").out)
    assert vm["spec"]["resources"] == {"cpu": "4", "memory": "8Gi"}
    assert vm["spec"]["extraSpecs"] == {"trait:CUSTOM_X": "required"}
    assert vm["status"]["assigned"] == {"hypervisor": "h0"}
    host = json.loads(outlive("get", "host", "h0", "--state-dir", state, "-o", "json").out)
    assert [one["id"] for one in host["status"]["instances"]] == [UUID.format(n) for n in (0, 3, 6)]


def test_servers_on_hosts_that_nobody_knows_are_refused(database: Path, tmp_path: Path) -> None:
    result = outlive("import", "database", f"sqlite:///{database}", "--state-dir", tmp_path / "state")
    assert result.code == 3
    assert "'h0', which is in no list of hosts" in result.lines[0]


def test_a_database_that_loses_a_table_midway_imports_nothing(database: Path, tmp_path: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("DROP TABLE openstack_flavors_v2")
    connection.close()
    result = outlive("import", "database", f"sqlite:///{database}", "--state-dir", tmp_path / "state")
    assert result.code == 6
    assert "flavors" in result.line
    assert "nothing was imported" in result.line
    assert not (tmp_path / "state").exists()
