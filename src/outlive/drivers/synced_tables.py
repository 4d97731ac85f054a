"""VMs from the synchronised tables of the reference: its copy of an OpenStack's servers and flavors.

These are not Nova's own tables. A job of the reference asks OpenStack's API and replaces each table as a whole, in
PostgreSQL or SQLite (docs/reference/failover-operation.md#vm-source); here they are only read. The connection is opened
on first use, because the address may not be known at start. A read runs in a thread under a deadline and gives all or
nothing: a database that goes away midway is one ``Unavailable`` that names the step and the server, never the password.

SQLite keeps any value in any column: a column that decides something (id, host, zone, project, flavor, size) must be
readable, or its row is left out and counted; one that is only shown never costs a VM its place. What is *not* promised:
servers and flavors are two reads, so a flavor may have been renamed in between; its VMs are then counted as having an
unknown flavor.

``read_database`` makes an inventory of them. The tables list no hosts: these come from a file, or are known already
(docs/reference/cli.md#import-database). Servers without a host, those whose flavor is gone and whose size is therefore
unknown, further rows of the same server, and rows that cannot be read are left out and counted.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url

from outlive.base import BadInput, LimitExceeded, OutliveError, Unavailable
from outlive.inventory import FlavorRecord, Inventory, RowCondition, VmRecord, check_columns, selects
from outlive.placement import FlavorRow, ServerRow, VmList, VmView, join_row, join_rows, parse_extra_specs, vm_of_row
from outlive.resources import Amounts
from outlive.resources.reasons import ImportNotice, Reason

ROWS_PER_FETCH = 5_000
"""Rows that travel from the server at once."""
ROWS_LIMIT = 2_000_000
"""Rows of one table at most; more is refused rather than swallowing all memory."""
CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 30.0
VCPUS_MOST: Final = 2**20
"""More cores of a flavor than this are a damaged row."""
RAM_MIB_MOST: Final = 2**32
"""The same for memory: 4 PiB."""
TEXT_MOST: Final = 2**20
"""Characters of one column that are taken over at most."""

_metadata = sa.MetaData()
SERVERS = sa.Table(
    "openstack_servers_v4",
    _metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text),
    sa.Column("status", sa.Text),
    sa.Column("tenant_id", sa.Text),
    sa.Column("os_ext_srv_attr_host", sa.Text),
    sa.Column("os_ext_az_availability_zone", sa.Text),
    sa.Column("created", sa.Text),
    sa.Column("flavor_name", sa.Text),
    sa.Column("os_type", sa.Text),
)
"""Every server that is not deleted, in any state."""
FLAVORS = sa.Table(
    "openstack_flavors_v2",
    _metadata,
    sa.Column("name", sa.Text),
    sa.Column("vcpus", sa.BigInteger),
    sa.Column("ram", sa.BigInteger),
    sa.Column("disk", sa.BigInteger),
    sa.Column("extra_specs", sa.Text),
)
"""Every flavor; ``ram`` is MiB, ``disk`` GiB."""

T = TypeVar("T")
Read = tuple[tuple[T, ...], int]
"""The rows of a table, and how many could not be read."""
READ_FAILURES = (
    sa.exc.SQLAlchemyError,
    OSError,
    ValueError,
    TypeError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
)
"""What reading may raise: the database, its driver, and values that neither expects."""


class SyncedTables:
    """VMs from a database, read in one thread of its own."""

    def __init__(self, address: str, *, timeout_s: float = READ_TIMEOUT_S) -> None:
        self._url = _parse(address)
        self._timeout_s = timeout_s
        self._engine: Engine | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._opening = asyncio.Lock()

    async def list_vms(self) -> VmList:
        """Every server with a host and a known flavor, by id; all or nothing."""
        return await self._join_tables(_join)

    async def list_servers(self) -> tuple[VmView, ...]:
        """Every server, each id once: also those without a host, and those of unknown size (cpu and memory 0)."""
        return await self._join_tables(_build_views)

    async def list_flavors(self) -> tuple[FlavorRow, ...]:
        """Every flavor, in the table's order."""
        return (await self._run("list the flavors", _read_flavors))[0]

    async def get_vm(self, vm_id: str) -> VmView | None:
        """One server with its flavor (of equal names the first), located where the database says."""
        server = await self._run("find the server", lambda connection: _find_server(connection, vm_id))
        if server is None:
            return None
        flavor = await self._run("find the flavor", lambda connection: _find_flavor(connection, server.flavor_name))
        return join_row(server, flavor)

    async def close(self) -> None:
        """Let go of connections; a later read opens them again."""
        async with self._opening:
            engine, self._engine = self._engine, None
            thread, self._thread = self._thread, None
            if engine is not None and thread is not None:
                await asyncio.get_running_loop().run_in_executor(thread, engine.dispose)
            if thread is not None:
                thread.shutdown(wait=False, cancel_futures=True)

    async def _join_tables(self, join: Callable[[Read[ServerRow], Read[FlavorRow]], T]) -> T:
        """Both tables, joined in the thread as well."""
        servers = await self._run("list the servers", _read_servers)
        return await self._run("list the flavors", lambda connection: join(servers, _read_flavors(connection)))

    async def _run(self, step: str, read: Callable[[Connection], T]) -> T:
        """One read in the thread, under the deadline; a late one is abandoned together with its connection."""
        engine, thread = await self._open()
        work = asyncio.get_running_loop().run_in_executor(thread, _run_in_transaction, engine, read)
        try:
            return await asyncio.wait_for(work, self._timeout_s)
        except TimeoutError:
            await self._abandon()
            raise self._unavailable_error(step, f"no answer within {self._timeout_s:g} s") from None
        except OutliveError:
            raise
        except READ_FAILURES as error:
            raise self._unavailable_error(step, _error_reason(error)) from error

    async def _open(self) -> tuple[Engine, ThreadPoolExecutor]:
        async with self._opening:
            if self._engine is None:
                self._engine = _make_engine(self._url, self._timeout_s)
            if self._thread is None:
                self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="synced-tables")
            return self._engine, self._thread

    async def _abandon(self) -> None:
        """Leave the thread to end its read, which the server's own time limit ends, and to close its connection."""
        async with self._opening:
            thread, self._thread = self._thread, None
            engine, self._engine = self._engine, None
            if thread is not None and engine is not None:
                thread.submit(engine.dispose)
                thread.shutdown(wait=False)

    def _unavailable_error(self, step: str, why: str) -> Unavailable:
        return Unavailable(
            f"cannot {step}: {why}",
            place=_strip_credentials(self._url),
            remedy="check that the database runs and that failoverUpkeep.databaseUrl is right",
        )


def _parse(address: str) -> URL:
    try:
        url = make_url(address)
    except sa.exc.ArgumentError:
        raise BadInput(
            "the database address is malformed", remedy="write postgresql+psycopg://user@host/database"
        ) from None
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("postgresql+psycopg", "sqlite"):
        raise BadInput(
            f"databases of type {url.drivername!r} are not supported", remedy="use postgresql+psycopg:// or sqlite://"
        )
    return url


def _strip_credentials(url: URL) -> str:
    """The address without user, password and query."""
    if url.drivername == "sqlite":
        return f"sqlite database {url.database or ':memory:'}"
    host = url.host or url.query.get("host") or "local socket"
    where = host if isinstance(host, str) else host[0]
    return f"database {url.database or ''} on {where}" + (f":{url.port}" if url.port else "")


def _make_engine(url: URL, timeout_s: float) -> Engine:
    """One connection that can only read; a file that does not exist is not created."""
    if url.drivername == "sqlite":
        path = f"file:{quote(url.database or '')}?mode=ro"
        creator = partial(_connect_sqlite, path, min(timeout_s, 5.0))
        return sa.create_engine("sqlite://", creator=creator, poolclass=sa.pool.QueuePool, pool_size=1, max_overflow=0)
    options = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "options": f"-c statement_timeout={int(timeout_s * 1000)} -c default_transaction_read_only=on",
        "application_name": "outlive",
    }
    return sa.create_engine(url, connect_args=options, pool_size=1, max_overflow=0, pool_pre_ping=True)


def _connect_sqlite(path: str, timeout_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, uri=True, timeout=timeout_s, check_same_thread=False)
    # Text that is none must not end the whole read: its bytes stay, and its row is judged by itself.
    connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
    return connection


def _run_in_transaction(engine: Engine, read: Callable[[Connection], T]) -> T:
    with engine.connect() as connection:
        return read(connection)


def _fetch_rows(connection: Connection, select: sa.Select[Any], table: str) -> list[sa.Row[Any]]:
    """All rows, fetched in portions through a cursor on the server."""
    rows: list[sa.Row[Any]] = []
    with connection.execution_options(stream_results=True, yield_per=ROWS_PER_FETCH).execute(select) as result:
        for portion in result.partitions():
            rows.extend(portion)
            if len(rows) > ROWS_LIMIT:
                raise LimitExceeded(
                    f"table {table} has more than {ROWS_LIMIT} rows", remedy="split the database or raise the limit"
                )
    return rows


def _read_servers(connection: Connection) -> Read[ServerRow]:
    select = sa.select(SERVERS).order_by(SERVERS.c.id)
    return parse_rows((row._mapping for row in _fetch_rows(connection, select, SERVERS.name)), server_row)


def _read_flavors(connection: Connection) -> Read[FlavorRow]:
    return parse_rows((row._mapping for row in _fetch_rows(connection, sa.select(FLAVORS), FLAVORS.name)), flavor_row)


def _join(servers: Read[ServerRow], flavors: Read[FlavorRow]) -> VmList:
    unreadable = {SERVERS.name: servers[1], FLAVORS.name: flavors[1]}
    return msgspec.structs.replace(
        join_rows(servers[0], flavors[0]), unreadable={table: number for table, number in unreadable.items() if number}
    )


def _build_views(servers: Read[ServerRow], flavors: Read[FlavorRow]) -> tuple[VmView, ...]:
    by_name = {flavor.name: flavor for flavor in flavors[0]}
    specs = {flavor.name: parse_extra_specs(flavor.extra_specs) or {} for flavor in by_name.values()}
    views: dict[str, VmView] = {}
    for server in servers[0]:
        flavor = by_name.get(server.flavor_name, FlavorRow(name=server.flavor_name))
        views.setdefault(server.id, vm_of_row(server, flavor, specs.get(flavor.name, {})))
    return tuple(views.values())


def _find_server(connection: Connection, vm_id: str) -> ServerRow | None:
    row = connection.execute(sa.select(SERVERS).where(SERVERS.c.id == vm_id).limit(1)).first()
    return None if row is None else next(iter(parse_rows([row._mapping], server_row)[0]), None)


def _find_flavor(connection: Connection, name: str) -> FlavorRow | None:
    row = connection.execute(sa.select(FLAVORS).where(FLAVORS.c.name == name).limit(1)).first()
    return None if row is None else next(iter(parse_rows([row._mapping], flavor_row)[0]), None)


def _error_reason(error: Exception) -> str:
    """The first line of what the database said; SQLAlchemy's statement and link are noise here."""
    cause = getattr(error, "orig", None) or error
    text = str(cause).strip()
    return text.splitlines()[0][:200] if text else type(cause).__name__


# Columns, whatever a row really holds.


def parse_rows(rows: Iterable[Mapping[Any, Any]], make: Callable[[Mapping[str, Any]], T]) -> tuple[tuple[T, ...], int]:
    """What the rows say, and how many of them cannot be read."""
    made: list[T] = []
    unreadable = 0
    for row in rows:
        try:
            made.append(make(row))
        except ValueError:
            unreadable += 1
    return tuple(made), unreadable


def server_row(columns: Mapping[Any, Any]) -> ServerRow:
    """A row of servers; ``ValueError`` where one that matters cannot be read, or the id is missing."""
    return ServerRow(
        id=_require_name(columns["id"]),
        name=_to_shown_text(columns["name"]),
        status=_to_shown_text(columns["status"]),
        project_id=_to_text(columns["tenant_id"]),
        host=_to_text(columns["os_ext_srv_attr_host"]),
        zone=_to_text(columns["os_ext_az_availability_zone"]),
        created=_to_shown_text(columns["created"]),
        flavor_name=_to_text(columns["flavor_name"]),
        os_type=_to_shown_text(columns["os_type"]),
    )


def flavor_row(columns: Mapping[Any, Any]) -> FlavorRow:
    """A row of flavors; ``ValueError`` where its name or size cannot be read."""
    return FlavorRow(
        name=_require_name(columns["name"]),
        vcpus=_to_count(columns["vcpus"], VCPUS_MOST),
        ram_mib=_to_count(columns["ram"], RAM_MIB_MOST),
        disk_gib=_count_or_none(columns["disk"]),
        extra_specs=_to_json_text(columns["extra_specs"]),
    )


def _require_name(value: Any) -> str:
    text = _to_text(value)
    if not text:
        raise ValueError("no name")
    return text


def _to_text(value: Any) -> str:
    """Text, also from bytes and whole numbers; null is empty."""
    match value:
        case None:
            return ""
        case str():
            text = value
        case bytes() | memoryview():
            text = bytes(value).decode()
        case int() if not isinstance(value, bool):
            text = str(value)
        case _:
            raise ValueError(f"{type(value).__name__} is no text")
    if len(text) > TEXT_MOST or any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError("no text that can be passed on")
    return text


def _to_shown_text(value: Any) -> str:
    """What can be shown of it."""
    text = bytes(value).decode(errors="replace") if isinstance(value, bytes | memoryview) else str(value or "")
    return text[:TEXT_MOST].encode(errors="replace").decode()


def _to_count(value: Any, most: int) -> int:
    """A whole number from 0; null is 0."""
    match value:
        case None:
            return 0
        case int():
            number = value
        case float() | Decimal() if math.isfinite(value) and value == int(value):
            number = int(value)
        case str() | bytes() if len(value) <= len(str(most)):
            number = int(value)
        case _:
            raise ValueError("no whole number")
    if not 0 <= number <= most:
        raise ValueError(f"{number} is out of range")
    return number


def _count_or_none(value: Any) -> int:
    """A disk's size, which nothing is decided by; 0 where it cannot be read."""
    try:
        return _to_count(value, RAM_MIB_MOST)
    except ValueError:
        return 0


def _to_json_text(value: Any) -> str:
    """The text of a JSON document, also from a column that the database gives as a document."""
    if value is None or isinstance(value, str | bytes | memoryview):
        return _to_shown_text(value)
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return _to_shown_text(repr(value))


MIB = 2**20


WHERE_COLUMNS: Final = ("id", "name", "status", "project", "host", "zone", "flavor", "os_type")
"""What ``--where`` may name of a server."""


async def read_database(address: str, where: Sequence[RowCondition] = ()) -> Inventory:
    """All servers that meet the conditions and all flavors of the database; ``Unavailable`` if it cannot be read to the
    end."""
    check_columns(where, WHERE_COLUMNS, "the table of servers")
    source = SyncedTables(address)
    try:
        listed = await source.list_vms()
        servers = await source.list_servers() if listed.unknown_flavors else ()
        flavors = await source.list_flavors()
    except Unavailable as error:
        remedy = "nothing was imported; check that the database runs, and repeat"
        raise Unavailable(error.message, place=error.place, remedy=remedy) from error
    finally:
        await source.close()
    inventory = Inventory(what="database", has_vms=True)
    inventory.flavors.extend({row.name: _flavor_record(row) for row in flavors if row.name}.values())
    chosen = [view for view in listed.vms if selects(where, partial(getattr, view))]
    inventory.vms.extend(map(_vm_record, chosen))
    unknown = sum(listed.unknown_flavors.values())
    unreadable = sum(listed.unreadable.values())
    left_out = listed.without_host + listed.repeated + unknown + unreadable
    inventory.rows_left_out = len(listed.vms) - len(chosen) + left_out
    inventory.listed_vms = {server.id for server in servers if server.host and server.flavor in listed.unknown_flavors}
    inventory.nameless = bool(listed.unreadable.get(SERVERS.name))
    if listed.without_host:
        inventory.notices.append(Reason(ImportNotice.SERVER_WITHOUT_HOST, {"count": listed.without_host}))
    if unknown:
        names = tuple(sorted(listed.unknown_flavors))
        inventory.notices.append(Reason(ImportNotice.FLAVOR_UNKNOWN, {"count": unknown, "flavors": names}))
    if listed.repeated:
        inventory.notices.append(Reason(ImportNotice.SERVER_REPEATED, {"count": listed.repeated}))
    for table, count in sorted(listed.unreadable.items()):
        inventory.notices.append(Reason(ImportNotice.ROW_UNREADABLE, {"table": table, "count": count}))
    return inventory


def _flavor_record(row: FlavorRow) -> FlavorRecord:
    return FlavorRecord(
        name=row.name,
        place=f"flavor {row.name!r}",
        resources=Amounts(cpu=row.vcpus * 1000, memory=row.ram_mib * MIB),
        disk_gib=row.disk_gib,
        extra_specs=parse_extra_specs(row.extra_specs) or {},
    )


def _vm_record(view: VmView) -> VmRecord:
    return VmRecord(
        id=view.id,
        place=f"server {view.id!r}",
        name=view.name,
        project=view.project,
        flavor=view.flavor,
        zone=view.zone,
        host=view.host,
        phase=view.status,
        disk_gib=view.disk_gib,
        extra_specs=view.extra_specs,
        os_type=view.os_type,
    )
