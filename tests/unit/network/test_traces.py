"""Packets by which a network is tried, and what ovn-trace says of them, in words."""

from __future__ import annotations

import pytest

from outlive.network import (
    TraceOutcome,
    TracePacket,
    TracePort,
    compose_packet,
    compose_packets,
    read_trace,
    traced_ports,
)


def port(name: str, number: int, *, switch: str = "s1", type: str = "routed", **changes: object) -> TracePort:
    return TracePort(
        name=f"{name}.0",
        interface=f"if-{number}",
        switch=switch,
        mac=f"02:00:00:00:00:0{number}",
        addresses=changes.pop("addresses", (f"10.1.0.{number}/24",)),  # type: ignore[arg-type]
        network="net",
        type=type,
        **changes,  # type: ignore[arg-type]
    )


WEB = port("web", 1, router="169.254.1.1", dhcp=True)
DB = port("db", 2, switch="s2")


def test_a_routed_vm_is_tried_by_gateway_dhcp_neighbour_out_and_in() -> None:
    found = list(compose_packets(WEB, [DB]))
    assert [one.question for one in found] == ["gateway", "dhcp", "neighbour", "out", "in"]
    gateway, dhcp, neighbour, out, into = found
    assert "arp.tpa==169.254.1.1" in gateway.flow
    assert gateway.expected == dhcp.expected == neighbour.expected == ("if-1",)
    assert "udp.dst==67" in dhcp.flow
    assert (out.expected, "ip4.dst==9.9.9.9" in out.flow, "eth.dst==0a:58:a9:fe:01:01" in out.flow) == ((), True, True)
    assert (into.switch, into.inport, into.expected) == ("s2", "if-2", ("if-1",))


def test_on_a_switch_packets_go_to_the_receivers_mac() -> None:
    one, two = port("web", 1, type="layer2"), port("db", 2, type="layer2")
    assert "eth.dst==02:00:00:00:00:02 && ip4.src==10.1.0.1" in compose_packet(one, "10.1.0.2", [two]).flow
    asks = compose_packet(one, "10.1.0.9", [two])
    assert ("arp.tpa==10.1.0.9" in asks.flow, asks.expected) == (True, ())


def test_on_a_switch_without_a_known_gateway_it_is_asked_for() -> None:
    asks = compose_packet(port("web", 1, type="layer2", router="10.1.0.254"), "192.0.2.1", [])
    assert "arp.tpa==10.1.0.254" in asks.flow


def test_ipv6_asks_by_neighbour_solicitation() -> None:
    one = port("web", 1, type="layer2", addresses=("fd44::1/64",))
    flow = compose_packet(one, "fd44::12:3456", []).flow
    assert "eth.dst==33:33:ff:12:34:56 && ip6.src==fd44::1 && ip6.dst==ff02::1:ff12:3456" in flow
    assert "nd.target==fd44::12:3456" in flow


def test_a_port_without_addresses_sends_frames() -> None:
    one = port("web", 1, type="localnet", addresses=())
    assert compose_packet(one, "10.1.0.2", [DB]).flow == (
        'inport=="if-1" && eth.src==02:00:00:00:00:01 && eth.dst==02:00:00:00:00:02'
    )
    assert list(compose_packets(one, [DB])) == []


PACKET = TracePacket(question="in", text="a sends to b", switch="s1", inport="a", flow="f", expected=("b",))
HEAD = """# icmp

ingress(dp="0-uuid", inport="a")
--------------------------------
 0. ls_in_check_port_sec (northd.c:8432): 1, priority 50, uuid 807c5ea7
    next;
"""
ARRIVES = (
    HEAD
    + """25. ls_in_l2_lkup (northd.c:9122): eth.dst == x, priority 50, uuid beb91de4
    outport = "b";
    output;

egress(dp="0-uuid", inport="a", outport="b")
--------------------------------------------
 9. ls_out_apply_port_sec (northd.c:5777): 1, priority 0, uuid 06ec4d36
    output;
    /* output to "b", type "" */
"""
)


def dropped(stage: str) -> str:
    return f"{HEAD} 9. {stage} (northd.c:1): 1, priority 50, uuid 0\n    drop;\n"


def test_a_packet_that_arrives_is_told_with_its_hops() -> None:
    found = read_trace(PACKET, ARRIVES, {"b": "db.0"}, {"a": "s1"})
    assert (found.outcome, found.passed, found.text) == (TraceOutcome.ARRIVES, True, "arrives at db.0")
    assert [(one.kind, one.name, one.inport, one.outports) for one in found.hops] == [("switch", "s1", "a", ("b",))]
    assert traced_ports(ARRIVES) == ("a",)


def test_a_packet_that_arrives_elsewhere_fails() -> None:
    found = read_trace(PACKET, ARRIVES.replace('"b"', '"c"'), {}, {})
    assert (found.passed, found.text) == (False, "arrives at c, not at b")


@pytest.mark.parametrize(
    ("stage", "why"),
    [
        ("ls_in_check_port_sec", "port security"),
        ("ls_in_apply_port_sec", "port security"),
        ("ls_in_port_sec_l2", "port security"),
        ("ls_in_l2_lkup", "is disabled"),
        ("ls_in_l2_unknown", "no port of the switch has this MAC"),
        ("ls_in_acl_eval", "ACL"),
        ("ls_out_acl", "ACL"),
        ("ls_out_apply_port_sec", "the receiver's port"),
        ("lr_in_admission", "does not take this MAC"),
        ("lr_in_ip_routing", "no route"),
        ("lr_in_policy", "policy"),
        ("lr_in_ip_input", "the router itself"),
        ("lr_in_arp_resolve", "does not know the receiver's MAC"),
        ("ls_in_something_new", "no flow"),
    ],
)
def test_a_packet_that_is_dropped_is_told_with_place_and_reason(stage: str, why: str) -> None:
    found = read_trace(PACKET, dropped(stage), {}, {"a": "s1"})
    assert (found.outcome, found.passed, found.place, found.stage) == (TraceOutcome.DROPPED, False, "s1", stage)
    assert why in found.text


def test_what_nothing_matches_is_dropped_too() -> None:
    found = read_trace(PACKET, HEAD + "25. ls_in_l2_lkup: no match (implicit drop)\n", {}, {})
    assert (found.outcome, found.stage) == (TraceOutcome.DROPPED, "ls_in_l2_lkup")


def test_an_answer_of_ovn_itself_is_told_so() -> None:
    asks = TracePacket(question="dhcp", text="a asks", switch="s1", inport="a", flow="f", expected=("a",))
    found = read_trace(asks, ARRIVES.replace('"b"', '"a"'), {}, {})
    assert (found.outcome, found.passed) == (TraceOutcome.ANSWERED, True)


def test_a_packet_into_the_physical_network_leaves() -> None:
    found = read_trace(PACKET, ARRIVES.replace('type ""', 'type "localnet"'), {}, {})
    assert (found.outcome, found.passed) == (TraceOutcome.LEAVES, False)


def test_a_router_that_asks_for_the_mac_is_told_so() -> None:
    text = ARRIVES.replace("    output;\n\n", "    arp { eth.dst = ff:ff:ff:ff:ff:ff; output; };\n\n")
    found = read_trace(PACKET, text, {}, {"a": "r1"})
    assert (found.outcome, found.passed, found.text) == (TraceOutcome.ASKS, True, "r1 asks for the MAC first, on b")


def test_of_a_packet_that_need_not_arrive_nothing_is_expected() -> None:
    out = TracePacket(question="out", text="a sends", switch="s1", inport="a", flow="f")
    assert read_trace(out, dropped("lr_in_ip_routing"), {}, {}).passed is None
