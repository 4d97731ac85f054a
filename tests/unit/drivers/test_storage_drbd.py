"""DRBD: a cluster that is modelled, and for what cannot be understood a program that prints it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.drbd import DrbdLab
from lab.processes import until

from outlive.base import NotFound, Refused, SystemClock, SystemIds, Unavailable
from outlive.drivers.storage import Drbd, StorageSettings, make_cuts
from outlive.store import MemoryStore

pytestmark = pytest.mark.real_loop

VOLUME, DISK = "drbd:vm-1", "disk:drbd:vm-1"
PROGRAM = """#!/usr/bin/env python3
import json, pathlib, sys
now = json.loads(pathlib.Path(__file__).with_name("state.json").read_text())[sys.argv[1]]
print(now if isinstance(now, str) else json.dumps(now))
"""
HOSTS = ("host-1", "host-2", "host-3")
SETTLED_S = 10.0


def peer(number: int, name: str, state: str = "Connected", role: str = "Secondary") -> dict[str, Any]:
    return {
        "peer-node-id": number,
        "name": name,
        "connection-state": state,
        "congested": False,
        "peer-role": role,
        "ap-in-flight": 18446744073709551608,
        "paths": [
            {
                "this_host": {"address": "10.0.1.1", "port": 7000, "family": "ipv4"},
                "remote_host": {"address": f"10.0.1.{number}", "port": 7000, "family": "ipv4"},
                "established": state == "Connected",
            }
        ],
        "peer_devices": [{"volume": 0, "replication-state": "Established", "percent-in-sync": 100.00}],
    }


def replica(*peers: dict[str, Any], role: str = "Secondary", **device: Any) -> dict[str, Any]:
    one = {"volume": 0, "minor": 1000, "disk-state": "UpToDate", "client": False, "open": False, "quorum": True}
    return {
        "name": "vm-1",
        "node-id": 1,
        "role": role,
        "suspended": False,
        "force-io-failures": False,
        "devices": [{**one, **device}],
        "connections": list(peers),
    }


class Host:
    def __init__(self, path: Path, status: Any, quorum: str | int = "majority") -> None:
        self.path = path
        self.show = [{"resource": "vm-1", "options": {"quorum": quorum, "on-no-quorum": "suspend-io"}}]
        program = path / "drbdsetup"
        program.write_text(PROGRAM)
        program.chmod(0o700)
        self.settings = StorageSettings(drbd_program=str(program))
        (path / "state.json").write_text(json.dumps({"status": status, "show": self.show}))

    def driver(self) -> Drbd:
        return Drbd(self.settings, self.path, "10.0.1.1")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[DrbdLab]:
    with DrbdLab(tmp_path / "lab", HOSTS, newer_tools=True) as lab:
        lab.create("vm-1", HOSTS)
        yield lab


def driver(lab: DrbdLab, host: str = "host-1") -> Drbd:
    settings = StorageSettings(drbd_program=str(lab.program(host)))
    return Drbd(settings, lab.folder / host, lab.address(host))


def peer_of(lab: DrbdLab, host: str, peer: str) -> dict[str, Any]:
    (found,) = json.loads(lab.call("status_text", host, "vm-1"))
    return next(one for one in found["connections"] if one["name"] == peer)


@pytest.mark.slow
async def test_primary_that_is_known_is_a_lock_and_its_peer_cannot_be_made_to_leave(lab: DrbdLab) -> None:
    lab.open("host-2", "vm-1")
    (lock,) = await driver(lab).list_locks(VOLUME)
    assert (lock.locker, lock.address) == ("host-2", lab.address("host-2"))
    with pytest.raises(Refused, match="in use on host-2"):
        await driver(lab).release(lock)


@pytest.mark.slow
async def test_own_role_is_given_back_unless_somebody_has_the_device_open(lab: DrbdLab) -> None:
    lab.call("promote", "host-1", "vm-1")
    opener = lab.open("host-1", "vm-1")
    (lock,) = await driver(lab).list_locks(VOLUME)
    assert lock.address == lab.address("host-1")
    with pytest.raises(Refused, match="held open"):
        await driver(lab).release(lock)
    lab.close(opener)
    for _ in range(2):
        await driver(lab).release(lock)
        assert await driver(lab).list_locks(VOLUME) == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "quorum", "why"),
    [
        ([replica(peer(2, "h", "Connecting", "Unknown"), quorum=False)], "majority", "has no quorum here"),
        ([replica(peer(2, "h", "Connecting", "Unknown"))], "off", "is used without quorum"),
        ([replica(peer(2, "h", "Connecting", "Unknown"))], "1", "is used with quorum 1"),
        ([replica(peer(2, "h", "Connecting", "Unknown"))], 2, "not understood"),
        ([replica(**{"disk-state": "Outdated"})], "majority", "is not up to date here"),
        ([{**replica(), "devices": []}], "majority", "is not usable here"),
        ([{**replica(), "force-io-failures": True}], "majority", "is not usable here"),
        ([{**replica(), "devices": [None]}], "majority", "has no quorum here"),
        ([{**replica(), "devices": [{"quorum": "yes"}]}], "majority", "not understood"),
        ("[1] trailing", "majority", "not understood"),
    ],
)
async def test_replica_that_cannot_know_who_writes_says_so(
    tmp_path: Path, status: Any, quorum: str | int, why: str
) -> None:
    drbd = Host(tmp_path, status, quorum).driver()
    with pytest.raises(Unavailable) as raised:
        await drbd.list_locks(VOLUME)
    assert why in str(raised.value)
    with pytest.raises(Unavailable):
        await drbd.wait_isolated((DISK,))


@pytest.mark.slow
async def test_host_that_is_lost_is_shut_out_by_disconnection_and_quorum_until_it_is_let_in(lab: DrbdLab) -> None:
    lab.open("host-2", "vm-1")
    lab.isolate("host-2")
    await driver(lab).cut("host-2", 2, (DISK, "disk:drbd:other", "port:p"))
    other = driver(lab)
    until(lambda: '"disk-state": "UpToDate"' in lab.call("status_text", "host-1"), "its data is current", SETTLED_S)
    report = await other.read_back("host-2", 2)
    assert (report.scope, report.expires_in_s) == ((DISK,), None)
    assert (await other.read_back("host-2", 3)).scope == ()
    assert await other.wait_isolated((DISK, "port:p")) == (DISK,)
    await other.lift("host-2", 1)
    assert (await other.read_back("host-2", 2)).scope == (DISK,)
    assert dict(await other.list_hosts()) == {"host-2": 2}
    await other.lift("host-2", 2)
    assert dict(await other.list_hosts()) == {}
    assert (await other.read_back("host-2", 2)).scope == ()
    assert peer_of(lab, "host-1", "host-2")["connection-state"] != "StandAlone"


@pytest.mark.slow
async def test_disconnection_alone_shows_nothing(lab: DrbdLab) -> None:
    """Another replica is still connected to the primary, which has the quorum."""
    lab.open("host-2", "vm-1")
    await driver(lab).cut("host-2", 1, (DISK,))
    assert peer_of(lab, "host-1", "host-2")["connection-state"] == "StandAlone"
    assert (await driver(lab).read_back("host-2", 1)).scope == ()


@pytest.mark.slow
async def test_host_without_a_replica_shuts_nobody_out(lab: DrbdLab) -> None:
    with pytest.raises(NotFound):
        await driver(lab).cut("host-2", 1, ("disk:drbd:other",))
    with pytest.raises(NotFound, match="no replica of drbd:other"):
        await driver(lab).list_locks("drbd:other")


async def test_host_without_any_driver_that_shuts_others_out_says_so_before_anything_is_announced(
    tmp_path: Path,
) -> None:
    settings = StorageSettings(ceph_conf=str(tmp_path / "none"), drbd_program="/nowhere/drbdsetup")
    store = MemoryStore(SystemClock(), SystemIds())
    port = make_cuts(settings, store, SystemClock(), host="host-1", address="10.0.1.1", state=tmp_path)
    with pytest.raises(NotFound, match="this host has no Ceph"):
        await port.read_back("host-2", 1)
    with pytest.raises(NotFound):
        await port.cut("host-2", 1, ("disk:file:/d",))


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ([replica(peer(2, "host-2"), role="Primary")], ""),
        ([replica(peer(2, "host-2"), role="Primary", quorum=False)], "drbd:vm-1 has no quorum here"),
        ([replica(role="Primary", **{"disk-state": "Failed"})], "drbd:vm-1 has neither data nor a peer here"),
        ([replica(peer(2, "host-2"), role="Primary", **{"disk-state": "Diskless"})], ""),
        ([replica(peer(2, "host-2"), quorum=False)], None),
    ],
)
async def test_volume_that_serves_no_writes_is_not_reached(tmp_path: Path, status: Any, why: str) -> None:
    assert await Host(tmp_path, status).driver().check_reach("drbd:vm-1") == why
