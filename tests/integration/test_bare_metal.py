"""Three coordinators on three ZooKeeper servers make a managed network, serve it, and hand it over: real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.bare_metal import FLOATING, LIMIT_S, NAMES, PLAIN, SWITCH, bare_metal
from tests.support.zookeeper import shared_ensemble

from outlive.runtime import SILENCE_S

pytestmark = [
    pytest.mark.component("zookeeper"),
    pytest.mark.component("links"),
    pytest.mark.component("network-services"),
    pytest.mark.slow,
]

MAC = "02:00:00:00:00:71"


def test_a_managed_network_is_served_handed_over_and_outlives_the_host_of_the_primary(tmp_path: Path) -> None:
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
        metal.apply("VirtualMachine", "vm-1", {"flavor": "small", "ports": [MAC]})
        rows = ["--ipv4", "10.71.0.0/24", "--gateway4", "10.71.0.1", "--dhcp", "10.71.0.100-10.71.0.150"]
        metal.api_command("network", "add", "blue", "--type", "managed", "--vni", "71", *rows)
        metal.wait(lambda: all("vmbr71" in spaces.ip(one, "link") for one in NAMES), "all hosts made the network")
        metal.apply("VirtualMachinePort", "vm-1.0", {"vm": "vm-1", "network": "blue", "mac": MAC})
        spaces.guest("g1", "vmbr71", second, mac=MAC)
        metal.wait(lambda: metal.pings("10.71.0.1", first), "the primary has the gateway")
        address = spaces.lease("g1", tmp_path, hostname="one")
        assert address.startswith("10.71.0.1")
        metal.wait(lambda: [one["address"] for one in metal.documents("dhcpleases")] == [address], "the lease is kept")

        def answer(space: str, *words: str) -> str | None:
            try:
                return spaces.run(space, *words).strip()
            except AssertionError:  # nobody answers
                return None

        name = ("dig", "+short", "+time=1", "+tries=1", "one.blue.local", "@10.71.0.1")
        metal.wait(lambda: answer("g1", *name) == address, "it has a name")

        metal.join().start().ready()
        metal.wait(lambda: "vmbr71" in spaces.ip(PLAIN, "link"), "the plain host made the network")
        spaces.guest("g2", "vmbr71", PLAIN)
        other = spaces.lease("g2", tmp_path)

        metadata = ("curl", "-s", "http://169.254.169.254/latest/meta-data/name")
        metal.wait(lambda: answer("g1", *metadata) == "vm-1", "the guest of a VM hears its name")
        metal.wait(lambda: answer("g2", *metadata) == "", "a guest of no VM hears none")
        spaces.ip("fab", "route", "add", "10.71.0.0/24", "via", FLOATING)
        metal.wait(lambda: metal.pings(SWITCH, "g1"), "nothing forbids it")
        rule = f"ip daddr {SWITCH} icmp type echo-request drop"
        metal.api_command("network", "acl", "add", "blue", "no-ping", rule, "--direction", "out")
        metal.wait(lambda: not metal.pings(SWITCH, "g1"), "the firewall drops it")
        metal.wait(lambda: metal.pings("10.71.0.1", "g1"), "and nothing else")

        leader = shared_ensemble().leader()
        with metal.pinged(FLOATING) as sent_and_lost:
            leader.kill()
            metal.wait(lambda: any(one.mode == "leader" for one in shared_ensemble().servers), "another server leads")
            metal.command("network", "acl", "remove", "blue", "no-ping")
            metal.wait(lambda: metal.pings(SWITCH, "g1"), "the primary follows the store")
        assert (metal.primary(), sent_and_lost[1] <= 2) == (first, True), "one server less is nothing to the role"
        leader.start()

        with metal.pinged(FLOATING) as sent_and_lost:
            metal.command("host", "primary", third, "--wait")
        sent, lost = sent_and_lost
        assert sent > 40
        assert lost <= 2, f"{lost} of {sent} pings were lost"
        metal.wait(lambda: metal.primary() == third, "the hand-over is over")
        assert FLOATING not in spaces.ip(first, "addr")
        assert spaces.lease("g1", tmp_path, hostname="one") == address, "the new primary knows the lease"

        metal.wait(lambda: metal.faults() == set(), "nothing is wrong")

        plain = metal.hosts[PLAIN]
        spaces.ip(PLAIN, "link", "add", "eth1", "type", "veth", "peer", "name", "eth2")
        plain.replace_section("links", systemNetworks={"cluster": {"device": "eth1"}})
        answered = metal.cut_power(third, FLOATING)
        metal.wait(lambda: ("links-not-made", PLAIN) in metal.faults(), "a card that leads nowhere is told")
        metal.wait(lambda: "brcluster" in spaces.ip(PLAIN, "link", "show", "eth0"), "it is back on its former card")
        plain.replace_section("links", systemNetworks={"cluster": {"device": "eth0", "mtu": 1400}})
        metal.wait(lambda: ("links-not-made", PLAIN) not in metal.faults(), "what is right again is told no more")
        metal.wait(lambda: "mtu 1400" in spaces.ip(PLAIN, "link", "show", "brcluster"), "the bridge has the new MTU")
        metal.wait(lambda: metal.primary() not in ("", third), "another one has the role")
        assert answered.result(LIMIT_S) < SILENCE_S + 3.0, "the floating address answers from another host"
        metal.wait(lambda: metal.pings(FLOATING) and metal.pings("10.71.0.1", "g1"), "its addresses answer")
        assert spaces.lease("g1", tmp_path, hostname="one") == address
        assert {one["address"] for one in metal.documents("dhcpleases")} == {address, other}
        gone = {("fence-unconfirmed", third), ("power-unreachable", third)}
        metal.wait(lambda: metal.faults() == gone, "only the host that cannot be fenced is told")
