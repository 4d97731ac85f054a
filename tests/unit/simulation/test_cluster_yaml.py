"""Whatever users and operators can want of VMs, hosts and the cluster can be said in a scenario's ``cluster.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from outlive.resources import (
    Amounts,
    Cluster,
    ClusterSpec,
    FencingSpec,
    Hypervisor,
    HypervisorSpec,
    Problems,
    Resource,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualNetwork,
    VirtualNetworkSpec,
    parse_documents,
    to_builtins,
)
from outlive.simulation import HostSpec, HostsSpec, NetworkEntry, VmSpec, VmsSpec, WorldSpec, read_as, resources_of

PAGE: Final = (Path(__file__).parents[3] / "docs/reference/scenarios.md").read_text()
REAL: Final = dict.fromkeys(
    (
        "definition",
        "migrationBandwidthMibS",
        "migrationAutoConverge",
        "migrationPostCopy",
        "migrationMultifd",
        "migrationTls",
        "migrationLimitS",
    ),
    "of real hypervisors",
)
DERIVED: Final = {
    VirtualMachineSpec: {"resources": "cpu and memory", "request": "the verb `request`", **REAL},
    HypervisorSpec: {
        "management": "`daemons`",
        "fencing": "`armed`, `profile`, `proofs`, `bmc`",
        "quarantineRelease": "no host begins in quarantine",
        "virtualFunctions": "nobody programs any",
        "chassis": "hosts are found by the host name of their chassis",
    },
    VirtualNetworkSpec: {"hostLabels": "a network reaches all hosts"},
    ClusterSpec: {
        "description": "nobody reads it",
        "maintenanceUntil": "the verb `maintenance`",
        "disarmedSince": "the verb `disarm-cluster`",
        "disarmedUntil": "the verb `disarm-cluster`",
        "confirmedIncarnation": "the verb `confirm-incarnation`",
        "schema": "a simulated store has one storage schema",
        "primary": "the verbs `primary` and `secondary`",
        "systemNetworks": "simulated hosts are on their networks already",
    },
}
"""What is said in other words, or by verbs of the timeline."""
CALLED: Final = {"restartPriority": "priority", "fencing": "policy"}
"""What has another name there."""

VM: Final = {
    "displayName": "web 1",
    "project": "shop",
    "flavor": "m.large",
    "diskGib": 20,
    "extraSpecs": {"trait:GPU": "required"},
    "osType": "linux",
    "zone": "b",
    "serverGroup": "web",
    "serverGroupPolicy": "anti-affinity",
    "affinity": [{"group": "db", "policy": "soft-affinity"}],
    "preferredHosts": {"weights": {"kvm-1": 10}, "strict": True},
    "failback": "auto",
    "protection": "critical",
    "restartPriority": 7,
    "recoveryTimeObjectiveS": 60.0,
    "powerState": "stopped",
    "disks": ["d1"],
    "functions": [{"name": "eth0v0", "kind": "hostdev", "pci": "0000:01:10.0", "mac": "52:54:00:00:00:01"}],
    "sharedDisks": ["d1"],
    "consoleSecret": "console-web",
    "ports": ["p1", "p2"],
    "diskCache": "directsync",
    "networkPolicy": "accept-duplicate",
    "autostart": True,
    "migrationMethod": "shutdown",
    "migrationDowntimeMs": 300,
    "selector": "load",
    "hostLimit": ["kvm-1", "kvm-2"],
    "startAfter": ["vm-b"],
    "recovery": {"mode": "hold", "maxRestarts": 2},
}
HOST: Final = {
    "mode": "coordinator",
    "customTraits": ["GPU"],
    "allowedProjects": ["shop"],
    "groups": ["g1"],
    "overcommit": {"cpu": 2.0},
    "highAvailability": False,
    "maintenance": "manual",
    "shutdownPolicy": "migrate",
    "drain": True,
}
CLUSTER: Final = {
    "maintenance": True,
    "disarmed": "freeze",
    "shutdownPolicy": "freeze",
    "rebalance": {"mode": "auto", "moves": 2},
    "fencing": {"profile": "steady", "fencesLimit": 5, "powerOnAfter": True},
    "degrading": {"action": "tell", "windowS": 20.0},
    "recovery": {"maxRelocations": 5},
    "defaultSelector": "load",
}
NETWORK: Final = {
    "type": "routed",
    "subnets": [{"cidr": "10.44.0.0/16", "hostPrefix": 26}],
    "addressing": "none",
    "mtu": 1400,
    "portSecurity": False,
    "dhcp": {"enabled": True, "router": "subnet"},
    "physicalNetwork": "outside",
    "vlan": 7,
    "vni": 200,
    "domain": "red.example",
    "nameServers": ["ns.example"],
    "reservations": [{"mac": "0a:58:0a:2c:00:09", "address": "10.44.0.9"}],
    "rules": [{"name": "ssh", "direction": "in", "rule": "tcp dport 22 accept"}],
}
WANTED: Final = {
    VirtualMachineSpec: VM,
    HypervisorSpec: HOST,
    ClusterSpec: CLUSTER,
    VirtualNetworkSpec: NETWORK,
}


def built(document: dict[str, Any], tmp_path: Path) -> dict[str, Resource]:
    """What the cluster begins with, by kind; there is one of each."""
    path = tmp_path / "cluster.yaml"
    path.write_bytes(msgspec.yaml.encode(document))
    problems = Problems()
    value = parse_documents(path.read_bytes(), "cluster.yaml")[0].value
    spec = read_as(value, WorldSpec, "cluster.yaml", problems, "")
    assert spec is not None, problems.shown
    bmcs: Any = {"kvm-1": _Controller()}
    return {one.kind(): one for one in resources_of(spec, bmcs, incarnation="i")}


class _Controller:
    class owner:  # noqa: N801 - an attribute
        system_uuid = "u"


def said(name: str, wanted: Any, of: type[Any]) -> dict[str, Any]:
    """A document that says this one thing."""
    written = {CALLED.get(name, name): wanted}
    vm = {"name": "vm-a", "host": "kvm-1"} | (written if of is VirtualMachineSpec else {})
    host = {"name": "kvm-1"} | (written if of is HypervisorSpec else {})
    network = {"name": "net", "type": "layer2"} | (written if of is VirtualNetworkSpec else {})
    return {"hosts": [host], "vms": [vm], "networks": [network]} | (written if of is ClusterSpec else {})


@pytest.mark.parametrize(
    ("of", "name"),
    [(of, name) for of, wanted in WANTED.items() for name in wanted],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_a_policy_is_said_under_its_own_name(of: type[Any], name: str, tmp_path: Path) -> None:
    found = built(said(name, WANTED[of][name], of), tmp_path)
    kind = {
        VirtualMachineSpec: VirtualMachine,
        HypervisorSpec: Hypervisor,
        ClusterSpec: Cluster,
        VirtualNetworkSpec: VirtualNetwork,
    }[of]
    assert to_builtins(found[kind.kind()])["spec"][name] == WANTED[of][name]


@pytest.mark.parametrize("of", WANTED, ids=lambda one: one.__name__)
def test_every_field_can_be_said(of: type[Any]) -> None:
    """A new field needs a line above, a field in ``outlive.simulation.spec``, and its name on the page."""
    assert {*WANTED[of], *DERIVED[of]} == {one.encode_name for one in msgspec.structs.fields(of)}


def test_the_host_s_way_to_die_is_said_by_it() -> None:
    assert {"armed", "profile", "proofs"} <= {*FencingSpec.__struct_fields__} & {*HostSpec.__struct_fields__}


def test_a_host_that_is_overcommitted_begins_with_what_that_gives(tmp_path: Path) -> None:
    host = built(said("overcommit", {"cpu": 2.0}, HypervisorSpec), tmp_path)["Hypervisor"]
    assert isinstance(host, Hypervisor)
    assert host.effective_capacity() == Amounts.parse({"cpu": "64", "memory": "128Gi"})


@pytest.mark.parametrize(
    "part", [WorldSpec, HostSpec, HostsSpec, VmSpec, VmsSpec, NetworkEntry], ids=lambda one: one.__name__
)
def test_the_page_names_every_member(part: type[Any]) -> None:
    names = [one.encode_name for one in msgspec.structs.fields(part)]
    assert [name for name in names if f"`{name}`" not in PAGE] == []
