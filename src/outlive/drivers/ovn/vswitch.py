"""The Open vSwitch of this host: whether interfaces have their flows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from outlive.drivers.ovn.client import CALL_S, OvsdbClient
from outlive.drivers.ovn.replica import NeededColumns, Replica, Row

DATABASE: Final = "Open_vSwitch"
INTERFACES: Final = "Interface"
SETTINGS: Final = "Open_vSwitch"
LOCAL: Final = "unix:/run/openvswitch/db.sock"


class LocalSwitch:
    """Reads the host's own database."""

    def __init__(self, remote: str = LOCAL) -> None:
        tables = {INTERFACES: NeededColumns(("name", "external_ids")), SETTINGS: NeededColumns(("external_ids",))}
        self._client = OvsdbClient(remote, DATABASE, tables)

    async def start(self) -> None:
        """Start to connect; returns at once."""
        await self._client.start()

    async def aclose(self) -> None:
        """End the connection."""
        await self._client.aclose()

    async def wait_installed(self, interfaces: Collection[str], limit_s: float) -> tuple[str, ...]:
        """Wait until these interfaces, by their id, are plugged and have their flows; those that are not in time."""

        def find_late(replica: Replica) -> tuple[str, ...]:
            rows = replica.rows[INTERFACES].values()
            installed = {
                _interface_id(row) for row in rows if row.get("external_ids", {}).get("ovn-installed") == "true"
            }
            return tuple(sorted(set(interfaces) - installed))

        await self._client.wait(lambda replica: None if find_late(replica) else True, limit_s)
        return await self._client.read(find_late, CALL_S)

    async def list_interfaces(self) -> tuple[str, ...]:
        """The ids of all interfaces that are plugged here."""

        def read_ids(replica: Replica) -> tuple[str, ...]:
            return tuple(sorted({_interface_id(row) for row in replica.rows[INTERFACES].values()} - {""}))

        return await self._client.read(read_ids, CALL_S)

    async def read_devices(self) -> dict[str, str]:
        """The device of each interface that is plugged here, by its id."""

        def read_names(replica: Replica) -> dict[str, str]:
            rows = replica.rows[INTERFACES].values()
            return {_interface_id(row): str(row["name"]) for row in rows if _interface_id(row) and row.get("name")}

        return await self._client.read(read_names, CALL_S)

    async def read_chassis(self) -> str:
        """The name of this chassis; empty: OVN has not been set up here."""

        def name(replica: Replica) -> str:
            row = next(iter(replica.rows[SETTINGS].values()), {})
            return str(row.get("external_ids", {}).get("system-id", ""))

        return await self._client.read(name, CALL_S)

    def explain_unhealthy(self) -> str:
        """Why it cannot be used now; empty: it can."""
        return self._client.trouble


def _interface_id(row: Row) -> str:
    return str(row.get("external_ids", {}).get("iface-id", ""))
