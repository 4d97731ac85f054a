"""The southbound database of OVN (``network.ports.SouthboundDb``): where ports are bound, and how far chassis are.

Logical flows, which are most of that database, are never read; what routers have learned is looked up when it is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any, Final

from outlive.base import Refused
from outlive.drivers.ovn.client import CALL_S, PROBE_MS, OvsdbClient, Work
from outlive.drivers.ovn.replica import NeededColumns, Replica, Row
from outlive.network import Binding, ChangeBatches, Chassis

DATABASE: Final = "OVN_Southbound"
BINDINGS: Final = "Port_Binding"
CHASSIS: Final = "Chassis"
PRIVATE: Final = "Chassis_Private"
ENCAPS: Final = "Encap"
LEARNED: Final = "MAC_Binding"
TABLES: Final = {
    BINDINGS: NeededColumns(
        ("logical_port", "chassis", "options", "up", "datapath", "tunnel_key", "requested_chassis"),
        ("additional_chassis", "requested_additional_chassis"),
    ),
    CHASSIS: NeededColumns(("name", "hostname", "encaps")),
    PRIVATE: NeededColumns(("name", "nb_cfg"), ("nb_cfg_timestamp",)),
    ENCAPS: NeededColumns(("ip",)),
}


class _BindingIndex:
    """Follows the replica: bindings by port, chassis by name, and which ports changed. In the client's thread."""

    def __init__(self) -> None:
        self.ports: dict[str, str] = {}
        self.private: dict[str, str] = {}
        self._changed: set[str] = set()
        self._is_new = True

    def note(self, table: str, uuid: str, old: Row | None, new: Row | None) -> None:
        """Index the row."""
        index, column = {BINDINGS: (self.ports, "logical_port"), PRIVATE: (self.private, "name")}.get(table, (None, ""))
        if index is None:
            return
        for row in (old, new):
            if row is not None and row.get(column):
                if new is not None:
                    index[row[column]] = uuid
                elif index.get(row[column]) == uuid:
                    del index[row[column]]
                if table == BINDINGS:
                    self._changed.add(row[column])

    def forget(self) -> None:
        """Forget everything."""
        self.ports.clear()
        self.private.clear()
        self._is_new = True

    def take(self) -> frozenset[str] | None:
        """The ports whose bindings changed since the last time, empty for all; ``None``: none did."""
        names = frozenset(self._changed)
        self._changed.clear()
        if self._is_new:
            self._is_new = False
            return frozenset()
        return names or None


class OvnSouthbound:
    """See the protocol."""

    def __init__(self, remote: str, *, limit_s: float = CALL_S, probe_ms: int = PROBE_MS) -> None:
        self._limit_s = limit_s
        self._changes = ChangeBatches()
        self._client = OvsdbClient(remote, DATABASE, TABLES, probe_ms=probe_ms, after_batch=self._publish)
        self._index = _BindingIndex()
        self._client.replica.observers.append(self._index)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Start to connect; returns at once."""
        self._loop = asyncio.get_running_loop()
        await self._client.start()

    async def aclose(self) -> None:
        """End the connection."""
        await self._client.aclose()

    async def read_binding(self, port: str) -> Binding | None:
        """See the protocol."""
        return await self._client.read(lambda replica: self._read_binding(replica, port), self._limit_s)

    async def list_chassis(self) -> list[Chassis]:
        """See the protocol."""
        return await self._client.read(self._list_chassis, self._limit_s)

    async def mac_bindings(self, address: str) -> list[str]:
        """See the protocol."""
        operation = {"op": "select", "table": LEARNED, "where": [["ip", "==", address]], "columns": ["mac"]}
        results = await self._client.run(lambda _: _transact([operation]), self._limit_s)
        return sorted({row["mac"] for row in results[0]["rows"]})

    async def forget_chassis(self, name: str) -> None:
        """See the protocol."""
        where = [["name", "==", name]]
        operations = [{"op": "delete", "table": table, "where": where} for table in (PRIVATE, CHASSIS)]
        await self._client.run(lambda _: _transact(operations), self._limit_s)

    async def find_late_chassis(
        self, nb_cfg: int, on: Collection[str], limit_s: float
    ) -> tuple[tuple[str, ...], float | None]:
        """The chassis that have not reported a change when the limit is over, and when the slowest other one had it."""

        def missing(replica: Replica) -> tuple[str, ...]:
            return tuple(sorted(name for name in on if self._report_row(replica, name).get("nb_cfg", 0) < nb_cfg))

        await self._client.wait(lambda replica: True if not missing(replica) else None, limit_s)

        def find_late(replica: Replica) -> tuple[tuple[str, ...], float | None]:
            late = missing(replica)
            times = [self._report_row(replica, name).get("nb_cfg_timestamp", 0) for name in on if name not in late]
            return late, float(max(times)) if times and min(times) > 0 else None

        return await self._client.read(find_late, self._limit_s)

    def watch_changes(self) -> AsyncIterator[frozenset[str]]:
        """See the protocol."""
        return self._changes.read()

    def explain_unhealthy(self) -> str:
        """Why it cannot be used now; empty: it can."""
        return self._client.trouble

    # --- in the client's thread

    def _publish(self) -> bool:
        names = self._index.take()
        if names is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._changes.publish, names)
        return True

    def _report_row(self, replica: Replica, name: str) -> Row:
        return replica.rows[PRIVATE].get(self._index.private.get(name, ""), {})

    def _read_binding(self, replica: Replica, port: str) -> Binding | None:
        row = replica.rows[BINDINGS].get(self._index.ports.get(port, ""))
        if row is None:
            return None
        names = replica.rows[CHASSIS]

        def list_chassis(column: str) -> tuple[str, ...]:
            found = row.get(column) or ()
            uuids = (found,) if isinstance(found, str) else found
            return tuple(sorted(names.get(one, {}).get("name", "") for one in uuids))

        activated = row.get("options", {}).get("additional-chassis-activated", "")
        return Binding(
            port=port,
            chassis="".join(list_chassis("chassis")),
            additional_chassis=list_chassis("additional_chassis"),
            requested_chassis="".join(list_chassis("requested_chassis")),
            requested_additional_chassis=list_chassis("requested_additional_chassis"),
            activated=tuple(one for one in activated.split(",") if one),
            up=bool(row.get("up", False)),
            datapath=row.get("datapath", ""),
            tunnel_key=row.get("tunnel_key", 0),
        )

    def _list_chassis(self, replica: Replica) -> list[Chassis]:
        found = []
        for row in replica.rows[CHASSIS].values():
            addresses = sorted(replica.rows[ENCAPS].get(one, {}).get("ip", "") for one in row.get("encaps", ()))
            found.append(
                Chassis(
                    name=row["name"],
                    hostname=row.get("hostname", ""),
                    nb_cfg=self._report_row(replica, row["name"]).get("nb_cfg", 0),
                    encap_ip=addresses[0] if addresses else "",
                )
            )
        return sorted(found, key=lambda one: one.name)


def _transact(operations: list[Any]) -> Work[list[Any]]:
    results = yield operations
    error = next((one for one in results if one and "error" in one), None)
    if error is not None:
        raise Refused(f"{DATABASE} refuses: {error['error']}: {error.get('details', '')}")
    return list(results)
