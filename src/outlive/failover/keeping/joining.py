"""Letting VMs into slots, one write after the other, with what each failure means.

A decision was made on what was seen; the cluster may have moved on. Each write therefore replaces exactly the version
that was seen. After a ``Conflict`` the slot is read again, and the VM joins it as it is now, if the rules allow that;
else the rest of the answer is decided about again. What else fails is counted as
docs/reference/failover.md#cycle says and left to a later cycle. A ``Turn`` says what may have happened since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import assert_never

import msgspec

from outlive.base.errors import Conflict, NotFound, OutliveError
from outlive.base.logging import get_logger, request_context
from outlive.failover.keeping.hand import Hand
from outlive.failover.keeping.turns import Turn
from outlive.failover.keeping.writes import NewSlot, SlotWriter
from outlive.failover.model import SlotView, VmView
from outlive.failover.planner.actions import Action, Fail, Join, Leave, Open
from outlive.failover.report.reporter import Reporter
from outlive.failover.rules import is_vm_eligible_for_reservation, serves
from outlive.failover.separation import ServerGroup, barred
from outlive.failover.topology import Topology
from outlive.resources import Reservation

STORE_REASON = "store-failed"

_log = get_logger("failover.act")


class Outcome(msgspec.Struct, kw_only=True):
    """What came of one answer of the assignment."""

    reused: int = 0
    created: int = 0
    failed: int = 0
    left: dict[str, int] = {}
    """VM → slots that were not tried, because the state turned out to be another; they are decided about again."""
    fails: dict[str, Fail] = {}
    """VM → why it got no further slot."""
    opened: list[SlotView] = []
    """New slots, as they are named in the cluster."""
    given_over: set[str] = set()
    """VMs that changed meanwhile and are left to whoever follows changes."""
    excluded: set[str] = set()
    """Slots whose write failed: nobody may join them in this cycle."""

    def postpone(self, vm: str, slots: int = 1) -> None:
        """Decide about these again."""
        self.left[vm] = self.left.get(vm, 0) + slots


class Apart:
    """What a decision knew of failure domains and server groups."""

    def __init__(self, topology: Callable[[], Topology], groups: Iterable[ServerGroup]) -> None:
        self._topology = topology
        self._groups = {vm: group for group in groups for vm in group.members}

    def peers(self, vm: str) -> Iterable[str]:
        """The members of the VM's group."""
        group = self._groups.get(vm)
        return group.members if group is not None else ()

    def may_join(self, vm: VmView, slot: SlotView, hand: Hand) -> bool:
        """Whether the rules and separation let the VM join the slot, by all slots that bear on that."""
        group, topology = self._groups.get(vm.id), self._topology()
        slots = hand.around({vm.id, *slot.members, *self.peers(vm.id)})
        if barred(vm, slot.host, slots, topology, (group,) if group is not None else ()):
            return False
        return is_vm_eligible_for_reservation(vm, slot, slots, topology=topology)


class Joining:
    """One pass over the actions of one answer."""

    def __init__(
        self,
        writer: SlotWriter,
        reporter: Reporter,
        hand: Hand,
        vms: Mapping[str, VmView],
        request_id: str,
        turn: Turn,
        apart: Apart,
    ) -> None:
        self.outcome = Outcome()
        self._writer = writer
        self._reporter = reporter
        self._hand = hand
        self._vms = vms
        self._request_id = request_id
        self._turn = turn
        self._separation = apart
        self._names: dict[str, str] = {}
        self._unmade: set[str] = set()
        self._given_up: set[str] = set()
        self._stale = False
        """The state is another than the answer was made for: the rest of it is decided about again."""

    async def do(self, action: Action) -> None:
        """Carry one action out, or put it off."""
        if action.vm in self._given_up:
            if isinstance(action, Open):
                self._unmade.add(action.slot_key)
            return
        if self._turn.stale((action.vm, *self._separation.peers(action.vm))):
            self._leave(action)
            return
        match action:
            case Fail():
                self._fail(action)
            case Join():
                await self._join(action)
            case Open():
                await self._open(action)
            case Leave():
                await self._leave_slot(action)
            case _:
                assert_never(action)

    def _leave(self, action: Action) -> None:
        """The VM changed since the decision was made: whoever follows changes serves it as it is now."""
        self._given_up.add(action.vm)
        self.outcome.given_over.add(action.vm)
        self.outcome.left.pop(action.vm, None)
        self._turn.leave((action.vm,))
        if isinstance(action, Open):
            self._unmade.add(action.slot_key)

    def _fail(self, fail: Fail) -> None:
        if self._stale or fail.vm in self.outcome.left:
            self.outcome.postpone(fail.vm, fail.missing)
            return
        self.outcome.failed += 1
        self.outcome.fails[fail.vm] = fail
        _log.info("vm.without_slot", vm=fail.vm, reason=fail.reason, detail=fail.detail, remedy=fail.remedy)

    async def join_all(self, joins: Sequence[Action], requests: Mapping[str, str]) -> bool:
        """Let all of them into one slot by one write; ``False`` where each has to be looked at by itself."""
        first = joins[0]
        assert isinstance(first, Join)
        name = self._names.get(first.slot, first.slot)
        view = self._hand.view(name)
        changed = self._stale or first.slot in self._unmade or name in self.outcome.excluded or view is None
        if changed or view is None or self._turn.stale(view.members):
            return False
        mine: list[Join] = []
        for join in joins:
            if not isinstance(join, Join) or join.vm in self._given_up:
                return False
            if self._turn.stale((join.vm, *self._separation.peers(join.vm))):
                return False
            mine.append(join)
        members = {**view.members, **{join.vm: join.vm_host for join in mine}}
        try:
            written = await self._writer.set_members(self._hand.object(name), members)
        except Conflict:
            return False
        except OutliveError as error:
            self._spoil(first, name, error)
            for join in mine[1:]:
                self.outcome.postpone(join.vm)
            return True
        view = self._hand.put(written)
        for join in mine:
            with request_context(req=requests.get(join.vm, "")):
                self._tell_joined(join, view)
        return True

    async def _join(self, join: Join) -> None:
        name = self._names.get(join.slot, join.slot)
        view = self._hand.view(name)
        if self._stale or join.slot in self._unmade or name in self.outcome.excluded or view is None:
            self.outcome.postpone(join.vm)
            return
        if self._turn.stale(view.members):
            self._leave(join)
            return
        try:
            written = await self._writer.set_members(self._hand.object(name), {**view.members, join.vm: join.vm_host})
        except Conflict:
            await self._join_again(join, name, view)
            return
        except OutliveError as error:
            self._spoil(join, name, error)
            return
        self._joined(join, written)

    async def _join_again(self, join: Join, name: str, planned: SlotView) -> None:
        """The slot changed since it was seen. Join what it is now, if the rules allow; if not, decide anew."""
        self._stale = True
        try:
            view = self._hand.put(await self._writer.fresh(name))
            as_planned = _is_as(view, planned)
            if not as_planned and (view.host != planned.host or not self._may_join(self._vms[join.vm], view)):
                self.outcome.postpone(join.vm)
                return
            members = {**view.members, join.vm: join.vm_host}
            written = await self._writer.set_members(self._hand.object(name), members)
        except NotFound:
            self._hand.drop(name)
            self.outcome.postpone(join.vm)
            return
        except OutliveError as error:
            self._spoil(join, name, error)
            return
        self._stale = not as_planned
        self._joined(join, written)

    def _may_join(self, vm: VmView, slot: SlotView) -> bool:
        """Whether the VM may join the slot as it is now, by all rules, all slots and separation."""
        return serves(vm, slot) and self._separation.may_join(vm, slot, self._hand)

    def _joined(self, join: Join, written: Reservation) -> None:
        self._tell_joined(join, self._hand.put(written))

    def _tell_joined(self, join: Join, view: SlotView) -> None:
        self.outcome.reused += 1
        self._reporter.slot_reused(view.name, view.uid, view.host, join.vm, len(view.members))
        _log.info("slot.reused", slot=view.name, host=view.host, vm=join.vm, members=len(view.members))

    def _spoil(self, join: Join, name: str, error: OutliveError) -> None:
        """The attempt is spent, and nobody may join this slot until the next cycle has looked at it."""
        self.outcome.failed += 1
        self.outcome.excluded.add(name)
        self.outcome.fails[join.vm] = _store_failed(join.vm, f"joining slot {name}", error)
        _log.warning("slot.not_joined", slot=name, vm=join.vm, error=str(error))

    async def _leave_slot(self, action: Leave) -> None:
        view = self._hand.view(action.slot)
        if self._stale or view is None or action.vm in self.outcome.left or self._turn.stale(view.members):
            return
        left = {vm: host for vm, host in view.members.items() if vm != action.vm}
        try:
            if left:
                self._hand.put(await self._writer.set_members(self._hand.object(action.slot), left))
            else:
                await self._writer.delete(self._hand.object(action.slot))
                self._hand.drop(action.slot)
        except OutliveError as error:
            self._stale = True
            _log.warning("slot.not_left", slot=action.slot, vm=action.vm, error=str(error))

    async def _open(self, action: Open) -> None:
        if self._stale or not self._turn.has_room(action.host, action.cpu_milli, action.memory_bytes):
            self.outcome.postpone(action.vm)
            self._unmade.add(action.slot_key)
            return
        new = NewSlot(
            vm=action.vm,
            vm_host=action.vm_host,
            host=action.host,
            zone=action.zone,
            group=action.group,
            cpu_milli=action.cpu_milli,
            memory_bytes=action.memory_bytes,
            request_id=self._request_id,
        )
        try:
            opened = await self._writer.open(new)
        except OutliveError as error:
            self.outcome.failed += 1
            self.outcome.fails[action.vm] = _store_failed(action.vm, f"creating a slot on {action.host}", error)
            self._given_up.add(action.vm)
            self._unmade.add(action.slot_key)
            _log.warning("slot.not_created", host=action.host, vm=action.vm, error=str(error))
            return
        view = self._hand.put(opened.slot, confirmed=opened.complete)
        self._names[action.slot_key] = view.name
        self.outcome.created += 1
        self.outcome.opened.append(view)
        self._reporter.slot_created(view.name, view.uid, action.host, action.vm)
        _log.info("slot.created", slot=view.name, host=action.host, vm=action.vm, complete=opened.complete)


def _is_as(slot: SlotView, planned: SlotView) -> bool:
    """Whether nothing changed that a decision looks at: an acknowledgement alone makes another version."""
    return (slot.members, slot.host, slot.ready, slot.cpu_milli, slot.memory_bytes) == (
        planned.members,
        planned.host,
        planned.ready,
        planned.cpu_milli,
        planned.memory_bytes,
    )


def _store_failed(vm: str, doing: str, error: OutliveError) -> Fail:
    return Fail(
        vm=vm, reason=STORE_REASON, detail=f"{doing} failed: {error.message}", remedy="the next cycle tries again"
    )
