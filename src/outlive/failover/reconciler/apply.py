"""Carrying decided changes out: each is checked again on the living index, and written once.

A decision may be older than the fleet: it was computed in a child process, or somebody changed a slot since. So a
change that the index does not allow any more is left, and its VM is decided about again. Each write replaces exactly
the version that the cache shows; after a ``Conflict`` the slot is read, and the change is checked on what is there now.
What else fails is counted as docs/design/failover.md#cycle says and left to a later pass. Stopping after
any write is safe: every membership that was written was allowed beside those before it, and taking one away breaks no
rule.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import assert_never

import msgspec

from outlive.base import Conflict, NotFound, OutliveError, get_logger, global_request_id, request_context
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Action, Fail, Join, Leave, Open
from outlive.failover.planner.cleanup import Cause, CleanResult, Deletion, Drop, find_departure
from outlive.failover.reconciler.context import Context
from outlive.failover.reconciler.writes import SlotWriter, split_stages
from outlive.failover.rules import serves
from outlive.placement import VmView, may_run_on
from outlive.resources import Reservation
from outlive.resources.reasons import CoverageReason, FailoverEvent, Reason, render

JOINS_TOGETHER = 64
"""VMs that one write lets into a slot at most."""
REREADS = 3
"""Times that one slot is read and decided about again before it is left to a later pass."""

Judge = Callable[[Sequence[SlotView]], Awaitable[CleanResult]]
"""Decides about clean-up of these slots, which turned out to be others than was seen."""

_log = get_logger("failover.apply")


class ApplyOutcome(msgspec.Struct, kw_only=True):
    """What came of an assignment."""

    reused: int = 0
    created: int = 0
    failed: int = 0
    left: dict[str, int] = {}
    """VM → slots that were not given, because the fleet turned out to be another; they are decided about again."""
    fails: dict[str, Fail] = {}
    """VM → why it got no further slot."""
    opened: list[str] = []
    """Hosts that received a new slot."""
    closed: set[str] = set()
    """Slots whose write failed: nobody joins them for now."""

    def add(self, other: ApplyOutcome) -> None:
        """Both together; what is left is what the other left."""
        self.reused, self.created, self.failed = (
            self.reused + other.reused,
            self.created + other.created,
            self.failed + other.failed,
        )
        self.left = other.left
        self.fails.update(other.fails)
        self.opened += other.opened
        self.closed |= other.closed


class SlotChangeWriter:
    """Writes changes of slots."""

    def __init__(self, context: Context, judge: Judge) -> None:
        self._cache = context.cache
        self._writer: SlotWriter = context.writer
        self._reporter = context.reporter
        self._free = context.free
        self._judge = judge
        self._lock = context.lock

    # Members that leave

    def _lock_write(self, locked: bool) -> AbstractAsyncContextManager[object]:
        """Lock around each write and the check before it; ``locked``: the caller holds it."""
        return nullcontext() if locked else self._lock

    async def clean_up(self, result: CleanResult, *, locked: bool = False) -> int:
        """Write changed memberships by slot name, then delete; how many memberships were removed."""
        drops: dict[str, list[Drop]] = {}
        for drop in result.dropped:
            drops.setdefault(drop.slot, []).append(drop)
        deletions = {deletion.slot: deletion for deletion in result.deleted}
        removed = 0
        for name in (*result.changed, *deletions):
            async with self._lock_write(locked):
                removed += await self._remove(name, drops.get(name, []), deletions.get(name))
        return removed

    async def _remove(self, name: str, drops: Sequence[Drop], deletion: Deletion | None) -> int:
        for _ in range(REREADS):
            slot, view = self._find_reservation(name), self._cache.slots.get(name)
            if slot is None or view is None:
                return 0
            try:
                return await self._remove_members(slot, view, drops, deletion)
            except Conflict:
                if not await self._reread(name):
                    return 0
                view = self._cache.slots[name]
                others = [one for one in self._cache.slots_of(view.members) if one.name != name]
                result = await self._judge([view, *others])
                drops = [drop for drop in result.dropped if drop.slot == name]
                deletion = next((one for one in result.deleted if one.slot == name), None)
            except OutliveError as error:
                _log.warning("slot.not_written", slot=name, error=str(error))
                self._cache.mark(drop.vm for drop in drops)
                return 0
        _log.warning("slot.kept_changing", slot=name, rereads=REREADS)
        return 0

    async def _remove_members(
        self, slot: Reservation, view: SlotView, drops: Sequence[Drop], deletion: Deletion | None
    ) -> int:
        drops = [drop for drop in drops if self._has_to_leave(drop)]
        leaving = {drop.vm for drop in drops}
        left = {vm: host for vm, host in view.members.items() if vm not in leaving}
        if deletion is not None and not left and slot.status.consumer is None:
            await self._writer.delete(slot)
        elif leaving:
            await self._writer.set_members(slot, left)
        else:
            return 0
        uid = slot.metadata.uid
        for drop in drops:
            _log.info("member.removed", slot=drop.slot, vm=drop.vm, cause=drop.cause.value, detail=drop.detail)
            self._reporter.slot_event(
                FailoverEvent.MEMBER_LEFT, drop.slot, uid, vm=drop.vm, cause=drop.cause.value, detail=drop.detail
            )
        if deletion is not None and not left:
            self._reporter.slot_deleted(uid, deletion)
        return len(leaving)

    def _has_to_leave(self, drop: Drop) -> bool:
        """Whether the reason for a removal holds now."""
        cache, slot = self._cache, self._cache.slots[drop.slot]
        if drop.vm not in slot.members:
            return False
        if drop.rule or drop.cause is Cause.CLASH:
            return any(cache.is_faulty(member) for member in slot.members)
        return find_departure(drop.vm, slot, cache.vms.get(drop.vm), active=drop.vm in cache.locations) is not None

    # VMs that are given slots

    async def assign(
        self, actions: Sequence[Action], requests: Mapping[str, str], *, locked: bool = False
    ) -> ApplyOutcome:
        """Write in order. ``requests`` has the request id of each VM. Never raises for what the store refuses."""
        run = _Assignment(self, requests)
        for together in _batch_joins(actions):
            async with self._lock_write(locked):
                await run.do(together)
        return run.outcome

    # VMs that change slots

    async def switch(self, actions: Sequence[Action], requests: Mapping[str, str]) -> ApplyOutcome:
        """Let VMs join other slots and then leave their old ones, stage by stage, up to the first that is not allowed.

        While a VM is in both, its own slots may clash with each other, so a stage is checked with the old ones left.
        """
        run = _Assignment(self, requests, checked=True)
        for stage in split_stages(actions):
            async with self._lock:
                if not run.is_allowed(stage):
                    _log.info("replan.stopped", vm=stage[0].vm)
                    break
                for together in _batch_joins(stage):
                    await run.do(together)
                if run.outcome.failed or run.outcome.left:
                    break
        return run.outcome

    # What is allowed now

    def may_join(self, vm: VmView, slot: str) -> bool:
        """Whether the rules, separation and the slot itself let the VM join it now."""
        cache, index = self._cache, self._cache.index
        view = cache.slots.get(slot)
        if view is None or vm.id in view.members or not index.has_vm(vm.id) or not serves(vm, view):
            return False
        return self.may_be_together(vm.id, slot)

    def may_be_together(self, vm: str, slot: str) -> bool:
        """Whether rules and separation let the VM join the slot now, whatever its size and readiness."""
        index = self._cache.index
        admissible = index.admissible_slots(index.vm_number(vm)) & index.slot_bit(index.slot_number(slot))
        return bool(index.separation.allowed_slots(vm, admissible))

    def may_open(self, vm: VmView, action: Open) -> bool:
        """Whether the rules, separation and what is free let the VM have a new slot there now."""
        index = self._cache.index
        if not index.has_vm(vm.id) or not may_run_on(vm, action.host) or not index.may_open(vm.id, action.host):
            return False
        free = self._free().get_free(action.host)
        has_room = free is None or (free[0] >= action.cpu_milli and free[1] >= action.memory_bytes)
        return has_room and index.separation.allows(vm.id, action.host)

    def _find_reservation(self, slot: str) -> Reservation | None:
        return self._cache.informers.reservations.get(slot)

    async def _reread(self, name: str) -> bool:
        """Read a slot that changed meanwhile; whether it is still there."""
        shown = self._find_reservation(name)
        try:
            self._cache.note(await self._writer.read_fresh(name))
        except NotFound:
            if shown is not None:
                self._cache.note_deleted(shown.ref)
            return False
        except OutliveError as error:
            _log.warning("slot.not_read", slot=name, error=str(error))
            return False
        return name in self._cache.slots


class _Assignment:
    """One list of actions."""

    def __init__(self, changes: SlotChangeWriter, requests: Mapping[str, str], *, checked: bool = False) -> None:
        """``checked``: whether the actions were found to be allowed together (``is_allowed``)."""
        self._checked = checked
        self.outcome = ApplyOutcome()
        self._changes = changes
        self._cache = changes._cache
        self._writer = changes._writer
        self._reporter = changes._reporter
        self._requests = requests
        self._names: dict[str, str] = {}
        """Key of a new slot → its name."""
        self._joined_last: dict[str, str] = {}
        """VM → the slot that it joined last."""
        self._given_up: set[str] = set()
        self._refused = False
        """Something was not as decided: a failure that was decided after it is no answer any more."""

    async def do(self, actions: Sequence[Action]) -> None:
        """Carry these out; several are joins of one slot."""
        first = actions[0]
        with request_context(req=self._requests.get(first.vm, "")):
            match first:
                case Fail():
                    if first.vm not in self._given_up and self._refused:
                        self.outcome.left[first.vm] = self.outcome.left.get(first.vm, 0) + max(1, first.missing)
                    elif first.vm not in self._given_up:
                        self.outcome.failed += 1
                        self.outcome.fails[first.vm] = first
                case Join():
                    await self._join([action for action in actions if isinstance(action, Join)])
                case Open():
                    await self._open(first)
                case Leave():
                    await self._leave_slot(first)
                case _:
                    assert_never(first)

    def is_allowed(self, actions: Sequence[Action]) -> bool:
        """Whether these may all be done: once the VMs have left what they leave, the rules hold for everybody, and
        nobody misses more than before."""
        cache, index = self._cache, self._cache.index
        with index.begin_trial():
            missing = {action.vm: index.count_missing(action.vm) for action in actions if index.has_vm(action.vm)}
            for action in actions:
                if isinstance(action, Leave) and action.slot in cache.slots and action.vm in missing:
                    index.leave(action.vm, action.slot)
            for action in actions:
                vm = self._find_unmoved(action) if isinstance(action, Join | Open) else None
                if isinstance(action, Open):
                    if vm is None or not self._changes.may_open(vm, action):
                        return False
                    cpu, memory = action.cpu_milli, action.memory_bytes
                    index.add_slot(SlotView(name=action.slot_key, host=action.host, cpu_milli=cpu, memory_bytes=memory))
                    index.join(action.vm, action.slot_key)
                elif isinstance(action, Join):
                    name = self._names.get(action.slot, action.slot)
                    if vm is None or not index.has_slot(name) or not index.has_vm(vm.id):
                        return False
                    if name in cache.slots and not serves(vm, cache.slots[name]):
                        return False
                    if not self._changes.may_be_together(vm.id, name):
                        return False
                    index.join(action.vm, name)
            return all(index.count_missing(vm) <= before for vm, before in missing.items() if index.has_vm(vm))

    def _leave(self, action: Join | Open) -> None:
        """Decide about this VM again."""
        self._refused = True
        if action.vm not in self._given_up:
            self.outcome.left[action.vm] = self.outcome.left.get(action.vm, 0) + 1

    def _find_unmoved(self, action: Join | Open) -> VmView | None:
        """The VM, if it is where the decision saw it."""
        vm = self._cache.vms.get(action.vm)
        return vm if vm is not None and vm.host == action.vm_host and action.vm not in self._given_up else None

    async def _join(self, joins: Sequence[Join]) -> None:
        name = self._names.get(joins[0].slot, joins[0].slot)
        for _ in range(REREADS):
            mine = self._select_allowed(joins, name)
            for join in joins:
                if join not in mine:
                    self._leave(join)
            joins = mine
            if not joins:
                return
            slot, view = self._changes._find_reservation(name), self._cache.slots[name]
            assert slot is not None, "the cache shows it"
            try:
                members = {**view.members, **{join.vm: join.vm_host for join in joins}}
                await self._writer.set_members(slot, members)
            except Conflict:
                if not await self._changes._reread(name) or self._checked:
                    break
                continue
            except OutliveError as error:
                # The attempt of the first is spent, the others are decided about again; the slot is closed for now.
                first = joins[0]
                self.outcome.failed += 1
                self.outcome.closed.add(name)
                self.outcome.fails[first.vm] = _store_failed(first.vm, f"joining slot {name}", error)
                _log.warning("slot.not_joined", slot=name, vm=first.vm, error=str(error))
                for join in joins[1:]:
                    self._leave(join)
                return
            for number, join in enumerate(joins, len(view.members) + 1):
                with request_context(req=self._requests.get(join.vm, "")):
                    self.outcome.reused += 1
                    self._joined_last[join.vm] = name
                    self._reporter.slot_event(
                        FailoverEvent.SLOT_REUSED, name, view.uid, vm=join.vm, host=view.host, members=number
                    )
                    _log.debug("slot.reused", slot=name, host=view.host, vm=join.vm, members=number)
            return
        for join in joins:
            self._leave(join)

    def _select_allowed(self, joins: Sequence[Join], name: str) -> list[Join]:
        """Those that may join the slot as it is now, one beside the other."""
        if name not in self._cache.slots or name in self.outcome.closed:
            return []
        found: list[Join] = []
        with self._cache.index.begin_trial():
            for join in joins:
                vm = self._find_unmoved(join)
                if vm is None or self._cache.slots[name].host != join.host:
                    continue
                if (self._checked and serves(vm, self._cache.slots[name])) or self._changes.may_join(vm, name):
                    found.append(join)
                    self._cache.index.join(vm.id, name)
        return found

    async def _leave_slot(self, action: Leave) -> None:
        """Take a VM out of a slot that it has others instead of."""
        cache, name = self._cache, action.slot
        slot, view = self._changes._find_reservation(name), cache.slots.get(name)
        if slot is None or view is None or action.vm not in view.members:
            return
        if action.vm in self.outcome.left or action.vm in self.outcome.fails:
            return  # it has not joined what it was to have instead
        left = {member: host for member, host in view.members.items() if member != action.vm}
        try:
            if left:
                await self._writer.set_members(slot, left)
            else:
                await self._writer.delete(slot)
        except OutliveError as error:
            self._refused = True
            cache.mark((action.vm,))
            _log.warning("slot.not_left", slot=name, vm=action.vm, error=str(error))
            return
        to = self._joined_last.get(action.vm, "")
        self._reporter.slot_event(FailoverEvent.MEMBER_REPACKED, name, view.uid, vm=action.vm, to=to)

    async def _open(self, action: Open) -> None:
        vm = self._find_unmoved(action)
        if vm is None or not (self._checked or self._changes.may_open(vm, action)):
            self._leave(action)
            return
        try:
            slot = await self._writer.open(action, {action.vm: action.vm_host}, global_request_id())
        except OutliveError as error:
            self.outcome.failed += 1
            self.outcome.fails[action.vm] = _store_failed(action.vm, f"creating a slot on {action.host}", error)
            self._given_up.add(action.vm)
            self._refused = True
            _log.warning("slot.not_created", host=action.host, vm=action.vm, error=str(error))
            return
        self._names[action.slot_key] = slot.name
        self.outcome.created += 1
        self._joined_last[action.vm] = slot.name
        self.outcome.opened.append(action.host)
        self._reporter.slot_event(
            FailoverEvent.SLOT_CREATED, slot.name, slot.metadata.uid, host=action.host, vm=action.vm
        )
        _log.debug("slot.created", slot=slot.name, host=action.host, vm=action.vm)


def _batch_joins(actions: Iterable[Action]) -> Iterator[Sequence[Action]]:
    """The actions in order; joins that follow each other into one slot are one write.

    Only those: were all who join one slot brought forward, a failure in between would leave everybody in that slot and
    nobody in another, a state from which the plan finds no second slot for them.
    """
    batch: list[Action] = []
    for action in actions:
        last = batch[-1] if batch else None
        joins = isinstance(action, Join) and isinstance(last, Join) and action.slot == last.slot
        if batch and (not joins or len(batch) >= JOINS_TOGETHER):
            yield batch
            batch = []
        batch.append(action)
    if batch:
        yield batch


def _store_failed(vm: str, doing: str, error: OutliveError) -> Fail:
    reason = Reason(CoverageReason.STORE_FAILED, {"doing": doing, "error": error.message})
    said = render(reason)
    return Fail(vm=vm, reason=reason.code, detail=said.text, remedy=said.remedy)
