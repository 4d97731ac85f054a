"""Keeps the firewall of managed networks as their rules say, on every coordinator, also those that are not the primary.

A network whose rules nft does not take keeps those that it had; where there are none, nothing is routed to or from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from outlive.base.errors import BadInput, OutliveError, Refused
from outlive.node.ports.services import FirewallPort
from outlive.node.services.firewall import INPUT_CHAIN, TABLE, render_firewall
from outlive.node.services.served_networks import ServedNetwork
from outlive.resources.networks import FirewallRule

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
