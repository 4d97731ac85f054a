"""Entries of this machine for an EVPN fabric (``network.ports.NeighbourTable``), by ``ip`` and ``bridge``.

Each MAC has a static entry in the forwarding database of the bridge, and each address a permanent one in the neighbour
table of the network's gateway interface; the routing daemon makes both known to the fabric. Entries that the fabric has
told of (``extern_learn``, and of the bridge those behind another port) are its own: one is replaced where the VM is
here now, and never deleted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from outlive.base import BadInput, Unavailable
from outlive.drivers.commands import run
from outlive.network import EvpnNetwork

COMMAND_S: Final = 5.0
"""How long one command may take."""
LEARNED: Final = "extern_learn"


class BridgeNeighbours:
    """See the module. ``prefix``: before each command, such as ``ip netns exec NAME``."""

    def __init__(self, networks: Mapping[str, EvpnNetwork], *, prefix: Sequence[str] = ()) -> None:
        self._networks = networks
        self._prefix = tuple(prefix)

    async def ensure(self, network: str, mac: str, addresses: Collection[str]) -> None:
        """See ``NeighbourTable``."""
        known = self._find_network(network)
        entry = await self._find_forwarding(known, mac)
        if entry is None or entry.get("state") != "static":
            vlan = ("vlan", str(known.vlan)) if known.vlan else ()
            await self._run("bridge", "fdb", "replace", mac, "dev", known.port, "master", "static", *vlan)
        for address in addresses if known.gateway_interface else ():
            found = await self._find_neighbour(known, address)
            permanent = found is not None and "PERMANENT" in found.get("state", ())
            if found is None or not permanent or found.get("lladdr") != mac or LEARNED in found:
                device = known.gateway_interface
                await self._run("ip", "neigh", "replace", address, "lladdr", mac, "dev", device, "nud", "permanent")

    async def delete(self, network: str, mac: str, addresses: Collection[str]) -> None:
        """See ``NeighbourTable``."""
        known = self._find_network(network)
        entry = await self._find_forwarding(known, mac)
        if entry is not None and entry.get("state") == "static":  # the kernel may have kept the mark of the fabric's
            vlan = ("vlan", str(known.vlan)) if known.vlan else ()
            await self._run("bridge", "fdb", "del", mac, "dev", known.port, "master", *vlan)
        for address in addresses if known.gateway_interface else ():
            found = await self._find_neighbour(known, address)
            is_own = found is not None and found.get("lladdr") == mac and LEARNED not in found
            if found is not None and is_own and "PERMANENT" in found.get("state", ()):
                await self._run("ip", "neigh", "del", address, "dev", known.gateway_interface)

    def _find_network(self, network: str) -> EvpnNetwork:
        known = self._networks.get(network)
        if known is None:
            raise BadInput(f"no EVPN fabric carries network {network}", remedy="name it in network.pods.evpn.networks")
        return known

    async def _find_forwarding(self, known: EvpnNetwork, mac: str) -> dict[str, Any] | None:
        """The entry of the bridge for the MAC behind the port of the network."""
        for one in await self._read("bridge", "-json", "fdb", "show", "dev", known.port):
            if one.get("mac") == mac and "master" in one and int(one.get("vlan", 0)) == known.vlan:
                return one
        return None

    async def _find_neighbour(self, known: EvpnNetwork, address: str) -> dict[str, Any] | None:
        found = await self._read("ip", "-json", "neigh", "show", address, "dev", known.gateway_interface)
        return found[0] if found else None

    async def _read(self, *command: str) -> list[dict[str, Any]]:
        text = await self._run(*command)
        try:
            found: list[dict[str, Any]] = json.loads(text or "[]")
        except ValueError:
            raise Unavailable(f"{' '.join(command)} printed no JSON", remedy="install iproute2 5.x or later") from None
        return found

    async def _run(self, *command: str) -> str:
        ended = await run((*self._prefix, *command), limit_s=COMMAND_S)
        if ended.code != 0:
            why = ended.err.strip().splitlines()
            raise Unavailable(
                f"{' '.join(command)}: {why[-1] if why else f'code {ended.code}'}",
                remedy="see network.pods.evpn: is the bridge there?",
            )
        return ended.out
