"""Keeping hosts out that were cut off: while their fence is open, and after they came back undead.

Others may be using what a host was shut out of, so a cut is renewed by a task that does nothing else: no write, no
fault and no look at anybody's wishes comes between two renewals. What was recorded as shut out stays recorded, because
VMs may have been recovered on its strength; where a part of it cannot be renewed any more people are told, at once and
whatever the host's membership says (docs/concepts/safety.md#proofs).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakValueDictionary

from outlive.base.errors import NotFound, OutliveError, Unavailable
from outlive.base.logging import get_logger
from outlive.node.fencing.proofs import LIFT_CUT, PROVE_CUT, CutView, LiftView
from outlive.node.fencing.rules import TAKE_OVER_RESTING_S
from outlive.node.ports.fencing import CutPort, CutReport
from outlive.resources import MemberRecord, ProofKind, VirtualMachine
from outlive.runtime.steps import ProtocolStep
from outlive.runtime.tasks import OrderedTaskGroup
from outlive.store import Store, list_all

if TYPE_CHECKING:
    from outlive.node.fencing.context import FencerContext

CUT_OFF: Final = "it is cut off, and may still run"
LOOK_S: Final = 2.0
"""How often is looked for cuts that are due."""
RETRY_S: Final = 1.0
"""Pause after the store failed."""
DISTRUSTED_S: Final = 300.0
"""How often is looked whether a cut is trusted again."""
AT_ONCE: Final = 64
"""Cuts that are renewed at the same time."""
NAMED: Final = 3
"""Disks and ports that are named."""


def recorded(record: MemberRecord) -> tuple[str, ...]:
    """What the host has to stay shut out of."""
    return record.cut.scope if record.cut.through > record.dead_through else ()


def not_renewed(wanted: tuple[str, ...], result: CutResult) -> str:
    """Why what has to stay shut out could not be renewed; empty: it was."""
    left = [one for one in wanted if one not in set(result.scope)]
    if not left:
        return ""
    return result.why_not or f"{', '.join(left[:NAMED])} could not be read back"


class Fence(Protocol):
    """The open fence that a cut belongs to."""

    host: str
    epoch: int
    record: MemberRecord

    async def unless_maintenance(self) -> Any:
        """Wait until there is no maintenance."""
        ...

    async def pause(self, seconds: float) -> None:
        """Rest, or until operators change something."""
        ...

    async def nothing_by(self, kind: ProofKind, why: str, *, failing: bool = False) -> None:
        """This kind proves nothing for now."""
        ...

    async def prove(
        self, kind: ProofKind, step: ProtocolStep[CutView, Any], view: Callable[[MemberRecord, int], CutView]
    ) -> str:
        """Write the proof; why the fence is still open."""
        ...


class FenceCut:
    """The cut of one open fence: one task keeps it, another one writes it down and tells."""

    def __init__(self, context: FencerContext, cutting: Isolation, fence: Fence) -> None:
        self._context = context
        self._cutting = cutting
        self._fence = fence
        self._latest = CutResult()
        self._until = 0.0
        """Until when that is so, on my monotonic clock."""
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        async with OrderedTaskGroup() as group:
            for part in (self._keep, self._tell):
                group.create_task(self._persist(part), name=f"cut {self._fence.host} {part.__name__}")

    async def _persist(self, part: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await part()
            except OutliveError as error:
                _log.warning("fence.store_failed", host=self._fence.host, error=str(error))
            await self._context.clock.sleep(RETRY_S)

    async def _keep(self) -> None:
        fence = self._fence
        while True:
            kept = recorded(fence.record)
            if not kept and "cut" in fence.record.distrusted:
                self._learn(CutResult(why_not="a cut of it was contradicted before"))
                await fence.pause(DISTRUSTED_S)
                continue
            if not kept:  # what was shut out stays so in maintenance too: others may be using it by now
                await fence.unless_maintenance()
            began = self._context.clock.monotonic()
            result = await self._cutting.cut(fence.host, fence.epoch, kept)
            self._learn(result, began + result.lasts_s)
            await fence.pause(result.renew_in_s)

    def _learn(self, result: CutResult, until: float = 0.0) -> None:
        self._latest, self._until = result, until
        self._news.set()

    async def _tell(self) -> None:
        fence = self._fence
        while True:
            await self._news.wait()
            result = self._latest
            failing = not_renewed(recorded(fence.record), result)
            why = f"what keeps it off could not be renewed: {failing}" if failing else result.why_not
            await fence.nothing_by("cut", why or await self._prove(result), failing=failing != "")
            if result is self._latest:  # else, or where the store failed, once more
                self._news.clear()

    async def _prove(self, result: CutResult) -> str:
        cut = self._fence.record.cut
        if cut.through >= self._fence.epoch and set(result.scope) <= set(cut.scope):
            return CUT_OFF
        return await self._fence.prove("cut", PROVE_CUT, self._view)

    def _view(self, record: MemberRecord, demanded: int) -> CutView:
        """What is shut out at the moment of the write; nothing, if a part of what was recorded is not."""
        result, fence = self._latest, self._fence
        holds = self._context.clock.monotonic() < self._until and set(recorded(record)) <= set(result.scope)
        return CutView(
            host=fence.host,
            record=record,
            observer=self._context.me,
            epoch=fence.epoch,
            demanded=demanded,
            scope=result.scope if holds else (),
            written=result.written,
            read_back=result.read_back,
            evidence=result.evidence,
        )


class ReturnedCuts:
    """Cuts of hosts that came back: kept until the epoch is dead, and lifted then.

    ``leads``: whether this fencer is the one that does what everybody could.
    """

    def __init__(self, context: FencerContext, leads: Callable[[], bool]) -> None:
        self._context = context
        self._leads = leads
        self._cuts: dict[str, float] = {}
        """Cut hosts, and when the cut is due to be renewed."""
        self._telling: dict[str, CutResult] = {}
        """Hosts whose cut was renewed, or was to be: people are to know how it stands."""

    def changed(self, host: str, now: MemberRecord) -> None:
        """A Membership changed."""
        if now.cut.through:
            self._cuts.setdefault(host, 0.0)

    async def run(self) -> None:
        """Until cancelled."""
        async with OrderedTaskGroup() as group:
            group.create_task(self._renewals(), name="fencer renews cuts")
            while True:
                for host in list(self._cuts):
                    try:
                        await self._tidy(host)
                    except OutliveError as error:
                        _log.info("fence.cut_put_off", host=host, error=str(error))
                await self._context.clock.sleep(LOOK_S)

    async def _renewals(self) -> None:
        """Nothing else comes between them."""
        slots = asyncio.Semaphore(AT_ONCE)
        while True:
            async with OrderedTaskGroup() as group:
                for host in [one for one in self._cuts if self._due(one)]:
                    group.create_task(self._renew(host, slots), name=f"renew the cut of {host}")
            await self._context.clock.sleep(LOOK_S)

    def _returned(self, host: str) -> MemberRecord | None:
        """The record of a host that came back while cut off, if that is for me to see to."""
        seen = self._context.watcher.get(host)
        if seen is None or self._context.cutting is None or seen.record.state != "Held" or not self._leads():
            return None
        return seen.record

    def _due(self, host: str) -> bool:
        record = self._returned(host)
        return record is not None and recorded(record) != () and self._context.clock.monotonic() >= self._cuts[host]

    async def _renew(self, host: str, slots: asyncio.Semaphore) -> None:
        async with slots:
            record, cutting = self._returned(host), self._context.cutting
            if record is None or cutting is None or host not in self._cuts or not recorded(record):
                return
            result = await cutting.renew(host, record.cut.through, record.cut.scope)
            self._cuts[host] = self._context.clock.monotonic() + result.renew_in_s
            self._telling[host] = result

    async def _tidy(self, host: str) -> None:
        seen = self._context.watcher.get(host)
        if seen is None or not seen.record.cut.through:
            self._cuts.pop(host, None)
            self._telling.pop(host, None)
            self._context.failing.pop(host, None)
            return
        record = self._returned(host)
        result = self._telling.pop(host, None)
        if record is None:
            return
        if record.dead_through >= record.cut.through:
            await self._lift(host, record.cut.through)
        elif result is not None:
            failing = not_renewed(recorded(record), result)
            if failing:
                self._context.failing[host] = failing
            else:
                self._context.failing.pop(host, None)

    async def _lift(self, host: str, epoch: int) -> None:
        assert self._context.cutting is not None
        why = await self._context.cutting.lift(host, epoch)
        if why:
            _log.warning("fence.cut_not_lifted", host=host, why=why)
            return
        written = await self._context.writer.take(
            host,
            LIFT_CUT,
            lambda record: LiftView(host=host, record=record, observer=self._context.me, epoch=epoch),
            lambda record: record.cut.through != epoch,
        )
        if written.refused is None:
            _log.info("fence.cut_lifted", host=host)


CALL_LIMIT_S: Final = 20.0
"""How long one call may take."""
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
LEAST_LASTS_S: Final = RENEW_S + TAKE_OVER_RESTING_S + 3 * CALL_LIMIT_S
"""A cut that ends sooner by itself proves nothing: it was renewed up to so long ago when its fencer is stuck, and
another has to find that out and renew it in its place."""

_log = get_logger("fencing.cut")


@dataclass(frozen=True, slots=True)
class CutResult:
    """What is shut out now, or why nothing is."""

    why_not: str = ""
    scope: tuple[str, ...] = ()
    """Of what was ordered, what was read back."""
    written: tuple[str, ...] = ()
    """What was ordered, by an order that was taken."""
    read_back: tuple[str, ...] = ()
    """What was said afterwards to be shut out, ordered now or not."""
    evidence: str = ""
    renew_in_s: float = AGAIN_S
    lasts_s: float = inf
    """How long that is so, from before it was ordered."""


class Isolation:
    """See the module."""

    def __init__(self, port: CutPort, store: Store) -> None:
        self._port = port
        self._store = store
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One order for each host at a time: one to shut it out that is late must not follow the one to let it in."""

    async def scope(self, host: str, epoch: int) -> tuple[str, ...]:
        """Disks and ports of every VM that this epoch of the host, or an older one, holds. Errors of the store."""
        found: dict[str, None] = {}
        async for vm in list_all(self._store, VirtualMachine):
            if any(one.hypervisor == host and one.epoch <= epoch for one in vm.status.holders):
                found.update((f"disk:{disk}", None) for disk in vm.spec.disks)
                found.update((f"port:{port}", None) for port in vm.spec.ports)
        return tuple(sorted(found))

    async def cut(self, host: str, epoch: int, kept: tuple[str, ...] = ()) -> CutResult:
        """Shut the host out, or renew that, and read it back. Errors of the store, unless something is to be kept.

        ``kept``: what it is shut out of already, which others may use since, so that nobody's entry says so any more.
        """
        try:
            async with asyncio.timeout(SCOPE_LIMIT_S):
                found = await self.scope(host, epoch)
        except (OutliveError, TimeoutError) as error:
            if not kept:
                raise Unavailable(f"what {host} holds could not be read: {error or 'no answer in time'}") from error
            _log.warning("fence.cut_scope_not_read", host=host, epoch=epoch, error=str(error))
            found = ()
        return await self.renew(host, epoch, tuple(sorted({*found, *kept})))

    async def renew(self, host: str, epoch: int, scope: tuple[str, ...]) -> CutResult:
        """Shut the host out of exactly this, and read it back."""
        if not scope:
            return CutResult(why_not="it holds no VM with a disk or port")
        try:
            async with self._one_order(host), asyncio.timeout(CALL_LIMIT_S):
                await self._port.cut(host, epoch, scope)
                report = await self._port.read_back(host, epoch)
        except TimeoutError:
            return CutResult(why_not=f"no answer in {CALL_LIMIT_S:g} s")
        except OutliveError as error:
            _log.warning("fence.cut_failed", host=host, epoch=epoch, error=str(error))
            return CutResult(why_not=error.message)
        except Exception as error:  # noqa: BLE001 - a driver that breaks for one host must not end all fences
            _log.exception("fence.cut_broke", host=host, epoch=epoch)
            return CutResult(why_not=f"its driver failed with {type(error).__name__}: {error}")
        there = tuple(one for one in scope if one in set(report.scope))
        if not there:
            return CutResult(why_not="nothing was found shut out when it was read back")
        lasts_s = inf if report.expires_in_s is None else report.expires_in_s
        if lasts_s < LEAST_LASTS_S:
            why = f"what shuts it out ends {lasts_s:g} s after it was renewed, and has to last {LEAST_LASTS_S:g} s"
            return CutResult(why_not=why, renew_in_s=_renew_in_s(report))
        return CutResult(
            scope=there,
            written=scope,
            read_back=report.scope,
            evidence=report.evidence,
            renew_in_s=_renew_in_s(report),
            lasts_s=lasts_s,
        )

    async def found(self, host: str, epoch: int) -> tuple[str, ...]:
        """What this epoch of the host, or the one before, is shut out of. ``Unavailable`` where that was not said."""
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                reports = [await self._port.read_back(host, one) for one in (epoch - 1, epoch) if one > 0]
        except NotFound:
            return ()
        except TimeoutError:
            raise Unavailable(f"what {host} is shut out of was not said in {CALL_LIMIT_S:g} s") from None
        except OutliveError as error:
            raise Unavailable(error.message) from error
        except Exception as error:
            _log.exception("fence.cut_broke", host=host, epoch=epoch)
            raise Unavailable(f"its driver failed with {type(error).__name__}: {error}") from error
        return tuple(sorted({one for report in reports for one in report.scope}))

    async def lift(self, host: str, epoch: int) -> str:
        """Let the host in again that was cut off through this epoch, and no later one; why not, where that failed.

        The order may arrive when the host has come back, was condemned and cut off once more.
        """
        try:
            async with self._one_order(host), asyncio.timeout(CALL_LIMIT_S):
                await self._port.lift(host, epoch)
        except TimeoutError:
            return f"no answer in {CALL_LIMIT_S:g} s"
        except OutliveError as error:
            return error.message
        except Exception as error:  # noqa: BLE001 - as above
            _log.exception("fence.cut_broke", host=host, epoch=epoch)
            return f"its driver failed with {type(error).__name__}: {error}"
        return ""

    def _one_order(self, host: str) -> asyncio.Lock:
        return self._locks.setdefault(host, asyncio.Lock())


def _renew_in_s(report: CutReport) -> float:
    if report.expires_in_s is None:
        return RENEW_S
    return min(RENEW_S, max(LEAST_S, RENEW_PART * report.expires_in_s))
