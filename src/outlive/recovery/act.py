"""Carrying a plan of recovery out: one compare-and-swap after the other, each safe to stop after.

Every write is a protocol step attempted on what a fresh read shows, so an old plan, a second leader or a crash in
between costs a refused step and nothing else. Order of the writes for one VM: the slot's consumer, the label by which
the target finds the VM, the assignment. What a step refuses is left to the next look.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, assert_never

import msgspec

from outlive.base import AlreadyExists, Clock, NotFound, as_datetime, get_logger
from outlive.node.membership import PauseGate
from outlive.node.vm import end_phase, is_ignored, reach_of, set_phase
from outlive.recovery import states as records
from outlive.recovery.informers import RecoveryInformers
from outlive.recovery.model import ActionKind, Reclaim, RecoveryAction, Release, claim_is_over
from outlive.recovery.report import RecoveryReporter
from outlive.recovery.states import ASSIGN, CLAIM, DROP, REMOVE, AssignView, ClaimView, RemoveView, is_recovered
from outlive.recovery.view import RecoveryObserver
from outlive.resources import (
    CLUSTER,
    HOST_LABEL,
    MIGRATING,
    RUN_FINALIZER,
    Answer,
    Cluster,
    ClusterStatus,
    Consumer,
    Hypervisor,
    Membership,
    ObjectMeta,
    Pause,
    R,
    Reservation,
    VirtualMachine,
    VirtualMachineStatus,
    VmState,
    is_to_run,
)
from outlive.resources.reasons import PlanReason, VmReason, render
from outlive.runtime import DecisionLog, Informer, Refusal
from outlive.store import Half, Store, change_status, read, require_answer, swap

SHUT_DOWN: Final = MIGRATING | {VmState.START, VmState.RESTART, VmState.SHUTDOWN}
"""Phases that have come to an end when nothing of the VM is left and nobody wants it to run."""

_CLAIM, _ASSIGN, _DROP, _REMOVE = CLAIM.decision, ASSIGN.decision, DROP.decision, REMOVE.decision
_replace = msgspec.structs.replace
_log = get_logger("recovery")


class StepRefused(Exception):
    """A step was refused on what a fresh read shows: the plan was old."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.step}: {refusal.why}")
        self.refusal = refusal


class RecoveryActions:
    """Carries out actions; errors are the store's, and ``StepRefused``."""

    def __init__(
        self,
        store: Store,
        informers: RecoveryInformers,
        observer: RecoveryObserver,
        report: RecoveryReporter,
        pause: PauseGate,
        *,
        decisions: DecisionLog,
        clock: Clock,
    ) -> None:
        self._store = store
        self._observer = observer
        self._report = report
        self._pause = pause
        self._vms = informers.vms
        self._reservations = informers.reservations
        self._hypervisors = informers.hypervisors
        self._clusters = informers.clusters
        self._decisions = decisions
        self._clock = clock
        self._quarantining = asyncio.Lock()

    def is_done(self, action: RecoveryAction) -> bool:
        """Whether the caches show that there is nothing to write."""
        vm = self._vms.get(action.vm)
        match action.kind:
            case ActionKind.HOLD:
                return vm is not None and self._is_held_so(vm, action)
            case ActionKind.WAIT:
                return vm is None or not _is_mislabelled(vm)
            case ActionKind.SEARCH:
                return True
            case _:
                return False

    async def carry_out(self, action: RecoveryAction) -> None:
        """One action; ``WAIT`` and ``SEARCH`` write nothing, except that a label that leads astray is put right."""
        match action.kind:
            case ActionKind.SLOT | ActionKind.PLACE:
                vm = await self._read_fresh(VirtualMachine, action.vm)
                self._check_rules(vm, action)
                slot = None
                if action.slot:
                    await self._check_assign(vm, action)
                    slot = await self._claim_for(action.slot, action.vm, action.fence)
                home = vm.status.home or vm.host  # it keeps its home; without one that is the host that it was lost on
                await self._assign(vm, action, slot, home="" if home == action.host else home)
            case ActionKind.HOLD:
                await self._hold(action)
            case ActionKind.DROP:
                await self._drop(action)
            case ActionKind.DONE:
                await self._close(action)
            case ActionKind.WAIT:
                # a host finds its VMs by the label: one that was set and not followed by an assignment hides the VM
                vm = await self._read_fresh(VirtualMachine, action.vm)
                where = vm.status.assigned
                if _is_mislabelled(vm) and where is not None:
                    await self._label(vm, where.hypervisor)
            case ActionKind.SEARCH:
                pass
            case _:
                assert_never(action.kind)

    # The two writes of row R

    async def send_as_asked(self, vm: VirtualMachine, action: RecoveryAction, answer: Answer, home: str) -> None:
        """Assign it to the host that a user wants, and answer that in the same write; ``home`` empty: that host."""
        await self._assign(vm, action, None, answered=answer, home=home or action.host)

    async def write_answer(self, vm: VirtualMachine, status: VirtualMachineStatus, host: str) -> None:
        """Write the status with the answer; ``host``: where that assigns it, if anywhere else."""
        await self._swap_status(await self._label(vm, host) if host else vm, status)

    async def _assign(
        self, vm: VirtualMachine, action: RecoveryAction, slot: Reservation | None, **changes: object
    ) -> None:
        if slot is None:
            await self._check_assign(vm, action)
        vm = await self._label(vm, action.host)
        outcome = self._decisions.use(_ASSIGN, await self._assign_view(vm, action, slot), subject=vm.name)
        if outcome.refused is not None:
            raise StepRefused(outcome.refused)
        record = records.enter_assigned(
            vm,
            action,
            outcome.proofs,
            as_datetime(self._clock.now()),
            forgiven=self._observer.is_forgiven(vm),
            before=self._observer.last_recovery(vm),
            failures=self._observer.host_failures(vm),
        )
        status = _replace(
            set_phase(vm.status, VmState.START),
            holders=(),
            assigned=outcome.assigned,
            migration=None,
            rejection=None,
            recovery=record,
            **changes,
        )
        written = await self._swap_status(vm, status)
        self._report.report_assigned(vm, written, action, outcome.proofs)

    def _check_rules(self, vm: VirtualMachine, action: RecoveryAction) -> None:
        """``StepRefused`` where a rule of the VM closes the host by now. What this process wrote is seen at once; a
        move to that host by its owner yields to an assignment when it arrives there."""
        going_on = vm.host == action.host and action.reason.code == PlanReason.MOVED_THERE
        refusal = None if going_on else self._observer.judge(vm, action.host).refusal
        if refusal is not None:
            raise StepRefused(Refusal(step=ASSIGN.name, precondition="rules", why=render(refusal).text))

    async def _assign_view(self, vm: VirtualMachine, action: RecoveryAction, slot: Reservation | None) -> AssignView:
        return AssignView(
            vm=vm.name,
            fence=action.fence,
            wanted=is_to_run(vm) and (not is_ignored(vm) or action.reason.code == PlanReason.ASKED_THERE),
            holders=vm.status.holders,
            assigned=vm.status.assigned,
            members=self._observer.find_members(vm.status.holders),
            reach=reach_of(vm),
            target=action.host,
            slot=slot.name if slot is not None else "",
            slot_uid=slot.metadata.uid if slot is not None else "",
            consumer=slot.status.consumer if slot is not None else None,
            paused=self._observer.is_paused() or await self._pause.is_paused(),
        )

    async def _check_assign(self, vm: VirtualMachine, action: RecoveryAction) -> None:
        """``StepRefused`` before anything is written for a step that is refused, as yet of no slot."""
        refusal = ASSIGN.attempt(await self._assign_view(vm, action, None)).refused
        if refusal is not None:
            raise StepRefused(refusal)

    async def _claim_for(self, name: str, vm: str, fence: str) -> Reservation:
        slot = await self._read_fresh(Reservation, name)
        members = slot.status.failover_reservation
        view = ClaimView(
            vm=vm,
            fence=fence,
            slot=name,
            members=members.allocations if members is not None else {},
            consumer=slot.status.consumer,
            host_held=self._observer.is_live(slot.status.host),
        )
        outcome = self._decisions.use(_CLAIM, view, subject=vm)
        if outcome.refused is not None:
            raise StepRefused(outcome.refused)
        if slot.status.consumer == outcome.consumer:
            return slot
        return await self._consume(slot, outcome.consumer)

    async def _consume(self, slot: Reservation, consumer: Consumer | None) -> Reservation:
        return await self._swap(_replace(slot, status=_replace(slot.status, consumer=consumer)), self._reservations)

    async def release(self, release: Release) -> None:
        """The slot is free again, if it is still that VM's and the VM does not come in after all."""
        slot = await self._read_fresh(Reservation, release.slot)
        consumer = slot.status.consumer
        if consumer is None or consumer.vm != release.vm:
            return
        vm = await read(self._store, VirtualMachine, consumer.vm)
        if vm is not None and claim_is_over(self._observer.vm_state(vm), slot.name, slot.status.host) is None:
            return
        await self._consume(slot, None)
        _log.info("recovery.slot_released", slot=slot.name, vm=release.vm, reason=release.reason.code)

    async def reclaim(self, reclaim: Reclaim) -> None:
        """The slot is the VM's again, which is on its way into it."""
        vm = await self._read_fresh(VirtualMachine, reclaim.vm)
        where = vm.status.assigned
        if where is None or where.slot is None or where.slot.name != reclaim.slot or where.fence != reclaim.fence:
            return
        await self._claim_for(reclaim.slot, reclaim.vm, reclaim.fence)

    # The other writes

    async def _hold(self, action: RecoveryAction) -> None:
        vm = await self._read_fresh(VirtualMachine, action.vm)
        if self._is_held_so(vm, action):
            return
        record = records.enter_held(
            vm,
            action,
            as_datetime(self._clock.now()),
            before=self._observer.last_recovery(vm),
            failures=self._observer.host_failures(vm),
        )
        await self._swap_status(vm, _replace(vm.status, recovery=record))
        self._report.report_held(vm, action)

    def _is_held_so(self, vm: VirtualMachine, action: RecoveryAction) -> bool:
        failures = self._observer.host_failures(vm)
        return records.is_unfinished(vm) and records.is_held_so(vm.status.recovery, action, failures)

    async def _drop(self, action: RecoveryAction) -> None:
        vm = await self._read_fresh(VirtualMachine, action.vm)
        outcome = self._decisions.use(_DROP, await self._assign_view(vm, action, None), subject=vm.name)
        if outcome.refused is not None:
            raise StepRefused(outcome.refused)
        status = vm.status
        record = records.enter_dropped(vm, action, outcome.proofs, as_datetime(self._clock.now()))
        if not is_to_run(vm) and (status.phase in SHUT_DOWN or status.reason == VmReason.TO_BE_DISABLED):
            status = set_phase(status, *end_phase(vm))
        status = _replace(status, holders=(), migration=None, rejection=None, recovery=record)
        written = await self._swap_status(vm, status)
        self._report.report_dropped(vm, written, outcome.proofs)

    async def remove(self, name: str) -> None:
        """A VM that was deleted goes: nobody holds the very version that this write replaces."""
        vm = await self._read_fresh(VirtualMachine, name)
        if not vm.deleting or not vm.guarded:
            return
        paused = self._observer.is_paused() or await self._pause.is_paused()
        view = RemoveView(vm=name, holders=vm.status.holders, paused=paused)
        outcome = self._decisions.use(_REMOVE, view, subject=name)
        if outcome.refused is not None:
            raise StepRefused(outcome.refused)
        left = tuple(one for one in vm.metadata.finalizers if one != RUN_FINALIZER)
        await swap(self._store, _replace(vm, metadata=_replace(vm.metadata, finalizers=left)), "spec")
        _log.info("recovery.vm_removed", vm=name, deleted=str(vm.metadata.deletion_timestamp))

    async def _close(self, action: RecoveryAction) -> None:
        vm = await self._read_fresh(VirtualMachine, action.vm)
        if not records.is_unfinished(vm) or not is_recovered(vm, self._observer.find_members(vm.status.holders)):
            return
        vm = await self._label(vm, action.host)
        failures = self._observer.host_failures(vm)
        record = records.enter_recovered(vm, action, as_datetime(self._clock.now()), failures=failures)
        written = await self._swap_status(vm, _replace(vm.status, recovery=record))
        self._report.report_recovered(vm, written)

    async def _label(self, vm: VirtualMachine, host: str) -> VirtualMachine:
        if vm.metadata.labels.get(HOST_LABEL) == host:
            return vm
        metadata = _replace(vm.metadata, labels={**vm.metadata.labels, HOST_LABEL: host})
        return await self._swap(_replace(vm, metadata=metadata), self._vms, "spec")

    # Facts about hosts and store: no assignment waits for them

    async def mark(self, name: str) -> None:
        """Let the host's status say what its Membership says now: whether it is lost, its deaths, its quarantine."""
        with require_answer(f"host {name}"):
            member = await self._store.get(Membership, name, fresh=True)
            host = await self._store.get(Hypervisor, name, fresh=True)
        status = self._observer.updated_status(host, member)
        enters = status.quarantine is not None and host.status.quarantine is None
        async with self._quarantining if enters else contextlib.nullcontext():
            if enters:  # as many others are in quarantine as there are once this is written
                status = self._observer.updated_status(host, member)
            if status == host.status:
                return
            with require_answer(f"host {name}"):
                written = await self._store.replace_status(_replace(host, status=status))
            self._hypervisors.note(written, replaced=host.metadata.resource_version)
        if bool(status.lost) != bool(host.status.lost):
            _log.info("recovery.host_lost" if status.lost else "recovery.host_back", host=name, fence=status.lost)
        if (status.quarantine is None) != (host.status.quarantine is None):
            self._report.report_quarantine(written)

    async def name_store(self) -> None:
        """Write the store's own incarnation into ``Cluster.status``, and look whether the pause is over."""
        says, at = self._observer.incarnation(), as_datetime(self._clock.now())
        if self._clusters.get(CLUSTER) is None:
            with contextlib.suppress(AlreadyExists):
                await self._store.create(Cluster(metadata=ObjectMeta(name=CLUSTER)))

        def set_incarnation(cluster: Cluster) -> ClusterStatus | None:
            if cluster.status.knows(says):
                return None
            status = cluster.status
            _log.info("recovery.store_incarnation", incarnation=says)
            if status.store_incarnation == "" and not self._observer.cluster_is_lost(cluster):  # the first one
                return _replace(status, store_incarnation=says)
            return status.with_incarnation(says, Pause(since=at))

        await change_status(self._store, Cluster, CLUSTER, set_incarnation, clock=self._clock)
        await self._pause.is_paused()

    async def name_lost_places(self, places: tuple[str, ...]) -> None:
        """Have every host ask whether it reaches these places of storage."""

        def set_places(cluster: Cluster) -> ClusterStatus:
            return _replace(cluster.status, lost_places=places)

        await change_status(self._store, Cluster, CLUSTER, set_places, clock=self._clock)

    # Reading and writing

    async def _read_fresh(self, kind: type[R], name: str) -> R:
        found = await read(self._store, kind, name)
        if found is None:
            raise NotFound(f"{kind.kind()}/{name} does not exist")
        return found

    async def _swap_status(self, vm: VirtualMachine, status: VirtualMachineStatus) -> VirtualMachine:
        return await self._swap(_replace(vm, status=status), self._vms)

    async def _swap(self, wanted: R, cache: Informer[R], half: Half = "status") -> R:
        """Write exactly the version that was read; the cache shows it at once."""
        written = await swap(self._store, wanted, half)
        cache.note(written, replaced=wanted.metadata.resource_version)
        return written


def _is_mislabelled(vm: VirtualMachine) -> bool:
    where = vm.status.assigned
    return where is not None and vm.metadata.labels.get(HOST_LABEL) not in (None, where.hypervisor)
