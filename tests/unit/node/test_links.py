"""What a host's links have to be, the changes that make them so, and the way back. On a kernel made of data."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlive.base import BadInput, LoopClock, Random, SeededIds, Unavailable
from outlive.node.links import (
    SYSTEM,
    BridgedPorts,
    ConfirmInput,
    LinkFacts,
    LinkPlanInput,
    LinkSettings,
    PlacedAddress,
    SystemLink,
    compose_links,
    confirm_change,
    mtu_of,
    placed_by,
    plan_links,
    rates_between,
    undo_ops,
)
from outlive.node.ports import FoundLinks, HostLink, HostRoute, LinkOp, LinkTraffic, NoNetworks
from outlive.resources import SystemNetwork, VirtualMachine, VirtualMachinePort, VirtualNetwork, convert
from outlive.runtime import run_virtual
from outlive.store import MemoryStore

replace = msgspec.structs.replace


def apply(found: FoundLinks, op: LinkOp) -> FoundLinks:
    """What a kernel has after a change."""
    links = {one.name: one for one in found.links}
    routes, sysctls = list(found.routes), dict(found.sysctls)
    link = links.get(op.device)
    match op.op:
        case "create" if link is None:
            made = HostLink(name=op.device, kind=op.kind, alias=op.alias, lower=op.lower, vni=op.vni, port=op.port)
            links[op.device] = replace(made, local=op.local, offload=op.kind == "bridge")
        case "delete":
            links.pop(op.device, None)
            links = {name: replace(one, bridge="") if one.bridge == op.device else one for name, one in links.items()}
            links = {name: one for name, one in links.items() if one.lower != op.device or not op.device}
            routes = [one for one in routes if one.device != op.device]
        case "addRoute":
            routes = [one for one in routes if one.to != op.key]
            routes.append(HostRoute(gateway=op.value, device=op.device, to=op.key))
        case "removeRoute":
            routes = [one for one in routes if (one.gateway, one.device, one.to) != (op.value, op.device, op.key)]
        case "sysctl":
            sysctls[op.key] = op.value
        case "ipv6Off":
            sysctls[f"net.ipv6.conf.{op.device}.disable_ipv6"] = "1"
        case _ if link is not None:
            links[op.device] = _changed(link, op)
            if op.op == "removeAddress" and not links[op.device].addresses:
                routes = [one for one in routes if one.device != op.device]
    return FoundLinks(links=tuple(links.values()), routes=tuple(routes), sysctls=sysctls)


def _changed(link: HostLink, op: LinkOp) -> HostLink:
    match op.op:
        case "up" | "down":
            return replace(link, up=op.op == "up")
        case "mtu":
            return replace(link, mtu=int(op.value))
        case "attach":
            return replace(link, bridge=op.value)
        case "detach":
            return replace(link, bridge="")
        case "noChecksum":
            return replace(link, offload=False)
        case "addAddress":
            return replace(link, addresses=tuple(dict.fromkeys((*link.addresses, op.value))))
        case "removeAddress":
            return replace(link, addresses=tuple(one for one in link.addresses if one != op.value))
        case "addRemote":
            return replace(link, remotes=tuple(sorted({*link.remotes, op.value})))
        case "removeRemote":
            return replace(link, remotes=tuple(one for one in link.remotes if one != op.value))
    return link


CLUSTER = SystemNetwork(cidr="10.0.0.0/24", floating="10.0.0.250")
STORAGE = SystemNetwork(cidr="10.0.1.0/24", floating="10.0.1.250")
UPSTREAM = SystemNetwork(cidr="10.0.2.0/24", floating="10.0.2.250", gateway="10.0.2.1")


def network(name: str, kind: str, vni: int, mtu: int = 0) -> VirtualNetwork:
    return convert(VirtualNetwork, {"metadata": {"name": name}, "spec": {"type": kind, "vni": vni, "mtu": mtu}})


def facts(*networks: VirtualNetwork, host: str = "node7", **more: Any) -> LinkFacts:
    given = {
        "cluster": SystemLink(device="eth0", mtu=9000),
        "storage": SystemLink(device="eth0"),
        "upstream": SystemLink(device="eth1"),
    }
    own = LinkSettings(system_networks=given, bridge_device="eth2", **more)
    system = {"cluster": CLUSTER, "storage": STORAGE, "upstream": UPSTREAM}
    others = ("10.0.0.7", "10.0.0.8", "10.0.0.9")
    return LinkFacts(host=host, settings=own, system_networks=system, networks=networks, others=others)


CARDS = FoundLinks(
    links=(
        HostLink(name="eth0", up=True, addresses=("172.20.0.5/24",)),
        HostLink(name="eth1", up=True),
        HostLink(name="eth2"),
    ),
    routes=(
        HostRoute(gateway="172.20.0.1", device="eth0"),
        HostRoute(gateway="172.20.0.2", device="eth0", to="10.9.0.0/16"),
    ),
    sysctls={"net.ipv4.ip_forward": "0", "net.ipv4.conf.all.rp_filter": "1"},
)


def settle(given: LinkFacts, found: FoundLinks) -> tuple[FoundLinks, list[LinkOp]]:
    """The kernel once nothing is changed any more, and all changes."""
    ops: list[LinkOp] = []
    for _ in range(4):
        plan = plan_links(LinkPlanInput(wanted=compose_links(given, found), found=found))
        now = [op for step in plan.actions for op in step.ops]
        if not now:
            return found, ops
        for op in now:
            found = apply(found, op)
        ops += now
    raise AssertionError(f"it does not settle: {now}")


def test_system_networks_share_the_bridge_of_their_device_and_keep_its_addresses_and_routes() -> None:
    found, _ = settle(facts(), CARDS)
    cluster, upstream = found.find_link("brcluster"), found.find_link("brupstream")
    assert cluster is not None
    assert upstream is not None
    assert cluster.addresses == ("10.0.0.7/24", "10.0.1.7/24", "172.20.0.5/24")
    assert (cluster.mtu, upstream.mtu, upstream.addresses) == (9000, 1500, ("10.0.2.7/24",))
    assert found.find_link("brstorage") is None
    routes = {(one.to, one.gateway, one.device) for one in found.routes}
    assert routes == {("", "10.0.2.1", "brupstream"), ("10.9.0.0/16", "172.20.0.2", "brcluster")}
    assert found.sysctls["net.ipv4.ip_forward"] == "1"
    assert compose_links(facts(), found).bridge_of == {
        "cluster": "brcluster",
        "storage": "brcluster",
        "upstream": "brupstream",
    }


def test_networks_of_vms_have_their_devices_and_flood_to_the_other_hosts() -> None:
    found, _ = settle(facts(network("blue", "managed", 70), network("green", "bridged", 80, 1400)), CARDS)
    vxlan, vlan = found.find_link("vxlan70"), found.find_link("vlan80")
    assert vxlan is not None
    assert vlan is not None
    assert (vxlan.lower, vxlan.local, vxlan.port, vxlan.mtu) == ("brcluster", "10.0.0.7", 4789, 8950)
    assert vxlan.remotes == ("10.0.0.8", "10.0.0.9")
    assert (vxlan.bridge, vxlan.alias) == ("vmbr70", "outlive:blue")
    assert (vlan.lower, vlan.vni, vlan.mtu, vlan.bridge) == ("eth2", 80, 1400, "vmbr80")
    lower = found.find_link("eth2")
    assert lower is not None
    assert lower.up
    quiet = {name for name, value in found.sysctls.items() if name.endswith("disable_ipv6") and value == "1"}
    assert {"net.ipv6.conf.vmbr70.disable_ipv6", "net.ipv6.conf.vmbr80.disable_ipv6"} <= quiet


def test_a_routing_daemon_enters_where_vxlans_flood_to() -> None:
    found, ops = settle(facts(network("blue", "managed", 70), evpn=True), CARDS)
    vxlan = found.find_link("vxlan70")
    assert vxlan is not None
    assert vxlan.remotes == ()
    assert next(op for op in ops if op.device == "vxlan70").value == "nolearning"


def test_a_gateway_of_the_primary_keeps_ipv6_on_its_bridge() -> None:
    given = facts(network("blue", "managed", 70))
    found, _ = settle(given, CARDS)
    for op in (
        LinkOp(op="addAddress", device="vmbr70", value="fd70::1/64"),
        LinkOp(op="sysctl", key="net.ipv6.conf.vmbr70.disable_ipv6", value="0"),
    ):
        found = apply(found, op)
    assert settle(given, found)[1] == []
    found = apply(found, LinkOp(op="removeAddress", device="vmbr70", value="fd70::1/64"))
    assert settle(given, found)[1] == [LinkOp(op="ipv6Off", device="vmbr70")]


def test_devices_of_somebody_else_are_named_and_left_alone() -> None:
    strange = (HostLink(name="vmbr70", kind="bridge"), HostLink(name="brupstream", kind="veth"))
    found = replace(CARDS, links=(*CARDS.links, *strange))
    given = facts(network("blue", "managed", 70), network("red", "managed", 71))
    plan = plan_links(LinkPlanInput(wanted=compose_links(given, found), found=found))
    assert plan.problems == {
        "upstream": "device brupstream is there already, and is no bridge",
        "blue": "device vmbr70 is there already, and somebody else made it",
    }
    touched = {op.device for step in plan.actions for op in step.ops}
    assert touched.isdisjoint({"vmbr70", "vxlan70", "brupstream", "eth1"})
    assert [step.subject for step in plan.actions] == [SYSTEM, "red"]


def test_a_network_that_is_gone_goes_bridge_first_once_nothing_is_attached() -> None:
    found, _ = settle(facts(network("blue", "managed", 70)), CARDS)
    attached = replace(found, links=(*found.links, HostLink(name="tap0", kind="tun", bridge="vmbr70")))
    plan = plan_links(LinkPlanInput(wanted=compose_links(facts(), attached), found=attached))
    assert plan.actions == ()
    assert plan.problems == {"blue": "it is gone, and tap0 are still attached to vmbr70, vxlan70"}
    plan = plan_links(LinkPlanInput(wanted=compose_links(facts(), found), found=found))
    (step,) = plan.actions
    assert [(op.op, op.device) for op in step.ops] == [
        ("down", "vmbr70"),
        ("down", "vxlan70"),
        ("detach", "vxlan70"),
        ("delete", "vmbr70"),
        ("delete", "vxlan70"),
    ]


def test_an_own_address_that_is_another_one_now_replaces_the_former() -> None:
    found, _ = settle(facts(), CARDS)
    placed = (PlacedAddress(bridge="brcluster", address="10.0.0.7/24"),)
    floating = apply(found, LinkOp(op="addAddress", device="brcluster", value="10.0.0.250/24"))
    after, _ = settle(replace(facts(host="node8"), former=placed), floating)
    cluster = after.find_link("brcluster")
    assert cluster is not None
    assert set(cluster.addresses) == {"10.0.0.8/24", "10.0.1.7/24", "10.0.1.8/24", "172.20.0.5/24", "10.0.0.250/24"}


def placed_after(given: LinkFacts, found: FoundLinks) -> LinkFacts:
    """The same host once its daemon has written down what it has put on bridges."""
    addresses, ports = placed_by(compose_links(given, found), found)
    return replace(given, former=addresses, former_ports=ports)


def on_card(given: LinkFacts, device: str) -> LinkFacts:
    """The same host with its cluster network on another card."""
    systems = {"cluster": SystemLink(device=device)}
    return replace(given, settings=replace(given.settings, system_networks=systems))


def test_a_card_that_is_another_one_now_replaces_the_former_before_it_is_a_port_itself() -> None:
    given = on_card(facts(), "eth0")
    first, _ = settle(given, CARDS)
    guest = replace(first, links=(*first.links, HostLink(name="vnet0", bridge="brcluster", up=True)))
    after, ops = settle(on_card(placed_after(given, guest), "eth1"), guest)
    ports = {one.name for one in after.links if one.bridge == "brcluster"}
    assert ports == {"eth1", "vnet0"}, "what others have put there stays"
    assert [one.op for one in ops if one.op in ("attach", "detach")] == ["detach", "attach"]
    back = after
    for op in undo_ops(ops, guest):
        back = apply(back, op)
    assert {one.name for one in back.links if one.bridge == "brcluster"} == {"eth0", "vnet0"}


def test_a_card_that_cannot_be_replaced_stays_and_is_known_until_it_can() -> None:
    given = on_card(facts(), "eth0")
    found, _ = settle(given, CARDS)
    nowhere = on_card(placed_after(given, found), "eth9")
    found, ops = settle(nowhere, found)
    assert [one.op for one in ops if one.op in ("attach", "detach")] == []
    found, _ = settle(on_card(placed_after(nowhere, found), "eth1"), found)
    assert {one.name for one in found.links if one.bridge == "brcluster"} == {"eth1"}


NETWORKS = st.lists(
    st.tuples(st.sampled_from(["managed", "bridged"]), st.integers(1, 6)), max_size=4, unique_by=lambda one: one[1]
)


@settings(max_examples=80)
@given(NETWORKS, NETWORKS, st.booleans())
def test_every_set_of_networks_settles_and_leaves_nothing_of_the_one_before(
    first: list[tuple[str, int]], second: list[tuple[str, int]], evpn: bool
) -> None:
    def of(chosen: list[tuple[str, int]]) -> LinkFacts:
        return facts(*(network(f"{kind}{vni}", kind, vni) for kind, vni in chosen), evpn=evpn)

    found, _ = settle(of(first), CARDS)
    found, _ = settle(of(second), found)
    fresh, _ = settle(of(second), CARDS)
    beside = {one.name: one for one in found.links if one.name != "eth2"}  # the device of VLANs stays up
    assert beside == {one.name: one for one in fresh.links if one.name != "eth2"}
    assert settle(of(second), found)[1] == []


@settings(max_examples=80)
@given(st.integers(0, 40), st.sampled_from([CARDS, replace(CARDS, routes=())]))
def test_the_way_back_leads_to_what_was_before_however_many_changes_were_made(made: int, before: FoundLinks) -> None:
    plan = plan_links(LinkPlanInput(wanted=compose_links(facts(), before), found=before))
    (system,) = plan.actions
    way_back, found = undo_ops(system.ops, before), before
    for op in system.ops[:made]:
        found = apply(found, op)
    for _ in range(2):
        for op in way_back:
            found = apply(found, op)
        assert {one.name: one for one in found.links} == {one.name: one for one in before.links}
        assert set(found.routes) == set(before.routes)
        assert {name: found.sysctls[name] for name in before.sysctls} == before.sysctls


@pytest.mark.parametrize(
    ("answered", "since_s", "restarted", "verdict"),
    [
        (True, 99.0, False, "keep"),
        (True, 0.0, True, "keep"),
        (False, 9.9, False, "wait"),
        (False, 10.0, False, "undo"),
        (False, 0.0, True, "undo"),
    ],
)
def test_a_change_is_kept_once_the_store_answers(answered: bool, since_s: float, restarted: bool, verdict: str) -> None:
    found = confirm_change(ConfirmInput(answered=answered, since_s=since_s, limit_s=10.0, restarted=restarted))
    assert found.verdict == verdict


def test_the_mtu_for_all_hosts_is_what_the_primarys_devices_take() -> None:
    own = facts().settings
    assert mtu_of(network("blue", "managed", 70, 9000), own, 1500) == 1450
    assert mtu_of(network("green", "bridged", 80, 1400), own, 0) == 1400
    assert mtu_of(network("blue", "managed", 70), own, 0) == 0
    assert mtu_of(network("flat", "layer2", 0), own, 1500) == 0


def test_rates_are_by_the_second_and_packets_are_packets() -> None:
    first = LinkTraffic(name="eth0", rx_bytes=1000, rx_packets=10, tx_bytes=500, tx_packets=5)
    last = LinkTraffic(
        name="eth0", rx_bytes=3000, rx_packets=30, tx_bytes=100, tx_packets=9, speed_mbps=1000, state="up"
    )
    found = rates_between((10.0, first), (12.0, last))
    assert (found.received_bits, found.received_packets) == (8000, 10)
    assert (found.sent_bits, found.sent_packets) == (0, 2)
    assert (found.total_bits, found.total_packets, found.speed_mbps, found.state) == (8000, 12, 1000, "up")


@pytest.mark.parametrize("device", ["", "a" * 16, "eth 0", "a/b", "..", "eth0:1"])
def test_what_cannot_be_a_device_is_told(device: str) -> None:
    with pytest.raises(BadInput, match="cannot be the name of a device"):
        LinkSettings(system_networks={"cluster": SystemLink(device=device)})


def test_a_vm_is_attached_to_the_bridge_of_the_network_that_its_port_names() -> None:
    async def story() -> None:
        store = MemoryStore(LoopClock(), SeededIds(Random(1)))
        await store.create(network("blue", "managed", 70))
        spec = {"vm": "web", "network": "blue", "mac": "52:54:00:00:00:01"}
        await store.create(convert(VirtualMachinePort, {"metadata": {"name": "web.1"}, "spec": spec}))
        interfaces = (
            "<interface type='bridge'><source bridge='br9'/></interface>"
            "<interface type='network'><source network='x'/><mac address='52:54:00:00:00:01'/></interface>"
        )
        definition = f"<domain><devices>{interfaces}</devices></domain>"
        vm = convert(
            VirtualMachine,
            {"metadata": {"name": "web"}, "spec": {"definition": definition, "ports": ["a", "52:54:00:00:00:01"]}},
        )
        made: dict[str, str] = {"blue": ""}
        port = BridgedPorts(store, "h1", lambda: made, NoNetworks())
        plugged = await port.plug(vm)
        assert '<interface type="bridge"><source bridge="vmbr70" /><mac address="52:54:00:00:00:01" /></interface>' in (
            plugged.spec.definition
        )
        assert '<source bridge="br9" />' in plugged.spec.definition
        assert await port.prepare(vm, "m1") == ""
        made["blue"] = "there is no device eth9"
        assert await port.prepare(vm, "m1") == "h1 has not made network blue: there is no device eth9"
        with pytest.raises(Unavailable, match="h1 has not made network blue"):
            await port.plug(vm)

    run_virtual(story())
