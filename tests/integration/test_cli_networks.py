"""``outlive network add|modify|remove|acl|dhcp|list`` on a state directory, with exit codes and one line for errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import Result, outlive

pytestmark = pytest.mark.slow


class Networks:
    """A state directory."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        (folder / "host.yaml").write_text(
            "apiVersion: outlive.dev/v1alpha1\nkind: Hypervisor\nmetadata: {name: kvm-1}\nspec: {management: node}\n"
        )
        assert outlive("apply", "-f", folder / "host.yaml", "--state-dir", self.state).code == 0

    def run(self, *words: str) -> Result:
        return outlive("network", *words, "--state-dir", self.state)

    def spec(self, name: str) -> dict[str, Any]:
        found = outlive("get", "virtualnetworks", name, "-o", "json", "--state-dir", self.state)
        return dict(json.loads(found.out)["spec"])


@pytest.fixture
def networks(tmp_path: Path) -> Networks:
    return Networks(tmp_path)


MANAGED = ("--type", "managed", "--vni", "70", "--ipv4", "10.70.0.0/24", "--gateway4", "10.70.0.1")


def test_a_network_is_added_changed_listed_and_removed(networks: Networks) -> None:
    added = networks.run("add", "blue", *MANAGED, "--dhcp", "10.70.0.10-10.70.0.99", "--ipv6", "fd70::/64")
    assert (added.code, added.err) == (0, "")
    assert networks.spec("blue") == {
        "type": "managed",
        "vni": 70,
        "subnets": [
            {"cidr": "10.70.0.0/24", "gateway": "10.70.0.1", "dhcp": {"start": "10.70.0.10", "end": "10.70.0.99"}},
            {"cidr": "fd70::/64", "gateway": "fd70::1", "dhcp": {}},
        ],
    }
    assert networks.run("modify", "blue", "--dhcp", "off", "--no-dhcp6", "--mtu", "1400").code == 0
    subnets = [{"cidr": "10.70.0.0/24", "gateway": "10.70.0.1"}, {"cidr": "fd70::/64", "gateway": "fd70::1"}]
    assert networks.spec("blue") == {"type": "managed", "vni": 70, "mtu": 1400, "subnets": subnets}
    assert networks.run("modify", "blue", "--ipv6", "").code == 0
    assert networks.spec("blue")["subnets"] == subnets[:1]
    shown = networks.run("list").out.splitlines()
    assert shown[1].split() == ["blue", "managed", "70", "1400", "10.70.0.0/24", "10.70.0.1", "blue.local"]
    assert networks.run("remove", "blue").code == 0
    assert networks.run("remove", "blue").code == 4


IN_USE = """
apiVersion: outlive.dev/v1alpha1
kind: Cluster
metadata: {name: default}
spec: {systemNetworks: {cluster: {cidr: 10.0.0.0/24, floating: 10.0.0.250}}}
---
apiVersion: outlive.dev/v1alpha1
kind: VirtualMachine
metadata: {name: web}
spec:
  definition: |
    <domain type='kvm'><name>web</name><uuid>6f9619ff-8b86-4011-b42d-00cf4fc964ff</uuid>
    <memory unit='MiB'>96</memory><vcpu>1</vcpu><os><type>hvm</type></os><devices><interface type='bridge'>
    <mac address='52:54:00:00:00:01'/><source bridge='vmbr70'/></interface></devices></domain>
"""


def test_a_network_that_vms_are_attached_to_is_not_removed_and_no_gateway_cuts_its_host_off(
    networks: Networks, tmp_path: Path
) -> None:
    networks.run("add", "blue", *MANAGED)
    (tmp_path / "use.yaml").write_text(IN_USE)
    applied = outlive("apply", "-f", tmp_path / "use.yaml", "--state-dir", networks.state)
    assert applied.code == 0, applied.err
    for words, code, text in (
        (("remove", "blue"), 1, "1 VM is attached to vmbr70 of network blue: web"),
        (("modify", "blue", "--vni", "71"), 3, "blue has VNI 70, and VMs are attached to its bridge: web"),
        (
            ("add", "red", "--type", "managed", "--vni", "71", "--ipv4", "10.0.0.128/25", "--gateway4", "10.0.0.129"),
            3,
            "overlaps 10.0.0.0/24 of system network cluster",
        ),
    ):
        done = networks.run(*words)
        assert (done.code, text in done.err) == (code, True), done.err
    assert networks.spec("blue")["vni"] == 70


def test_rules_are_numbered_in_the_order_in_which_they_are_tried(networks: Networks) -> None:
    networks.run("add", "blue", *MANAGED)
    for name, at in (("ssh", ()), ("web", ()), ("first", ("--at", "0"))):
        done = networks.run("acl", "add", "blue", name, "tcp dport 22 accept", "--direction", "in", *at)
        assert done.code == 0, done.err
    assert networks.run("acl", "add", "blue", "all", "accept", "--direction", "out").code == 0
    rules = [(one["direction"], one.get("order", 0), one["name"]) for one in networks.spec("blue")["rules"]]
    assert rules == [("in", 0, "first"), ("in", 1, "ssh"), ("in", 2, "web"), ("out", 0, "all")]
    twice = networks.run("acl", "add", "blue", "ssh", "accept", "--direction", "out")
    assert (twice.code, "there is a rule 'ssh' already" in twice.err) == (5, True)
    assert networks.run("acl", "remove", "blue", "ssh").code == 0
    gone = networks.run("acl", "remove", "blue", "ssh")
    assert (gone.code, "there is no rule 'ssh'" in gone.err) == (4, True)
    listed = [line.split()[:3] for line in networks.run("acl", "list", "blue").out.splitlines()[1:]]
    assert listed == [["in", "0", "first"], ["in", "1", "web"], ["out", "0", "all"]]
    assert networks.run("acl", "add", "blue", "odd", "accept; drop", "--direction", "in").code == 3


def test_reservations_are_kept_for_one_interface_each(networks: Networks) -> None:
    networks.run("add", "blue", *MANAGED)
    mac = "52:54:00:00:00:01"
    assert networks.run("dhcp", "add", "blue", mac, "10.70.0.20", "--hostname", "web").code == 0
    assert networks.run("dhcp", "add", "blue", mac.upper(), "10.70.0.21").code == 5
    assert networks.run("dhcp", "add", "blue", "52:54:00:00:00:02", "10.70.0.20").code == 3
    assert networks.run("dhcp", "list", "blue").out.splitlines()[1].split() == ["reserved", mac, "10.70.0.20", "web"]
    assert networks.run("dhcp", "remove", "blue", mac).code == 0
    assert networks.run("dhcp", "remove", "blue", mac).code == 4


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("add", "blue", "--type", "bridged", "--vni", "7"), 5, "there is a network blue already"),
        (("add", "red", "--type", "bridged", "--vni", "70"), 3, "network blue has VNI 70 as well"),
        (("add", "red", "--type", "bridged", "--vni", "4095"), 3, "4095 is no VLAN"),
        (("add", "red", "--type", "managed", "--vni", "0"), 3, "needs a VNI"),
        (("add", "red", "--type", "managed", "--vni", "71", "--mtu", "500"), 3, "500 is no MTU"),
        (("add", "red", "--type", "managed", "--vni", "71", "--ipv4", "10.70.0.0/16"), 3, "overlaps 10.70.0.0/24"),
        (("add", "red", "--type", "managed", "--vni", "71", "--gateway4", "10.9.0.1"), 3, "no IPv4 subnet"),
        (("add", "red", "--type", "managed", "--vni", "71", "--ipv4", "fd00::/64"), 3, "is no IPv4 subnet"),
        (
            ("add", "red", "--type", "managed", "--vni", "71", "--domain", "blue.local"),
            3,
            "has domain blue.local as well",
        ),
        (("modify", "blue", "--dhcp", "10.70.0.9"), 3, "is no range"),
        (("modify", "blue"), 3, "nothing of network blue is to be changed"),
        (("modify", "red", "--mtu", "1400"), 4, "there is no network 'red'"),
        (("acl", "list", "red"), 4, "there is no network 'red'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(networks: Networks, words: tuple[str, ...], code: int, text: str) -> None:
    networks.run("add", "blue", *MANAGED)
    before = networks.spec("blue")
    done = networks.run(*words)
    assert (done.code, text in done.err) == (code, True), done.err
    assert len(done.err.splitlines()) == 1
    assert networks.spec("blue") == before
