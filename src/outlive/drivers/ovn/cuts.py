"""Network isolation by OVN: ``CutPort`` for the logical ports of VMs of our own hosts.

A host that is isolated from a port is marked on the port's row, so that neither the network controller nor anybody else
here gives the port back to it, and the port requests another chassis. What is reported as isolated has arrived:

* the host's own ovn-controller says that its flows are as the row is; or
* the host is taken off the overlay: its chassis, of which ovn-controller reports nothing any more, is removed, and
  every other chassis says that its tunnels are as the chassis are, but for those of hosts that are proven to be off.
  The chassis of every host that runs OVN and takes part has to say so, of a change that was made after the removal:
  a southbound database that was restored may lack some of them.
  That is no proof for a localnet network, where a host sends without a tunnel, nor for a routed one, of which the host
  may be a gateway.

A port that is bound by a chassis which is no other host's proves nothing: it may be a name of before of the same host.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Set
from typing import Final, Protocol

from outlive.base import get_logger
from outlive.drivers.ovn.arrived_ports import SCOPE, ArrivedPorts
from outlive.network import (
    INTERFACE_KEY,
    ISOLATED_KEY,
    LAYER2,
    NOBODY,
    OWN_CONTROLLER,
    OWNER_KEY,
    PORTS,
    TOPOLOGY_KEY,
    ChassisTable,
    Columns,
    NorthboundDb,
    Op,
    OvnFeatures,
    Receipt,
    Rows,
    Scope,
    SouthboundDb,
    external_ids,
    isolated_hosts,
    upsert,
)
from outlive.node.ports import CutReport
from outlive.resources import interface_id

PART: Final = 50
"""Ports of one transaction: each has two rows at most."""
OBEYS_S: Final = 2.0
"""How long the host's own ovn-controller may take, before the host is taken off the overlay."""
OTHERS_S: Final = 5.0
"""How long the other chassis may take to remove their tunnels to it."""
_log = get_logger("drivers.ovn")


class OvnDatabase(NorthboundDb, Protocol):
    """A northbound database to connect to."""

    async def start(self) -> None:
        """Start to connect; returns at once."""
        ...


class OvnReadDatabase(SouthboundDb, Protocol):
    """A southbound database to connect to."""

    async def start(self) -> None:
        """Start to connect; returns at once."""
        ...


class OvnCuts(ArrivedPorts):
    """See the module. ``read_table``: the chassis of all hosts, as they are now. Connections are made at the first
    use."""

    def __init__(
        self,
        northbound: OvnDatabase,
        southbound: OvnReadDatabase,
        read_table: Callable[[], Awaitable[ChassisTable]],
    ) -> None:
        self._nb = northbound
        self._sb = southbound
        self._read_table = read_table
        self._started = False
        self._ordered: dict[str, int] = {}
        """Host → the change by which all its ports are cut, for its own chassis; of this process, and none while an
        order is under way or has failed …"""
        self._removed: dict[str, int] = {}
        """… and the change that was made after its chassis was seen to be gone, for those of others."""

    async def _start_databases(self) -> tuple[NorthboundDb, SouthboundDb]:
        if not self._started:
            self._started = True
            await self._sb.start()
            await self._nb.start()
        return self._nb, self._sb

    def select(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """Ports."""
        return tuple(one for one in scope if one.startswith(SCOPE))

    async def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        """As ``CutPort``."""
        interfaces = [one.removeprefix(SCOPE) for one in self.select(scope)]
        if not interfaces:
            return
        nb, sb = await self._start_databases()
        table = await self._read_table()
        chassis, own_names, receipt = table.find(host), table.find_names(host), Receipt()
        self._ordered.pop(host, None)
        self._removed.pop(host, None)
        for start in range(0, len(interfaces), PART):
            part = interfaces[start : start + PART]
            names = {name for one in part for name in (one, interface_id(one, "twin", host))}

            def plan(rows: Rows, features: OvnFeatures, names: frozenset[str] = frozenset(names)) -> list[Op]:
                return plan_cut(rows, names, host=host, epoch=epoch, chassis=own_names)

            receipt = await nb.transact(Scope(ports=tuple(sorted(names))), plan, comment=f"isolate {host}")
        receipt = await self._renumber_beyond(nb, sb, receipt, f"isolate {host}")
        self._ordered[host] = receipt.nb_cfg
        if (await nb.wait_applied(receipt, on=(chassis,), limit_s=OBEYS_S)).done:
            return
        if any(one.name == chassis for one in await sb.list_chassis()):
            _log.warning("ovn.chassis_removed", host=host, chassis=chassis, epoch=epoch)
            await sb.forget_chassis(chassis)
        others = [one.name for one in await sb.list_chassis() if one.name not in table.find_off(host)]
        if chassis not in others:
            number = await self._find_removal_number(nb, sb, host)
            await nb.wait_applied(Receipt(nb_cfg=number), on=others, limit_s=OTHERS_S)

    async def read_back(self, host: str, epoch: int) -> CutReport:
        """As ``CutPort``: ports that are marked, are bound nowhere on the host, and whose change has arrived."""
        nb, sb = await self._start_databases()
        marked = [row for row in await _list_own_ports(nb) if isolated_hosts(row).get(host, -1) >= epoch]
        if not marked:
            return CutReport()
        table = await self._read_table()
        chassis = table.find(host)
        off, others = table.find_off(host), table.find_others(host)
        if host not in self._ordered:  # another process ordered it: all that was ordered until now counts
            self._ordered[host] = await self._renumber(nb, sb, f"is {host} isolated")
        number = self._ordered[host]
        known = {one.name: one.nb_cfg for one in await sb.list_chassis() if one.name not in off}
        if chassis in known:
            self._removed.pop(host, None)
            behind = find_behind(known, number, {chassis})
        else:
            number = await self._find_removal_number(nb, sb, host)
            behind = find_behind(known, number, known.keys() | table.find_expected(host))
        obeys = not behind and chassis in known
        isolated: set[str] = set()
        reached: set[str] = set()
        for row in marked:
            binding = await sb.read_binding(str(row["name"]))
            bound = {binding.chassis, *binding.additional_chassis} - {""} if binding is not None else set()
            is_overlay = external_ids(row).get(TOPOLOGY_KEY) == LAYER2
            is_cut = bound <= others and not behind and (obeys or is_overlay)
            (isolated if is_cut else reached).add(SCOPE + external_ids(row).get(INTERFACE_KEY, ""))
        scope = isolated - reached - {SCOPE}
        evidence = (
            f"its ovn-controller has change {number}" if obeys else f"it is off the overlay since change {number}"
        )
        return CutReport(
            scope=tuple(sorted(scope)),
            evidence=evidence if scope else "",
            unanswered=f"chassis {', '.join(behind[:3])} has not confirmed change {number}" if behind else "",
        )

    async def _find_removal_number(self, nb: NorthboundDb, sb: SouthboundDb, host: str) -> int:
        """A change that was made after the chassis of the host was seen to be gone, which it has been now."""
        if host not in self._removed:
            self._removed[host] = await self._renumber(nb, sb, f"{host} is off the overlay")
        return self._removed[host]

    async def _renumber(self, nb: NorthboundDb, sb: SouthboundDb, comment: str) -> int:
        return (await self._renumber_beyond(nb, sb, await nb.renumber(comment=comment), comment)).nb_cfg

    async def _renumber_beyond(self, nb: NorthboundDb, sb: SouthboundDb, receipt: Receipt, comment: str) -> Receipt:
        """A number that no chassis has reported yet: what one reports by accident, such as a number of before the
        database was restored, confirms nothing."""
        highest = max((one.nb_cfg for one in await sb.list_chassis()), default=0)
        return receipt if highest < receipt.nb_cfg else await nb.renumber(comment=comment, beyond=highest)

    async def lift(self, host: str, epoch: int) -> None:
        """As ``CutPort``; the network controller plans the ports anew."""
        nb, _ = await self._start_databases()
        names = [
            str(row["name"]) for row in await _list_own_ports(nb) if isolated_hosts(row).get(host, epoch + 1) <= epoch
        ]
        for start in range(0, len(names), PART):
            part = frozenset(names[start : start + PART])

            def plan(rows: Rows, features: OvnFeatures, part: frozenset[str] = part) -> list[Op]:
                return [
                    upsert(PORTS, {"name": row["name"]}, {"external_ids": {ISOLATED_KEY + host: None}})
                    for row in rows.get(PORTS, [])
                    if row["name"] in part and isolated_hosts(row).get(host, epoch + 1) <= epoch
                ]

            await nb.transact(Scope(ports=tuple(sorted(part))), plan, comment=f"let {host} in")
        self._ordered.pop(host, None)
        self._removed.pop(host, None)

    async def list_hosts(self) -> Mapping[str, int]:
        """As ``CutPort``."""
        nb, _ = await self._start_databases()
        found: dict[str, int] = {}
        for row in await _list_own_ports(nb):
            for host, epoch in isolated_hosts(row).items():
                found[host] = min(epoch, found.get(host, epoch))
        return found


def plan_cut(rows: Rows, names: Set[str], *, host: str, epoch: int, chassis: Set[str]) -> list[Op]:
    """Mark the host on these ports and have them request none of these chassis, its own. Pure; ports of others stay as
    they are."""
    ops = []
    for row in rows.get(PORTS, []):
        if row.get("name") not in names or external_ids(row).get(OWNER_KEY) != OWN_CONTROLLER:
            continue
        through = max(epoch, isolated_hosts(row).get(host, epoch))
        requested = [one for one in row.get("options", {}).get("requested-chassis", "").split(",") if one]
        left = [one for one in requested if one not in chassis and one != NOBODY]
        patch: Columns = {"external_ids": {ISOLATED_KEY + host: str(through)}}
        patch["options"] = {"requested-chassis": ",".join(left) or NOBODY}
        if len(left) < 2:
            patch["options"]["activation-strategy"] = None
        if interface_id(external_ids(row).get(INTERFACE_KEY, ""), "twin", host) == row["name"]:
            patch |= {"enabled": False, "addresses": []}
        ops.append(upsert(PORTS, {"name": row["name"]}, patch))
    return ops


def find_behind(reported: Mapping[str, int], number: int, meant: Set[str]) -> list[str]:
    """Those of the chassis that are meant which have not reported the change, or do not report at all. Pure."""
    return sorted(name for name in meant if reported.get(name, -1) < number)


async def _list_own_ports(nb: NorthboundDb) -> list[Columns]:
    """All ports of VMs of our own hosts."""
    rows = await nb.read_rows(Scope(isolated=True))
    return [
        row for row in rows.get(PORTS, []) if external_ids(row).get(OWNER_KEY) == OWN_CONTROLLER and row.get("name")
    ]
