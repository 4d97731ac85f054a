"""What OVN is in the simulation: northbound rows, chassis, and who has plugged what.

Bindings follow the rules of ovn-controller that moves depend on: a port without ``requested-chassis`` belongs to the
chassis that plugged it last; of a list the first is the chassis and the others are additional ones; only a chassis that
lives changes a binding, so a dead one keeps its own, and the port stays up.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

import msgspec

from outlive.network.names import CLUSTER_ROUTER, ID_KEY
from outlive.network.operations import (
    DHCP,
    POLICIES,
    PORTS,
    ROUTER_PORTS,
    ROUTERS,
    ROUTES,
    SWITCHES,
    Columns,
    Op,
    Rows,
    apply,
)
from outlive.network.ports import Binding, Chassis

VERSION: Final = "25.03.0-20.41.0-77.6"
REQUESTED: Final = "requested-chassis"
PARENTS: Final = {
    PORTS: ("switch", SWITCHES, ""),
    ROUTES: ("router", ROUTERS, CLUSTER_ROUTER),
    POLICIES: ("router", ROUTERS, CLUSTER_ROUTER),
    ROUTER_PORTS: ("router", ROUTERS, CLUSTER_ROUTER),
}
"""By table the column that names where a row hangs, the table of that, and what is not named."""


class OvnFault(enum.StrEnum):
    """What happens to one transaction."""

    LOST_BEFORE = "lost before commit"
    LOST_AFTER = "lost after commit"
    OVERTAKEN = "overtaken"
    """Somebody else writes the same rows first."""


class OvnFaults(msgspec.Struct, kw_only=True):
    """What is wrong now, and what will be."""

    northbound_down: bool = False
    southbound_down: bool = False
    northd_down: bool = False
    latency_s: tuple[float, float] = (0.001, 0.005)
    """Of each call, drawn between these."""
    event_delay_s: float = 0.0
    transactions: list[OvnFault] = []
    """Of the next ones, each once."""


class SimulatedChassis(msgspec.Struct, kw_only=True):
    """A chassis."""

    name: str
    encap_ip: str = ""
    alive: bool = True
    nb_cfg: int = 0


class SimulatedOvn:
    """See the module. Listeners are called with the rows before and after, and who wrote them (``None``: a restore)."""

    def __init__(self, *chassis: str, version: str = VERSION) -> None:
        self.rows: Rows = {}
        """Of the northbound database."""
        self.version = version
        self.nb_cfg = 0
        self.faults = OvnFaults()
        self.chassis = {name: SimulatedChassis(name=name) for name in chassis}
        self.bindings: dict[str, Binding] = {}
        self.learned: dict[str, set[str]] = {}
        """MACs by address."""
        self.listeners: list[Callable[[Rows, Rows, object], None]] = []
        self.binding_listeners: list[Callable[[str], None]] = []
        self._plugged: dict[str, list[str]] = {}
        """By port the chassis that have its interface, the last one last."""

    # --- northbound

    def commit(self, ops: list[Op], writer: object, numbered: bool = True) -> int:
        """Carry the operations out, all or, where a parent or a DHCP row is missing, none (``KeyError``)."""
        after = apply(self.rows, ops)
        for table, (column, parents, default) in PARENTS.items():
            names = {row.get("name") for row in after.get(parents, [])}
            for row in after.get(table, []):
                if (row.get(column) or default) not in names:
                    raise KeyError(f"there is no {parents} {row.get(column) or default!r}")
        ids = {row.get("external_ids", {}).get(ID_KEY) for row in after.get(DHCP, [])}
        for row in after.get(PORTS, []):
            for name in ("dhcpv4_options", "dhcpv6_options"):
                if name in row and row[name] not in ids:
                    raise KeyError(f"there is no DHCP row {row[name]!r}")
        self.nb_cfg += numbered
        self._replace(after, writer)
        return self.nb_cfg

    def backup(self) -> Rows:
        """The rows of now, to restore them later."""
        return apply(self.rows, ())

    def restore(self, rows: Rows) -> None:
        """The rows are again what they were; connections are made anew."""
        self._replace(apply(rows, ()), None)

    def reconnect(self) -> None:
        """All connections to the northbound database are made anew."""
        self._replace(self.rows, None)

    def _replace(self, rows: Rows, writer: object) -> None:
        before, self.rows = self.rows, rows
        for listener in self.listeners:
            listener(before, rows, writer)
        self.catch_up()

    # --- chassis

    def catch_up(self) -> None:
        """Northd, unless it is down, and the living chassis do what has been written."""
        if self.faults.northd_down:
            return
        rows = {row["name"]: row for row in self.rows.get(PORTS, [])}
        for port in sorted({*self.bindings, *rows}):
            self._bind(port, rows.get(port))
        for one in self.chassis.values():
            if one.alive:
                one.nb_cfg = self.nb_cfg

    def plug(self, port: str, chassis: str) -> None:
        """An interface of the port comes to a chassis."""
        self._plugged.setdefault(port, []).append(chassis)
        self.catch_up()

    def unplug(self, port: str, chassis: str) -> None:
        """It goes."""
        if chassis in self._plugged.get(port, []):
            self._plugged[port].remove(chassis)
        self.catch_up()

    def kill(self, chassis: str) -> None:
        """The chassis loses power, and with it its interfaces."""
        self.chassis[chassis].alive = False
        for there in self._plugged.values():
            there[:] = [one for one in there if one != chassis]

    def revive(self, chassis: str) -> None:
        """It boots, with no interfaces."""
        self.chassis[chassis].alive = True
        self.catch_up()

    def forget(self, chassis: str) -> None:
        """Remove its row; a living one registers again at once."""
        if not self.chassis[chassis].alive:
            del self.chassis[chassis]
            self.catch_up()

    def announce(self, port: str, chassis: str) -> None:
        """The guest speaks on a chassis: one that waits for that is activated."""
        binding = self.bindings.get(port)
        if binding is not None and chassis in binding.additional_chassis and chassis not in binding.activated:
            self._set(msgspec.structs.replace(binding, activated=(*binding.activated, chassis)))

    def registered(self) -> list[Chassis]:
        """All chassis that have a row."""
        found = (
            Chassis(name=one.name, hostname=one.name, nb_cfg=one.nb_cfg, encap_ip=one.encap_ip)
            for one in self.chassis.values()
        )
        return sorted(found, key=lambda one: one.name)

    def _bind(self, port: str, row: Columns | None) -> None:
        """Make the binding of a port what the living chassis make of it."""
        if row is None:
            self.bindings.pop(port, None)
            self._publish(port)
            return
        new = Binding(port=port, datapath=row.get("switch", ""), tunnel_key=len(self.bindings) + 1)
        old = self.bindings.get(port, new)
        requested = _requested(row)
        plugged = self._plugged.get(port, [])
        # a dead chassis keeps what it has
        kept = [one for one in (old.chassis, *old.additional_chassis) if one in self.chassis and not self._lives(one)]
        bound = [one for one in requested if one in plugged or one in kept]
        if requested:
            chassis = requested[0] if requested[0] in bound else ""
        else:
            chassis = next(iter((*reversed(plugged), *kept)), "")
        additional = tuple(one for one in bound if one != chassis)
        new = Binding(
            port=port,
            chassis=chassis,
            additional_chassis=tuple(sorted(additional)),
            requested_chassis="".join(requested[:1]),
            requested_additional_chassis=tuple(sorted(requested[1:])),
            activated=tuple(one for one in old.activated if one in additional),
            up=bool(chassis),
            datapath=old.datapath,
            tunnel_key=old.tunnel_key,
        )
        if new != self.bindings.get(port):
            self._set(new)

    def _lives(self, chassis: str) -> bool:
        return chassis in self.chassis and self.chassis[chassis].alive

    def _set(self, binding: Binding) -> None:
        self.bindings[binding.port] = binding
        self._publish(binding.port)

    def _publish(self, port: str) -> None:
        for listener in self.binding_listeners:
            listener(port)


def _requested(row: Columns) -> list[str]:
    text = row.get("options", {}).get(REQUESTED, "")
    return [one for one in text.split(",") if one]
