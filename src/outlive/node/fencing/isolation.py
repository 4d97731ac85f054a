"""Storage isolation: a condemned host is kept from the disks and networks of its VMs until it has booted.

Isolation says nothing of a host that still runs; it says that what runs there reaches nothing. It is announced in the
Membership before the first order is sent, so that the host does not come back in the same boot; it is read back, and
renewed before it ends by a task that does nothing else: no write and no fault comes between two renewals. What was
recorded as isolated stays recorded, because VMs may have been recovered on its strength; where a part of it cannot be
renewed, a fault says so at once. It ends once the host has joined in a new boot (docs/concepts/safety.md#proofs).
Storage may isolate a host of which no record says so: an order of before was carried out after the host was let in,
or the record is gone, with its Membership or with what a backup does not have. What isolates only epochs that are
dead is needed by nobody, so it is ended as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakValueDictionary

from outlive.base import NotFound, OutliveError, Unavailable, deadline, get_logger
from outlive.node.fencing.power import answer_of
from outlive.node.fencing.proofs import ISOLATE, LIFT_CUT, PROVE_CUT, CutView, FencedView, LiftView
from outlive.node.fencing.rules import TAKE_OVER_RESTING_S
from outlive.node.ports import CutPort, CutReport
from outlive.resources import MemberRecord, Membership, VirtualMachine
from outlive.store import LIST_S, Store, list_all, require_answer

if TYPE_CHECKING:
    from outlive.node.fencing.context import FencerContext
    from outlive.node.fencing.fence import Fence
    from outlive.resources import Cut

NOBODY: Final = "nobody here can shut it out"
CUT_OFF: Final = "it is isolated, and may still run"
DISTRUSTED_S: Final = 300.0
"""How often is checked whether isolation is trusted again."""
NAMED: Final = 3
"""Disks and ports that are named."""
CALL_LIMIT_S: Final = 20.0
"""How long one call may take."""
LEAST_CALL_S: Final = 5.0
"""… and at least, where several are made one after the other."""
RENEW_PART: Final = 0.4
"""A cut is renewed after this part of the time that it lasts."""
RENEW_S: Final = 60.0
"""How often a cut without an end is looked at."""
AGAIN_S: Final = 10.0
"""When a cut that failed is tried again."""
LEAST_S: Final = 1.0
"""Renewals lie at least so far apart."""
SCOPE_LIMIT_S: Final = 5.0
"""How long the store may take to say what a host holds."""
UNRECORDED_S: Final = 60.0
"""How often is looked whether a host is isolated of which no record says so."""
LEAST_LASTS_S: Final = RENEW_S + TAKE_OVER_RESTING_S + 3 * CALL_LIMIT_S
"""A cut that ends sooner by itself proves nothing: it was renewed up to so long ago when its fencer is stuck, and
another has to find that out and renew it in its place."""

_log = get_logger("fencing.isolation")


class CutResult(NamedTuple):
    """What is shut out now, or why nothing is."""

    why_not: str = ""
    scope: tuple[str, ...] = ()
    """Of what was ordered, what was read back."""
    written: tuple[str, ...] = ()
    """What was ordered, by an order that was taken."""
    report: CutReport = CutReport()
    """What was said afterwards to be shut out, ordered now or not."""
    renew_in_s: float = AGAIN_S


def scope_of(vm: VirtualMachine) -> tuple[str, ...]:
    """The VM's disks and ports, as isolation names them."""
    return (*(f"disk:{disk}" for disk in vm.spec.disks), *(f"port:{port}" for port in vm.spec.ports))


class Isolation:
    """Orders to storage and network controllers, one for each host at a time.

    ``port``: ``None`` where nobody isolates.
    """

    def __init__(self, port: CutPort | None, store: Store) -> None:
        self._port: CutPort = port if port is not None else _Nobody()
        self._store = store
        self._listing = asyncio.Lock()
        self._listings = 0
        """Begun so far …"""
        self._isolated: dict[str, str] | None = None
        """… and what the last one found: by disk or port, a host that is isolated from it."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One order for each host at a time: one to shut it out that is late must not follow the one to let it in."""

    async def collect_scope(self, host: str, epoch: int, kept: tuple[str, ...]) -> tuple[str, ...]:
        """Disks and ports of all VMs that this epoch of the host, or an older one, holds; and what is ``kept``.

        Others may use the latter since, and no entry says so any more. Errors of the store, unless something is kept.
        """
        found = set(kept)
        try:
            with deadline(SCOPE_LIMIT_S):
                async for vm in list_all(self._store, VirtualMachine, whole=True):
                    if any(one.hypervisor == host and one.epoch <= epoch for one in vm.status.holders):
                        found.update(scope_of(vm))
        except (OutliveError, TimeoutError) as error:
            if not kept:
                raise Unavailable(f"what {host} holds could not be read: {error or 'no answer in time'}") from error
            _log.warning("fence.isolation_scope_not_read", host=host, epoch=epoch, error=str(error))
            return kept
        return tuple(sorted(found))

    async def wait_isolated(self, vm: VirtualMachine) -> None:
        """Return once each host isolated from the VM's disks and ports is so in fact; ``Unavailable``: not known.

        The drivers of this host may be others than those of the host that ordered it: what they do not answer for must
        be recorded as isolated from no host whose epoch is not dead. Called after the hold was acknowledged, so that
        what the hold relied upon is on record.
        """
        scope = scope_of(vm)
        try:
            reached = set(await answer_of(self._port.wait_isolated(scope), CALL_LIMIT_S, vm.name))
        except NotFound:
            reached = set()
        left = [one for one in scope if one not in reached]
        if not left:
            return
        asked = self._listings
        async with self._listing:
            # only a listing counts that began after this was asked
            if self._listings == asked or self._isolated is None:
                self._listings, self._isolated = self._listings + 1, None
                found: dict[str, str] = {}
                with require_answer("who is isolated", LIST_S):
                    async for member in list_all(self._store, Membership, whole=True):
                        found.update(dict.fromkeys(recorded_scope(member.record), member.name))
                self._isolated = found
            isolated = self._isolated
        for one in left:
            if one in isolated:
                why = "no driver of this host says whether every server has heard of it"
                raise Unavailable(f"{isolated[one]} is isolated from {one}, and {why}")

    async def explain_impossible(self, host: str, epoch: int, scope: tuple[str, ...]) -> str:
        """Why nobody can isolate the host now, as far as that is known before an order; empty: somebody may.

        There is what no driver here shuts anybody out of: files, and ports of OVN where this host does not reach its
        database. One storage that answers suffices, whatever the others do.
        """
        try:
            await self._read_back(host, epoch)
        except OutliveError as error:
            return error.message
        groups, why = split_by_storage(self._port.select(scope)), NOBODY
        for group in groups:
            try:
                if await answer_of(self._port.wait_isolated(group), _share_s(groups), host):
                    return ""
            except OutliveError as error:
                why = error.message
        return why

    async def list_hosts(self) -> Mapping[str, int]:
        """Hosts that are isolated from anything now, and through which epoch at least."""
        return await answer_of(self._port.list_hosts(), CALL_LIMIT_S, "storage and network")

    async def is_isolated(self, host: str, epoch: int) -> bool:
        """Whether this epoch of the host is isolated from anything now. ``Unavailable`` where that was not said."""
        try:
            report = await self._read_back(host, epoch)
        except NotFound:
            return False
        if report.unanswered and not report.scope:
            raise Unavailable(report.unanswered)
        return bool(report.scope)

    async def _read_back(self, host: str, epoch: int) -> CutReport:
        return await answer_of(self._port.read_back(host, epoch), CALL_LIMIT_S, host)

    async def renew(self, host: str, epoch: int, scope: tuple[str, ...]) -> CutResult:
        """Shut the host out of exactly this, and read it back."""
        if not scope:
            return CutResult(why_not="it holds no VM with a disk or port")

        try:
            async with self._lock_of(host):
                written = await self._order(host, epoch, scope)
                report = await self._read_back(host, epoch)
        except OutliveError as error:
            _log.warning("fence.isolation_failed", host=host, epoch=epoch, error=error.message)
            return CutResult(why_not=error.message)
        there = tuple(one for one in written if one in set(report.scope))
        if not there:
            return CutResult(why_not=report.unanswered or "nothing was isolated when it was read back")
        lasts_s = report.expires_in_s
        renew_in_s = RENEW_S if lasts_s is None else min(RENEW_S, max(LEAST_S, RENEW_PART * lasts_s))
        if lasts_s is not None and lasts_s < LEAST_LASTS_S:
            why = f"its isolation ends {lasts_s:g} s after it was renewed, and has to last {LEAST_LASTS_S:g} s"
            return CutResult(why_not=why, renew_in_s=renew_in_s)
        return CutResult(scope=there, written=written, report=report, renew_in_s=renew_in_s)

    async def _order(self, host: str, epoch: int, scope: tuple[str, ...]) -> tuple[str, ...]:
        """Order it of each storage in turn; that part of the scope whose order was taken. The first error, where none
        was: a storage that is down keeps the host in no other."""
        written: list[str] = []
        failed: list[OutliveError] = []
        groups = split_by_storage(scope)
        for group in groups:
            try:
                await answer_of(self._port.cut(host, epoch, group), _share_s(groups), host)
                written.extend(group)
            except OutliveError as error:
                failed.append(error)
                _log.warning("fence.isolation_order_failed", host=host, epoch=epoch, error=error.message)
        if failed and not written:
            raise failed[0]
        return tuple(one for one in scope if one in set(written))

    async def lift(self, host: str, epoch: int, scope: tuple[str, ...] = ()) -> str:
        """Let the host in again that was cut off through this epoch, and no later one; why not, where that failed, or
        where nobody here can let it in to all of ``scope``.

        The order may arrive when the host has come back, was condemned and cut off once more.
        """
        beyond = sorted(set(scope) - set(self._port.select(scope)))
        if beyond:
            return (
                f"this host cannot let it in to {', '.join(beyond[:NAMED])}: see storage and network in its node.yaml"
            )
        try:
            async with self._lock_of(host):
                await answer_of(self._port.lift(host, epoch), CALL_LIMIT_S, host)
        except OutliveError as error:
            return error.message
        return ""

    def _lock_of(self, host: str) -> asyncio.Lock:
        return self._locks.setdefault(host, asyncio.Lock())


def split_by_storage(scope: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The scope, one part for each kind of disk: those that different storages answer for. Ports go with the first."""
    found: dict[str, list[str]] = {}
    for one in scope:
        if one.startswith("disk:"):
            kind, named, _ = one.removeprefix("disk:").partition(":")
            found.setdefault(kind if named else "", []).append(one)
    ports = tuple(one for one in scope if not one.startswith("disk:"))
    groups = [tuple(some) for some in found.values()] or [()]
    return tuple(group for group in ((*groups[0], *ports), *groups[1:]) if group)


def _share_s(groups: tuple[tuple[str, ...], ...]) -> float:
    """How long each of so many orders may take, one after the other."""
    return max(CALL_LIMIT_S / len(groups), LEAST_CALL_S)


class _Nobody(CutPort):
    """Isolates nobody."""

    def select(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        return ()

    async def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        raise NotFound(NOBODY)

    async def read_back(self, host: str, epoch: int) -> CutReport:
        raise NotFound(NOBODY)

    async def wait_isolated(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        raise NotFound(NOBODY)

    async def lift(self, host: str, epoch: int) -> None:
        raise NotFound(NOBODY)

    async def list_hosts(self) -> Mapping[str, int]:
        raise NotFound(NOBODY)


def recorded_scope(record: MemberRecord) -> tuple[str, ...]:
    """What the host has to stay isolated from."""
    return record.cut.scope if record.cut.through > record.dead_through else ()


def explain_unrenewed(wanted: tuple[str, ...], result: CutResult) -> str:
    """Why what has to stay isolated could not be renewed; empty: it was."""
    left = [one for one in wanted if one not in set(result.scope)]
    if not left:
        return ""
    return result.why_not or f"{', '.join(left[:NAMED])} could not be read back"


class FenceIsolation:
    """The isolation of one open fence: ``maintain`` orders and renews it, ``report`` writes down what came of it."""

    def __init__(self, context: FencerContext, fence: Fence) -> None:
        self._context = context
        self._fence = fence
        self._latest = CutResult()
        self._until = 0.0
        """Until when that is so, on the clock that never falls behind: it also ends while this fencer sleeps."""
        self._news = asyncio.Event()

    async def maintain(self) -> None:
        """Until cancelled."""
        fence, orders = self._fence, self._context.isolation
        if orders is None:
            self._learn(CutResult(why_not=NOBODY))
            return
        while True:
            kept = recorded_scope(fence.record)
            if not kept and "cut" in fence.record.distrusted:
                self._learn(CutResult(why_not="an isolation of it was contradicted before"))
                await fence.pause(DISTRUSTED_S)
                continue
            if not kept:  # what was shut out stays so in maintenance too: others may be using it by now
                await fence.await_end_of_maintenance()
            began = self._context.clock.latest()
            host, epoch, why = fence.host, fence.epoch, ""
            scope = await orders.collect_scope(host, epoch, kept)
            if scope and fence.record.cut.through < epoch:  # announced before the first order
                why = await orders.explain_impossible(host, epoch, scope) or await self._announce()
            result = CutResult(why_not=why) if why else await orders.renew(host, epoch, scope)
            lasts_s = result.report.expires_in_s
            self._learn(result, inf if lasts_s is None else began + lasts_s)
            await fence.pause(result.renew_in_s)

    async def _announce(self) -> str:
        """Write down that an order follows; why not, where the fence is over."""
        fence = self._fence
        settings = await self._context.read_settings(fence.host)
        written = await self._context.take(
            fence.host,
            ISOLATE,
            lambda record: FencedView(**fence.common_fields(record, settings)),
            lambda record: record.cut.through >= fence.epoch,
        )
        return written.refused.why if written.refused is not None else ""

    def _learn(self, result: CutResult, until: float = 0.0) -> None:
        self._latest, self._until = result, until
        self._news.set()

    async def report(self) -> None:
        """Until cancelled."""
        fence = self._fence
        while True:
            await self._news.wait()
            result = self._latest
            failing = explain_unrenewed(recorded_scope(fence.record), result)
            why = f"its isolation could not be renewed: {failing}" if failing else result.why_not
            await fence.note_unproven("cut", why or await self._prove(result), failing=failing != "")
            if result is self._latest:  # else, or where the store failed, once more
                self._news.clear()

    async def _prove(self, result: CutResult) -> str:
        cut = self._fence.record.cut
        if cut.through >= self._fence.epoch and set(result.scope) <= set(cut.scope):
            return CUT_OFF
        return await self._fence.prove("cut", PROVE_CUT, self._cut_view)

    def _cut_view(self, common: dict[str, Any]) -> CutView:
        """What is shut out at the moment of the write; nothing, if a part of what was recorded is not."""
        result, wanted = self._latest, set(recorded_scope(common["record"]))
        holds = self._context.clock.latest() < self._until and wanted <= set(result.scope)
        return CutView(
            **common,
            scope=result.scope if holds else (),
            written=result.written,
            read_back=result.report.scope,
            evidence=result.report.evidence,
        )


class Unrecorded(NamedTuple):
    """A member that storage isolates through an epoch that is not known to be dead, without a record."""

    through: int
    dead_through: int


class Isolations:
    """Ends isolations that nobody needs any more; one of the coordinators does."""

    def __init__(self, context: FencerContext) -> None:
        self._context = context
        self._looks_s = 0.0
        """When it is looked again for those that no record names; monotonic."""
        self.unrecorded: dict[str, Unrecorded] | None = None
        """Hosts that stay isolated without a record; ``None``: nobody has looked here yet."""

    async def end(self) -> None:
        """Of hosts that have joined in a new boot, and what isolates none but dead epochs without a record."""
        context, orders = self._context, self._context.isolation
        if orders is None or not context.is_leader():
            self.unrecorded, self._looks_s = None if orders else {}, 0.0
            return
        for host, seen in list(context.watcher):
            if seen.record.state == "Held" and 0 < seen.record.cut.through <= seen.record.dead_through:
                try:
                    await _end(context, orders, host, seen.record.cut)
                except OutliveError as error:
                    _log.info("fence.isolation_put_off", host=host, error=str(error))
        now_s = context.clock.monotonic()
        if now_s < self._looks_s:
            return
        self._looks_s = now_s + UNRECORDED_S
        found: dict[str, Unrecorded] = {}
        with suppress(NotFound):  # nobody here isolates anybody
            for host, through in sorted((await orders.list_hosts()).items()):
                try:
                    left = await _end_unrecorded(context, orders, host, through)
                except OutliveError as error:
                    _log.info("fence.isolation_put_off", host=host, error=str(error))
                    left = (self.unrecorded or {}).get(host)
                if left is not None:
                    found[host] = left
        self.unrecorded = found


async def _end_unrecorded(context: FencerContext, orders: Isolation, host: str, through: int) -> Unrecorded | None:
    """The record is read after storage was: it names each epoch before storage isolates it.

    What may isolate an epoch that is not dead stays, and is answered: a Membership that was made anew has begun to
    count its epochs anew, and does not say which boots the old one has seen dead.
    """
    member = await context.read_membership(host)
    if member is None or member.record.state != "Held" or member.record.cut.through:
        return None
    dead_through = member.record.dead_through
    if through > dead_through:
        _log.warning("fence.isolation_unrecorded", host=host, through=through, dead_through=dead_through)
        return Unrecorded(through, dead_through)
    if (await context.read_settings(host)).paused:
        return None
    why = await orders.lift(host, dead_through)
    _log.warning("fence.isolation_without_record_ended", host=host, epoch=dead_through, why_not=why)
    return None


async def _end(context: FencerContext, orders: Isolation, host: str, cut: Cut) -> None:
    epoch, paused = cut.through, (await context.read_settings(host)).paused
    why = "the cluster is paused" if paused else await orders.lift(host, epoch, cut.scope)
    if why:
        _log.warning("fence.isolation_not_ended", host=host, why=why)
        return
    written = await context.take(
        host,
        LIFT_CUT,
        lambda record: LiftView(host=host, record=record, observer=context.me, epoch=epoch, paused=paused),
        lambda record: record.cut.through != epoch,
    )
    if written.refused is None:
        _log.info("fence.isolation_ended", host=host, epoch=epoch)
