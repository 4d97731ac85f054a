"""Networks of another node daemon, read of a dump of its tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.command import outlive
from tests.unit.inventory.test_node_config import document

from outlive.base import BadInput
from outlive.inventory import is_dump, read_network_dump

MANAGED = {
    "": "Prod Net",
    "/nettype": "managed",
    "/mtu": "1400",
    "/name_servers": "ns1.example,ns2.example",
    "/domain": "prod.example",
    "/ip4_network": "10.70.0.0/24",
    "/ip4_gateway": "10.70.0.1",
    "/dhcp4_flag": "True",
    "/dhcp4_start": "10.70.0.10",
    "/dhcp4_end": "10.70.0.99",
    "/ip6_network": "fd70::/64",
    "/ip6_gateway": "None",
    "/dhcp6_flag": "False",
    "/dhcp4_reservations": "",
    "/dhcp4_reservations/52:54:00:00:00:01": "",
    "/dhcp4_reservations/52:54:00:00:00:01/ipaddr": "10.70.0.20",
    "/dhcp4_reservations/52:54:00:00:00:01/hostname": "web",
    "/dhcp4_leases": "",
    "/dhcp4_leases/52:54:00:00:00:02": "",
    "/dhcp4_leases/52:54:00:00:00:02/ipaddr": "10.70.0.30",
    "/firewall_rules": "",
    "/firewall_rules/in": "",
    "/firewall_rules/in/ssh": "",
    "/firewall_rules/in/ssh/order": "1",
    "/firewall_rules/in/ssh/rule": "tcp dport 22 accept",
    "/firewall_rules/out": "",
    "/colour": "blue",
}


def dump(vni: int = 70, **changes: str) -> dict[str, Any]:
    keys = {**MANAGED, **{f"/{key}": value for key, value in changes.items()}}
    return {f"/networks/{vni}{key}": value for key, value in keys.items()}


def test_every_key_of_a_managed_network_is_taken_over_and_the_rest_is_told() -> None:
    read = read_network_dump({**dump(), "/nodes/hv1": "hypervisor"}, "dump.json")
    (network,) = read.networks
    assert network.name == "prod-net"
    spec = network.spec
    assert (spec.type, spec.vni, spec.mtu, spec.domain) == ("managed", 70, 1400, "prod.example")
    assert spec.name_servers == ("ns1.example", "ns2.example")
    four, six = spec.subnets
    assert (four.cidr, four.gateway) == ("10.70.0.0/24", "10.70.0.1")
    assert four.dhcp is not None
    assert (four.dhcp.start, four.dhcp.end) == ("10.70.0.10", "10.70.0.99")
    assert (six.cidr, six.gateway) == ("fd70::/64", "fd70::1")
    assert [(one.mac, one.address, one.hostname) for one in spec.reservations] == [
        ("52:54:00:00:00:01", "10.70.0.20", "web")
    ]
    assert [(one.name, one.direction, one.order, one.rule) for one in spec.rules] == [
        ("ssh", "in", 1, "tcp dport 22 accept")
    ]
    assert read.dropped == [
        "1 paths of other parts: only networks are read of a dump",
        "network prod-net: 1 leases: guests ask anew",
        "network prod-net: colour is not known",
        "network prod-net: its description 'Prod Net', as names are written here",
    ]


def test_a_text_none_is_unset() -> None:
    unset = {"mtu": "None", "name_servers": "None", "domain": "None", "ip6_network": "None", "dhcp4_flag": "None"}
    (network,) = read_network_dump(dump(**unset), "dump.json").networks
    assert (network.spec.mtu, network.spec.name_servers, network.spec.domain) == (0, (), "")
    (four,) = network.spec.subnets
    assert four.dhcp is None


def test_a_bridged_network_keeps_its_vlan_and_nothing_of_addresses() -> None:
    (network,) = read_network_dump({"/networks/80": "wan", "/networks/80/nettype": "bridged"}, "dump.json").networks
    assert (network.name, network.spec.type, network.spec.vni, network.spec.subnets) == ("wan", "bridged", 80, ())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"nettype": "wired"}, "its type 'wired' is neither bridged nor managed"),
        ({"mtu": "big"}, "its MTU 'big' is no number"),
        ({"dhcp4_start": "10.9.0.1"}, "the start of DHCP, 10.9.0.1, is not in 10.70.0.0/24"),
        ({"firewall_rules/in/ssh/order": "first"}, "invalid literal"),
    ],
)
def test_a_network_that_cannot_be_is_left_out_by_name_and_the_others_stay(changes: dict[str, str], text: str) -> None:
    others = {"/networks/80": "wan", "/networks/80/nettype": "bridged"}
    read = read_network_dump({**dump(**changes), **others}, "dump.json")
    assert [one.name for one in read.networks] == ["wan"]
    assert any("network prod-net, VNI 70: " in one and text in one for one in read.dropped)


def test_a_dump_is_told_from_a_configuration() -> None:
    assert is_dump({"/networks/1": "x"})
    assert not is_dump({"cluster": {}})
    assert not is_dump({})
    with pytest.raises(BadInput, match="has 0 networks"):
        read_network_dump({"/nodes/hv1": "x"}, "dump.json")


def test_a_folder_with_both_is_read_and_what_it_writes_can_be_applied(tmp_path: Path) -> None:
    source, out, state = tmp_path / "source", tmp_path / "out", tmp_path / "state"
    source.mkdir()
    out.mkdir()
    (source / "daemon.yaml").write_text(
        yaml.safe_dump(document(guest_networking={"bridge_device": "bond1", "bridge_mtu": 1500}))
    )
    (source / "dump.json").write_text(json.dumps(dump()))
    done = outlive("import", "node-config", source, "--out", out, "--host", "hv2")
    assert done.code == 0, done.err
    links = yaml.safe_load((out / "node.yaml").read_text())["links"]
    assert links == {
        "systemNetworks": {
            name: {"device": "bond0", "address": "by-id", "mtu": 9000} for name in ("upstream", "cluster", "storage")
        },
        "bridgeDevice": "bond1",
        "bridgeMtu": 1500,
    }
    for name in ("cluster.yaml", "networks.yaml"):
        applied = outlive("apply", "-f", out / name, "--state-dir", state)
        assert applied.code == 0, applied.err
    shown = outlive("network", "list", "--state-dir", state)
    assert "prod-net" in shown.out
    cluster = json.loads(outlive("get", "cluster", "default", "-o", "json", "--state-dir", state).out)
    assert cluster["spec"]["systemNetworks"]["cluster"] == {"cidr": "10.1.0.0/24", "floating": "10.1.0.250"}
