"""A copy in memory of the needed part of an OVSDB database, kept by the library of Open vSwitch.

The library connects, connects again with a growing pause, finds the leader of a cluster, probes a silent server and
asks for what changed meanwhile. It is slow and large where it parses (measured with 26,000 rows: 6.2 s and 170 MiB;
here 0.9 s and 40 MiB), so messages are parsed by ``connection.py``, and rows are plain dictionaries. For these, private
methods of its ``Idl`` are replaced (``_Idl__…``); the version is locked, and the conformance suite runs on the real
library.

Before it monitors, it reads the server's schema: a database that lacks a needed column is refused with its name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
import ovs.jsonrpc
import ovs.stream
from ovs.db import idl

from outlive.drivers.ovn.connection import JsonConnection
from outlive.drivers.ovn.values import ColumnType, apply_change, column_type, decode, is_empty
from outlive.network import PREFIX

BACKOFF_MS: Final = (250, 1000)
"""The first and the longest pause before another attempt to connect."""
NO_TRANSACTION: Final = "00000000-0000-0000-0000-000000000000"

Row = dict[str, Any]
"""Of columns by name. Never changed: a row that changes is another dictionary."""


class NeededColumns(msgspec.Struct, frozen=True):
    """The columns of a table that are monitored; a database without one that is not optional is refused."""

    columns: tuple[str, ...]
    optional: tuple[str, ...] = ()


class RowObserver(Protocol):
    """Who follows the replica; called in its thread."""

    def note(self, table: str, uuid: str, old: Row | None, new: Row | None) -> None:
        """A row came (no ``old``), became another, or went (no ``new``)."""
        ...

    def forget(self) -> None:
        """Everything that was noted is void; the rows that are there come again."""
        ...


class Reply:
    """What becomes of one request, in the form that the library's own transactions have."""

    def __init__(self, replied: Callable[[Any], None]) -> None:
        self._process_reply = replied
        self._status = ""


class Replica(idl.Idl):
    """The rows of the needed columns. Used by one thread."""

    def __init__(
        self,
        remote: str,
        database: str,
        tables: Mapping[str, NeededColumns],
        *,
        leader_only: bool,
        probe_ms: int,
        key_prefix: str = PREFIX,
    ) -> None:
        self.rows: dict[str, dict[str, Row]] = {table: {} for table in tables}
        """By table and uuid; meaningful while ``complete``."""
        self.types: dict[str, dict[str, ColumnType]] = {}
        """Of the columns that are monitored."""
        self.refusal = ""
        """Why the database cannot be used; empty: it can, as far as is known."""
        self.observers: list[RowObserver] = []
        self._needed = tables
        self._key_prefix = key_prefix
        self._checked = -1
        """The connection whose schema was read."""
        names = {table: [*one.columns, *one.optional] for table, one in tables.items()}
        document = {
            "name": database,
            "version": "1.0.0",
            "tables": {
                table: {"columns": {name: {"type": "string"} for name in columns}} for table, columns in names.items()
            },
        }
        helper = idl.SchemaHelper(None, document)
        helper.register_all()
        super().__init__(remote, helper, probe_interval=probe_ms, leader_only=leader_only)
        self._session.reconnect.set_probe_interval(probe_ms)  # of unix sockets too: a server may stand still
        self._session.reconnect.set_backoff(*BACKOFF_MS)

    @property
    def connected(self) -> bool:
        """True while there is a connection."""
        return bool(self._session.is_connected())

    @property
    def complete(self) -> bool:
        """True if the rows are those of the database as it was a moment ago."""
        return self.connected and self.state == self.IDL_S_MONITORING

    @property
    def connection(self) -> int:
        """A number that changes whenever a connection is made or lost."""
        return int(self._session.get_seqno())

    def run(self) -> bool:
        """Take in what the server sent; whether anything changed."""
        self._session.run()
        if type(self._session.rpc) is ovs.jsonrpc.Connection:  # it has received nothing yet
            self._session.rpc = JsonConnection(self._session.rpc.stream)
        return bool(super().run())

    def request(self, method: str, params: list[Any], reply: Reply) -> None:
        """Send a request; ``reply`` learns what becomes of it."""
        message = ovs.jsonrpc.Message.create_request(method, params)
        self._outstanding_txns[message.id] = reply
        self._session.send(message)

    def transact(self, operations: list[Any], reply: Reply) -> None:
        """Send a transaction."""
        self.request("transact", [self._db.name, *operations], reply)

    # --- in place of the library's own

    def _Idl__send_monitor_request(self, max_version: Any = idl.Monitor.monitor_cond_since) -> None:  # noqa: N802
        if self._checked == self.connection:
            super()._Idl__send_monitor_request(max_version)
            return
        connection = self.connection

        def on_reply(message: Any) -> None:
            self._checked = connection
            self.refusal = self._take_schema(message)
            if not self.refusal:
                super(Replica, self)._Idl__send_monitor_request(max_version)

        self.request("get_schema", [self._db.name], Reply(on_reply))

    def _take_schema(self, message: Any) -> str:
        """Note the types of the needed columns; what the database lacks."""
        if message.type != ovs.jsonrpc.Message.T_REPLY:
            return f"the server does not tell the schema of {self._db.name}: {message.error}"
        found = message.result["tables"]
        for table, needed in self._needed.items():
            columns = found.get(table, {}).get("columns", {})
            if table not in found:
                return f"{self._db.name} has no table {table}"
            for name in needed.columns:
                if name not in columns:
                    return f"{self._db.name} has no column {name} in its table {table}"
            names = [name for name in (*needed.columns, *needed.optional) if name in columns]
            self.types[table] = {name: column_type(columns[name]["type"]) for name in names}
            if "external_ids" in names:
                ids = self.types[table]["external_ids"]
                self.types[table]["external_ids"] = msgspec.structs.replace(ids, prefix=self._key_prefix)
            monitored = self.tables[table].columns
            for name in [name for name in monitored if name not in names]:
                del monitored[name]
        return ""

    def _Idl__parse_update(self, update: Any, version: str, tables: Any = None) -> None:  # noqa: N802
        if tables:
            parsed = msgspec.json.decode(update) if isinstance(update, msgspec.Raw) else update
            super()._Idl__parse_update(parsed, version, tables)
            return
        raw = update if isinstance(update, msgspec.Raw) else msgspec.json.encode(update)
        for table, rows in msgspec.json.decode(raw, type=dict[str, dict[str, msgspec.Raw]]).items():
            for uuid, change in rows.items():
                self._take(table, sys.intern(uuid), msgspec.json.decode(change))
        self.change_seqno += 1

    def _take(self, table: str, uuid: str, change: dict[str, Any]) -> None:
        rows, types = self.rows[table], self.types[table]
        old = rows.get(uuid)
        new: Row | None
        if "delete" in change:
            new = None
            rows.pop(uuid, None)
        elif "modify" in change:
            new = dict(old or {})
            for name, value in change["modify"].items():
                after = apply_change(types[name], new.get(name), value)
                if is_empty(types[name], after):
                    new.pop(name, None)
                else:
                    new[name] = after
            rows[uuid] = new
        else:
            columns = change["insert"] if "insert" in change else change["initial"]
            values = ((name, decode(types[name], value)) for name, value in columns.items())
            new = {name: value for name, value in values if not is_empty(types[name], value)}
            rows[uuid] = new
        for observer in self.observers:
            observer.note(table, uuid, old, new)

    def _Idl__clear(self) -> None:  # noqa: N802
        super()._Idl__clear()
        for rows in self.rows.values():
            rows.clear()
        for observer in self.observers:
            observer.forget()


def set_certificates(key: str, certificate: str, authority: str) -> None:
    """Use these files for all ``ssl:`` connections of this process; the library knows one set."""
    ovs.stream.Stream.ssl_set_private_key_file(key)
    ovs.stream.Stream.ssl_set_certificate_file(certificate)
    ovs.stream.Stream.ssl_set_ca_cert_file(authority)
