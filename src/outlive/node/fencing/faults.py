"""Which faults fencing has, as a function of the Memberships and of what holds this fencer back.

The first of the coordinators that are not silent records them (``is_leader``), so what one leaves behind when it dies
the next one ends or refreshes (docs/concepts/safety.md#woken). It also ends what the daemon of a host reported of
domains that the store did not know, once that host is proven dead: nobody else would, and when the host's Membership is
deleted the proof is gone with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from outlive.base import OutliveError, as_datetime, get_logger
from outlive.node.fencing.context import FencerContext
from outlive.node.fencing.fence import AWAITED
from outlive.node.fencing.isolation import Isolations, Unrecorded
from outlive.node.fencing.states import POWER_ON_WAITS_S, TAKEN, is_off, is_open
from outlive.node.membership.states import is_dead
from outlive.resources import HOST_LABEL, Fault, MemberRecord, ObjectRef
from outlive.resources.reasons import FaultCode, Value, join_names
from outlive.runtime import LIST_AGAIN_S, REPORTER_LABEL, ActiveFault, FaultRecorder
from outlive.store import Selector, list_all, swap

_replace = msgspec.structs.replace
_log = get_logger("fencing")

CLUSTER: Final = ObjectRef(kind="Cluster", name="default")
DOUBT_S: Final = 2.0
"""A fencer that has lost the store for longer says nothing."""


HOLD_S: Final = 5.0
"""A hold that was not found again for so long is over."""


class Holds:
    """What holds this fencer back from condemning, and what only this fencer knows. Times are monotonic."""

    def __init__(self) -> None:
        self.waits = False
        """My own host is to be fenced, and nobody else is there to do it."""
        self._active: dict[FaultCode, tuple[float, dict[str, Value]]] = {}

    def note_hold(self, code: FaultCode, now: float, fields: dict[str, Value] | None = None) -> None:
        """Nobody is condemned, or a host is not, for this reason."""
        self._active[code] = (now + HOLD_S, fields or {})

    def extend_holds(self, now: float) -> None:
        """The observer cannot say whether what held it back still does."""
        self._active = {code: (now + HOLD_S, fields) for code, fields in self.active_holds(now)}

    def clear_holds(self, *codes: FaultCode) -> None:
        """These hold it back no more."""
        for code in codes:
            self._active.pop(code, None)

    def active_holds(self, now: float) -> list[tuple[FaultCode, dict[str, Value]]]:
        """Those that were found lately."""
        return [(code, fields) for code, (until, fields) in self._active.items() if now < until]


def fencing_faults(
    me: str,
    members: Iterable[tuple[str, MemberRecord]],
    holds: Holds,
    now: float,
    unrecorded: Mapping[str, Unrecorded] | None = None,
) -> Iterator[ActiveFault]:
    """All that are active at ``now`` (monotonic). ``unrecorded``: as of ``Isolations``."""
    for code, fields in holds.active_holds(now):
        yield ActiveFault(code, CLUSTER, fields)
    if holds.waits:
        yield ActiveFault(FaultCode.FENCE_WAITS, ObjectRef(kind="Hypervisor", name=me))
    for host, record in members:
        subject = ObjectRef(kind="Hypervisor", name=host)
        for code, fields in _host_faults(record):
            yield ActiveFault(code, subject, fields)
    for host, isolated in (unrecorded or {}).items():
        yield ActiveFault(FaultCode.ISOLATION_UNRECORDED, ObjectRef(kind="Hypervisor", name=host), isolated._asdict())


def _host_faults(record: MemberRecord) -> Iterator[tuple[FaultCode, dict[str, Value]]]:
    fence = record.fence
    unproven = {one.kind: one.why for one in fence.unproven}
    if is_off(record):
        proof = "" if record.proof is None else f"{record.proof.kind}: {record.proof.evidence}"
        yield FaultCode.HOST_DEAD, {"proof": proof}
        if fence.power_on.tries >= len(POWER_ON_WAITS_S) and fence.power_on.result not in ("", TAKEN):
            to = f"on ({fence.power_on.tries} tries)"
            yield FaultCode.POWER_UNREACHABLE, {"to": to, "why": fence.power_on.result}
            unproven.pop("power", None)
    if is_open(record) and all(kind in unproven for kind in AWAITED):
        yield (
            FaultCode.FENCE_UNCONFIRMED,
            {"why": fence.unproven_why, "cut": int(record.cut.scope != () and record.cut.through >= fence.epoch)},
        )
    failing = [one.why for one in fence.unproven if one.failing]
    if is_open(record) and failing:
        yield FaultCode.CUT_FAILING, {"why": failing[0]}
    off = any(one.kind == "power" for one in fence.findings)
    if record.state == "Revoked" and "power" in unproven and "power" not in record.distrusted and not off:
        yield FaultCode.POWER_UNREACHABLE, {"to": "off", "why": unproven["power"]}
    if record.distrusted:
        yield (
            FaultCode.PROOF_CONTRADICTED,
            {"kinds": join_names(tuple(record.distrusted)), "words": " ".join(record.distrusted)},
        )


class FenceFaults:
    """Records them while this fencer leads."""

    def __init__(self, context: FencerContext, holds: Holds, isolations: Isolations, recorder: FaultRecorder) -> None:
        self._context = context
        self._holds = holds
        self._isolations = isolations
        self._recorder = recorder
        self._led = False
        self._reports_due_s: dict[tuple[str, int], float] = {}
        """Host and epoch that are proven dead → when is looked next for what that host reported (monotonic)."""

    async def compare(self) -> None:
        """Compare them."""
        context = self._context
        leads = context.is_leader() and context.memberships.stalled_s() <= DOUBT_S
        if leads and not self._led:
            self._recorder.forget()
        self._led = leads
        if leads:
            members = [(host, seen.record) for host, seen in context.watcher]
            unrecorded, now = self._isolations.unrecorded, context.clock.monotonic()
            await self._recorder.record(
                fencing_faults(context.me, members, self._holds, now, unrecorded),
                undetermined=() if unrecorded is not None else (FaultCode.ISOLATION_UNRECORDED,),
            )
            await self._end_reports_of_the_dead(members, now)

    async def _end_reports_of_the_dead(self, members: Iterable[tuple[str, MemberRecord]], now: float) -> None:
        """End each ``unknown-vm`` whose reporter is proven dead. Errors of the store are logged: the next look tries
        again."""
        dead = [(host, record.epoch) for host, record in members if is_dead(record)]
        self._reports_due_s = {one: self._reports_due_s.get(one, now) for one in dead}
        due = {one for one, due_s in self._reports_due_s.items() if due_s <= now}
        if not due:
            return
        try:
            async for fault in list_all(
                self._context.store, Fault, selector=Selector.from_labels({REPORTER_LABEL: "daemon"})
            ):
                reporter = fault.metadata.labels.get(HOST_LABEL, "")
                if fault.code != FaultCode.UNKNOWN_VM or fault.ended or all(host != reporter for host, _ in due):
                    continue
                # exactly this version, if the reporter is dead by now: a host that is back writes another version
                member = await self._context.read_membership(reporter)
                if member is None or not is_dead(member.record):
                    continue
                at = as_datetime(self._context.clock.now())
                await swap(self._context.store, _replace(fault, ended=True, last_seen=at))
                why = "its host is proven dead"
                _log.info("fault.ended", fault=fault.name, reporter="fencer", host=reporter, why=why)
        except (OutliveError, TimeoutError) as error:
            _log.warning("fencing.reports_not_ended", error=str(error) or "no answer in time")
        else:
            self._reports_due_s |= dict.fromkeys(due, now + LIST_AGAIN_S)
