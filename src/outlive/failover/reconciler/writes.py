"""Every write that failover makes to a slot, one at a time, each safe to be the last before a crash.

A slot is created in two writes, because a creation never carries a status: first the object, then host and first
member. Between them it is *statusless*: it holds its space, counts for nobody, and is deleted after a grace period if
the second write never comes. Everything else is one compare-and-swap of the status.

A lost answer (``Unknown``) is resolved by a fresh read: names of new slots are drawn here, so the creator can look for
exactly his own, and a status is recognised by being what was written. Nothing is retried blindly.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from outlive.base import AlreadyExists, Clock, Conflict, Ids, NotFound, OutliveError, Unknown, as_datetime, get_logger
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Action, Join, Leave, Open
from outlive.failover.planner.cleanup import Cause, Deletion
from outlive.failover.planner.repack import RepackMove
from outlive.failover.report.reporter import Reporter
from outlive.failover.slots import name_prefix
from outlive.resources import (
    CREATOR_LABEL,
    FAILOVER,
    REQUEST_ID_ANNOTATION,
    RESERVATION_TYPE_LABEL,
    TYPE_LABEL_VALUES,
    Amounts,
    Condition,
    FailoverSpec,
    FailoverStatus,
    Hypervisor,
    ObjectMeta,
    ObjectRef,
    Reservation,
    ReservationSpec,
    ReservationStatus,
    VirtualMachine,
    with_condition,
)
from outlive.runtime import OrderedTaskGroup, Requeue
from outlive.store import Store, read, swap

NAME_TRIES = 5
"""Names that are drawn for a new slot before giving up."""
ACTIVE_REASON = "ReservationActive"
HELD = "slot is held"
INVALID_REASON = "InvalidResources"

_log = get_logger("failover.writes")


class Shown(Protocol):
    """Shows this process its own writes at once (an informer)."""

    def note(self, obj: Reservation, *, replaced: str | None = None) -> None:
        """An acknowledged write."""
        ...

    def note_deleted(self, ref: ObjectRef) -> None:
        """An acknowledged deletion."""
        ...


class SlotWriter:
    """Writes slots. Errors are the store's; ``Conflict`` means that the slot is not what the caller believes."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        ids: Ids,
        creator: str,
        shown: Shown | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._creator = creator
        self._shown = shown

    async def read_fresh(self, name: str) -> Reservation:
        """The slot as it is now; ``NotFound``."""
        return await self._store.get(Reservation, name, fresh=True)

    async def set_members(self, slot: Reservation, members: Mapping[str, str]) -> Reservation:
        """Replace the membership; the change is as of now, and unacknowledged."""
        status = msgspec.structs.replace(slot.status, failover_reservation=self._changed_status(members))
        return await self._swap(slot, status)

    def _changed_status(self, members: Mapping[str, str]) -> FailoverStatus:
        return FailoverStatus(allocations=dict(sorted(members.items())), last_changed=as_datetime(self._clock.now()))

    async def acknowledge(self, slot: Reservation) -> Reservation:
        """The last change was validated, now."""
        failover = slot.status.failover_reservation or FailoverStatus()
        changed = msgspec.structs.replace(failover, acknowledged_at=as_datetime(self._clock.now()))
        return await self._swap(slot, msgspec.structs.replace(slot.status, failover_reservation=changed))

    async def set_ready(self, slot: Reservation, why_not: str = "", *, reason: str = INVALID_REASON) -> Reservation:
        """Set the ``Ready`` condition: held, or why not, by default because its resources are not legal."""
        return await self._swap(slot, self._with_ready(slot.status, not why_not, why_not or HELD, reason))

    def _with_ready(self, status: ReservationStatus, ready: bool, message: str, reason: str) -> ReservationStatus:
        wanted = Condition(
            type="Ready",
            status="True" if ready else "False",
            reason=ACTIVE_REASON if ready else reason,
            message=message,
            last_transition_time=as_datetime(self._clock.now()),
        )
        return msgspec.structs.replace(status, conditions=with_condition(status.conditions, wanted))

    async def open(self, new: Open, members: Mapping[str, str], request_id: str = "") -> Reservation:
        """Create a slot, then give it host and members. An error means that nothing is known to exist.

        ``request_id``: the global one of the run that creates it.
        """
        created = await self._create(new, request_id)
        self._show(created, replaced="")
        status = ReservationStatus(host=new.host, failover_reservation=self._changed_status(members))
        status = self._with_ready(status, True, HELD, INVALID_REASON)
        try:
            return await self._swap(created, status)
        except OutliveError as error:
            _log.warning("slot.status_not_written", slot=created.name, vm=new.vm, error=str(error))
            return msgspec.structs.replace(created, status=status)

    async def delete(self, slot: Reservation) -> None:
        """Delete exactly this state of the slot; already gone is fine. ``Conflict`` if it changed meanwhile."""
        try:
            await self._store.delete(slot.ref, uid=slot.metadata.uid, version=slot.metadata.resource_version)
        except NotFound:
            pass
        except Unknown:
            found = await read(self._store, Reservation, slot.name)
            if found is not None and found.metadata.uid == slot.metadata.uid and not found.metadata.deletion_timestamp:
                raise
        if self._shown is not None:
            self._shown.note_deleted(slot.ref)

    async def _create(self, new: Open, request_id: str) -> Reservation:
        """The object without a status, under a name of its own."""
        labels = {CREATOR_LABEL: self._creator, RESERVATION_TYPE_LABEL: TYPE_LABEL_VALUES[FAILOVER]}
        annotations = {REQUEST_ID_ANNOTATION: request_id} if request_id else {}
        spec = ReservationSpec(
            type="FailoverReservation",
            scheduling_domain="nova",
            availability_zone=new.zone,
            resources=Amounts(cpu=new.cpu_milli, memory=new.memory_bytes),
            target_host=new.host,
            failover_reservation=FailoverSpec(resource_group=new.group),
        )
        for _ in range(NAME_TRIES):
            name = name_prefix(new.zone) + self._ids.new_suffix()
            wanted = Reservation(metadata=ObjectMeta(name=name, labels=labels, annotations=annotations), spec=spec)
            try:
                return await self._store.create(wanted)
            except AlreadyExists:
                continue
            except Unknown as error:
                return await self._find_created(wanted, error)
        raise Conflict(
            f"{NAME_TRIES} names for a slot in zone {new.zone!r} were all taken", remedy="the next cycle tries again"
        )

    async def _find_created(self, wanted: Reservation, lost: Unknown) -> Reservation:
        """After a lost answer: the object, if the creation was applied; its spec and request id are the nonce."""
        try:
            found = await self.read_fresh(wanted.name)
        except NotFound:
            raise lost from None
        if found.spec != wanted.spec or found.metadata.annotations != wanted.metadata.annotations:
            raise lost
        return found

    async def _swap(self, slot: Reservation, status: ReservationStatus) -> Reservation:
        written = await swap(self._store, msgspec.structs.replace(slot, status=status))
        self._show(written, replaced=slot.metadata.resource_version)
        return written

    def _show(self, written: Reservation, *, replaced: str) -> None:
        if self._shown is not None:
            self._shown.note(written, replaced=replaced)


# Carries out a plan of a whole fleet: each slot is written once in a stage, with all its members.
#
# A slot's memberships were decided together with all others, and every part of them obeys the rules (taking
# memberships away never breaks one), so the writes are safe to stop after any of them. Slots that exist are replaced
# exactly as they were seen; one that changed meanwhile is left to the cycle, unless somebody is to leave a slot for
# it.

WRITES_AT_ONCE = 16
"""Slots that are written at the same time."""

_plan_log = get_logger("failover.plan")


async def write_plan(
    writer: SlotWriter,
    actions: Iterable[Action],
    objects: Mapping[str, Reservation],
    *,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Write every slot that the plan changes. The first error of the store ends it.

    The actions are carried out in stages, each of which opens slots and lets VMs join before VMs leave. ``Conflict``
    where somebody changed a slot of a stage in which VMs are to leave: they are left where they are.
    """
    work = _Writing(writer, objects, progress)
    try:
        for stage in split_stages(actions):
            await work.join([action for action in stage if isinstance(action, Open | Join)])
            leaves = [action for action in stage if isinstance(action, Leave)]
            if leaves and work.changed_meanwhile:
                raise Conflict("a slot was changed meanwhile", remedy="repeat: a new plan goes on from there")
            await work.leave(leaves)
    except OutliveError as error:
        message = f"{error.message}; {work.opened} slots were opened, {work.joined} joined and {work.left} left"
        raise type(error)(message, place=error.place, remedy="repeat: a new plan goes on from there") from error


def split_stages(actions: Iterable[Action]) -> Iterator[Sequence[Action]]:
    """Joins and openings with the departures that follow them."""
    stage: list[Action] = []
    for action in actions:
        if stage and isinstance(stage[-1], Leave) and not isinstance(action, Leave):
            yield stage
            stage = []
        stage.append(action)
    if stage:
        yield stage


def actions_of(moves: Iterable[RepackMove], slots: Mapping[str, SlotView]) -> list[Action]:
    """Moves of a repacking as actions of a plan, each a stage of its own, up to the first into a slot that is gone."""
    actions: list[Action] = []
    for move in moves:
        if move.joins and move.joins not in slots:
            break
        if move.joins:
            host = slots[move.joins].host
            actions.append(Join(slot=move.joins, vm=move.vm, vm_host=move.vm_host, host=host))
        actions.append(Leave(slot=move.leaves, vm=move.vm))
    return actions


class _Writing:
    """The slots while a plan is written."""

    def __init__(self, writer: SlotWriter, objects: Mapping[str, Reservation], progress: Callable[[int], None]) -> None:
        self.opened = self.joined = self.left = 0
        self.changed_meanwhile = False
        """Whether some slot was left alone because somebody else had changed it."""
        self._writer = writer
        self._objects = dict(objects)
        """By name, those that the plan opens by their key."""
        self._progress = progress
        self._done = 0

    async def join(self, actions: Sequence[Open | Join]) -> None:
        """Open slots and let VMs join, one write a slot."""
        opened = {action.slot_key: action for action in actions if isinstance(action, Open)}
        more: dict[str, dict[str, str]] = {}
        for action in actions:
            name = action.slot_key if isinstance(action, Open) else action.slot
            more.setdefault(name, {})[action.vm] = action.vm_host

        async def write(name: str) -> None:
            if name in opened:
                self._objects[name] = await self._writer.open(opened[name], more[name])
                self.opened += 1
            else:
                await self._set(name, {**self._objects[name].members, **more[name]})
                self.joined += 1

        await self._write_all(list(more), write)

    async def leave(self, actions: Sequence[Leave]) -> None:
        """Take VMs out of slots, one write a slot; slots without members go."""
        gone: dict[str, set[str]] = {}
        for action in actions:
            gone.setdefault(action.slot, set()).add(action.vm)

        async def write(name: str) -> None:
            left = {vm: host for vm, host in self._objects[name].members.items() if vm not in gone[name]}
            if left:
                await self._set(name, left)
            else:
                await self._writer.delete(self._objects.pop(name))
            self.left += 1

        await self._write_all(list(gone), write)

    async def _set(self, name: str, members: Mapping[str, str]) -> None:
        self._objects[name] = await self._writer.set_members(self._objects[name], members)

    async def _write_all(self, names: Sequence[str], write: Callable[[str], Awaitable[None]]) -> None:
        work, failures = iter(names), list[OutliveError]()

        async def write_next() -> None:
            for name in work:
                if failures:
                    return
                try:
                    await write(name)
                except (Conflict, NotFound) as error:
                    _plan_log.warning("slot.changed_meanwhile", slot=name, error=str(error))
                    self.changed_meanwhile = True
                except OutliveError as error:
                    failures.append(error)
                self._done += 1
                self._progress(self._done)

        async with OrderedTaskGroup() as group:
            for number in range(WRITES_AT_ONCE):
                group.create_task(write_next(), name=f"plan {number}")
        if failures:
            raise failures[0]


# Slots that have done what they were for, or never can: they go, whatever a cycle is doing.
#
# A slot with a consumer holds its space until that VM runs on the slot's host and is among its VMs, or is gone; a
# slot on a host that is proven dead holds nothing that anybody could use. Both rest on facts of one object each and
# on no figure, so no brake and no budget is asked; what the members miss then, upkeep gives them again. Not promised:
# that a slot goes before anything else happens to it; until then it counts for nobody
# (``outlive.failover.slots.slot_view``).

_using_log = get_logger("failover.using")


class UsedSlots:
    """The controller of slots that are used up or lost; its keys are names of reservations."""

    name = "failover-used-slots"

    def __init__(
        self,
        store: Store,
        hosts: Callable[[str], Hypervisor | None],
        slots_on: Callable[[str], Iterable[Reservation]],
        consumed_by: Callable[[str], Iterable[Reservation]],
        writer: SlotWriter,
        reporter: Reporter,
    ) -> None:
        """``hosts``: a host as it was last seen."""
        self._store = store
        self._hosts = hosts
        self._slots_on = slots_on
        self._consumed_by = consumed_by
        self._writer = writer
        self._reporter = reporter

    async def reconcile(self, key: str) -> Requeue | None:
        """Delete the slot if its time has come."""
        try:
            slot = await self._store.get(Reservation, key, fresh=True)
        except NotFound:
            return None
        deletion = await self._find_deletion(slot)
        if deletion is None:
            return None
        try:
            await self._writer.delete(slot)
        except Conflict:
            return Requeue(0.0)
        _using_log.info(
            "slot.over", slot=slot.name, host=slot.status.host, cause=deletion.cause.value, why=deletion.detail
        )
        self._reporter.slot_deleted(slot.metadata.uid, deletion)
        return None

    async def _find_deletion(self, slot: Reservation) -> Deletion | None:
        if slot.spec.type != FAILOVER or not slot.status.host:
            return None
        host, consumer = self._hosts(slot.status.host), slot.status.consumer
        if host is not None and host.status.lost:
            detail = f"its host {host.name} is proven dead by fence {host.status.lost}"
            return Deletion(slot=slot.name, cause=Cause.HOST_LOST, detail=detail)
        if consumer is None:
            return None
        try:
            vm = await self._store.get(VirtualMachine, consumer.vm, fresh=True)
        except NotFound:
            return Deletion(slot=slot.name, cause=Cause.CONSUMER_GONE, detail=f"VM {consumer.vm} is gone")
        if host is not None and _has_arrived(vm, host):
            detail = f"VM {consumer.vm} has arrived on {host.name}: what the slot held is part of its allocation"
            return Deletion(slot=slot.name, cause=Cause.CONSUMED, detail=detail)
        return None

    # Which slots need a look

    def keys_of_slot(self, _old: Reservation | None, new: Reservation | None) -> list[str]:
        """The slot itself, if it has a consumer or its host is lost."""
        if new is None or new.spec.type != FAILOVER:
            return []
        host = self._hosts(new.status.host)
        over = new.status.consumer is not None or (host is not None and host.status.lost)
        return [new.name] if over else []

    def keys_of_host(self, old: Hypervisor | None, new: Hypervisor | None) -> list[str]:
        """All slots of a host that is lost, and the consumed ones of a host whose VMs are others than before."""
        if new is None:
            return []
        slots = sorted(self._slots_on(new.name), key=lambda one: one.name)
        if new.status.lost and (old is None or not old.status.lost):
            return [slot.name for slot in slots]
        if old is not None and old.status.instances == new.status.instances:
            return []
        return [slot.name for slot in slots if slot.status.consumer is not None]

    def keys_of_vm(self, old: VirtualMachine | None, new: VirtualMachine | None) -> list[str]:
        """The slots whose consumer is gone, or is somewhere else, or in another state, than before."""
        vm = new if new is not None else old
        if vm is None or (old is not None and new is not None and old.status == new.status):
            return []
        return [slot.name for slot in self._consumed_by(vm.name)]


def _has_arrived(vm: VirtualMachine, host: Hypervisor) -> bool:
    """Whether the host lists it, and it is there: a list may be of a time when the VM was there once before."""
    where = vm.host
    if where != host.name or all(one.id != vm.name for one in host.status.instances):
        return False
    return host.spec.management != "node" or any(
        one.hypervisor == host.name and one.seen == "running" for one in vm.status.holders
    )
