"""What OVN is in the simulation: northbound rows, chassis, and who has plugged what.

Bindings follow the rules of ovn-controller that moves depend on: a port without ``requested-chassis`` belongs to the
chassis that plugged it last; of a list the first is the chassis and the others are additional ones; only a chassis that
lives changes a binding, so a dead one keeps its own, and the port stays up.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

import msgspec

from outlive.network import (
    CLUSTER_ROUTER,
    DHCP,
    ID_KEY,
    POLICIES,
    PORTS,
    ROUTER_PORTS,
    ROUTERS,
    ROUTES,
    SWITCHES,
    Binding,
    Chassis,
    Columns,
    Op,
    Rows,
    apply,
)

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
    CRASH_BEFORE = "crash before commit"
    """The process that commits dies; nothing was committed."""
    CRASH_AFTER = "crash after commit"
    """It dies before it learns that it has committed."""


class OvnFaults(msgspec.Struct, kw_only=True):
    """What is wrong now, and what will be."""

    northbound_down: bool = False
    southbound_down: bool = False
    northd_down: bool = False
    latency_s: tuple[float, float] = (0.001, 0.005)
    """Of each call, drawn between these."""
    event_delay_s: float = 0.0
    transactions: list[OvnFault | None] = []
    """Of the next ones, each once; ``None``: it goes well."""


class InstalledFlows(msgspec.Struct, frozen=True, kw_only=True):
    """What a chassis works by: rows and bindings as it had them last."""

    rows: Rows = {}
    bindings: Mapping[str, Binding] = {}


class SimulatedChassis(msgspec.Struct, kw_only=True):
    """A chassis."""

    name: str
    hostname: str = ""
    encap_ip: str = ""
    alive: bool = True
    """It has power, and its ovn-controller follows the database."""
    announces: bool = True
    """Its ovn-controller runs, so that a guest that speaks is heard; it may be without a database."""
    registered: bool = True
    """It has a row."""
    nb_cfg: int = 0
    flows: InstalledFlows = InstalledFlows()
    activated: set[str] = msgspec.field(default_factory=set)
    """Ports that are additional here, and whose guest has spoken."""


class OvnBackup(NamedTuple):
    """A northbound database as it was."""

    rows: Rows
    nb_cfg: int


class SimulatedOvn:
    """See the module. ``changed`` of each listener is called with the rows before and after, and who wrote them."""

    def __init__(self, *chassis: str, version: str = VERSION) -> None:
        self.rows: Rows = {}
        """Of the northbound database."""
        self.version = version
        self.nb_cfg = 0
        self.faults = OvnFaults()
        self.chassis = {name: SimulatedChassis(name=name) for name in chassis}
        self.southbound: Rows = {}
        """The rows that northd has translated."""
        self.bindings: Mapping[str, Binding] = {}
        self.learned: dict[str, set[str]] = {}
        """MACs by address."""
        self.listeners: list[Callable[[Rows, Rows, object], None]] = []
        self.binding_listeners: list[Callable[[str], None]] = []
        self.flow_listeners: list[Callable[[], None]] = []
        """Called when a chassis has other flows."""
        self.defer: Callable[[Callable[[], None]], None] | None = None
        """Has northd, and each chassis, do something a little later; ``None``: at once."""
        self._waiting: set[str] = set()
        """Chassis that are about to install flows."""
        self._ports: dict[str, Columns] = {}
        """Ports that northd has translated."""
        self._translated = 0
        """The number of the last change of them."""
        self._keys = 0
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

    def make_backup(self) -> OvnBackup:
        """The northbound database of now, to restore it later."""
        return OvnBackup(apply(self.rows, ()), self.nb_cfg)

    def restore(self, backup: OvnBackup) -> None:
        """The northbound database is again what it was, its number too; connections are made anew.

        What chassis have reported stays: the southbound database is another one.
        """
        self.nb_cfg = backup.nb_cfg
        self._replace(apply(backup.rows, ()), None)

    def reconnect(self) -> None:
        """All connections to the databases are made anew."""
        self._replace(self.rows, None)
        self._tell([""])

    def _replace(self, rows: Rows, writer: object) -> None:
        before, self.rows = self.rows, rows
        if self.defer is None:
            self.catch_up()
        else:
            self.defer(self.catch_up)
        for listener in list(self.listeners):
            listener(before, rows, writer)

    # --- chassis

    def catch_up(self) -> None:
        """Northd, unless it is down, and the living chassis do what has been written."""
        if self.faults.southbound_down:
            return
        if not self.faults.northd_down:
            self.southbound, self._translated = self.rows, self.nb_cfg
            self._ports = {row["name"]: row for row in self.rows.get(PORTS, []) if row.get("name")}
        self._settle(sorted({*self.bindings, *self._ports}))

    def add_chassis(self, name: str, hostname: str) -> None:
        """One that has never run."""
        self.chassis[name] = SimulatedChassis(
            name=name, hostname=hostname, alive=False, announces=False, registered=False
        )

    def plug(self, port: str, chassis: str) -> None:
        """An interface of the port comes to a chassis."""
        self._plugged.setdefault(port, []).append(chassis)
        self._settle([port])

    def unplug(self, port: str, chassis: str) -> None:
        """It goes."""
        if chassis in self._plugged.get(port, []):
            self._plugged[port].remove(chassis)
        self._settle([port])

    def is_plugged(self, port: str, chassis: str) -> bool:
        """True if the chassis has an interface of the port."""
        return chassis in self._plugged.get(port, ())

    def kill(self, chassis: str) -> None:
        """The chassis loses power, and with it its interfaces and flows."""
        one = self.chassis[chassis]
        one.alive = one.announces = False
        one.flows = InstalledFlows()
        one.activated.clear()
        for there in self._plugged.values():
            there[:] = [other for other in there if other != chassis]

    def freeze(self, chassis: str, *, announces: bool = False) -> None:
        """It does not follow the database any more; interfaces and flows stay as they are."""
        one = self.chassis[chassis]
        one.alive, one.announces = False, announces

    def revive(self, chassis: str) -> None:
        """It follows the database again; one that boots has no interfaces."""
        one = self.chassis[chassis]
        one.alive = one.announces = True
        self.catch_up()

    def forget(self, chassis: str) -> None:
        """Remove its row; a living one registers again at once."""
        if not self.chassis[chassis].alive:
            self.chassis[chassis].registered = False
            self.catch_up()

    def announce(self, port: str, chassis: str) -> None:
        """The guest speaks on a chassis: one that waits for that is activated, by itself."""
        one = self.chassis[chassis]
        own = one.flows.bindings.get(port)
        if not one.announces or own is None or chassis not in own.additional_chassis:
            return
        one.activated.add(port)
        binding = self.bindings.get(port)
        known = binding is not None and chassis in binding.additional_chassis and chassis not in binding.activated
        if known and binding is not None and one.alive and not self.faults.southbound_down:
            self._set(msgspec.structs.replace(binding, activated=(*binding.activated, chassis)))
            self._install()
        self._tell([port])
        for listener in list(self.flow_listeners):
            listener()

    def list_chassis(self) -> list[Chassis]:
        """All chassis that have a row."""
        found = (
            Chassis(name=one.name, hostname=one.hostname or one.name, nb_cfg=one.nb_cfg, encap_ip=one.encap_ip)
            for one in self.chassis.values()
            if one.registered
        )
        return sorted(found, key=lambda one: one.name)

    def _settle(self, ports: Iterable[str]) -> None:
        """The living chassis bind these ports, and install what there is now."""
        if self.faults.southbound_down:
            return
        for one in self.chassis.values():
            one.registered = one.registered or one.alive
        changed = [port for port in ports if self._bind(port)]
        self._install()
        self._tell(changed)

    def _install(self) -> None:
        for one in self.chassis.values():
            if self.defer is None:
                self._install_on(one)
            elif one.alive and one.name not in self._waiting:
                self._waiting.add(one.name)
                self.defer(partial(self._install_on, one))

    def _install_on(self, one: SimulatedChassis) -> None:
        self._waiting.discard(one.name)
        if not one.alive or self.faults.southbound_down:
            return
        one.nb_cfg, one.flows = self._translated, InstalledFlows(rows=self.southbound, bindings=self.bindings)
        bound = {port: self.bindings.get(port) for port in one.activated}
        one.activated = {port for port, found in bound.items() if found and one.name in found.additional_chassis}
        for listener in list(self.flow_listeners):
            listener()

    def _bind(self, port: str) -> bool:
        """What the living chassis make of a port; whether that is new."""
        row, old = self._ports.get(port), self.bindings.get(port)
        if row is None:
            if old is not None:
                self.bindings = {name: one for name, one in self.bindings.items() if name != port}
            return old is not None
        if old is None:
            self._keys += 1
            old = Binding(port=port, datapath=row.get("switch", ""), tunnel_key=self._keys)
        by_host = {one.hostname: one.name for one in self.chassis.values() if one.hostname}
        requested = [by_host.get(one, one) for one in row.get("options", {}).get(REQUESTED, "").split(",") if one]
        plugged = [one for one in self._plugged.get(port, []) if one in self.chassis and self.chassis[one].alive]
        # a dead chassis keeps what it has, as long as it has a row
        kept = [one for one in (old.chassis, *old.additional_chassis) if one and self._is_dead(one)]
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
        if new == self.bindings.get(port):
            return False
        self._set(new)
        return True

    def _is_dead(self, chassis: str) -> bool:
        return chassis in self.chassis and self.chassis[chassis].registered and not self.chassis[chassis].alive

    def _set(self, binding: Binding) -> None:
        self.bindings = {**self.bindings, binding.port: binding}

    def _tell(self, ports: Iterable[str]) -> None:
        for port in ports:
            for listener in list(self.binding_listeners):
                listener(port)
