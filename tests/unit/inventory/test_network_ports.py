"""``outlive import ports``: addresses given from outside, checked before the first write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import Result, outlive

HEADER = "vm,network,mac,addresses,interface\n"
GOOD = HEADER + (
    "web-1,green,52:54:00:00:00:01,10.1.0.7 fd44::7,\n"
    "shop,green,52-54-00-00-00-02,10.1.0.8,\n"
    "web-1,open,52:54:00:00:00:03,,\n"
)
DEFINITION = """<domain type='kvm'><name>def</name><uuid>6f1a7c9e-0000-4000-8000-000000000001</uuid>
<memory unit='MiB'>64</memory>
<vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os><devices>
<interface type='bridge'><source bridge='b'/><mac address='52:54:00:00:00:11'/></interface>
<interface type='bridge'><source bridge='b'/><mac address='52:54:00:00:00:12'/></interface></devices></domain>"""


def made(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "outlive.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state directory with VMs and networks."""
    subnets = [{"cidr": "10.1.0.0/24", "gateway": "10.1.0.1"}, {"cidr": "fd44::/64"}]
    objects = [
        made("VirtualNetwork", "green", type="layer2", subnets=subnets),
        made("VirtualNetwork", "open", type="localnet", addressing="none", physicalNetwork="p"),
        made("VirtualMachine", "web-1"),
        made("VirtualMachine", "web-2", displayName="shop"),
        made("VirtualMachine", "def", definition=DEFINITION),
    ]
    (tmp_path / "objects.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    result = outlive("apply", "-f", tmp_path / "objects.json", "--state-dir", tmp_path / "state")
    assert result.code == 0, result.err
    return tmp_path


def imported(folder: Path, text: str, *more: str) -> Result:
    (folder / "ports.csv").write_text(text)
    return outlive("import", "ports", folder / "ports.csv", "--state-dir", folder / "state", "-o", "json", *more)


def ports(folder: Path) -> dict[str, dict[str, Any]]:
    result = outlive("get", "virtualmachineports", "--state-dir", folder / "state", "-o", "json")
    return {one["metadata"]["name"]: one["spec"] for one in json.loads(result.out)["items"]}


def test_a_table_becomes_ports_and_again_changes_nothing(folder: Path) -> None:
    assert json.loads(imported(folder, GOOD, "--dry-run").out)["ports"] == {"created": 3, "updated": 0, "unchanged": 0}
    assert ports(folder) == {}
    result = imported(folder, GOOD)
    assert result.code == 0, result.err
    assert {name: (spec["vm"], spec["mac"], spec.get("addresses")) for name, spec in ports(folder).items()} == {
        "web-1.0": ("web-1", "52:54:00:00:00:01", ["10.1.0.7", "fd44::7"]),
        "web-1.1": ("web-1", "52:54:00:00:00:03", None),
        "web-2.0": ("web-2", "52:54:00:00:00:02", ["10.1.0.8"]),
    }
    assert json.loads(imported(folder, GOOD).out)["ports"] == {"created": 0, "updated": 0, "unchanged": 3}
    moved = GOOD.replace("10.1.0.8", "10.1.0.9")
    assert json.loads(imported(folder, moved).out)["ports"] == {"created": 0, "updated": 1, "unchanged": 2}
    assert ports(folder)["web-2.0"]["addresses"] == ["10.1.0.9"]


def test_the_interface_is_the_one_with_the_mac(folder: Path) -> None:
    assert imported(folder, HEADER + "def,green,52:54:00:00:00:12,10.1.0.9,\n").code == 0
    assert list(ports(folder)) == ["def.1"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("nobody,green,52:54:00:00:00:09,,", "no VM is called 'nobody'"),
        ("web-1,blue,52:54:00:00:00:09,,", "there is no VirtualNetwork 'blue'"),
        ("web-1,green,52:54:00,,", "is no MAC address"),
        ("web-1,green,01:54:00:00:00:09,,", "is no MAC address"),
        ("web-1,green,52:54:00:00:00:09,house,", "'house' is no address"),
        ("web-1,green,52:54:00:00:00:09,10.2.0.1,", "lies in no subnet of network green"),
        ("web-1,green,52:54:00:00:00:09,10.1.0.1,", "10.1.0.1 is the gateway of 10.1.0.0/24"),
        ("web-1,green,52:54:00:00:00:09,10.1.0.255,", "10.1.0.255 is no address of an interface"),
        ("web-1,green,52:54:00:00:00:01,,5", "MAC 52:54:00:00:00:01 is that of port web-1.0"),
        ("web-1,green,52:54:00:00:00:09,FD44:0::7,5", "fd44::7 is an address of port web-1.0"),
        ("web-1,green,52:54:00:00:00:09,10.1.0.7,5", "10.1.0.7 is an address of port web-1.0"),
        ("web-1,green,52:54:00:00:00:09,,0", "web-1.0 is there twice"),
        ("web-1,green,52:54:00:00:00:09,,99", "99"),
        ("def,green,52:54:00:00:00:09,,", "no interface in the definition of def has MAC"),
        ("def,green,52:54:00:00:00:12,,0", "is interface 1 of def, not 0"),
        ("def,green,52:54:00:00:00:09,,7", "def has no interface 7"),
    ],
)
def test_a_row_that_is_wrong_is_told_with_its_line_and_nothing_is_written(folder: Path, row: str, words: str) -> None:
    result = imported(folder, GOOD + row + "\n")
    assert result.code == 3
    assert any("ports.csv:5" in line and words in line for line in result.err.splitlines()), result.err
    assert ports(folder) == {}


def test_a_table_without_a_needed_column_is_refused(folder: Path) -> None:
    result = imported(folder, "vm,net,mac\nweb-1,green,52:54:00:00:00:01\n")
    assert (result.code, "no column for network" in result.err) == (3, True)
