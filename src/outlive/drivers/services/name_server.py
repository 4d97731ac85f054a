"""``NamePort`` with PowerDNS and a database of SQLite in the daemon's own folder.

The daemon writes zones, PowerDNS reads them at each question, and tells secondary servers when a serial has risen.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import sqlite3
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final, TypeVar

from outlive.base import Unavailable, get_logger
from outlive.drivers.services.supervisor import Supervisor
from outlive.drivers.services.zone_transfer import transfer_zone
from outlive.node.services import ServedNetwork, ZoneChange, ZoneRecord, ZoneState

PROGRAM: Final = "pdns_server"
NAME: Final = "name server"
SCHEMAS: Final = (
    "/usr/share/pdns-backend-sqlite3/schema/schema.sqlite3.sql",
    "/usr/share/doc/pdns-backend-sqlite3/schema.sqlite3.sql",
    "/usr/share/doc/pdns/schema.sqlite3.sql",
)
USERS: Final = ("pdns", "nobody")
"""PowerDNS gives up its rights for the first of these users that there is."""
BUSY_S: Final = 5.0
STARTED_S: Final = 3.0
_T = TypeVar("_T")
_log = get_logger("services")


class PowerDnsServer:
    """See the module."""

    def __init__(self, folder: Path, supervisor: Supervisor, *, program: str = PROGRAM, port: int = 53) -> None:
        self._folder = folder
        self._supervisor = supervisor
        self._program = program
        self._port = port
        self._database = folder / "zones.db"

    async def start(self, addresses: Collection[str]) -> None:
        """Have it answer on these addresses."""
        await self.stop()
        try:
            await asyncio.to_thread(self._prepare, sorted(addresses))
        except sqlite3.Error as error:
            raise Unavailable(f"{self._database}: {error}", remedy="see the room on its disk, and its log") from error
        program = self._supervisor.keep(NAME, (self._program, f"--config-dir={self._folder}"))
        try:
            async with asyncio.timeout(STARTED_S):
                await program.settled.wait()
        except TimeoutError:
            remedy = "see the log of the daemon, and the load of the host"
            raise Unavailable(f"{self._program} did not start within {STARTED_S:g} s", remedy=remedy) from None

    async def stop(self) -> None:
        """Stop it."""
        await self._supervisor.stop([NAME])

    def explain_failure(self) -> str:
        """Why it does not run."""
        return self._supervisor.list_failures().get(NAME, "")

    async def transfer(self, network: ServedNetwork) -> Sequence[ZoneRecord]:
        """Of the network's own server, by its first gateway."""
        return await transfer_zone(network.domain, network.subnets[0].gateway)

    async def read_zone(self, zone: str) -> ZoneState:
        """A zone as the database has it."""

        def query(database: sqlite3.Connection) -> ZoneState:
            rows = database.execute(
                "SELECT r.name, r.type, r.content, r.ttl FROM records r JOIN domains d ON d.id = r.domain_id"
                " WHERE d.name = ?",
                (zone,),
            ).fetchall()
            soa = next((content for _, kind, content, _ in rows if kind == "SOA"), "")
            words = soa.split()
            serial = int(words[2]) if len(words) > 2 and words[2].isdecimal() else 0
            kept = frozenset(ZoneRecord(*row) for row in rows if row[1] != "SOA")
            return ZoneState(serial, soa, kept)

        return await self._run_in_database(query)

    async def change_zone(self, change: ZoneChange) -> None:
        """Write one change as a transaction."""

        def write(database: sqlite3.Connection) -> None:
            with database:
                database.execute("INSERT OR IGNORE INTO domains (name, type) VALUES (?, 'MASTER')", (change.zone,))
                (number,) = database.execute("SELECT id FROM domains WHERE name = ?", (change.zone,)).fetchone()
                database.execute("DELETE FROM records WHERE domain_id = ? AND type = 'SOA'", (number,))
                database.executemany(
                    "DELETE FROM records WHERE domain_id = ? AND name = ? AND type = ? AND content = ? AND ttl = ?",
                    [(number, one.name, one.type, one.content, one.ttl) for one in change.remove],
                )
                database.executemany(
                    "INSERT INTO records (domain_id, name, type, content, ttl, prio, disabled, auth)"
                    " VALUES (?, ?, ?, ?, ?, 0, 0, 1)",
                    [(number, one.name, one.type, one.content, one.ttl) for one in (change.soa, *change.add)],
                )

        await self._run_in_database(write)

    async def keep_zones(self, zones: Collection[str]) -> None:
        """Remove all other zones."""

        def write(database: sqlite3.Connection) -> None:
            with database:
                for number, name in database.execute("SELECT id, name FROM domains").fetchall():
                    if name not in zones:
                        database.execute("DELETE FROM records WHERE domain_id = ?", (number,))
                        database.execute("DELETE FROM domains WHERE id = ?", (number,))

        await self._run_in_database(write)

    async def _run_in_database(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        def run() -> _T:
            with contextlib.closing(sqlite3.connect(self._database, timeout=BUSY_S)) as database:
                return work(database)

        try:
            return await asyncio.to_thread(run)
        except sqlite3.Error as error:
            raise Unavailable(f"{self._database}: {error}", remedy="remove the file: zones are made anew") from error

    def _prepare(self, addresses: Sequence[str]) -> None:
        self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        user = next((one for one in map(_find_user, USERS) if one is not None), None)
        if not self._is_whole():
            self._create_database()
        settings = {
            "launch": "gsqlite3",
            "gsqlite3-database": self._database,
            "gsqlite3-pragma-synchronous": 1,
            "local-address": ",".join(addresses),
            "local-address-nonexist-fail": "no",
            "local-port": self._port,
            "socket-dir": self._folder,
            "setuid": user.pw_name if user is not None else "",
            "setgid": user.pw_gid if user is not None else "",
            "daemon": "no",
            "guardian": "no",
            "write-pid": "no",
            "primary": "yes",
            "secondary": "yes",
            "secondary-do-renotify": "yes",
            "disable-axfr": "no",
            "allow-axfr-ips": "0.0.0.0/0,::/0",
            "xfr-cycle-interval": 10,
            "zone-cache-refresh-interval": 0,
            "cache-ttl": 0,
            "query-cache-ttl": 0,
            "negquery-cache-ttl": 0,
            "security-poll-suffix": "",
            "version-string": "anonymous",
            "receiver-threads": 1,
            "distributor-threads": 1,
        }
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self._folder / "pdns.conf").write_text(text, encoding="utf-8")
        if user is not None and os.geteuid() == 0:
            for path in (self._folder, *self._folder.iterdir()):
                os.chown(path, user.pw_uid, user.pw_gid)

    def _is_whole(self) -> bool:
        """Whether there is a database with the tables of PowerDNS: neither a crash nor a disk has spoilt it."""
        if not self._database.exists():
            return False
        try:
            with contextlib.closing(sqlite3.connect(self._database, timeout=BUSY_S)) as database:
                database.execute("SELECT count(*) FROM records JOIN domains").fetchone()
                return bool(database.execute("PRAGMA quick_check").fetchone() == ("ok",))
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            _log.error("services.zones_spoilt", file=str(self._database), why=str(error))
            return False

    def _create_database(self) -> None:
        """Make it anew, whole or not at all; zones are written into it from what networks and their servers say."""
        schema = next((Path(one) for one in SCHEMAS if Path(one).exists()), None)
        if schema is None:
            remedy = "install pdns-backend-sqlite3"
            raise Unavailable("the SQLite backend of PowerDNS is not installed", remedy=remedy)
        new = self._database.with_name("zones.new")
        for path in (new, *(Path(f"{self._database}{end}") for end in ("", "-wal", "-shm"))):
            path.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(new)) as database:
            database.executescript(schema.read_text(encoding="utf-8"))
            database.execute("PRAGMA journal_mode = WAL")
        new.replace(self._database)


def _find_user(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None
