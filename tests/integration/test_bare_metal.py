"""Three coordinators on three ZooKeeper servers make a managed network, serve it, and hand it over: real processes."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from tests.support.bare_metal import FLOATING, NAMES, bare_metal
from tests.support.primary_hosts import lost_pings

pytestmark = [
    pytest.mark.component("zookeeper"),
    pytest.mark.component("links"),
    pytest.mark.component("network-services"),
    pytest.mark.slow,
]

MAC = "02:00:00:00:00:71"


def test_a_managed_network_is_served_handed_over_and_outlives_the_daemon_of_the_primary(tmp_path: Path) -> None:
    with bare_metal() as metal:
        spaces, (first, second, third) = metal.spaces, NAMES
        metal.hosts[first].start().ready()
        metal.wait(lambda: metal.primary() == first, "the first one is the primary")
        for name in (second, third):
            metal.hosts[name].start()
        metal.wait(lambda: metal.pings(FLOATING), "the floating address answers")
        for name in NAMES:
            metal.hosts[name].ready()
        assert "brcluster" in spaces.ip(first, "addr", "show", "to", FLOATING)
        rows = "--ipv4 10.71.0.0/24 --gateway4 10.71.0.1 --dhcp 10.71.0.100-10.71.0.150".split()
        metal.api_command("network", "add", "blue", "--type", "managed", "--vni", "71", *rows)
        metal.api_command("network", "acl", "add", "blue", "no-web", "tcp dport 81 drop", "--direction", "out")
        metal.wait(lambda: all("vmbr71" in spaces.ip(one, "link") for one in NAMES), "all hosts made the network")
        spaces.guest("g1", "vmbr71", second, mac=MAC)
        metal.wait(lambda: metal.pings("10.71.0.1", first), "the primary has the gateway")
        address = spaces.lease("g1", tmp_path, hostname="one")
        assert address.startswith("10.71.0.1")
        metal.wait(lambda: [one["address"] for one in metal.documents("dhcpleases")] == [address], "the lease is kept")

        def name_at(server: str, space: str) -> str:
            return spaces.run(space, "dig", "+short", "+time=1", "+tries=1", "one.blue.local", f"@{server}").strip()

        assert name_at("10.71.0.1", "g1") == address

        metal.join().start().ready()
        spaces.guest("g2", "vmbr71", PLAIN)

        pinging: list[str] = []
        command = ("ping", "-q", "-i", "0.025", "-c", "400", "-W", "1", FLOATING)
        thread = threading.Thread(target=lambda: pinging.append(spaces.run("fab", *command, limit_s=30)))
        thread.start()
        metal.command("host", "primary", second, "--wait")
        thread.join()
        sent, lost = lost_pings(pinging[0])
        assert (sent, lost <= 2) == (400, True), f"{lost} of {sent} pings were lost"
        assert metal.primary() == second
        assert FLOATING not in spaces.ip(first, "addr")
        assert spaces.lease("g1", tmp_path, hostname="one") == address, "the new primary knows the lease"

        metal.hosts[second].signal(signal.SIGKILL)
        took = metal.wait(lambda: metal.primary() not in ("", second), "another one has the role")
        assert FLOATING not in spaces.ip(second, "addr")
        took += metal.wait(lambda: metal.pings(FLOATING) and metal.pings("10.71.0.1", "g1"), "its addresses answer")
        print("took", took)
        assert spaces.lease("g1", tmp_path, hostname="one") == address
        assert [one["address"] for one in metal.documents("dhcpleases")] == [address]
        print(metal.faults())
        import shutil; shutil.rmtree("/tmp/lab/x", ignore_errors=True); shutil.copytree(metal.folder, "/tmp/lab/x", ignore=lambda d, n: [one for one in n if "sock" in one or one == "wake"])
