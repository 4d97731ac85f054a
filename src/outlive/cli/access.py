"""Where a command finds the cluster: a state file, a server, a Kubernetes API server, or a state directory's store.

In this order: ``--state FILE`` (offline, read only), ``--store kubernetes`` (an API server, whose webhook judges what
is written) or ``--store zookeeper`` (an ensemble, where nobody does), ``--server URL``, the server that
``<state-dir>/server.json`` names, the store in the state directory itself, which a command that writes locks for as
long as it runs (docs/reference/cli.md#where-the-state-is).
"""

from __future__ import annotations

import contextlib
import enum
import os
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from outlive.api import AUTHORITY_FILE, SERVER_FILE, TOKEN_FILE, ServerFile
from outlive.base import (
    BadInput,
    Forbidden,
    Instant,
    NotFound,
    Refused,
    SystemClock,
    SystemIds,
    Unavailable,
    Usage,
    as_datetime,
    as_instant,
    read_private,
    shown_time,
    system_random,
)
from outlive.drivers import STDIN, read_input

if TYPE_CHECKING:
    import ssl

    from outlive.base import Clock
    from outlive.resources import RenewalSight, Resource
    from outlive.store import HttpStore, MemoryStore, Store

TOKEN_BYTES = 4096
"""The largest token file."""


def default_state_dir() -> Path:
    """``outlive`` under the XDG state directory."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "outlive"


class StoreKind(enum.StrEnum):
    """Where the cluster's objects are."""

    SQLITE = "sqlite"
    """In a state directory, or behind the server that runs on it or is named."""
    KUBERNETES = "kubernetes"
    """On a Kubernetes API server."""
    ZOOKEEPER = "zookeeper"
    """On an ensemble of ZooKeeper."""


@dataclass(slots=True)
class Access:
    """What the options say about where the state is."""

    state: Path | None = None
    state_dir: Path | None = None
    server: str | None = None
    token: str | None = None
    fingerprint: str | None = None
    insecure: bool = False
    store: StoreKind | None = None
    kubeconfig: str = ""
    context: str = ""
    zookeeper: str = ""
    taken_at: datetime | None = None
    """When the state file that was opened was taken."""
    taken_sight: RenewalSight | None = None
    """What was seen of the hosts' renewals then."""
    warns: bool = True
    """Whether a line before the answer says that no server runs, once, where one has run: all of it may be old."""

    @property
    def directory(self) -> Path:
        """The state directory."""
        return self.state_dir if self.state_dir is not None else default_state_dir()

    @property
    def direct(self) -> bool:
        """Whether the store is asked itself, and no server. ``Usage`` where something else is named as well."""
        if (self.kubeconfig or self.context) and self.store is not StoreKind.KUBERNETES:
            given = "--kubeconfig" if self.kubeconfig else "--context"
            raise Usage("is of a Kubernetes API server", place=given, remedy="give --store kubernetes too")
        if self.store not in (StoreKind.KUBERNETES, StoreKind.ZOOKEEPER):
            return False
        if self.state is None and self.server:
            kind = "API server" if self.store is StoreKind.KUBERNETES else "ensemble of ZooKeeper"
            what = f"both the {kind} and the server {self.server[:200]} are named"
            remedy = "leave --server and OUTLIVE_SERVER out, or --store"
            raise Usage(what, place=f"--store {self.store}", remedy=remedy)
        return self.state is None

    @asynccontextmanager
    async def open(self, *, write: bool = False, or_empty: bool = False) -> AsyncIterator[Store]:
        """The store. For writing, a state directory that is not there yet is made; a state file is refused.

        ``or_empty``: where there is no state yet, an empty one in memory, for a command that writes nothing.
        """
        store = await self._open(write, or_empty)
        try:
            yield store
        finally:
            await store.close()

    async def _open(self, write: bool, or_empty: bool) -> Store:
        if self.state is not None:
            if write:
                raise Usage(
                    "a state file is only read", place="--state", remedy="leave --state out, or use --state-dir"
                )
            from outlive.network import with_host_limits
            from outlive.resources import decode_state

            state = decode_state(read_input(self.state), str(self.state))
            self.taken_at, self.taken_sight = state.taken_at, state.sight
            return self.memory_store(with_host_limits(state.objects))
        if self.direct:
            return self._open_cluster()
        if self.address:
            return await self._open_server(self.address)
        return await self._open_directory(write, or_empty)

    def memory_store(self, objects: Iterable[Resource] = ()) -> MemoryStore:
        """A store of its own with these objects."""
        from outlive.store import MemoryStore

        store = MemoryStore(self.clock, SystemIds())
        store.load(objects)
        return store

    def _open_cluster(self) -> Store:
        if self.store is StoreKind.ZOOKEEPER:
            from outlive.store.zookeeper import ZooKeeperClient, ZooKeeperStore, read_access

            client = ZooKeeperClient(read_access(self.zookeeper))
            return ZooKeeperStore(client, clock=self.clock, ids=SystemIds(), random=system_random())
        from outlive.store import BriefCalls
        from outlive.store.kubernetes import KubernetesStore, cluster_access

        access = cluster_access(self.kubeconfig, self.context)
        calls = BriefCalls(access.server, self.clock)
        return KubernetesStore(access, clock=self.clock, random=system_random(), calls=calls)

    async def _open_server(self, address: str) -> Store:
        if not address.startswith(("http://", "https://")):
            remedy = "write one such as http://127.0.0.1:8080"
            raise Usage(f"{address[:200]!r} is no address of a server", place="--server", remedy=remedy)
        from outlive.store import BriefCalls, HttpStore

        own = self.own_server(address)
        token = self._choose_token(address, own)
        tls = await self._tls_context(address, own)
        return HttpStore(
            address,
            token,
            clock=self.clock,
            random=system_random(),
            tls=tls,
            insecure=self.insecure,
            calls=BriefCalls(address, self.clock),
        )

    def own_server(self, address: str) -> ServerFile | None:
        """The server of the state directory, if that is the one at the address and with the pinned authority."""
        from outlive.store import parse_fingerprints, url_origin

        own = living_server(self.directory)
        if own is None or any(url_origin(own.url) != url_origin(one) for one in address.split(",")):
            return None
        if self.fingerprint and own.fingerprint and own.fingerprint not in parse_fingerprints(self.fingerprint):
            return None
        return own

    async def _tls_context(self, address: str, own: ServerFile | None) -> ssl.SSLContext | None:
        """What to believe: the authority of the state directory where the server is its own, that of the fingerprint,
        or those of the system."""
        if not address.startswith("https://"):
            return None
        from outlive.store import make_client_context

        if own is not None and own.fingerprint:
            authority = read_input(self.directory / AUTHORITY_FILE, limit=TOKEN_BYTES)
            return make_client_context(authority.decode("ascii", "replace"), pinned=own.fingerprint)
        if self.fingerprint:
            return make_client_context(await self._fetch_authority(address), pinned=self.fingerprint)
        return None

    async def _fetch_authority(self, address: str) -> str:
        """The authority of the first of the servers that answers: all of them have the same."""
        from outlive.store import fetch_authority, split_addresses

        assert self.fingerprint is not None
        *others, last = split_addresses(address, insecure=self.insecure)
        for one in others:
            with contextlib.suppress(Unavailable):
                return await fetch_authority(one, self.fingerprint)
        return await fetch_authority(last, self.fingerprint)

    async def _open_directory(self, write: bool, or_empty: bool) -> Store:
        from outlive.store.sqlite import DATABASE_FILE, SqliteStore, read_snapshot

        directory = self.directory
        check_store_exists(directory)
        if not write and not (directory / DATABASE_FILE).exists():
            if or_empty:
                return self.memory_store()
            raise NotFound(
                "no state here, and no server runs on it",
                place=str(directory),
                remedy="start outlive up, import an inventory, or name another place with --state-dir or --server",
            )
        if write:
            return await SqliteStore.open(directory, clock=self.clock, ids=SystemIds())
        if self.warns and (directory / TOKEN_FILE).exists():
            self.warns = False
            print(f"outlive: {offline_notice(self.no_server, self.store_written())}", file=sys.stderr)
        return await read_snapshot(directory, clock=self.clock, ids=SystemIds())

    @property
    def address(self) -> str:
        """Of the server that is asked: ``--server``, or that of the state directory; empty where none is."""
        if self.state is not None or self.direct:
            return ""
        return self.server or running_server(self.directory)

    @property
    def source(self) -> str:
        """Where the state is, in words."""
        if self.state is not None:
            return f"state file {self.state.name}"
        if self.direct and self.store is StoreKind.ZOOKEEPER:
            return "ensemble of ZooKeeper"
        if self.direct:
            return f"Kubernetes API server of {self.context or 'the current context'}"
        return f"server {self.address}" if self.address else f"store in {self.directory}"

    @property
    def no_server(self) -> str:
        """Why no server answers about the state directory that is read; empty where one does, or a file is read."""
        if self.state is not None or self.direct or self.server or running_server(self.directory):
            return ""
        server = _read_server_file(self.directory)
        if server is None:
            return f"none runs on {self.directory}"
        return f"{SERVER_FILE} names process {server.pid}, which is gone"

    def store_written(self) -> datetime | None:
        """When the files of the store in the state directory were changed last."""
        from outlive.store.sqlite import DATABASE_FILE

        times = []
        for name in (DATABASE_FILE, f"{DATABASE_FILE}-wal"):
            with contextlib.suppress(OSError):
                times.append((self.directory / name).stat().st_mtime)
        return as_datetime(max(times)) if times else None

    @property
    def clock(self) -> Clock:
        """The machine's clock."""
        return SystemClock()

    @property
    def state_clock(self) -> Clock:
        """The same; once a state file is open, the time of day is when it was taken, so that answers repeat."""
        return SystemClock() if self.taken_at is None else _StoppedClock(as_instant(self.taken_at))

    def _choose_token(self, address: str, own: ServerFile | None) -> str:
        """The token for the server. That of the state directory is for its own server alone: ``Forbidden`` where it
        would go to another one."""
        if self.token is not None:
            return read_token(Path(self.token[1:])) if self.token.startswith("@") else self.token
        if own is None:
            raise Forbidden(
                f"no token is given for {address[:200]}, and that of {self.directory} is for its own server alone",
                place="--token",
                remedy="give --token TOKEN or OUTLIVE_TOKEN; outlive token create on the server makes one",
            )
        path = self.directory / TOKEN_FILE
        return read_token(path) if path.exists() else ""


def require_server(store: Store, what: str, *, place: str = "--server") -> HttpStore:
    """The store as a server has it, which alone can do ``what``; ``Usage`` for one that no server stands before."""
    from outlive.store import HttpStore

    if not isinstance(store, HttpStore):
        raise Usage(
            f"{what}, and none is asked",
            place=place,
            remedy="start outlive up, or name a server or controller with --server URL instead of --store kubernetes",
        )
    return store


class WriteAccess(Access):
    """The same for a command that writes or asks a server, and so takes no state file."""

    __slots__ = ()


def offline_notice(why: str, written: datetime | None) -> str:
    """The first line of an answer that no server gives; ``written``: when the store was written last."""
    last = shown_time(written) if written is not None else "nobody noted when"
    return f"NO SERVER RUNS ({why}): this is what the store says, last written {last}"


def read_token(path: Path) -> str:
    """The token in a file that nobody else can read, or on standard input (``-``)."""
    raw = read_input(path, limit=TOKEN_BYTES) if path == STDIN else read_private(path, limit=TOKEN_BYTES)
    return raw.decode("utf-8", "replace").strip()


class _StoppedClock(SystemClock):
    """The machine's clock with a time of day that stands still."""

    def __init__(self, at: Instant) -> None:
        super().__init__()
        self._at = at

    def now(self) -> Instant:
        """Always the same."""
        return self._at


async def all_objects(store: Store) -> list[Resource]:
    """All objects of a state file, without passwords for any role, so that all roles read the same state."""
    from outlive.resources import DUMPED, VirtualMachine, without_passwords
    from outlive.store import list_all

    found = [item for kind in DUMPED async for item in list_all(store, kind)]
    return [without_passwords(item) if isinstance(item, VirtualMachine) else item for item in found]


def check_store_exists(directory: Path) -> None:
    """``Refused`` where a server has run on a state directory whose store is gone, or was moved: nothing begins there.

    A restore that was interrupted is ended before; ``InUse`` while a process works on the directory.
    """
    from outlive.store.sqlite import DATABASE_FILE, check_not_moved, finish_interrupted

    finish_interrupted(directory)
    check_not_moved(directory)
    if (directory / TOKEN_FILE).exists() and not (directory / DATABASE_FILE).exists():
        raise Refused(
            f"a server has run here ({TOKEN_FILE} is there), but its store {DATABASE_FILE} is missing",
            place=str(directory),
            remedy=f"put {DATABASE_FILE} back from a backup, or delete {TOKEN_FILE} to begin with an empty store",
        )


def running_server(directory: Path) -> str:
    """The address of the server that runs on a state directory; the empty string where none does."""
    server = living_server(directory)
    return server.url if server is not None else ""


def living_server(directory: Path) -> ServerFile | None:
    """What the server of a state directory wrote, while the very process that wrote it lives: somebody else may have
    its number and its port after it was killed. ``BadInput`` where it is broken."""
    from outlive.base import process_identity

    server = _read_server_file(directory)
    return server if server is not None and server.process and process_identity(server.pid) == server.process else None


def _read_server_file(directory: Path) -> ServerFile | None:
    path = directory / SERVER_FILE
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    try:
        return msgspec.json.decode(raw, type=ServerFile)
    except msgspec.MsgspecError:
        raise BadInput(
            "is not what a server writes", place=str(path), remedy="delete it, or restart the server"
        ) from None
