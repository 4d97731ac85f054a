"""Holds the host's membership: joins, renews it, and joins again where it was lost.

The only writer of ``Membership`` on the daemon's side; one write at a time. Each renewal has a number that no other
write of this process has, so that after a lost answer it is known which of them arrived, and the guard learns the
moment at which exactly that one was sent. What this does not promise: that the host is still held *now*; whatever needs
it is decided by compare-and-swap, here or on the virtual machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from outlive.base import (
    Conflict,
    Forbidden,
    NotFound,
    OutliveError,
    Refused,
    Unknown,
    as_datetime,
    deadline,
    get_logger,
)
from outlive.guard import Instants
from outlive.node.membership.guard import UNARMED, GuardArming, least_of
from outlive.node.membership.holders import Me
from outlive.node.membership.join import Blocked, JoinProcedure, JoinResult
from outlive.node.membership.states import date_proofs
from outlive.node.membership.steps import RENEW, LeaseState, LeaseView, RenewView, lease_state
from outlive.resources import MemberRecord, Membership, ObjectRef, SilentPeer
from outlive.resources.reasons import FaultCode

if TYPE_CHECKING:
    from outlive.node.vm.context import VmContext

UNANSWERED: Final = 64
"""Renewals without an answer whose sending is remembered; older ones can no longer count."""
CONNECTED_RENEWALS: Final = 3
"""Renewal intervals without an acknowledgement after which the store counts as away."""

Change = Callable[[MemberRecord], MemberRecord | None]
"""From the next renewal's record to what is to be written in its place; ``None``: nothing else than it."""

_replace = msgspec.structs.replace
_log = get_logger("node.membership")


class Renewed(NamedTuple):
    """How one renewal went, in seconds."""

    took_s: float
    """From when it was due to its end; nothing of it is the wait before."""
    pace_s: float
    """The renewal interval."""
    swap_s: float | None
    """How long the store took for the write, or did not answer; ``None``: nothing was written."""


class LeaseRenewer:
    """See the module. ``run`` until cancelled; it raises ``Refused`` where this daemon must not go on."""

    def __init__(self, node: VmContext) -> None:
        self.entered: JoinResult | None = None
        """How the host joined last."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the membership is lost."""
        self.on_entered: Callable[[], None] = lambda: None
        """Called when the host has joined, for the first time or again, and when the store is back after a while."""
        self.on_renewed: Callable[[Renewed], None] = lambda how: None
        """Called with how each renewal went."""
        self._node = node
        self._host = node.host
        self._procedure = JoinProcedure(node)
        self._arming = GuardArming(node)
        self._limit_s = float(node.settings.write_limit)
        self._member: Membership | None = None
        """As the store last showed it; ``None`` before the host has entered."""
        self._held = False
        self._leaving = False
        """Whether this daemon has sent that its host leaves; it never takes that back."""
        self._acknowledged_seq = 0
        self._counted_on = UNARMED
        """What fencers may count on of the guard: what was acknowledged, or what was sent since and may yet count."""
        self._sent_seq = 0
        self._sends: dict[int, tuple[Instants, float]] = {}
        """seq → when it was sent, by the guard's clocks and by ours."""
        self._beat_at: float | None = None
        self._beaten = False
        self._registered = ""
        self._silent: tuple[SilentPeer, ...] = ()
        self._change: Change | None = None
        self._changed: asyncio.Future[bool] | None = None
        self._withheld = ""
        """Why this host does not renew, so that it is fenced; empty: it renews."""
        self._soon = asyncio.Event()
        """Set when the next turn is to come at once."""
        self._swap_s: float | None = None
        """How long the write of the present turn took."""
        self._due_s = node.clock.monotonic()
        """When the present turn was due (monotonic)."""
        self._blocked: FaultCode | None = None
        """The fault that says why the host has not entered."""

    # What others ask

    @property
    def me(self) -> Me:
        """This host as holders name it."""
        if self._member is None:
            return Me(host=self._host, uid="", epoch=0, held=False)
        return Me(host=self._host, uid=self._member.metadata.uid, epoch=self._member.record.epoch, held=self.held)

    @property
    def record(self) -> MemberRecord | None:
        """The record as the store last showed it."""
        return self._member.record if self._member is not None else None

    @property
    def held(self) -> bool:
        """Whether the host holds its membership, as far as it knows, and has not begun to leave it."""
        return self._held and not self._leaving

    @property
    def counts_as_armed(self) -> bool:
        """Whether fencers may count on this host's guard."""
        return self._counted_on.armed

    @property
    def own_age_s(self) -> float:
        """Seconds since the last acknowledged renewal was sent; infinite before the first."""
        return float("inf") if self._beat_at is None else self._node.clock.monotonic() - self._beat_at

    @property
    def connected(self) -> bool:
        """Whether the store answers."""
        return self._held and self.own_age_s < CONNECTED_RENEWALS * self._node.desired.profile.renew_s + self._limit_s

    def acknowledged_since(self, moment_s: float) -> bool:
        """Whether a renewal was acknowledged that was sent after ``moment_s`` (monotonic): the store is the same."""
        return self._held and self._beat_at is not None and self._beat_at > moment_s

    def note_registered(self, incarnation: str) -> None:
        """All local virtual machines are registered under this incarnation of the store: say so from now on."""
        self._registered = incarnation

    def renew_soon(self) -> None:
        """Renew at once instead of at the next turn."""
        self._soon.set()

    def publish_silent(self, silent: tuple[SilentPeer, ...], *, soon: bool) -> None:
        """Say with every renewal from now on whom this host sees silent; ``soon``: bring the next one forward."""
        self._silent = silent
        if soon:
            self.renew_soon()

    def withhold(self, why: str) -> None:
        """Fall silent on purpose, so that the others fence this host by the rules for any silent one; empty: renew."""
        if why != self._withheld:
            _log.warning("membership.withheld" if why else "membership.renewed_again", host=self._host, why=why)
            self._withheld = why
            self.renew_soon()

    async def write(self, change: Change) -> bool:
        """Have the record changed in the place of the next renewal; whether that was acknowledged.

        ``change`` gets that renewal's record, and may answer ``None``: not now.
        """
        if self._changed is not None or not self._held:
            return False
        self._change = change
        self._changed = asyncio.get_running_loop().create_future()
        self.renew_soon()
        try:
            return await self._changed
        finally:
            self._change = self._changed = None

    async def leave(self, change: Change) -> bool:
        """As ``write``, for good: once it is sent nothing is held or created any more, whatever becomes of it.

        It declares the epoch dead, and may arrive long after its answer was given up.
        """

        def change_last(record: MemberRecord) -> MemberRecord | None:
            changed = change(record)
            self._leaving = self._leaving or changed is not None
            return changed

        return await self.write(change_last)

    async def is_current(self) -> bool:
        """Read fresh whether the membership is still the very one that was last acknowledged (or a later one)."""
        found = await self._procedure.read()
        if not self.held or found is None or self._member is None:
            return False
        same = found.metadata.uid == self._member.metadata.uid and found.record.nonce == self._node.nonce
        return same and found.record.state == "Held" and found.record.seq >= self._acknowledged_seq

    # Running

    async def enter(self, *, restored: bool = False) -> None:
        """Enter, however long that takes. ``Refused`` where this machine or daemon must not; the first time
        ``Forbidden`` where its token is another's."""
        self._lose()
        said = ""
        while True:
            try:
                known = self._member.record.incarnation if self._member is not None else ""
                entered = await self._procedure.enter(restored=restored, known=known)
            except Blocked as blocked:
                self._report_blocked(blocked)
            except Refused:
                raise
            except OutliveError as error:
                if isinstance(error, Forbidden) and self.entered is None:
                    raise
                if str(error) != said:
                    _log.warning("membership.not_entered", host=self._host, error=str(error))
                said = str(error)
            else:
                if entered is not None:
                    await self._begin(entered)
                    return
                continue
            await self._node.clock.sleep(float(self._node.desired.profile.renew_s))

    async def report_forgotten(self) -> None:
        """Have the cluster paused where a restored store does not know this host, which cannot join yet."""
        try:
            await self._procedure.is_host_forgotten()
        except Blocked as blocked:
            _log.warning("membership.blocked", host=self._host, code=blocked.code, why=blocked.message)
        except OutliveError as error:
            _log.warning("membership.not_read", host=self._host, error=str(error))

    async def run(self) -> None:
        """Renew, and come back where the membership was lost; ``enter`` comes first."""
        self._due_s = self._node.clock.monotonic()
        while True:
            began_s = self._node.clock.monotonic()
            self._due_s, self._swap_s = min(self._due_s, began_s), None
            change, changed = self._change, self._changed
            acknowledged = await self._renew_once(change)
            if changed is not None and not changed.done():
                changed.set_result(acknowledged)
            pace_s = self._arming.pace_s()
            ended_s = self._node.clock.monotonic()
            if self._held:
                self.on_renewed(Renewed(ended_s - self._due_s, pace_s, self._swap_s))
            left_s = pace_s - (ended_s - began_s)
            self._due_s = ended_s + max(0.0, left_s)
            self._soon.clear()
            if left_s > 0:
                with suppress(TimeoutError), deadline(left_s):
                    await self._soon.wait()

    async def _begin(self, entered: JoinResult) -> None:
        record = entered.membership.record
        _log.info("membership.entered", host=self._host, row=entered.row, epoch=record.epoch)
        self._clear_blocked()
        self.entered = entered
        self._member = entered.membership
        self._acknowledged_seq = self._sent_seq = record.seq
        self._counted_on = record.guard
        self._sends.clear()
        self._registered = ""
        if entered.unannounced:
            _log.error("membership.store_went_back", host=self._host)
        self._held = True
        self.on_entered()

    async def _renew_once(self, change: Change | None) -> bool:
        """One renewal; whether the change was written with it."""
        assert self._member is not None
        if not self._held:  # the record is gone, or this daemon has left
            if self._member.record.state == "Held":
                await self._check_write(self._member.record)
            return False
        if self._withheld and change is None:
            await self._check_dead(self._member)
            return False
        guard = await self._arming.publish(self._counted_on, beaten=self._beaten)
        view = RenewView(
            host=self._host,
            record=_replace(self._member.record, seq=max(self._member.record.seq, self._sent_seq)),
            nonce=self._node.nonce,
            guard=guard,
            incarnation=self._registered,
            silent=self._silent,
        )
        outcome = RENEW.attempt(view)
        if outcome.refused is not None:
            _log.warning("membership.not_renewed", host=self._host, why=outcome.refused.why)
            await self._check_write(self._member.record)
            return False
        record = outcome.record  # its number is higher than any that was sent
        assert record is not None
        changed = change(record) if change is not None else None
        if changed is not None:
            changed = _replace(changed, guard=guard, seq=record.seq)
            changed = date_proofs(changed, self._member.record, as_datetime(self._node.clock.now()))
        return await self._send(changed or record) and changed is not None

    async def _send(self, record: MemberRecord) -> bool:
        assert self._member is not None
        self._sent_seq = record.seq
        self._counted_on = least_of(self._counted_on, record.guard)
        self._sends[record.seq] = (self._node.guard.read_clocks(), self._node.clock.monotonic())
        while len(self._sends) > UNANSWERED:
            del self._sends[min(self._sends)]
        sent_s = self._node.clock.monotonic()
        try:
            with deadline(self._limit_s):
                written = await self._node.store.replace(_replace(self._member, record=record))
        except (Conflict, NotFound):
            self._swap_s = self._node.clock.monotonic() - sent_s
            return await self._check_write(record)
        except (Unknown, TimeoutError):
            self._swap_s = self._limit_s  # however soon it was clear that no answer comes
            return await self._check_write(record)
        except OutliveError as error:
            self._swap_s = self._limit_s
            _log.warning("membership.not_renewed", host=self._host, error=str(error))
            return False
        self._swap_s = self._node.clock.monotonic() - sent_s
        await self._acknowledge(written)
        return True

    async def _check_write(self, sent: MemberRecord) -> bool:
        """What became of a write without an answer, and of the membership; whether that write was applied."""
        try:
            found = await self._procedure.read()
        except OutliveError as error:
            _log.warning("membership.not_read", host=self._host, error=str(error))
            return False
        assert self._member is not None
        verdict = lease_state(
            LeaseView(
                sent=sent,
                acknowledged_seq=self._acknowledged_seq,
                uid=self._member.metadata.uid,
                found=found.record if found is not None else None,
                found_uid=found.metadata.uid if found is not None else "",
            )
        ).state
        if verdict in (LeaseState.MINE, LeaseState.NOT_YET):
            assert found is not None
            await self._go_on(found)
            return verdict is LeaseState.MINE
        _log.warning("membership.lost", host=self._host, state=verdict.value)
        match verdict:
            case LeaseState.FOREIGN:
                raise Refused(
                    f"another daemon holds the membership of {self._host}",
                    remedy="stop the other one; one host has one daemon",
                )
            case LeaseState.GONE:
                await self._on_deleted()
            case _:
                await self.enter(restored=verdict is LeaseState.ROLLED_BACK)
        return False

    async def _check_dead(self, mine: Membership) -> None:
        """Read the own Membership while renewals are withheld; end the VMs here once it says that this host is dead.

        No refused renewal would say so. While the host is only condemned it stays silent: a renewal would undo the
        fence that it wants."""
        try:
            found = await self._procedure.read()
        except OutliveError as error:
            _log.warning("membership.not_read", host=self._host, error=str(error))
            return
        same = found is not None and found.metadata.uid == mine.metadata.uid
        if found is not None and same and found.record.dead_through >= mine.record.epoch:
            _log.warning("membership.lost", host=self._host, state="dead while it was silent")
            await self.enter()

    async def _go_on(self, found: Membership) -> None:
        """The membership is mine; which of my writes arrived last says from when it counts."""
        if not self._held:
            self._clear_blocked()
            self._held = True
            self.on_entered()
        if found.record.seq in self._sends:
            await self._acknowledge(found)
        else:
            self._member = found
            self._counted_on = least_of(self._counted_on, found.record.guard)

    async def _acknowledge(self, written: Membership) -> None:
        self._member = written
        seq = written.record.seq
        self._acknowledged_seq = seq
        self._counted_on = written.record.guard  # what was sent before and was not answered cannot be applied any more
        if written.record.state != "Held":  # it left: the guard is not notified any more
            self._held = False
            return
        sent, ours_s = self._sends[seq]
        self._sends = {each: when for each, when in self._sends.items() if each > seq}
        was_away = self._beat_at is not None and not self.connected
        self._beat_at = ours_s
        if was_away:
            self.on_entered()  # what waited for the store need not wait for its back-off
        try:
            with deadline(self._limit_s):
                await self._node.guard.beat(sent, written.record.epoch)
            self._beaten = True
        except (OutliveError, TimeoutError) as error:
            _log.warning("guard.not_notified", host=self._host, error=str(error) or "no answer in time")

    async def _on_deleted(self) -> None:
        """A backup that does not know this host is no reason to stay away; else somebody deleted its membership."""
        self._lose()
        try:
            forgotten = await self._procedure.is_host_forgotten()
        except Blocked as blocked:
            self._report_blocked(blocked)
            return
        except OutliveError as error:
            _log.warning("membership.not_read", host=self._host, error=str(error))
            return
        if forgotten:
            await self.enter(restored=True)
            return
        why = f"Membership/{self._host} is gone, and {self._host} starts no virtual machine any more"
        self._report_blocked(Blocked(FaultCode.MEMBERSHIP_GONE, self._host, why))

    def _lose(self) -> None:
        was, self._held = self._held, False
        if was:
            self.on_lost()

    async def remember(self) -> None:
        """Write down on the host's own disk in which store it is registered."""
        if self._member is None or not self.held:
            return
        try:
            await self._procedure.note(self._member)
        except Blocked as blocked:
            _log.warning("membership.not_written_down", host=self._host, why=blocked.message)

    def _clear_blocked(self) -> None:
        if self._blocked is not None:
            self._node.faults.clear(self._blocked, self._subject)
        self._blocked = None

    def _report_blocked(self, blocked: Blocked) -> None:
        if self._blocked != blocked.code:
            self._clear_blocked()
            _log.error(
                "membership.blocked", host=self._host, code=blocked.code, why=blocked.message, remedy=blocked.remedy
            )
        self._blocked = blocked.code
        self._node.faults.activate(blocked.code, self._subject, why=blocked.message, remedy=blocked.remedy)

    @property
    def _subject(self) -> ObjectRef:
        return ObjectRef(kind="Hypervisor", name=self._host)
