"""The firewall of managed networks: one table of nftables, written anew and put in place as one transaction.

The table is Outlive's own; tables of others stay as they are. What is sent to a network and what leaves it are judged
in two hooks, so that a rule that accepts in one direction does not spare the packet the rules of the other network
(docs/operating/network-services.md#firewall).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from outlive.base.errors import BadInput
from outlive.node.services.metadata import METADATA_ADDRESS
from outlive.node.services.served_networks import ServedNetwork

TABLE: Final = "outlive_networks"
INPUT_CHAIN: Final = "input"
_QUOTED: Final = re.compile(r'"[^"]*"')
_OWN_CHAINS: Final = re.compile(r"\b(jump|goto|include)\b")
SERVICES: Final = (
    "meta l4proto { icmp, ipv6-icmp } accept",
    "tcp dport 53 accept",
    "udp dport { 53, 67, 123, 547 } accept",
    f"ip daddr {METADATA_ADDRESS} tcp dport 80 accept",
    "drop",
)
"""What guests of a network may send to the coordinator that has its gateway."""


def check_rule(rule: str, place: str) -> None:
    """``BadInput`` for a text that is more than one rule, and would change what is around it."""
    plain = _QUOTED.sub("", rule)
    depth = 0
    for character in plain:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth < 0:
            break
    odd = any(not character.isprintable() for character in rule) or any(one in plain for one in ';"#\\')
    if odd or depth or not rule.strip() or _OWN_CHAINS.search(plain):
        remedy = "write one rule without chain, such as: tcp dport 22 accept"
        raise BadInput(f"{rule[:80]!r} is not one rule", place=place, remedy=remedy)


def render_firewall(networks: Iterable[ServedNetwork]) -> str:
    """Return the whole table as a document of nftables, which replaces the former one when it is loaded.

    ``BadInput`` for a rule that could not stand alone. Whether nftables takes the others it says itself.
    """
    ordered = sorted(networks, key=lambda one: one.vni)
    lines = [f"table inet {TABLE}", f"delete table inet {TABLE}", f"table inet {TABLE} {{"]
    for network in ordered:
        lines += _render_chain(f"{network.bridge}-host", SERVICES)
        for direction in ("in", "out"):
            chosen = [one for one in network.rules if one.direction == direction]
            chosen.sort(key=lambda one: (one.order, one.name))
            for one in chosen:
                check_rule(one.rule, f"VirtualNetwork/{network.name} rule {one.name!r}")
            lines += _render_chain(f"{network.bridge}-{direction}", [one.rule.strip() for one in chosen])
    arrivals = [f'iifname "{one.bridge}" jump {one.bridge}-host' for one in ordered]
    lines += _render_chain(INPUT_CHAIN, ["type filter hook input priority 0; policy accept;", *arrivals])
    for direction, field, priority in (("in", "daddr", 0), ("out", "saddr", 1)):
        jumps = [
            f"{_family_of(subnet.cidr)} {field} {subnet.cidr} jump {network.bridge}-{direction}"
            for network in ordered
            for subnet in network.subnets
        ]
        lines += _render_chain(
            f"forward-{direction}", [f"type filter hook forward priority {priority}; policy accept;", *jumps]
        )
    return "\n".join([*lines, "}", ""])


def _render_chain(name: str, rules: Iterable[str]) -> list[str]:
    return [f"  chain {name} {{", *(f"    {rule}" for rule in rules), "  }"]


def _family_of(cidr: str) -> str:
    return "ip" if ipaddress.ip_network(cidr).version == 4 else "ip6"
