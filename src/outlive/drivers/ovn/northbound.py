"""The northbound database of OVN (``network.ports.NorthboundDb``)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Generator
from contextlib import asynccontextmanager
from typing import Any, Final

from outlive.base import Conflict, LimitExceeded, Refused, Unavailable, deadline
from outlive.drivers.ovn.client import CALL_S, PROBE_MS, OvsdbClient, Work
from outlive.drivers.ovn.draft import OvsdbDraft, raise_number
from outlive.drivers.ovn.replica import Replica
from outlive.drivers.ovn.rows import GLOBAL, TABLES, NorthboundRows
from outlive.drivers.ovn.southbound import OvnSouthbound
from outlive.network import LIMIT, PREFIX, Applied, ChangeBatches, OvnFeatures, Plan, Receipt, Rows, Scope, ovn_features

DATABASE: Final = "OVN_Northbound"
TRIES: Final = 5
"""How often a plan is made before others are said to change the rows each time."""
_OVERTAKEN: Final = ("timed out", "constraint violation", "referential integrity violation")
"""Errors of a transaction that rows caused which changed meanwhile."""

_BARRIER: Final = [{"op": "select", "table": GLOBAL, "where": [], "columns": ["nb_cfg"]}]
"""Once it is answered, all that was committed before has come."""


class OvnNorthbound:
    """See the protocol. ``southbound`` is the database of the same zone; it knows how far the chassis are.

    ``key_prefix``: of our keys in ``external_ids`` of the database's rows.
    """

    def __init__(
        self,
        remote: str,
        southbound: OvnSouthbound,
        *,
        limit_s: float = CALL_S,
        probe_ms: int = PROBE_MS,
        key_prefix: str = PREFIX,
    ) -> None:
        self._limit_s = limit_s
        self._southbound = southbound
        self._changes = ChangeBatches()
        self._client = OvsdbClient(
            remote,
            DATABASE,
            TABLES,
            leader_only=True,
            probe_ms=probe_ms,
            key_prefix=key_prefix,
            after_batch=self._publish,
        )
        self._rows = NorthboundRows(self._client.replica)
        self._version = ""
        self._own: Counter[str] = Counter()
        """How often the last transactions wrote a row; these changes are not told."""
        self._arriving = False
        """Whether its rows are on their way."""
        self._one_writer = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Start to connect; returns at once."""
        self._loop = asyncio.get_running_loop()
        await self._client.start()

    async def aclose(self) -> None:
        """End the connection."""
        await self._client.aclose()

    async def read_rows(self, scope: Scope = Scope()) -> Rows:
        """See the protocol."""

        def work(_: Replica) -> Work[Rows]:
            yield _BARRIER
            return self._rows.read(scope)

        return await self._client.run(work, self._limit_s)

    async def transact(self, scope: Scope, plan: Plan, *, comment: str, numbered: bool = True) -> Receipt:
        """See the protocol."""
        async with self._write_lock(comment):
            return await self._client.run(
                lambda replica: self._write(replica, scope, plan, comment, numbered), self._limit_s
            )

    async def renumber(self, *, comment: str, beyond: int = 0) -> Receipt:
        """See the protocol."""
        async with self._write_lock(comment):
            return await self._client.run(lambda replica: self._raise_number(replica, comment, beyond), self._limit_s)

    @asynccontextmanager
    async def _write_lock(self, comment: str) -> AsyncIterator[None]:
        """One transaction at a time, or the second would be planned on rows that the first is changing."""
        try:
            with deadline(self._limit_s):
                await self._one_writer.acquire()
        except TimeoutError:
            raise Unavailable(
                f"{comment!r} waited {self._limit_s:g} s for the transactions before it",
                remedy="see whether the northbound database answers slowly",
            ) from None
        try:
            yield
        finally:
            self._one_writer.release()

    async def wait_applied(self, receipt: Receipt, *, on: Collection[str], limit_s: float) -> Applied:
        """See the protocol."""
        if receipt.nb_cfg <= 0:
            return Applied(done=True)
        end = asyncio.get_running_loop().time() + limit_s
        northd = await self._client.wait(lambda replica: _northd_times(replica, receipt.nb_cfg), limit_s)
        if northd is None:
            return Applied(done=False, behind=tuple(sorted(on)))
        left_s = max(0.0, end - asyncio.get_running_loop().time())
        behind, at_ms = await self._southbound.find_late_chassis(receipt.nb_cfg, on, left_s)
        seen_ms, northd_ms = northd
        chassis_ms = max(0.0, at_ms - seen_ms) if at_ms and seen_ms else None
        return Applied(done=not behind, behind=behind, northd_ms=northd_ms, chassis_ms=chassis_ms)

    def read_features(self) -> OvnFeatures:
        """See the protocol."""
        return ovn_features(self._version)

    def watch_changes(self) -> AsyncIterator[frozenset[str]]:
        """See the protocol."""
        return self._changes.read()

    def explain_unhealthy(self) -> str:
        """See the protocol."""
        return self._client.trouble

    # --- in the client's thread

    def _write(self, replica: Replica, scope: Scope, plan: Plan, comment: str, numbered: bool) -> Work[Receipt]:
        error: dict[str, Any] = {}
        for _ in range(TRIES):
            ops = list(plan(self._rows.read(scope), ovn_features(_northd_version(replica))))
            if len(ops) > LIMIT:
                raise LimitExceeded(
                    f"a plan of {len(ops)} operations is too large: {LIMIT} are the limit", remedy="plan in parts"
                )
            draft = OvsdbDraft(self._rows)
            draft.apply(ops)
            operations = draft.build_operations(comment, numbered)
            if not operations:
                return Receipt(nb_cfg=_global_row(replica).get("nb_cfg", 0) if numbered else 0)
            results = yield operations
            error = next((one for one in results if one and "error" in one), {})
            if not error:
                self._own.update(draft.own_rows(operations, results))
                rows = results[-1].get("rows", []) if numbered else []
                number = rows[0]["nb_cfg"] if rows else 0  # a database that was never initialised has no row for it
                yield from self._wait_arrival(replica, number)
                return Receipt(ops=tuple(draft.effective), nb_cfg=number)
            if error["error"] not in _OVERTAKEN:
                break
            yield _BARRIER
        words = f"{error['error']}: {error.get('details', '')}".rstrip(": ")
        if error["error"] == "timed out":
            raise Conflict(
                f"others changed the rows of {comment!r} each of {TRIES} times", remedy="see who else writes these rows"
            )
        raise Refused(f"{DATABASE} does not take {comment!r}: {words}", remedy="correct the rows that the plan makes")

    def _raise_number(self, replica: Replica, comment: str, beyond: int) -> Work[Receipt]:
        by = max(1, beyond + 1 - int(_global_row(replica).get("nb_cfg", 0)))
        results = yield [{"op": "comment", "comment": comment}, *raise_number(by)]
        error: dict[str, Any] = next((one for one in results if one and "error" in one), {})
        if error:
            words = f"{error['error']}: {error.get('details', '')}".rstrip(": ")
            raise Refused(f"{DATABASE} does not take {comment!r}: {words}", remedy="see the server's log")
        number = results[-1]["rows"][0]["nb_cfg"]
        yield from self._wait_arrival(replica, number)
        return Receipt(nb_cfg=number)

    def _wait_arrival(self, replica: Replica, number: int) -> Generator[list[Any] | None, Any, None]:
        """Wait until the replica has what was just committed: its rows may come after the answer."""
        connection, self._arriving = replica.connection, True
        try:
            if not number:
                yield _BARRIER
            while _global_row(replica).get("nb_cfg", 0) < number and replica.connection == connection:
                yield None
        finally:
            self._arriving = False

    def _publish(self) -> bool:
        """Tell what others changed."""
        if self._arriving:
            return False
        self._version = _northd_version(self._client.replica)
        names = self._rows.take_names(self._own)
        self._own.clear()
        if names is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._changes.publish, names)
        return True


def _global_row(replica: Replica) -> dict[str, Any]:
    return next(iter(replica.rows[GLOBAL].values()), {})


def _northd_version(replica: Replica) -> str:
    return str(_global_row(replica).get("options", {}).get("northd_internal_version", ""))


def _northd_times(replica: Replica, nb_cfg: int) -> tuple[float, float | None] | None:
    """When northd saw the change, and how long it took; 0 and ``None`` where that is not known any more.

    ``None``: it has not finished.
    """
    row = _global_row(replica)
    if row.get("sb_cfg", 0) < nb_cfg:
        return None
    seen_ms, done_ms = row.get("nb_cfg_timestamp", 0), row.get("sb_cfg_timestamp", 0)
    if row.get("sb_cfg", 0) != nb_cfg or not seen_ms or done_ms < seen_ms:
        return (0.0, None)
    return (float(seen_ms), float(done_ms - seen_ms))
