"""``outlive network check`` and ``trace`` on a real OVN, by a real server."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lab.ovn import Ovn
from tests.conformance.ovn.worlds import programs
from tests.support.command import Result, Server, outlive, up

pytestmark = [pytest.mark.component("ovn"), pytest.mark.slow]
HOSTS = ("ch-1", "ch-2")
VMS = {"web": ("green", "ch-1", 1), "db": ("green", "ch-2", 2), "cart": ("red", "ch-1", 3), "till": ("red", "ch-2", 4)}
"""VM → network, host, number."""


def interface(number: int) -> str:
    return f"00000000-0000-4000-8000-00000000000{number}"


def mac(number: int) -> str:
    return f"02:00:00:00:00:0{number}"


def made(kind: str, name: str, spec: dict[str, Any], **parts: Any) -> dict[str, Any]:
    labels = parts.pop("labels", {})
    return {
        "apiVersion": "outlive.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        **parts,
    }


def objects() -> list[dict[str, Any]]:
    found = [made("Hypervisor", host, {"management": "node", "maintenance": "manual"}) for host in HOSTS]
    found.append(made("VirtualNetwork", "green", {"type": "layer2", "subnets": [{"cidr": "10.1.0.0/24"}]}))
    found.append(made("VirtualNetwork", "red", {"type": "routed", "subnets": [{"cidr": "10.44.0.0/16"}]}))
    for name, (network, host, number) in VMS.items():
        status = {"assigned": {"hypervisor": host}, "home": host}
        found.append(
            made(
                "VirtualMachine", name, {"ports": [interface(number)]}, labels={"outlive.dev/host": host}, status=status
            )
        )
        found.append(made("VirtualMachinePort", f"{name}.0", {"vm": name, "network": network, "mac": mac(number)}))
    return found


@dataclass
class Cloud:
    """OVN with two chassis and a server on it."""

    ovn: Ovn
    server: Server
    directory: Path

    def ask(self, *words: str) -> Result:
        return outlive("network", *words, "--state-dir", self.directory)

    def check(self, *words: str) -> list[tuple[str, str]]:
        """What differs: code and about."""
        found = json.loads(self.ask("check", *words, "-o", "json").out)
        return [(one["code"], one["about"]) for one in found["findings"]]

    def trace(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.ask("trace", *words, "-o", "json").out)
        return found

    def within(self, claim: Callable[[], bool], limit_s: float = 60.0) -> bool:
        end = time.monotonic() + limit_s
        while time.monotonic() < end and not claim():
            time.sleep(0.3)
        return claim()


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    path = tmp_path_factory.mktemp("net")
    config = path / "outlive.yaml"
    with Ovn(path / "ovn", len(HOSTS), bin=programs()) as ovn:
        network = {"northbound": ovn.nb_remote, "southbound": ovn.sb_remote}
        config.write_text(json.dumps({"network": network}))
        (path / "objects.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects()}))
        env = {"PATH": f"{programs()}:{os.environ['PATH']}"} if programs() else {}
        with up(path / "state", "--config", str(config), env=env) as server:
            one = Cloud(ovn, server, path / "state")
            applied = outlive("apply", "-f", path / "objects.json", "--status", "--state-dir", one.directory)
            assert applied.code == 0, applied.err
            for name, (_, host, number) in VMS.items():
                chassis = next(each for each in ovn.chassis if each.name == host)
                assert one.within(lambda name=name: interfaces(one, name) != {})
                chassis.plug(interfaces(one, name)[host], mac(number))
            assert one.within(lambda: not one.check()), one.ask("check").out
            yield one


def interfaces(cloud: Cloud, name: str) -> dict[str, str]:
    result = outlive("get", "virtualmachineports", f"{name}.0", "-o", "json", "--state-dir", cloud.directory)
    found: dict[str, str] = json.loads(result.out).get("status", {}).get("interfaces", {})
    return found


def test_an_ovn_as_it_should_be_is_said_to_be_so(cloud: Cloud) -> None:
    result = cloud.ask("check")
    assert (result.code, result.out.splitlines()[0][:27]) == (0, "OVN is as it should be: 2 n")
    assert cloud.ask("check", "web").code == cloud.ask("check", "green").code == 0
    assert cloud.ask("check", "nobody").code == 4


def test_a_port_that_nobody_has_bound_is_told_with_its_host(cloud: Cloud) -> None:
    first = cloud.ovn.chassis[0]
    port = interfaces(cloud, "web")["ch-1"]
    first.unplug(port)
    assert cloud.within(lambda: ("not-bound", "VirtualMachinePort/web.0") in cloud.check("web"))
    assert cloud.ask("check", "web").code == 1
    first.plug(port, mac(1))
    assert cloud.within(lambda: not cloud.check("web"))


def test_packets_of_a_layer2_network_arrive_and_are_told_hop_by_hop(cloud: Cloud) -> None:
    found = {one["question"]: one for one in cloud.trace("web")}
    assert {name: one["passed"] for name, one in found.items()} == {"dhcp": True, "neighbour": True, "in": True}
    assert found["dhcp"]["outcome"] == "answered"
    assert (found["in"]["outcome"], found["in"]["ports"]) == ("arrives", [interfaces(cloud, "web")["ch-1"]])
    assert cloud.ask("trace", "web").code == 0


def test_packets_of_a_routed_network_pass_the_router(cloud: Cloud) -> None:
    found = {one["question"]: one for one in cloud.trace("cart")}
    assert found["in"]["passed"] is True
    assert [hop["kind"] for hop in found["in"]["hops"]] == ["switch", "router", "switch"]
    assert [hop["name"] for hop in found["in"]["hops"]] == ["red_ch-2", "ovn_cluster_router", "red_ch-1"]
    out = found["out"]
    assert (out["outcome"], out["passed"], out["stage"]) == ("dropped", None, "lr_in_ip_routing")
    assert found["dhcp"]["passed"] is found["gateway"]["passed"] is True


def test_a_packet_to_an_address_of_nobody_is_dropped_or_asked_for(cloud: Cloud) -> None:
    (nowhere,) = cloud.trace("cart", "--to", "192.0.2.1")
    assert "the router has no route there" in nowhere["text"]
    (other,) = cloud.trace("till.0", "--from", "cart")
    assert other["passed"] is True
    assert "ingress(dp=" in cloud.ask("trace", "till.0", "--from", "cart", "--raw").out


@pytest.mark.parametrize("words", [("nobody",), ("web", "--to", "house"), ("web", "--from", "nobody")])
def test_what_cannot_be_traced_is_refused_in_one_line(cloud: Cloud, words: tuple[str, ...]) -> None:
    result = cloud.ask("trace", *words)
    assert result.code in (3, 4)
    assert result.line


def test_a_move_is_measured_by_stages_and_leaves_ovn_as_it_should_be(cloud: Cloud) -> None:
    _, host, number = VMS["cart"]

    def write(status: dict[str, Any]) -> None:
        vm = made(
            "VirtualMachine", "cart", {"ports": [interface(number)]}, labels={"outlive.dev/host": host}, status=status
        )
        (cloud.directory.parent / "cart.json").write_text(json.dumps(vm))
        result = outlive(
            "apply", "-f", cloud.directory.parent / "cart.json", "--status", "--state-dir", cloud.directory
        )
        assert result.code == 0, result.err

    def move() -> dict[str, Any]:
        result = outlive("get", "virtualmachineports", "cart.0", "-o", "json", "--state-dir", cloud.directory)
        found: dict[str, Any] = json.loads(result.out)["status"].get("migration") or {}
        return found

    home = {"assigned": {"hypervisor": "ch-1"}, "home": "ch-1"}
    write({**home, "migration": {"id": "m1", "source": "ch-1", "target": "ch-2"}})
    assert cloud.within(lambda: "ch-2" in interfaces(cloud, "cart"))
    cloud.ovn.chassis[1].plug(interfaces(cloud, "cart")["ch-2"], mac(number))
    assert cloud.within(lambda: move().get("prepared") is True), cloud.ask("check").out
    write({**home, "assigned": {"hypervisor": "ch-2"}})
    assert cloud.within(
        lambda: move().get("timesMs", {}).keys() >= {"prepare", "decide", "commit", "northd", "flows"}
    ), move()
    assert cloud.within(lambda: not cloud.check("cart")), cloud.ask("check", "cart").out
    assert {one["question"]: one["passed"] for one in cloud.trace("cart")}["in"] is True


def test_a_chassis_that_died_is_told_with_the_change_it_knew(cloud: Cloud) -> None:
    """The last test: it does not come back."""
    cloud.ovn.chassis[1].kill()
    outlive("delete", "virtualmachineport", "till.0", "--yes", "--state-dir", cloud.directory)
    assert cloud.within(lambda: ("chassis-silent", "Hypervisor/ch-2") in cloud.check())
    assert "has not answered since change" in cloud.ask("check").out
