"""A northbound database in memory, with the scopes that real ones keep to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from ipaddress import ip_network
from typing import Any

from outlive.base.errors import LimitExceeded, Unavailable
from outlive.network.names import NETWORK_KEY
from outlive.network.operations import LIMIT, POLICIES, PORTS, ROUTES, Columns, Rows, apply, needed
from outlive.network.owners import external_ids, vm_in, vm_keys
from outlive.network.ports import Applied, OvnFeatures, Plan, Receipt, Scope

NEW = OvnFeatures(
    version="25.03.1", arp_proxy_full=True, dhcpv6_fqdn=True, chassis_list=True, strategies=("rarp", "garp", "na")
)
OLD = OvnFeatures(version="23.03.1", chassis_list=True, strategies=("rarp",))


class MemoryNorthbound:
    """``NorthboundDb``. ``before`` and ``after`` are called around each commit, and may raise."""

    def __init__(self, features: OvnFeatures = NEW) -> None:
        self.tables: Rows = {}
        self.commits: list[str] = []
        """Comments of transactions that changed something."""
        self.away = False
        self.before: Callable[[str], None] = lambda _comment: None
        self.after: Callable[[str], None] = lambda _comment: None
        self._features = features
        self._number = 0
        self._changed: asyncio.Queue[frozenset[str]] = asyncio.Queue()

    async def rows(self, scope: Scope = Scope()) -> Rows:
        await asyncio.sleep(0)
        self._check()
        return within(self.tables, scope)

    async def transact(self, scope: Scope, plan: Plan, *, comment: str) -> Receipt:
        await asyncio.sleep(0.001)
        self._check()
        self.before(comment)
        ops = list(plan(within(self.tables, scope), self._features))
        if len(ops) > LIMIT:
            raise LimitExceeded(f"a plan of {len(ops)} operations", remedy="smaller")
        ops = needed(self.tables, ops)
        if not ops:
            return Receipt()
        self.tables = apply(self.tables, ops)
        self._number += 1
        self.commits.append(comment)
        check_invariants(self.tables)
        self.after(comment)
        return Receipt(ops=tuple(ops), nb_cfg=self._number)

    async def applied(self, receipt: Receipt, *, on: Collection[str], limit_s: float) -> Applied:
        return Applied(done=True)

    def features(self) -> OvnFeatures:
        return self._features

    async def changes(self) -> AsyncIterator[frozenset[str]]:
        while True:
            yield await self._changed.get()

    def healthy(self) -> str:
        return "away" if self.away else ""

    def tell(self, *names: str) -> None:
        """Somebody else changed rows of these names; none: perhaps all."""
        self._changed.put_nowait(frozenset(names))

    def port(self, name: str) -> Columns | None:
        return next((row for row in self.tables.get(PORTS, ()) if row.get("name") == name), None)

    def table(self, name: str) -> list[Columns]:
        return self.tables.get(name, [])

    def _check(self) -> None:
        if self.away:
            raise Unavailable("the database is away", remedy="wait")


def within(tables: Rows, scope: Scope) -> Rows:
    """The rows of a scope, as a real database would give them."""
    if scope == Scope():
        return {table: [dict(row) for row in rows] for table, rows in tables.items()}
    return {table: [dict(row) for row in rows if _is_within(table, row, scope)] for table, rows in tables.items()}


def _is_within(table: str, row: Columns, scope: Scope) -> bool:
    ids = external_ids(row)
    if any(vm_in(ids) == vm or vm_keys(vm).items() <= ids.items() for vm in scope.vms):
        return True
    if table == PORTS and row.get("name") in scope.ports:
        return True
    if ids.get(NETWORK_KEY) in scope.networks:
        return True
    return any(_names(table, row, address) for address in scope.addresses)


def _names(table: str, row: Columns, address: str) -> bool:
    if table == ROUTES:
        prefix: Any = ip_network(row["ip_prefix"])
        wanted: Any = ip_network(address)
        return bool(prefix.version == wanted.version and prefix.subnet_of(wanted))
    return table == POLICIES and bool(row["match"].endswith(f"== {address}"))


def check_invariants(tables: Rows) -> None:
    """One port with addresses for a MAC on a switch, and one route for a prefix and policy."""
    macs = [(row.get("switch"), text.split()[0]) for row in tables.get(PORTS, ()) for text in row.get("addresses", ())]
    own = [one for one in macs if one[1] not in ("router", "unknown")]
    assert len(own) == len(set(own)), f"two ports of one MAC: {own}"
    prefixes = [(row["ip_prefix"], row.get("policy")) for row in tables.get(ROUTES, ())]
    assert len(prefixes) == len(set(prefixes)), f"two routes for one prefix: {prefixes}"
