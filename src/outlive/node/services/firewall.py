"""Keeps the firewall of managed networks as their rules say, on every coordinator, also those that are not the primary.

A network whose rules nft does not take keeps those that it had; where there are none, nothing is routed to or from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from outlive.base import BadInput, OutliveError, Refused
from outlive.node.ports.services import FirewallPort
from outlive.node.services.callers import METADATA_ADDRESS
from outlive.node.services.served_networks import ServedNetwork
from outlive.resources import FirewallRule

# The firewall of managed networks: one table of nftables, written anew and put in place as one transaction.
#
# The table is Outlive's own; tables of others stay as they are. What is sent to a network and what leaves it are
# judged in two hooks, so that a rule that accepts in one direction does not spare the packet the rules of the other
# network (docs/how-to/network-services.md#firewall).

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
            f"{'ip' if subnet.network.version == 4 else 'ip6'} {field} {subnet.cidr} jump {network.bridge}-{direction}"
            for network in ordered
            for subnet in network.subnets
        ]
        lines += _render_chain(
            f"forward-{direction}", [f"type filter hook forward priority {priority}; policy accept;", *jumps]
        )
    return "\n".join([*lines, "}", ""])


def _render_chain(name: str, rules: Iterable[str]) -> list[str]:
    return [f"  chain {name} {{", *(f"    {rule}" for rule in rules), "  }"]


NOTHING: Final = (
    FirewallRule(name="nothing in", direction="in", rule="drop"),
    FirewallRule(name="nothing out", direction="out", rule="drop"),
)
RULES_TRIED: Final = 256
"""Of a network that is refused so many rules are tried one by one, so that the wrong one is named."""


class FirewallKeeper:
    """See the module."""

    def __init__(self, port: FirewallPort) -> None:
        self._port = port
        self._good: dict[str, tuple[FirewallRule, ...]] = {}
        self._last: Mapping[str, ServedNetwork] | None = None
        self._lost = False
        """Whether somebody has removed the table since it was put in force."""
        self.refused: dict[str, str] = {}
        """Networks whose rules are not in force → why."""
        self.covered: frozenset[str] = frozenset()
        """Networks with rules in force. This host has the gateway of no other one, so that nobody gets in."""

    async def check(self) -> None:
        """Have the table put in force again where somebody has removed it, such as by flushing all tables."""
        if self._last is not None and not await self._port.has_chain(TABLE, INPUT_CHAIN):
            self._last, self._lost = None, True

    async def apply(self, networks: Mapping[str, ServedNetwork]) -> None:
        """Put these networks' rules in force, if they are others than before. ``Unavailable``, ``Refused``."""
        if networks == self._last:
            return
        try:
            refused = await self._load(networks)
        except OutliveError:
            self.covered = frozenset() if self._lost else self.covered
            raise
        self._lost, self.covered = False, frozenset(networks)
        self._good = {
            name: one.rules if name not in refused else self._good[name]
            for name, one in networks.items()
            if name not in refused or name in self._good
        }
        self._last, self.refused = dict(networks), refused

    async def _load(self, networks: Mapping[str, ServedNetwork]) -> dict[str, str]:
        """Put them in force, with the former rules of those that are refused; these, and why."""
        try:
            await self._port.load(render_firewall(networks.values()))
        except (BadInput, Refused):
            refused = await self._find_refused(networks)
            if not refused:
                raise
            kept = dict(networks)
            for name in refused:
                rules = self._good.get(name, NOTHING)
                kept[name] = msgspec.structs.replace(networks[name], rules=rules)
            await self._port.load(render_firewall(kept.values()))
            return refused
        return {}

    async def _find_refused(self, networks: Mapping[str, ServedNetwork]) -> dict[str, str]:
        refused: dict[str, str] = {}
        for name, network in networks.items():
            if why := await self._find_refusal(network):
                refused[name] = why
                for rule in network.rules[:RULES_TRIED]:
                    if why := await self._find_refusal(msgspec.structs.replace(network, rules=(rule,))):
                        refused[name] = f"rule {rule.name!r}: {why}"
                        break
        return refused

    async def _find_refusal(self, network: ServedNetwork) -> str:
        """Why this network's rules are not taken; empty: they are."""
        try:
            await self._port.check(render_firewall([network]))
        except (BadInput, Refused) as error:
            return str(error)
        return ""
