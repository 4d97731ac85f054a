"""VMs stay on hosts that their networks reach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import outlive

from outlive.network import NetworkNames, ReachedHosts, reach_problem, reached_hosts, with_host_limits
from outlive.placement import demands_of, judge, view_of_resource
from outlive.resources import (
    NOWHERE,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    ObjectMeta,
    Resource,
    VirtualMachine,
    VirtualMachinePort,
    VirtualMachinePortSpec,
    VirtualMachineSpec,
    VirtualMachineStatus,
    VirtualNetwork,
    VirtualNetworkSpec,
)
from outlive.resources.reasons import render


def host(name: str, **labels: str) -> Hypervisor:
    return Hypervisor(metadata=ObjectMeta(name=name, labels=labels), spec=HypervisorSpec(management="node"))


def network(name: str, **labels: str) -> VirtualNetwork:
    return VirtualNetwork(metadata=ObjectMeta(name=name), spec=VirtualNetworkSpec(type="bridged", host_labels=labels))


def port(vm: str, number: int, on: str) -> VirtualMachinePort:
    spec = VirtualMachinePortSpec(vm=vm, network=on, mac="02:00:00:00:00:01")
    return VirtualMachinePort(metadata=ObjectMeta(name=f"{vm}.{number}"), spec=spec)


HOSTS = [host("h1", rack="a", dmz="yes"), host("h2", rack="a"), host("h3", rack="b", dmz="yes")]
NETWORKS = {
    one.name: one
    for one in (network("all"), network("rack-a", rack="a"), network("dmz", dmz="yes"), network("none", x="y"))
}


NAMES = NetworkNames(NETWORKS.get, lambda _bridge: "")


@pytest.mark.parametrize(
    ("networks", "limits", "allowed"),
    [
        ((), {}, ()),
        (("all",), {}, ()),
        (("rack-a",), {"rack-a": ("h1", "h2")}, ("h1", "h2")),
        (("all", "rack-a", "dmz"), {"dmz": ("h1", "h3"), "rack-a": ("h1", "h2")}, ("h1",)),
        (("none",), {"none": ()}, NOWHERE),
        (("gone",), {}, ()),
    ],
)
def test_a_vm_may_run_where_all_its_networks_reach(
    networks: tuple[str, ...], limits: dict[str, tuple[str, ...]], allowed: tuple[str, ...]
) -> None:
    ports = [port("web", number, one) for number, one in enumerate(networks)]
    found = reached_hosts(VirtualMachine(), ports, NAMES, ReachedHosts(HOSTS))
    assert found == limits
    vm = VirtualMachine(metadata=ObjectMeta(name="web"), status=VirtualMachineStatus(network_hosts=found))
    assert vm.allowed_hosts == demands_of(vm).host_limit == view_of_resource(vm).host_limit == allowed


@pytest.mark.parametrize(
    ("kind", "said", "named", "reached"),
    [
        ("layer2", ("h1", ""), "", ("h1",)),
        ("layer2", ("h1", None), "", None),  # a host that says nothing may run OVN
        ("layer2", ("", ""), "", ()),
        ("routed", ("h1", ""), "chassis-2", None),
        ("localnet", ("h1", ""), "", ("h1",)),
        ("bridged", ("h1", ""), "", None),
    ],
)
def test_a_network_in_ovn_reaches_no_host_that_says_that_it_runs_none(
    kind: Any, said: tuple[str | None, ...], named: str, reached: tuple[str, ...] | None
) -> None:
    hosts = [
        Hypervisor(metadata=ObjectMeta(name="h1"), status=HypervisorStatus(chassis=said[0])),
        Hypervisor(
            metadata=ObjectMeta(name="h2"),
            spec=HypervisorSpec(management="node", chassis=named),
            status=HypervisorStatus(chassis=said[1]),
        ),
    ]
    green = VirtualNetwork(metadata=ObjectMeta(name="green"), spec=VirtualNetworkSpec(type=kind))
    assert ReachedHosts(hosts).find(green) == reached


def test_the_limits_of_its_user_and_of_its_networks_hold_together() -> None:
    status = VirtualMachineStatus(network_hosts={"rack-a": ("h1", "h2")})
    both = VirtualMachine(
        metadata=ObjectMeta(name="web"), spec=VirtualMachineSpec(host_limit=("h2", "h3")), status=status
    )
    assert both.allowed_hosts == ("h2",)
    apart = VirtualMachine(metadata=ObjectMeta(name="web"), spec=VirtualMachineSpec(host_limit=("h3",)), status=status)
    assert apart.allowed_hosts == NOWHERE


def test_a_refusal_names_the_network_that_does_not_reach_the_host() -> None:
    status = VirtualMachineStatus(network_hosts={"rack-a": ("h1", "h2")})
    vm = demands_of(VirtualMachine(metadata=ObjectMeta(name="web"), status=status))
    refusal = judge(vm, "h3").refusal
    assert refusal is not None
    assert (refusal.code, refusal.fields["network"]) == ("network-unreached-there", "rack-a")
    assert judge(vm, "h1").allowed


def test_a_state_file_without_limits_is_read_with_them() -> None:
    objects: list[Resource] = [
        *HOSTS,
        *NETWORKS.values(),
        port("web", 0, "dmz"),
        VirtualMachine(metadata=ObjectMeta(name="web")),
    ]
    (vm,) = (one for one in with_host_limits(objects) if isinstance(one, VirtualMachine))
    assert vm.allowed_hosts == ("h1", "h3")


def document(kind: str, name: str, spec: dict[str, Any], **parts: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": parts.pop("labels", {})}
    return {"apiVersion": "outlive.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec, **parts}


def test_offline_answers_keep_a_vm_and_its_slots_on_hosts_of_its_network(tmp_path: Path) -> None:
    size = {"cpu": "32", "memory": "64Gi"}
    status = {
        "capacity": size,
        "allocation": {"cpu": "0", "memory": "0"},
        "domainCapabilities": {"hypervisorType": "kvm"},
    }
    spec = {"flavor": "m1", "resources": {"cpu": "4", "memory": "8Gi"}, "ports": ["x"]}
    placed = {"assigned": {"hypervisor": "h1"}, "phase": "start"}
    items = [
        *(
            document(
                "Hypervisor", f"h{n}", {"management": "node"}, status=status, labels={"rack": "a" if n < 3 else "b"}
            )
            for n in range(1, 6)
        ),
        document("VirtualNetwork", "dmz", {"type": "bridged", "hostLabels": {"rack": "a"}}),
        document("VirtualMachine", "web", spec, status=placed),
        document("VirtualMachinePort", "web.0", {"vm": "web", "network": "dmz", "mac": "02:00:00:00:00:01"}),
    ]
    (tmp_path / "objects.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    applied = outlive("apply", "-f", tmp_path / "objects.json", "--status", "--state-dir", tmp_path / "state")
    assert applied.code == 0, applied.err
    state = tmp_path / "state.json"
    state.write_text(outlive("dump", "--state-dir", tmp_path / "state").out)
    ranked = outlive("placement", "rank", "--vm", "web", "--explain", "--state", state)
    assert "1 hosts would take it" in ranked.out
    assert "network dmz reaches h1 and h2: it may run nowhere else" in ranked.out
    assert outlive("whatif", "remove-host", "h5", "-k", "1", "--state", state).code == 0
    without = outlive("whatif", "remove-host", "h2", "-k", "1", "--state", state)
    assert (without.code, "web" in without.out) == (1, True)
    more = ["--count", "1", "-k", "2", "--state", state, "-o", "json"]
    assert outlive("whatif", "add-host", "--like", "h2", *more).code == 0, "a copy has the label that reaches it"
    assert outlive("whatif", "add-host", "--like", "h5", *more).code == 1


def own_network(name: str, vni: int, **labels: str) -> VirtualNetwork:
    spec = VirtualNetworkSpec(type="managed", vni=vni, host_labels=labels)
    return VirtualNetwork(metadata=ObjectMeta(name=name), spec=spec)


def making(name: str, **networks: str) -> Hypervisor:
    """A host that says what it has made of its networks."""
    found = host(name, rack="a")
    return Hypervisor(metadata=found.metadata, spec=found.spec, status=HypervisorStatus(networks=networks))


BRIDGED = "<domain><devices><interface type='bridge'><source bridge='vmbr70'/></interface></devices></domain>"


@pytest.mark.parametrize("by", ["port", "definition"])
def test_a_network_that_hosts_make_reaches_those_that_have_made_it(by: str) -> None:
    hosts = [making("h1", blue=""), making("h2", blue="device vmbr70 is there already"), making("h3"), host("h4")]
    definition = BRIDGED if by == "definition" else ""
    vm = VirtualMachine(metadata=ObjectMeta(name="web"), spec=VirtualMachineSpec(definition=definition))
    ports = [port("web", 0, "blue")] if by == "port" else []
    found = with_host_limits([vm, *ports, *hosts, own_network("blue", 70)])
    (limited,) = (one for one in found if isinstance(one, VirtualMachine))
    assert limited.status.network_hosts == {"blue": ("h1",)}
    verdict = judge(demands_of(limited), "h2")
    assert verdict is not None
    assert "blue" in str(verdict)


def test_a_bridged_network_without_a_vni_is_made_by_the_operator_of_the_hosts() -> None:
    found = with_host_limits(
        [VirtualMachine(metadata=ObjectMeta(name="web")), port("web", 0, "all"), *HOSTS, network("all")]
    )
    (limited,) = (one for one in found if isinstance(one, VirtualMachine))
    assert limited.status.network_hosts == {}


def test_why_a_host_lacks_a_network_is_told() -> None:
    problem = reach_problem(own_network("blue", 70), making("h2", blue="there is no device eth9"))
    assert problem is not None
    assert render(problem).text == "h2 has not made network blue: there is no device eth9"
    assert reach_problem(own_network("blue", 70), making("h1", blue="")) is None
