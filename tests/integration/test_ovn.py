"""The OVN driver where only a real OVN shows it: servers that fail, clusters, packets, and the switch of a host."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from lab.hosts import Switch, hosts
from lab.ovn import Ovn, Programs, Workload
from lab.processes import Process, until
from lab.processes import run as run_command
from tests.conformance.ovn.test_northbound import ALL, PORT, row, write
from tests.conformance.ovn.worlds import programs
from tests.support.keystone import free_port
from tests.support.loops import run_real

from outlive.base import Unavailable, Unknown
from outlive.drivers.ovn import LocalSwitch, OvnNorthbound, OvnSouthbound, set_certificates
from outlive.network import PORTS, PREFIX, SWITCHES, Binding, upsert

pytestmark = [pytest.mark.component("ovn")]
LIMIT_S = 30.0
RARP = """
import socket
mac = bytes.fromhex("0a0000000005")
frame = b"\\xff" * 6 + mac + bytes.fromhex("8035" "0001080006040003") + (mac + bytes(4)) * 2
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
    out.bind(("eth0", 0))
    out.send(frame)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "ovn"
    shutil.rmtree(tmp_path / "ovn", ignore_errors=True)


@asynccontextmanager
async def connected(
    ovn: Ovn, limit_s: float = LIMIT_S, key_prefix: str = PREFIX
) -> AsyncIterator[tuple[OvnNorthbound, OvnSouthbound]]:
    southbound = OvnSouthbound(ovn.sb_remote, limit_s=limit_s)
    northbound = OvnNorthbound(ovn.nb_remote, southbound, limit_s=limit_s, key_prefix=key_prefix)
    await southbound.start()
    await northbound.start()
    try:
        yield northbound, southbound
    finally:
        await northbound.aclose()
        await southbound.aclose()


async def wait_binding(southbound: OvnSouthbound, port: str, **wanted: object) -> Binding:
    async with asyncio.timeout(LIMIT_S):
        while True:
            binding = await southbound.read_binding(port)
            if binding is not None and all(getattr(binding, name) == value for name, value in wanted.items()):
                return binding
            await asyncio.sleep(0.02)


def until_reached(one: Workload, address: str) -> None:
    """Return once a ping is answered: the first one across a tunnel may be lost."""
    until(lambda: one.reaches(address), f"{address} answers", LIMIT_S)


def test_a_database_that_lacks_a_column_is_named_with_table_and_column(folder: Path) -> None:
    folder.mkdir()
    schema = json.loads(Path(Programs(programs()).schema("ovn-nb")).read_text())
    del schema["tables"]["Logical_Switch_Port"]["columns"]["enabled"]
    (folder / "old.ovsschema").write_text(json.dumps(schema))
    ovn = Ovn(folder, 0, bin=programs())
    ovn.programs.run(folder, "ovsdb-tool", "create", str(ovn.northbound[0].file), str(folder / "old.ovsschema"))
    try:
        ovn.switch.start()
        ovn.switch.plug("central", 1)
        ovn.northbound[0].start()
        ovn.southbound.start()

        async def story() -> None:
            async with connected(ovn, limit_s=1) as (northbound, _):
                async with asyncio.timeout(LIMIT_S):
                    while "enabled" not in northbound.explain_unhealthy():  # noqa: ASYNC110 - a thread reads the schema
                        await asyncio.sleep(0.02)
                with pytest.raises(Unavailable) as error:
                    await northbound.read_rows()
                assert "no column enabled in its table Logical_Switch_Port" in str(error.value)
                assert "enabled" in northbound.explain_unhealthy()

        run_real(story())
    finally:
        ovn.stop()


async def test_a_transaction_whose_answer_does_not_come_has_an_unknown_outcome(folder: Path) -> None:
    with Ovn(folder, 0, bin=programs()) as ovn:
        async with connected(ovn) as (northbound, _):
            await write(northbound, *ALL)
            database = ovn.northbound[0]
            database.pause()
            northbound._limit_s = 1.0
            with pytest.raises(Unknown):
                await write(northbound, upsert(PORTS, {"name": "shop_cart"}, {"enabled": True}))
            northbound._limit_s = LIMIT_S
            database.resume()
            rows = await northbound.read_rows()
            receipt = await write(northbound, upsert(PORTS, {"name": "shop_cart"}, {"enabled": True}))
            assert receipt.nb_cfg >= 2  # by which one can wait for what was written before
            assert row(await northbound.read_rows(), PORTS, name="shop_cart")["enabled"] is True
            assert rows


async def test_keys_of_rows_have_another_prefix_where_that_is_set(folder: Path) -> None:
    with Ovn(folder, 0, bin=programs()) as ovn:
        async with connected(ovn, key_prefix="net.example") as (northbound, _):
            await write(northbound, *ALL)
            assert (await write(northbound, *ALL)).ops == ()
            port = row(await northbound.read_rows(), PORTS, name="shop_cart")
            assert port == PORT.patch
            keys = {*PORT.patch["external_ids"]}
            listed = ovn.nbctl("--bare", "--columns=external_ids", "find", PORTS, "name=shop_cart").split()
            assert {one.partition("=")[0] for one in listed} == {key.replace(PREFIX, "net.example") for key in keys}
            async with connected(ovn) as (usual, _):
                seen = row(await usual.read_rows(), PORTS, name="shop_cart")["external_ids"]
                assert not [key for key in seen if key.startswith(PREFIX)], "they are somebody else's"
            gone = {"external_ids": dict.fromkeys(keys)}
            await write(northbound, upsert(PORTS, {"name": "shop_cart"}, gone))
            assert not ovn.nbctl("--bare", "--columns=external_ids", "find", PORTS, "name=shop_cart").strip()


@pytest.mark.slow
async def test_it_follows_the_leader_of_a_cluster(folder: Path) -> None:
    with Ovn(folder, 0, bin=programs(), nb_servers=3) as ovn:
        async with connected(ovn) as (northbound, _):
            await write(northbound, *ALL)
            for number in range(2):
                leader = await asyncio.to_thread(ovn.leader)
                leader.kill()
                option = {"options": {"count": str(number)}}
                async with asyncio.timeout(30):
                    while True:
                        try:
                            await write(northbound, upsert(PORTS, {"name": "shop_cart"}, option))
                            break
                        except (Unavailable, Unknown):
                            continue
                leader.start()
            options = row(await northbound.read_rows(), PORTS, name="shop_cart")["options"]
            assert options == {**PORT.patch["options"], "count": "1"}


async def test_an_additional_chassis_is_activated_by_the_guests_rarp(folder: Path) -> None:
    with Ovn(folder, 3, bin=programs()) as ovn:
        one, two, three = ovn.chassis
        async with connected(ovn) as (northbound, southbound):
            ports = [("cart", "0a:00:00:00:00:05"), ("peer", "0a:00:00:00:00:06")]
            await write(
                northbound,
                upsert(SWITCHES, {"name": "green"}, {"name": "green"}),
                *(
                    upsert(PORTS, {"name": name}, {"name": name, "switch": "green", "addresses": [mac]})
                    for name, mac in ports
                ),
            )
            source = one.plug("cart", ports[0][1], "10.1.0.5/24")
            peer = three.plug("peer", ports[1][1], "10.1.0.6/24")
            switch = LocalSwitch(two.remote)
            await switch.start()
            assert await switch.read_chassis() == "ch-2"
            options = {"requested-chassis": "ch-1,ch-2", "activation-strategy": "rarp"}
            receipt = await write(northbound, upsert(PORTS, {"name": "cart"}, {"options": options}))
            assert (await northbound.wait_applied(receipt, on=["ch-1", "ch-2", "ch-3"], limit_s=LIMIT_S)).done
            assert await switch.wait_installed(["cart"], 0.1) == ("cart",)
            target = await asyncio.to_thread(two.plug, "cart", ports[0][1], "10.1.0.5/24")
            await wait_binding(southbound, "cart", additional_chassis=("ch-2",))
            assert await switch.wait_installed(["cart"], LIMIT_S) == ()
            assert await switch.list_interfaces() == ("cart",)
            await asyncio.to_thread(until_reached, peer, "10.1.0.5")
            source.run("ip", "link", "set", "eth0", "down")
            target.run("python3", "-c", RARP)
            await wait_binding(southbound, "cart", activated=("ch-2",))
            await asyncio.to_thread(until_reached, peer, "10.1.0.5")
            done = {"requested-chassis": "ch-2", "activation-strategy": None}
            await write(northbound, upsert(PORTS, {"name": "cart"}, {"options": done}))
            await wait_binding(southbound, "cart", chassis="ch-2", additional_chassis=())
            await asyncio.to_thread(until_reached, peer, "10.1.0.5")
            await switch.aclose()


def test_the_lab_leaves_nothing_behind(folder: Path) -> None:
    ovn = Ovn(folder, 2, bin=programs(), physical=True)
    with ovn:
        ovn.nbctl("ls-add", "green", "--", "lsp-add", "green", "cart")
        ovn.nbctl("lsp-set-addresses", "cart", "0a:00:00:00:00:05")
        ovn.nbctl("lsp-add", "green", "wire", "--", "lsp-set-type", "wire", "localnet")
        ovn.nbctl("lsp-set-addresses", "wire", "unknown", "--", "lsp-set-options", "wire", "network_name=physnet")
        guest = ovn.chassis[0].plug("cart", "0a:00:00:00:00:05", "10.1.0.5/24")
        outside = ovn.outside("router", "0a:00:00:00:00:01", "10.1.0.1/24")
        ovn.sync()
        until_reached(outside, "10.1.0.5")
        ovn.chassis[0].cut()
        assert not outside.reaches("10.1.0.5")
        ovn.heal()
        until_reached(guest, "10.1.0.1")
    assert ovn.switch.prefix not in run_command("ip", "netns", "list")
    assert not ovn.northd.pid
    assert not any(database.process.pid for database in (*ovn.northbound, ovn.southbound))


def test_a_chassis_in_a_hosts_namespace_lives_and_dies_with_the_host(tmp_path: Path) -> None:
    switch = Switch(tmp_path / "hosts")
    ours = hosts(switch, 2)
    ovn = Ovn(tmp_path / "ovn", 1, hosts=ours, bin=programs(), physical=True)
    try:
        switch.start()
        ovn.start()
        for host in ours:
            host.power_on()
        until(lambda: ovn.registered() == {"host-1", "host-2", "ch-3"}, "all chassis register", LIMIT_S)
        ovn.nbctl("ls-add", "green", "--", "lsp-add", "green", "a", "--", "lsp-add", "green", "b")
        ovn.nbctl("lsp-set-addresses", "a", "0a:00:00:00:00:05", "--", "lsp-set-addresses", "b", "0a:00:00:00:00:06")
        guest = ovn.chassis[0].plug("a", "0a:00:00:00:00:05", "10.1.0.5/24")
        peer = ovn.chassis[2].plug("b", "0a:00:00:00:00:06", "10.1.0.6/24")
        ovn.sync()
        until_reached(guest, "10.1.0.6")
        assert "br-int" in ours[0].run("ovs-vsctl", "list-br")  # where libvirt looks for it
        ours[0].power_off()
        assert not peer.reaches("10.1.0.5")
        assert "host-1" in ovn.registered()
        ours[0].power_on()
        until(lambda: "ovn-controller" in str(ours[0].services()), "it boots", LIMIT_S)
    finally:
        for host in ours:
            host.power_off()
        ovn.stop()
        switch.stop()
        shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.component("openssl")
def test_a_database_is_reached_by_tls(tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    subject = ["-subj", "/CN=ovsdb", "-days", "1", "-nodes", "-newkey", "rsa:2048"]
    run_command("openssl", "req", "-x509", *subject, "-keyout", key, "-out", certificate)
    tools, folder, port = Programs(programs()), tmp_path, free_port()
    tools.run(folder, "ovsdb-tool", "create", str(folder / "nb.db"), tools.schema("ovn-nb"))
    server = Process(folder / "nb.pid")
    files = [f"--private-key={key}", f"--certificate={certificate}", f"--ca-cert={certificate}"]
    words = [f"--remote=pssl:{port}:127.0.0.1", f"--unixctl={folder}/nb.ctl", str(folder / "nb.db")]
    server.start(["ovsdb-server", *files, *words], folder / "nb.log", tools.env(str(folder)))
    set_certificates(key, certificate, certificate)
    try:

        async def story() -> None:
            southbound = OvnSouthbound("unix:/nowhere")
            northbound = OvnNorthbound(f"ssl:127.0.0.1:{port}", southbound)
            await northbound.start()
            ops = [upsert(SWITCHES, {"name": name}, {"name": name}) for name in map(str, range(150))]
            receipt = await write(northbound, *ops)
            assert receipt.nb_cfg == 0  # nobody has initialised this database
            assert len((await northbound.read_rows())[SWITCHES]) == 150
            await northbound.aclose()
            await southbound.aclose()

        run_real(story())
    finally:
        server.stop()
