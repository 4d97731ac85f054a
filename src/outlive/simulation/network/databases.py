"""The two databases as one controller reaches them in the simulation (``network.ports``)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Final

from outlive.base import Clock, Conflict, LimitExceeded, Random, Refused, Unavailable, Unknown
from outlive.network import (
    LIMIT,
    PORTS,
    SWITCHES,
    Applied,
    Binding,
    ChangeBatches,
    ChangeReader,
    Chassis,
    Op,
    OvnFeatures,
    Plan,
    Receipt,
    Rows,
    Scope,
    apply,
    find,
    is_same_row,
    needed_ops,
    ovn_features,
    row_names,
    scoped_rows,
)
from outlive.simulation.network.ovn import OvnFault, SimulatedOvn

TRIES: Final = 5
POLL_S: Final = 0.01


class OvnClient:
    """The process that is connected: nothing ever happens to this one."""

    async def travel(self, clock: Clock, seconds: float) -> None:
        """Wait for so long; does not return where the process ended meanwhile."""
        await clock.sleep(seconds)

    def is_reachable(self) -> bool:
        """Whether the databases are reached from where it runs."""
        return True

    def crash(self) -> None:
        """It dies; does not return."""
        raise AssertionError("this process does not die")


class SimulatedNorthbound:
    """See the protocol."""

    def __init__(self, ovn: SimulatedOvn, clock: Clock, random: Random, process: OvnClient | None = None) -> None:
        self._ovn = ovn
        self._clock = clock
        self._random = random
        self._process = process or OvnClient()
        self._changes = ChangeBatches()
        ovn.listeners.append(self._note)

    async def start(self) -> None:
        """It is connected from the beginning."""

    def close(self) -> None:
        """Hear of no changes any more."""
        self._ovn.listeners.remove(self._note)

    async def read_rows(self, scope: Scope = Scope()) -> Rows:
        """See the protocol."""
        await self._travel()
        return scoped_rows(self._ovn.rows, scope)

    async def transact(self, scope: Scope, plan: Plan, *, comment: str, numbered: bool = True) -> Receipt:
        """See the protocol."""
        faults = self._ovn.faults
        for _ in range(TRIES):
            await self._travel()
            read = apply(self._ovn.rows, ())
            ops = list(plan(scoped_rows(read, scope), self.read_features()))
            if len(ops) > LIMIT:
                raise LimitExceeded(f"a plan of {len(ops)} operations is too large: {LIMIT} are the limit")
            effective = needed_ops(read, ops)
            if not effective:
                return Receipt(nb_cfg=self._ovn.nb_cfg if numbered else 0)
            await self._travel()
            fault = faults.transactions.pop(0) if faults.transactions else None
            if fault == OvnFault.LOST_BEFORE:
                raise Unknown("the connection was lost before the commit")
            if fault == OvnFault.CRASH_BEFORE:
                self._process.crash()
            if fault == OvnFault.OVERTAKEN or _find_touched(read, ops) != _find_touched(self._ovn.rows, ops):
                continue
            try:
                number = self._ovn.commit(effective, self, numbered)
            except KeyError as error:
                raise Refused(f"{comment!r} is refused: {error.args[0]}") from None
            if fault == OvnFault.LOST_AFTER:
                raise Unknown("the connection was lost after the commit")
            if fault == OvnFault.CRASH_AFTER:
                self._process.crash()
            return Receipt(ops=tuple(effective), nb_cfg=number if numbered else 0)
        raise Conflict(f"others changed the rows of {comment!r} each of {TRIES} times")

    async def renumber(self, *, comment: str, beyond: int = 0) -> Receipt:
        """See the protocol."""
        await self._travel()
        self._ovn.nb_cfg = max(self._ovn.nb_cfg, beyond)
        return Receipt(nb_cfg=self._ovn.commit([], self))

    async def wait_applied(self, receipt: Receipt, *, on: Collection[str], limit_s: float) -> Applied:
        """See the protocol."""
        end = self._clock.monotonic() + limit_s
        while True:
            await self._travel()
            if self._ovn.defer is None:
                self._ovn.catch_up()
            reports = {one.name: one.nb_cfg for one in self._ovn.list_chassis()}
            behind = tuple(sorted(name for name in on if reports.get(name, -1) < receipt.nb_cfg))
            done = not behind and not self._ovn.faults.northd_down
            if done or receipt.nb_cfg <= 0 or self._clock.monotonic() >= end:
                return Applied(done=done or receipt.nb_cfg <= 0, behind=behind)
            await self._clock.sleep(POLL_S)

    def read_features(self) -> OvnFeatures:
        """See the protocol."""
        return ovn_features(self._ovn.version)

    def watch_changes(self) -> AsyncIterator[frozenset[str]]:
        """See the protocol."""
        return _delay_changes(self._changes.read(), self._clock, self._ovn)

    def explain_unhealthy(self) -> str:
        """See the protocol."""
        return "there is no connection" if self._ovn.faults.northbound_down else ""

    def reconnect(self) -> None:
        """The connection is made anew: everything may have changed."""
        self._changes.publish(frozenset())

    def _note(self, before: Rows, after: Rows, writer: object) -> None:
        if writer is None:
            self.reconnect()
        elif writer is not self and (names := _changed_names(before, after)):
            self._changes.publish(names)

    async def _travel(self) -> None:
        faults = self._ovn.faults
        await self._process.travel(self._clock, self._random.uniform(*faults.latency_s))
        if faults.northbound_down or not self._process.is_reachable():
            raise Unavailable("the northbound database does not answer")


class SimulatedSouthbound:
    """See the protocol."""

    def __init__(self, ovn: SimulatedOvn, clock: Clock, random: Random, process: OvnClient | None = None) -> None:
        self._ovn = ovn
        self._clock = clock
        self._random = random
        self._process = process or OvnClient()
        self._changes = ChangeBatches()
        ovn.binding_listeners.append(self._note)

    async def start(self) -> None:
        """It is connected from the beginning."""

    def close(self) -> None:
        """Hear of no changes any more."""
        self._ovn.binding_listeners.remove(self._note)

    def _note(self, port: str) -> None:
        self._changes.publish(frozenset({port}) if port else frozenset())

    async def read_binding(self, port: str) -> Binding | None:
        """See the protocol."""
        await self._travel()
        return self._ovn.bindings.get(port)

    async def list_chassis(self) -> list[Chassis]:
        """See the protocol."""
        await self._travel()
        return self._ovn.list_chassis()

    async def mac_bindings(self, address: str) -> list[str]:
        """See the protocol."""
        await self._travel()
        return sorted(self._ovn.learned.get(address, ()))

    async def forget_chassis(self, name: str) -> None:
        """See the protocol."""
        await self._travel()
        if name in self._ovn.chassis:
            self._ovn.forget(name)

    def explain_unhealthy(self) -> str:
        """See the protocol."""
        return "there is no connection" if self._ovn.faults.southbound_down else ""

    def watch_changes(self) -> AsyncIterator[frozenset[str]]:
        """See the protocol."""
        return _delay_changes(self._changes.read(), self._clock, self._ovn)

    async def _travel(self) -> None:
        faults = self._ovn.faults
        await self._process.travel(self._clock, self._random.uniform(*faults.latency_s))
        if faults.southbound_down or not self._process.is_reachable():
            raise Unavailable("the southbound database does not answer")


async def _delay_changes(reader: ChangeReader, clock: Clock, ovn: SimulatedOvn) -> AsyncIterator[frozenset[str]]:
    async for names in reader:
        if ovn.faults.event_delay_s > 0:
            await clock.sleep(ovn.faults.event_delay_s)
        yield names


def _find_touched(rows: Rows, ops: list[Op]) -> list[object]:
    """What the operations find, and the ports of switches that go."""
    found = [(op, find(rows.get(op.table, []), op.where)) for op in ops]
    gone = {row["name"] for op, ones in found for row in ones if op.table == SWITCHES and op.op == "DeleteWhere"}
    return [[ones for _, ones in found], [row for row in rows.get(PORTS, ()) if row.get("switch") in gone]]


def _changed_names(before: Rows, after: Rows) -> frozenset[str]:
    names: set[str] = set()
    for table in {*before, *after}:
        old, new = before.get(table, []), after.get(table, [])
        same = {id(row) for row in old} & {id(row) for row in new}
        old, new = ([row for row in rows if id(row) not in same] for rows in (old, new))
        gone = [row for row in old if not any(is_same_row(row, one) for one in new)]
        come = [row for row in new if not any(is_same_row(row, one) for one in old)]
        names.update(name for row in (*gone, *come) for name in row_names(table, row))
    return frozenset(names)
